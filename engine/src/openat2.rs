//! openat2(2) in what others change.
//!
//! Below a root (`RESOLVE_IN_ROOT`, `RESOLVE_BENEATH`) the kernel must know that `..` led to a parent inside
//! it. Whenever a rename or a mount *anywhere on the machine* falls into the look-up it does not, and gives
//! up with EAGAIN: "the caller may choose to retry". A busy node renames and mounts without an end, so every
//! caller asks again. A path without `..`, in itself and in its links, never meets this.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::{Errno, Result};

/// How often one look-up is tried. Beside three threads that do nothing but rename, 50 000 look-ups of forty
/// `..` each needed 2 attempts as a rule and 71 at most; a process that renames without an end costs its
/// container a hundredth of a second.
const ATTEMPTS: usize = 4096;

/// Opens `path` below `directory`, not to be inherited by a program that is started.
///
/// # Errors
/// Those of openat2(2). EAGAIN means that every attempt met a rename or a mount.
pub fn openat2(
    directory: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd> {
    let mut last = Errno::AGAIN;
    for _ in 0..ATTEMPTS {
        match rustix::fs::openat2(&directory, path.as_ref(), flags | OFlags::CLOEXEC, mode, resolve) {
            Err(errno @ (Errno::AGAIN | Errno::INTR)) => last = errno,
            result => return result,
        }
    }
    Err(last)
}

/// A machine that is busy.
#[cfg(test)]
pub(crate) mod busy {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread::JoinHandle;

    use rustix::fs::{CWD, RenameFlags, renameat_with};

    /// Threads that rename files of their own until this is dropped.
    pub(crate) struct Busy {
        stop: Arc<AtomicBool>,
        renamed: Arc<AtomicUsize>,
        threads: Vec<JoinHandle<()>>,
    }

    impl Busy {
        pub(crate) fn new() -> Self {
            let (stop, renamed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
            let threads = (0..3).map(|_| {
                let (stop, renamed) = (Arc::clone(&stop), Arc::clone(&renamed));
                std::thread::spawn(move || {
                    let folder = tempfile::tempdir().unwrap();
                    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
                    std::fs::create_dir(&one).unwrap();
                    std::fs::create_dir(&other).unwrap();
                    while !stop.load(Ordering::Relaxed) {
                        renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
                        renamed.fetch_add(1, Ordering::Relaxed);
                    }
                })
            });
            let threads = threads.collect();
            Self { stop, renamed, threads }
        }

        /// How often something was renamed.
        pub(crate) fn stop(self) -> usize {
            let renamed = Arc::clone(&self.renamed);
            drop(self);
            renamed.load(Ordering::Relaxed)
        }
    }

    impl Drop for Busy {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}
