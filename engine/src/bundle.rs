//! The one file of a bundle that we read and write: its `config.json`.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use fgpu_spec::{Code, Error};
use rustix::fs::{Mode, OFlags};

/// The largest `config.json` that is read, bytes. The kernel's own limit on what a container is made of
/// (arguments and environment, 128 KiB each string) is far below.
pub const LIMIT: u64 = 16 << 20;

/// Opens a regular file to read it. What is none is not even opened: a process that waits at the other end of
/// a pipe would take us for the one that it waits for.
///
/// # Errors
/// There is no such file, it may not be read, or is no regular file.
pub fn open(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !found.metadata()?.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    // The very file that was looked at. Some in /proc make a reader wait, and another process may have a
    // lease on any.
    let same = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(File::from(rustix::fs::open(same, flags, Mode::empty())?))
}

/// The text of a `config.json`.
///
/// # Errors
/// It cannot be read, or is larger than [`LIMIT`].
pub fn read(path: &Path) -> Result<String, Error> {
    let file = open(path).map_err(|error| Error::io("open", path, &error))?;
    text(file, path)
}

/// All of `source`, which errors call `name`.
///
/// # Errors
/// As [`read`].
pub fn text(source: impl Read, name: &Path) -> Result<String, Error> {
    let mut text = String::new();
    source.take(LIMIT + 1).read_to_string(&mut text).map_err(|error| Error::io("read", name, &error))?;
    if text.len() as u64 > LIMIT {
        return Err(Error::new(Code::Internal, format!("{} is larger than 16 MiB", name.display())));
    }
    Ok(text)
}

/// Why a container without a root cannot have a share.
pub fn no_root(bundle: &Path) -> Error {
    Error::new(Code::Internal, format!("{}/config.json names no root", bundle.display()))
}

/// Replaces a file at once: a reader sees the old text or the new one. Mode and owner stay.
///
/// # Errors
/// The file is then as it was.
pub fn replace(path: &Path, text: &str) -> Result<(), Error> {
    let temporary = path.with_extension("json.fgpu");
    let write = || -> std::io::Result<()> {
        let old = std::fs::metadata(path)?;
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
        std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()))?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        // The first error is the one to tell; a temporary file that stays is replaced by the next attempt.
        let _ = std::fs::remove_file(&temporary);
        Error::io("replace", path, &error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_keeps_the_mode_and_survives_a_leftover() {
        let bundle = tempfile::tempdir().unwrap();
        let path = bundle.path().join("config.json");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        std::fs::write(bundle.path().join("config.json.fgpu"), "half").unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(std::fs::read_dir(bundle.path()).unwrap().count(), 1);
    }
}
