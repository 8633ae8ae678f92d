//! Lets a container that exists already use more devices: what the runtime wrote into its device cgroup is
//! changed by as much as is needed, and can be taken back.
//!
//! ```text
//! /proc/<pid>/cgroup ─ cgroup: own and shared cgroups, by descriptor
//!                       ├ systemd: DeviceAllow of the container's scope (dbus)
//!                       ├ v1: devices.allow
//!                       └ v2: device programs (bpf; program: instructions; pin: files with programs)
//! ```
//!
//! systemd comes first: told of new devices it applies its whole list, and replaces its own program. What
//! then still forbids a device is changed; what allows it already is left alone. Only reading and writing is
//! allowed, not making nodes (`m`), and only in cgroups that are the container's own.

use fgpu_spec::{Code, DeviceNode, Error};

mod bpf;
mod cgroup;
mod dbus;
mod narrow;
mod pin;
mod program;
mod systemd;
mod v1;
mod v2;

use cgroup::{Cgroup, ProcessCgroups};
use systemd::Systemd;

pub use narrow::narrow;

/// What [`open`] changed. Dropping it changes nothing; see [`Opened::undo`].
#[derive(Debug, Default)]
#[must_use = "what was opened stays open unless it is undone"]
pub struct Opened {
    unit: Option<systemd::Added>,
    rules: Vec<v1::Added>,
    programs: Vec<v2::Replaced>,
}

/// Lets the cgroup of a process read and write these character devices. Where nothing limits devices, nothing
/// is done.
///
/// The process is to be one that is alone with its children in its cgroup, as a container's is when hooks
/// run. The caller holds a pidfd of it, and looks after this call whether it is alive: only then was this its
/// cgroup.
///
/// # Errors
/// [`Code::Internal`]: a cgroup that the container shares with others forbids a device, or what limits the
/// container cannot be read or changed. What had been changed is undone.
pub fn open(pid: i32, nodes: &[DeviceNode]) -> Result<Opened, Error> {
    let mut opened = Opened::default();
    match opened.extend(pid, nodes) {
        Ok(()) => Ok(opened),
        Err(error) => match opened.undo() {
            Ok(()) => Err(error),
            Err(more) => {
                Err(Error::new(error.code, format!("{}; and then: {}", error.message, more.message)))
            }
        },
    }
}

impl Opened {
    fn extend(&mut self, pid: i32, nodes: &[DeviceNode]) -> Result<(), Error> {
        if nodes.is_empty() {
            return Ok(());
        }
        let place = ProcessCgroups::of(pid)?;
        let mut pins = Vec::new();
        if let Some((unit, path)) = place.scope() {
            let unit = Systemd::of_the_node().allow(&unit, &path, nodes)?;
            (self.unit, pins) = (unit.added, unit.pins);
        }
        if let Some(branch) = place.v1 {
            v1::allow(branch, nodes, &mut self.rules)?;
        }
        if let Some(branch) = place.v2 {
            v2::allow(branch, nodes, &pins, &mut self.programs)?;
        }
        Ok(())
    }

    /// Whether everything was open already.
    pub fn is_empty(&self) -> bool {
        self.unit.is_none() && self.rules.iter().all(v1::Added::is_empty) && self.programs.is_empty()
    }

    /// Takes back what was opened, as far as it still stands. Goes on after an error.
    ///
    /// # Errors
    /// What could not be taken back, all of it.
    pub fn undo(self) -> Result<(), Error> {
        let unit = self.unit.iter().map(|added| Systemd::of_the_node().undo(added));
        let rules = self.rules.into_iter().rev().map(v1::Added::undo);
        let programs = self.programs.into_iter().rev().map(v2::Replaced::undo);
        let failed: Vec<String> =
            unit.chain(rules).chain(programs).filter_map(Result::err).map(|error| error.message).collect();
        if failed.is_empty() { Ok(()) } else { Err(Error::new(Code::Internal, failed.join("; "))) }
    }
}

/// What is to be said when a cgroup forbids a device and is not ours to change.
fn shared_forbids(cgroup: &Cgroup, node: &DeviceNode) -> Error {
    let (path, device) = (cgroup.path().display(), &node.path);
    let (major, minor) = (node.major, node.minor);
    let message = format!(
        "the cgroup {path}, which is not the container's alone, forbids {device} (c {major}:{minor}); allow it there \
         (for a systemd unit: systemctl set-property UNIT DeviceAllow=\"/dev/char/{major}:{minor} rw\"), or give the \
         container a cgroup of its own elsewhere"
    );
    Error::new(Code::Internal, message)
}

#[cfg(test)]
mod tests;
