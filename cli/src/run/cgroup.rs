//! A cgroup of a command's own, below the one that we are in: by it is known when the last of its processes
//! has ended.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use fgpu_allocator::proc::cgroups;
use fgpu_spec::Nonce;
use libcgroups::common::get_all_pids;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use fgpu_engine::{cgroup_is_empty, cgroups_in};

/// The file of a cgroup's processes; one that writes "0" becomes one of them.
pub(super) const MEMBERS: &str = "cgroup.procs";
/// What the name of a run's cgroup begins with; the rest is its grant.
pub(super) const PREFIX: &str = "fgpu-run-";
/// Where cgroups are made, the first that there is: with v1 that of the devices controller.
pub(super) const HIERARCHIES: [&str; 2] = ["/sys/fs/cgroup/devices", "/sys/fs/cgroup"];
/// How often it is looked whether all have ended.
const PAUSE: Duration = Duration::from_millis(1);
/// How often an empty cgroup may refuse to go, until it is left to a later clean-up: it costs nothing.
const DYING: usize = 1000;

/// A cgroup; dropping it ends what is in it and removes it.
#[derive(Debug)]
pub(super) struct Cgroup {
    path: String,
    directory: PathBuf,
    members: File,
}

impl Cgroup {
    /// Makes one. `None` where that cannot be done (cgroupfs is read-only in a container, for example): then
    /// the share is free when the command ends, and what it left behind in the background is not ended.
    pub(super) fn make(nonce: &Nonce) -> Option<Self> {
        let lines = cgroups("self").ok()?;
        HIERARCHIES.into_iter().zip(cgroups_in(&lines)).find_map(|(hierarchy, own)| {
            let path = format!("{}/{PREFIX}{nonce}", own?.trim_end_matches('/'));
            let directory = Path::new(hierarchy).join(&path[1..]);
            // In a directory that is no cgroup, nothing would tell of its processes.
            directory.parent()?.join(MEMBERS).exists().then_some(())?;
            std::fs::create_dir(&directory).ok()?;
            match OpenOptions::new().write(true).open(directory.join(MEMBERS)) {
                Ok(members) => Some(Self { path, directory, members }),
                Err(_) => {
                    let _ = std::fs::remove_dir(&directory);
                    None
                }
            }
        })
    }

    /// Its path in its hierarchy, as `/proc/<pid>/cgroup` has it.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Its open `cgroup.procs`.
    pub(super) fn members(&self) -> BorrowedFd<'_> {
        self.members.as_fd()
    }
}

impl Cgroup {
    /// Kills all processes in it. Returns whether none is left.
    fn end(&self) -> bool {
        // All of them at once, also those that are being forked and those without a pid here (Linux 5.14, of
        // v2 only: cgroup-v2.rst, "cgroup.kill").
        match std::fs::write(self.directory.join("cgroup.kill"), "1") {
            Ok(()) => cgroup_is_empty(&self.path),
            Err(_) => !kill_all(&self.directory),
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Until no process is left: one that is not to be killed now (uninterruptible, say) still uses the
        // share.
        while !self.end() {
            std::thread::sleep(PAUSE);
        }
        for _ in 0..DYING {
            if remove(&self.directory) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// Ends all processes of the cgroup of this path and of those below it, in each hierarchy that has it. Gives
/// up after `patience`: one may be uninterruptible. Does nothing for the root of a hierarchy, which has the
/// processes of the whole node.
pub(crate) fn end_all(path: &str, patience: Duration) {
    let relative = Path::new(path.trim_start_matches('/'));
    let is_plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    if relative.as_os_str().is_empty() || !is_plain {
        return;
    }
    let until = Instant::now() + patience;
    let roots = std::iter::once(PathBuf::from("/sys/fs/cgroup")).chain(children(Path::new("/sys/fs/cgroup")));
    let folders: Vec<_> = roots.map(|root| root.join(relative)).collect();
    loop {
        // All at once where it can be (cgroup-v2.rst, "cgroup.kill").
        let left = folders
            .iter()
            .filter(|folder| std::fs::write(folder.join("cgroup.kill"), "1").is_err() && kill_all(folder));
        let left = left.count() > 0 || !cgroup_is_empty(path);
        if !left || Instant::now() > until {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Sends SIGKILL to all processes of a cgroup and of those below it. Returns whether there may be any.
fn kill_all(directory: &Path) -> bool {
    // It fails where a cgroup was removed meanwhile.
    let Ok(members) = get_all_pids(directory) else { return directory.exists() };
    // A process of another PID namespace is shown as 0, which kill(2) takes for our own group.
    let mut members = members.into_iter().map(|pid| pid.as_raw()).filter(|pid| *pid > 0).peekable();
    let any = members.peek().is_some();
    for pid in members {
        // It may have ended since.
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    any
}

/// Removes an empty cgroup and those below it. Fails for a moment after its last process was seen.
pub(super) fn remove(directory: &Path) -> bool {
    children(directory).iter().for_each(|child| {
        remove(child);
    });
    !std::fs::remove_dir(directory).is_err_and(|error| error.kind() == ErrorKind::ResourceBusy)
}

pub(super) fn children(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}
