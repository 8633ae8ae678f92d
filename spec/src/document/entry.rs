//! Parts of a document as they are read and written.

use serde::{Deserialize, Serialize};

use crate::json::{Node, Object, items};
use crate::{Code, Error, escape_for_display};

/// The entries of a list that may be absent.
pub(super) fn entries<'a, T: Deserialize<'a>>(
    node: Option<&'a Node>,
    name: &str,
) -> Result<Vec<(&'a str, T)>, Error> {
    match node {
        Some(Node::Raw(text)) => items(text).map_err(|source| unreadable(name, &source)),
        _ => Ok(Vec::new()),
    }
}

/// The parser's message may quote a value: it is printed like anything else that a stranger wrote.
pub(super) fn unreadable(what: &str, source: &serde_json::Error) -> Error {
    Error::new(
        Code::Internal,
        format!(
            "config.json cannot be read, {what} is not as the OCI runtime specification has it: {}; the \
             container engine wrote it",
            escape_for_display(&source.to_string())
        ),
    )
}

pub(super) fn part<'a>(parent: &'a mut Object, key: &str) -> Result<&'a mut Object, Error> {
    parent.object_mut(key).ok_or_else(|| {
        Error::new(Code::Internal, format!("config.json cannot be edited: {key} is no object"))
    })
}

/// A serialisation fails only for a path that is not UTF-8.
pub(super) fn json<T: Serialize>(entry: &T) -> Result<String, Error> {
    serde_json::to_string(entry)
        .map_err(|source| Error::new(Code::Internal, format!("config.json cannot be edited: {source}")))
}
