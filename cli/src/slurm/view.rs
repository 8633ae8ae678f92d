//! The mount namespace of a job's tasks: the host's root with the job's share.
//!
//! A task enters the namespace of one that runs, if there is one, so that what one of them mounts is seen by
//! all, as without fgpu. The first makes it.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use fgpu_allocator::{Joined, Lease, Process};
use fgpu_engine::TASKS;
use fgpu_engine::lock::lock;
use fgpu_spec::{Code, Error};
use fgpu_wire::LIMITS_PATH;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns};
use rustix::fs::{CWD, Mode, OFlags, openat};

/// How long another task may take, which is a thousand times as long as it does.
const PATIENCE: Duration = Duration::from_secs(20);

/// The turn to look for a namespace or to make one. The process that makes one holds it until its task is in
/// there.
pub(super) fn turn(folder: &Path) -> Result<File, Error> {
    let path = folder.join(TASKS);
    let held = lock(&path, PATIENCE).map_err(|error| Error::io("lock", &path, &error))?;
    held.ok_or_else(|| {
        let message = format!("another task of the job has kept {} for {PATIENCE:?}", path.display());
        Error::new(Code::Internal, message)
    })
}

/// Enters the mount namespace of a task that runs with this share. `false`: none does.
///
/// # Errors
/// The kernel does not let us back from a namespace that is not one of the share's.
pub(super) fn enter_anothers(lease: &Lease, folder: &Path) -> Result<bool, Error> {
    let own = File::open("/proc/self/ns/mnt")
        .map_err(|error| Error::io("open", Path::new("/proc/self/ns/mnt"), &error))?;
    for one in &lease.joined {
        let Some(namespace) = namespace(one) else { continue };
        if setns(namespace.as_fd(), CloneFlags::CLONE_NEWNS).is_ok() {
            if has_share(folder) {
                return Ok(true);
            }
            setns(own.as_fd(), CloneFlags::CLONE_NEWNS)
                .map_err(|errno| Error::io("come back to", Path::new("/proc/self/ns/mnt"), &errno.into()))?;
        }
    }
    Ok(false)
}

/// The mount namespace of a process that still runs.
fn namespace(one: &Joined) -> Option<OwnedFd> {
    let path = format!("/proc/{}/ns/mnt", one.init.pid);
    let namespace = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    // Looked at afterwards: what was opened is its own then.
    (Process::of(one.init.pid) == Some(one.init)).then_some(namespace)
}

/// Whether the share's limits lie where the quota libraries read them.
fn has_share(folder: &Path) -> bool {
    let id = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    let limits = id(Path::new(LIMITS_PATH));
    limits.is_some() && limits == id(&folder.join("limits"))
}

/// Hides the driver's own files where they are not in the host's directories: a user who names them would
/// load the real libraries.
pub(super) fn hide(driver_root: &Path) -> Result<(), Error> {
    if driver_root == Path::new("/") {
        return Ok(());
    }
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("fgpu"), driver_root, Some("tmpfs"), flags, Some("size=4k,mode=755"))
        .map_err(|errno| Error::io("hide", driver_root, &errno.into()))
}

/// Waits until the plugin has closed its end of our standard input: its task is in our namespace then, or
/// dead.
pub(super) fn wait_for_task() {
    let _ = std::io::stdin().read(&mut [0]);
}
