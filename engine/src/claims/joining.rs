//! Which containers may use what a claim holds.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fgpu_allocator::{Anchor, Lease, ResourceClaim, Store};
use fgpu_spec::{Code, Document, Error, PodOf, escape_for_display};

use crate::config::Config;

/// The socket of the node's DRA driver in the state directory. It reads the uid of a claim, sets the pods of
/// its leases as the API server knows them, and closes the connection.
pub const SOCKET: &str = "dra.sock";

/// How long the API server may take: a create waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// The claim that a container uses, `UID/REQUEST`, if any.
///
/// # Errors
/// `conflict` for several.
pub(crate) fn of(document: &Document) -> Result<Option<String>, Error> {
    let mut names = document.claims()?;
    names.dedup();
    match &names[..] {
        [] => Ok(None),
        [_] => Ok(names.pop()),
        [..] => Err(Error::new(
            Code::Conflict,
            "the container uses several requests of claims for GPUs: its share has one limit, so name one request; ask for \
             several equal GPUs with `count` in it"
                .to_owned(),
        )),
    }
}

/// The lease that a container may join: that of the claim `name`, if the container's pod is one of the claim's.
/// The plugin is asked to look again for a pod that the claim did not have when it was prepared.
///
/// # Errors
/// `denied` if it is not; `internal` if the claim is not prepared on this node.
pub(crate) fn joined(
    config: &Config,
    store: &Store,
    name: &str,
    document: &Document,
) -> Result<Lease, Error> {
    let shown = escape_for_display(name);
    let lease = prepared(store, name)?;
    let words = lease.anchor.as_ref().map_or(shown, Anchor::words);
    let Some(PodOf { uid: pod, .. }) = PodOf::of(&document.annotations()) else {
        return Err(Error::new(Code::Denied, format!("{words}: only containers of its pods may use it")));
    };
    if is_for(&lease, &pod) {
        return Ok(lease);
    }
    // Its second pod comes without a call of the kubelet.
    let asked = look_again(config, name);
    let lease = prepared(store, name)?;
    if is_for(&lease, &pod) {
        return Ok(lease);
    }
    let mut message =
        format!("{words}: it is not reserved for the pod with uid {}", escape_for_display(&pod));
    if let Err(error) = asked {
        let _ = write!(message, "; fgpu-dra cannot be asked: {error}");
    }
    Err(Error::new(Code::Denied, message))
}

fn prepared(store: &Store, name: &str) -> Result<Lease, Error> {
    let key = ResourceClaim::key_of(name);
    let lease = store.leases()?.into_iter().find(|lease| lease.key == key && lease.state.is_held());
    lease.ok_or_else(|| {
        let shown = escape_for_display(name);
        Error::new(
            Code::Internal,
            format!(
                "claim {shown} is not prepared on this node: fgpu-dra prepares it when its pod comes here"
            ),
        )
    })
}

fn is_for(lease: &Lease, pod: &String) -> bool {
    matches!(&lease.anchor, Some(Anchor::Claim(claim)) if claim.pods.contains(pod))
}

/// Has the plugin set the pods of a claim (`UID/REQUEST`) as the API server knows them.
fn look_again(config: &Config, name: &str) -> io::Result<()> {
    let uid = name.split('/').next().unwrap_or_default();
    let mut plugin = UnixStream::connect(config.state_dir.join(SOCKET))?;
    plugin.set_read_timeout(Some(PATIENCE))?;
    plugin.set_write_timeout(Some(PATIENCE))?;
    plugin.write_all(uid.as_bytes())?;
    plugin.shutdown(Shutdown::Write)?;
    // It closes the connection when it has looked.
    plugin.read(&mut [0]).map(drop)
}
