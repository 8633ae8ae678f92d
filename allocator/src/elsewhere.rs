//! Leases whose processes have their pids in another PID namespace than ours.
//!
//! A pid that no process has here may belong to a process there: without more, `fgpu gc` in a pod would free
//! what the node's containers hold. So such a lease stays, unless its namespace is proven to be gone, and
//! with it all that was in it and below:
//!
//! - From the initial namespace every process can be seen. None is of that namespace: it is gone.
//! - A state directory on the root file system of a container (Docker in Docker) is that container's own:
//!   what another namespace wrote there is from its former life.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fgpu_spec::Nonce;

use crate::liveness::{self, Life};
use crate::{Lease, Process, Store};

/// The inode of the initial PID namespace, the same on every machine (`PID_NS_INIT_INO`, linux/nsfs.h).
const INITIAL: u64 = 0xeffffffc;

impl Store {
    /// Judges a lease of this boot.
    ///
    /// # Errors
    /// When it cannot be told; the lease must stay.
    pub(crate) fn judge(&self, lease: &Lease) -> io::Result<Life> {
        match (lease.pid_namespace, self.pid_namespace) {
            // One with an anchor depends on no process.
            (Some(there), Some(here)) if there != here && lease.anchor.is_none() => {
                self.judge_from(here, there)
            }
            _ => liveness::judge(&self.host, lease, &self.pid_file(&lease.grant.nonce)),
        }
    }

    /// Where a runtime may write the init's pid, besides [`Applicant::pid_file`](crate::Applicant::pid_file): in the
    /// grant's folder, which the program that uses it makes. A file that names no pid says that there is an
    /// init, and not which: the lease stays.
    pub fn pid_file(&self, nonce: &Nonce) -> PathBuf {
        self.container_dir(nonce).join("init.pid")
    }

    /// The container's init, if its runtime has written it down and it runs.
    ///
    /// # Errors
    /// It cannot be told.
    pub fn recorded_init(&self, lease: &Lease) -> io::Result<Option<Process>> {
        liveness::recorded_init(&self.host, lease, &self.pid_file(&lease.grant.nonce))
    }

    /// Whether the lease's processes have their pids in another PID namespace.
    pub fn is_elsewhere(&self, lease: &Lease) -> bool {
        lease.pid_namespace.zip(self.pid_namespace).is_some_and(|(there, here)| there != here)
    }

    fn judge_from(&self, here: u64, there: u64) -> io::Result<Life> {
        // The initial one never ends.
        let lives = there == INITIAL || self.host.sees_pid_namespace(there)?;
        if !lives && (here == INITIAL || is_on_root(&self.files.dir)?) {
            return Ok(Life::Dead);
        }
        Err(io::Error::other(
            "it was made in another PID namespace, and only there can be told whether anybody holds it \
             (--pid=host, hostPID: true)",
        ))
    }
}

/// Whether a directory is on the root file system. What a container shares with others is not.
fn is_on_root(directory: &Path) -> io::Result<bool> {
    Ok(directory.metadata()?.dev() == Path::new("/").metadata()?.dev())
}
