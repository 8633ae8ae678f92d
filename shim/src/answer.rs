//! What a shim's `start` writes to its standard output, and the same with another address in it.
//!
//! There are three forms: a bare address (containerd 1.x), JSON with `version`, `address` and `protocol`
//! (2.0 to 2.2), and a protobuf `BootstrapResult` (2.3 on). Fields that are not known here stay as they are.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use containerd_shim::protos::bootstrap_api::BootstrapResult;
use containerd_shim::protos::protobuf::Message;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

const UNIX: &str = "unix://";

/// A parsed answer.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Just an address.
    Bare(String),
    /// A JSON object; each value as it was written.
    Json(Vec<(String, Box<RawValue>)>),
    /// The protobuf of 2.3; rust-protobuf keeps the fields that it does not know.
    Protobuf(Box<BootstrapResult>),
}

impl Answer {
    /// Parses what the stock shim's `start` wrote.
    pub(crate) fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let trimmed = bytes.trim_ascii();
        if trimmed.starts_with(b"{") {
            return parse_json(trimmed).context("the stock shim's answer is not the JSON it looks like");
        }
        match std::str::from_utf8(trimmed) {
            Ok(text) if text.starts_with(UNIX) => Ok(Self::Bare(text.to_owned())),
            _ => BootstrapResult::parse_from_bytes(bytes)
                .ok()
                .filter(|result| !result.address.is_empty())
                .map(|result| Self::Protobuf(Box::new(result)))
                .context("the stock shim's answer is neither an address nor JSON nor a BootstrapResult"),
        }
    }

    /// The socket that the answer names.
    pub(crate) fn socket(&self) -> anyhow::Result<PathBuf> {
        let (address, protocol) = match self {
            Self::Bare(address) => (address.clone(), "ttrpc".to_owned()),
            Self::Json(fields) => {
                let protocol = json_text(fields, "protocol").unwrap_or_else(|| "ttrpc".to_owned());
                (json_text(fields, "address").context("the stock shim's answer has no address")?, protocol)
            }
            Self::Protobuf(result) => (result.address.clone(), result.protocol.clone()),
        };
        if !protocol.eq_ignore_ascii_case("ttrpc") {
            bail!("the stock shim speaks {protocol:?}; a relay can only stand in front of ttrpc");
        }
        match address.strip_prefix(UNIX) {
            Some(path) if Path::new(path).is_absolute() => Ok(path.into()),
            _ => bail!("the stock shim listens at {address:?}, which is no unix socket"),
        }
    }

    /// The same answer with another socket, as bytes to write.
    pub(crate) fn with_socket(self, socket: &Path) -> anyhow::Result<Vec<u8>> {
        let address = address_of(socket)?;
        match self {
            Self::Bare(_) => Ok(address.into_bytes()),
            Self::Json(fields) => {
                let address = serde_json::to_string(&address)?;
                let fields = fields.iter().map(|(name, value)| {
                    let value = if name == "address" { &address } else { value.get() };
                    Ok(format!("{}:{value}", serde_json::to_string(name)?))
                });
                let fields: Vec<_> = fields.collect::<Result<_, serde_json::Error>>()?;
                Ok(format!("{{{}}}", fields.join(",")).into_bytes())
            }
            Self::Protobuf(mut result) => {
                result.address = address;
                result.write_to_bytes().context("cannot encode the answer to containerd")
            }
        }
    }
}

fn parse_json(bytes: &[u8]) -> anyhow::Result<Answer> {
    // `Map` keeps the order of the fields, `RawValue` their text.
    let order: Map<String, Value> = serde_json::from_slice(bytes)?;
    let mut texts: std::collections::HashMap<String, Box<RawValue>> = serde_json::from_slice(bytes)?;
    let fields = order.into_iter().filter_map(|(name, _)| texts.remove_entry(&name));
    Ok(Answer::Json(fields.collect()))
}

fn json_text(fields: &[(String, Box<RawValue>)], name: &str) -> Option<String> {
    let (_, value) = fields.iter().find(|(known, _)| known == name)?;
    serde_json::from_str(value.get()).ok()
}

/// A socket as containerd writes it.
pub(crate) fn address_of(socket: &Path) -> anyhow::Result<String> {
    let path = socket.to_str().with_context(|| format!("{} is not UTF-8", socket.display()))?;
    Ok(format!("{UNIX}{path}"))
}

#[cfg(test)]
mod tests;
