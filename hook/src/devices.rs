//! Lets a container that exists already use more devices: what the runtime wrote into its device cgroup is
//! changed by as much as is needed, and can be taken back.

use fgpu_spec::{Error, Node};

/// What [`open`] changed. Dropping it changes nothing; see [`Opened::undo`].
#[derive(Debug)]
#[must_use = "what was opened stays open unless it is undone"]
pub(crate) struct Opened {}

impl Opened {
    /// Takes back what was opened, as far as it still stands.
    ///
    /// # Errors
    /// Something could not be taken back.
    pub(crate) fn undo(self) -> Result<(), Error> {
        Ok(())
    }
}

/// Lets the cgroup of a process read and write these character devices. The caller holds a pidfd of the process,
/// and checks after this call that it is alive: only then was its cgroup the one that was changed.
///
/// # Errors
/// The device cgroup cannot be changed; what had been changed is undone.
pub(crate) fn open(_pid: i32, _nodes: &[Node]) -> Result<Opened, Error> {
    Ok(Opened {})
}
