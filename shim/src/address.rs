//! Our socket in front of the stock shim's.
//!
//! ```text
//! /run/containerd/s/<sha256>         the stock shim
//! /run/containerd/s/<sha256>.fgpu    the relay in front of it
//! ```
//!
//! The one name follows from the other, so that a second `start` for the same pod finds the relay that is
//! there already, and `delete` finds the stock shim behind a relay that died. A unix socket's path ends at
//! 107 bytes; where the suffix does not fit any more it takes the place of the last bytes of the name.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

const SUFFIX: &[u8] = b".fgpu";
/// What a socket is called before it has its name; the pid of its process follows.
const UNNAMED: &str = ".fgpu-";
/// The longest path of a unix socket: `sun_path` has 108 bytes, the last is NUL (unix(7)).
const LIMIT: usize = 107;

/// The path of the relay in front of the stock shim at `stock`.
pub(crate) fn front_of(stock: &Path) -> PathBuf {
    let stock = stock.as_os_str().as_bytes();
    let keep = stock.len().min(LIMIT - SUFFIX.len());
    PathBuf::from(OsStr::from_bytes(&[&stock[..keep], SUFFIX].concat()))
}

/// The stock shim's socket behind a relay's; `None` if `front` is not ours or the socket is gone.
pub(crate) fn stock_behind(front: &Path) -> Option<PathBuf> {
    let name = front.file_name()?.as_bytes().strip_suffix(SUFFIX)?;
    let folder = front.parent()?;
    let exact = folder.join(OsStr::from_bytes(name));
    if exact.exists() {
        return Some(exact);
    }
    let mut entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    entries.find(|path| path != front && front_of(path) == front)
}

/// Whether a process listens there.
pub(crate) fn is_alive(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Whether the socket's file is there and no process listens: its owner died without tidying up.
pub(crate) fn is_orphaned(socket: &Path) -> bool {
    UnixStream::connect(socket).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Listens at `socket`. `None` if a process does already.
///
/// The socket listens before it gets its name, and it gets its name by link(2), which fails if the name is
/// taken: a process that finds the name can connect. A name whose owner died is replaced by rename(2). If two
/// replace one at the same time, the later wins, and no client ever comes to the other.
pub(crate) fn listen(socket: &Path) -> Result<Option<UnixListener>> {
    let folder = socket.parent().ok_or(ErrorKind::InvalidInput)?;
    let unnamed = folder.join(format!("{UNNAMED}{}", std::process::id()));
    remove(&unnamed)?;
    let listener = UnixListener::bind(&unnamed)?;
    let named = std::fs::set_permissions(&unnamed, Permissions::from_mode(0o600))
        .and_then(|()| name(&unnamed, socket));
    match named {
        Ok(true) => Ok(Some(listener)),
        Ok(false) => remove(&unnamed).map(|()| None),
        Err(error) => {
            remove(&unnamed)?;
            Err(error)
        }
    }
}

fn name(unnamed: &Path, socket: &Path) -> Result<bool> {
    match std::fs::hard_link(unnamed, socket) {
        Ok(()) => remove(unnamed).map(|()| true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if is_alive(socket) {
                return Ok(false);
            }
            std::fs::rename(unnamed, socket).map(|()| true)
        }
        Err(error) => Err(Error::new(error.kind(), format!("{}: {error}", socket.display()))),
    }
}

/// Removes what a `start` left in `folder` that was killed before its socket had its name.
pub(crate) fn sweep(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        if let Some(pid) = name.strip_prefix(UNNAMED)
            && !Path::new("/proc").join(pid).exists()
        {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Which file a path names now, so that its owner removes no later one of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(u64, u64);

impl Identity {
    /// The file at `path`, if there is one.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        std::fs::symlink_metadata(path).ok().map(|file| Self(file.dev(), file.ino()))
    }

    /// Removes `path` if it still names this file.
    pub(crate) fn remove(self, path: &Path) -> Result<()> {
        if Self::of(path) != Some(self) {
            return Ok(());
        }
        remove(path)
            .map_err(|error| Error::new(error.kind(), format!("cannot remove {}: {error}", path.display())))
    }
}

/// Removes a file that need not be there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_and_its_stock_find_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let room = LIMIT - folder.path().as_os_str().len() - 1;
        for length in [1, room - SUFFIX.len() - 1, room - SUFFIX.len(), room - SUFFIX.len() + 1, room] {
            let stock = folder.path().join("b".repeat(length));
            let front = front_of(&stock);
            assert!(front.as_os_str().len() <= LIMIT);
            assert_eq!(stock_behind(&front), None, "no socket, no stock shim");
            let _stock = UnixListener::bind(&stock).unwrap();
            let _front = UnixListener::bind(&front).unwrap();
            assert_eq!(stock_behind(&front), Some(stock.clone()));
            assert_eq!(stock_behind(&stock), None, "a stock shim's socket is none of ours");
            std::fs::remove_file(&stock).unwrap();
            std::fs::remove_file(&front).unwrap();
        }
    }

    #[test]
    fn only_one_listens_at_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let first = listen(&socket).unwrap().unwrap();
        assert!(is_alive(&socket));
        assert!(listen(&socket).unwrap().is_none());
        assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
        drop(first);
        // A process that another test is starting may hold the socket until its execve(2).
        while is_alive(&socket) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(is_orphaned(&socket));
        let _second = listen(&socket).unwrap().unwrap();
        assert!(is_alive(&socket));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn leftovers_of_a_killed_start_are_swept() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: String| folder.path().join(name);
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        let (dead, alive) = (at(format!(".fgpu-{}", dead.id())), at(format!(".fgpu-{}", std::process::id())));
        let other = at("0123.fgpu".into());
        for path in [&dead, &alive, &other] {
            let _ = UnixListener::bind(path).unwrap();
        }
        sweep(folder.path()).unwrap();
        assert_eq!([dead, alive, other].map(|path| path.exists()), [false, true, true]);
    }

    #[test]
    fn a_successors_socket_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let first = listen(&socket).unwrap().unwrap();
        let identity = Identity::of(&socket).unwrap();
        drop(first);
        while is_alive(&socket) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let second = listen(&socket).unwrap().unwrap();
        identity.remove(&socket).unwrap();
        assert!(is_alive(&socket));
        Identity::of(&socket).unwrap().remove(&socket).unwrap();
        assert!(!is_alive(&socket) && !is_orphaned(&socket));
        drop(second);
    }
}
