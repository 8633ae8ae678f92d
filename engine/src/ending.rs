//! Inits that the kernel still takes down: a runtime may call poststop right after it sent SIGKILL.

use fgpu_allocator::{Key, Store};
use fgpu_spec::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How long is waited for one. That of a new container of the same name goes on running, and costs its
/// neighbour's poststop this much.
const DYING: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Waits a moment for the inits of a container that still run.
///
/// # Errors
/// The leases cannot be read.
pub fn wait(store: &Store, key: &Key) -> Result<(), Error> {
    let leases = store.leases()?;
    for init in leases.iter().filter(|lease| lease.key == *key).filter_map(|lease| lease.init) {
        let pidfd = Pid::from_raw(init.pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // The descriptor is the init's if the init still has its pid.
        if let Some(pidfd) = pidfd.filter(|_| init.is_alive()) {
            // However this ends: the leases of those that are dead then are released, and no others.
            let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&DYING));
        }
    }
    Ok(())
}
