//! What a killed `fgpu run` leaves behind on the host: an empty cgroup, and the empty files that its mounts
//! went over.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fgpu_allocator::Store;
use fgpu_spec::{Error, Nonce};
use rustix::fs::FlockOperation;

use super::cgroup::{self, HIERARCHIES};
use super::view;

/// In the state directory. A process that makes or removes the files below [`view::OURS`] holds it: to remove
/// a file that is a mount point in another namespace removes the mount, too.
const LOCK: &str = "run.lock";

/// How deep cgroups are looked into.
const DEPTH: usize = 32;

/// Keeps the files of a run from being removed until it is dropped. The lease must be there before.
pub(super) fn hold(state_directory: &Path) -> Result<File, Error> {
    let (lock, path) = open(state_directory)?;
    rustix::fs::flock(&lock, FlockOperation::LockShared)
        .map_err(|errno| Error::io("lock", &path, &errno.into()))?;
    Ok(lock)
}

/// Removes what runs have left behind, unless one still uses it. What cannot be removed stays for the next
/// time.
///
/// # Errors
/// The leases cannot be read.
pub(crate) fn clear(store: &Store, state_directory: &Path) -> Result<(), Error> {
    // Looked for before the leases are read: a cgroup is made after its lease.
    let cgroups: Vec<_> =
        HIERARCHIES.iter().flat_map(|hierarchy| ours(Path::new(hierarchy), DEPTH)).collect();
    let Some(_lock) = alone(state_directory) else { return Ok(()) };
    let leases = store.leases()?;
    for (nonce, directory) in cgroups {
        if !leases.iter().any(|lease| lease.grant.nonce == nonce) {
            cgroup::remove(&directory);
        }
    }
    // A container's, too, may lie over them: of one that has the host's /run (`docker run -v /run:/run`).
    if leases.is_empty() {
        view::remove_placeholders(Path::new(view::OURS));
    }
    Ok(())
}

/// The lock for one alone, if no process holds it.
fn alone(state_directory: &Path) -> Option<File> {
    let (lock, _) = open(state_directory).ok()?;
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(lock)
}

fn open(state_directory: &Path) -> Result<(File, PathBuf), Error> {
    let path = state_directory.join(LOCK);
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let lock = options.open(&path).map_err(|error| Error::io("open", &path, &error))?;
    Ok((lock, path))
}

/// The cgroups of runs in a hierarchy, with their grants.
fn ours(directory: &Path, depth: usize) -> Vec<(Nonce, PathBuf)> {
    let mut found = Vec::new();
    // A directory that is no cgroup (that of all v1 hierarchies) has none below it that we made.
    if depth == 0 || !directory.join(cgroup::MEMBERS).exists() {
        return found;
    }
    for child in cgroup::children(directory) {
        let name = child.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name.strip_prefix(cgroup::PREFIX).and_then(|nonce| nonce.parse().ok()) {
            Some(nonce) => found.push((nonce, child)),
            None => found.extend(ours(&child, depth - 1)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_cgroups_of_runs_are_found_and_at_any_depth() {
        let root = tempfile::tempdir().unwrap();
        let nonce = "07".repeat(16);
        let names =
            ["a/b", &format!("a/fgpu-run-{nonce}/inner"), "fgpu-run-web", &format!("x-fgpu-run-{nonce}")];
        for name in names {
            let path = root.path().join(name);
            fs::create_dir_all(&path).unwrap();
            for folder in path.ancestors().take_while(|folder| folder.starts_with(root.path())) {
                fs::write(folder.join(cgroup::MEMBERS), "").unwrap();
            }
        }
        let found = ours(root.path(), DEPTH);
        assert_eq!(found, [(Nonce([7; 16]), root.path().join(format!("a/fgpu-run-{nonce}")))]);
        assert_eq!(ours(&root.path().join("nowhere"), DEPTH), []);
    }
}
