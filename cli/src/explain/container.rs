//! `fgpu explain --container`: why a running container has no share, or which it has.

use std::path::PathBuf;

use fgpu_allocator::Store;
use fgpu_spec::{Code, Error};
use serde::Serialize;

use crate::find;
use crate::node::Node;
use crate::output::{Output, json};
use crate::overlooked::{self, Overlooked};
use crate::table::plain;

/// The answer of `fgpu explain --container`.
#[derive(Debug, Serialize)]
struct Told {
    container: String,
    /// What it asked for, and holds.
    request: Option<String>,
    /// Why it holds nothing though it seems to ask for something.
    why: Option<String>,
    mend: Option<String>,
}

/// Says which share a running container has, or why it has none.
///
/// # Errors
/// `invalid-request` if no running container or several are called so. One that asks in vain is no error but
/// [`Output::failure`].
pub(crate) fn container(node: &Node, what: &str, as_json: bool) -> Result<Output, Error> {
    let store = node.config.state_dir.exists().then(|| Store::open(&node.config.state_dir)).transpose()?;
    let leases = store.map(|store| store.leases()).transpose()?.unwrap_or_default();
    let (told, failure) = match find::find(&leases, what) {
        Ok(lease) => {
            let request = Some(lease.request.clone());
            (Told { container: lease.key.short(), request, why: None, mend: None }, None)
        }
        Err(error) if leases.iter().any(|lease| find::begins(&lease.key, what)) => return Err(error),
        Err(_) => {
            let place = |path: &str| PathBuf::from(path);
            match overlooked::of(&place, what, node.config.accept_env)? {
                Some(Overlooked { container, why, mend }) => {
                    let message = format!("{}: {why}; {mend}", plain(&container));
                    let told = Told { container, request: None, why: Some(why), mend: Some(mend) };
                    (told, Some(Error::new(Code::InvalidRequest, message)))
                }
                None => (Told { container: what.to_owned(), request: None, why: None, mend: None }, None),
            }
        }
    };
    let text = match (&told.request, as_json) {
        (_, true) => json(&told)?,
        (Some(request), _) => format!("{} holds what it asked for: {request}\n", plain(&told.container)),
        (None, _) if failure.is_none() => {
            format!("{} asks for no GPU, and has none of fgpu's.\n", plain(&told.container))
        }
        (None, _) => String::new(),
    };
    Ok(Output { text, failure, ..Output::default() })
}
