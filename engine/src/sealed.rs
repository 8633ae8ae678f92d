//! This boot's copies of the quota libraries, in which the path of the real libraries is written
//! (`fgpu_wire::Seal`).
//!
//! ```text
//! /var/lib/fgpu/<boot id>/key                                      16 random hexadecimal digits
//! /var/lib/fgpu/<boot id>/libfgpu-cuda.so-<device>-<inode>-<ctime>
//! /var/lib/fgpu/<boot id>/libfgpu-nvml.so-<device>-<inode>-<ctime>
//! ```
//!
//! A copy is of the installed library with that inode number and time of change (an upgrade makes another one
//! beside it), for a state directory on that device (a node may have two, each seen from mount namespaces of
//! its own).
//!
//! The folder is not below /run: most systems mount that `noexec`, and in a user namespace the flag cannot be
//! taken away. Each file appears whole and is never changed, so a process that is killed in here leaves
//! nothing, and containers that run keep theirs.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fgpu_spec::{Code, Error};
use fgpu_wire::Seal;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, linkat, open};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::{container_files, programs};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The libraries that a container gets, and where they look for the real ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sealed {
    /// What is written in them.
    pub(crate) seal: Seal,
    /// In the place of libcuda.
    pub(crate) cuda: PathBuf,
    /// In the place of NVML.
    pub(crate) nvml: PathBuf,
}

/// The libraries of this boot, made by the first process that asks. `limits`: a file or folder on the file
/// system on which the limits are.
///
/// # Errors
/// The installed libraries are missing or are not ours, or the copies cannot be made.
pub(crate) fn libraries(directory: &Path, limits: &Path) -> Result<Sealed, Error> {
    let boot = fs::read_to_string(BOOT_ID).map_err(|error| Error::io("read", Path::new(BOOT_ID), &error))?;
    let folder = directory.join(boot.trim());
    let device = fs::metadata(limits).map_err(|error| Error::io("look at", limits, &error))?.dev();
    let seal = Seal { random: key(directory, &folder)?, device };
    let copy = |name: &str| copy(&programs::library(name)?, &folder, name, seal);
    Ok(Sealed { seal, cuda: copy("libfgpu-cuda.so")?, nvml: copy("libfgpu-nvml.so")? })
}

/// This boot's random number.
fn key(directory: &Path, folder: &Path) -> Result<u64, Error> {
    let path = folder.join("key");
    let read = || match fs::read_to_string(&path) {
        Ok(text) => Ok(u64::from_str_radix(text.trim(), 16).ok().filter(|_| text.len() == 16)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", &path, &error)),
    };
    if let Some(key) = read()? {
        return Ok(key);
    }
    remove_others(directory, folder);
    container_files::folder(folder)?;
    let mut random = [0; 8];
    let filled = getrandom(&mut random, GetRandomFlags::empty());
    if filled.map_err(|errno| Error::io("read", Path::new("getrandom(2)"), &errno.into()))? != random.len() {
        return Err(Error::new(Code::Internal, "getrandom(2) gave less than was asked for"));
    }
    let mut text = String::new();
    let _ = write!(text, "{:016x}", u64::from_ne_bytes(random));
    put(folder, &path, text.as_bytes(), 0o600)?;
    // Another process may have been faster: its key counts.
    read()?.ok_or_else(|| {
        let path = path.display();
        Error::new(
            Code::Internal,
            format!("{path} is damaged; remove it while no container with a share runs"),
        )
    })
}

/// Removes what former boots left.
fn remove_others(directory: &Path, folder: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_boots = entry.file_name().len() == folder.file_name().unwrap_or_default().len();
        if is_boots && entry.path() != folder {
            // It takes room and does no harm.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The copy of an installed library.
fn copy(installed: &Path, folder: &Path, name: &str, seal: Seal) -> Result<PathBuf, Error> {
    let stat = fs::metadata(installed).map_err(|error| Error::io("look at", installed, &error))?;
    let version = format!("{}-{}.{:09}", stat.ino(), stat.ctime(), stat.ctime_nsec());
    let path = folder.join(format!("{name}-{:x}-{version}", seal.device));
    if path.exists() {
        return Ok(path);
    }
    let mut bytes = fs::read(installed).map_err(|error| Error::io("read", installed, &error))?;
    seal.apply(&mut bytes).map_err(|unsealable| {
        let (path, found) = (installed.display(), unsealable.found);
        Error::new(
            Code::Internal,
            format!("{path} is damaged: it has the path of the real library {found} times; reinstall fgpu"),
        )
    })?;
    put(folder, &path, &bytes, 0o644)?;
    Ok(path)
}

/// Makes a file with all that is in it, unless it is there.
fn put(folder: &Path, path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::io("create", path, &error);
    let unnamed = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let mut file = File::from(open(folder, unnamed, Mode::RUSR | Mode::WUSR).map_err(|e| failed(e.into()))?);
    file.write_all(bytes).map_err(failed)?;
    // Whatever the umask is: every user of a container loads the library.
    fchmod(&file, Mode::from_raw_mode(mode)).map_err(|errno| failed(errno.into()))?;
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    match linkat(CWD, own, CWD, path, AtFlags::SYMLINK_FOLLOW) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(failed(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that can be sealed.
    fn library(folder: &Path) -> PathBuf {
        let path = folder.join("installed.so");
        fs::write(&path, [b"ELF\0", Seal::unsealed_cuda().as_bytes(), b"\0"].concat()).unwrap();
        path
    }

    #[test]
    fn the_key_is_made_once_and_others_boots_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let boot = |name: &str| directory.path().join(name.repeat(36));
        let keys: Vec<_> = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..8).map(|_| scope.spawn(|| key(directory.path(), &boot("a")))).collect();
            makers.into_iter().map(|maker| maker.join().unwrap().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0] && *key != 0), "{keys:?}");
        fs::write(directory.path().join("not ours"), "").unwrap();
        assert_ne!(key(directory.path(), &boot("b")).unwrap(), keys[0]);
        assert!(!boot("a").exists() && boot("b").exists() && directory.path().join("not ours").exists());
    }

    #[test]
    fn a_damaged_key_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let boot = directory.path().join("boot");
        for damage in ["", "0123456789abcdex", "0123456789abcdef0"] {
            container_files::folder(&boot).unwrap();
            fs::write(boot.join("key"), damage).unwrap();
            let error = key(directory.path(), &boot).unwrap_err();
            assert!(error.message.contains("boot/key is damaged"), "{error:?}");
        }
    }

    #[test]
    fn a_copy_is_sealed_and_stays_as_long_as_the_installed_one() {
        let folder = tempfile::tempdir().unwrap();
        let seal = Seal { random: 7, device: 9 };
        let installed = library(folder.path());
        let first = copy(&installed, folder.path(), "name", seal).unwrap();
        assert!(String::from_utf8_lossy(&fs::read(&first).unwrap()).contains(&format!("{seal}/cuda")));
        let stat = fs::metadata(&first).unwrap();
        assert_eq!(stat.mode() & 0o7777, 0o644);
        assert_eq!(copy(&installed, folder.path(), "name", seal).unwrap(), first);
        assert_eq!(fs::metadata(&first).unwrap().ino(), stat.ino());
        // Another state directory has others.
        let other = copy(&installed, folder.path(), "name", Seal { device: 10, ..seal }).unwrap();
        assert_ne!(fs::read(other).unwrap(), fs::read(&first).unwrap());
        // An upgrade puts another file in its place.
        fs::remove_file(&installed).unwrap();
        let second = copy(&library(folder.path()), folder.path(), "name", seal).unwrap();
        assert!(second != first && first.exists());
    }

    #[test]
    fn a_damaged_library_is_not_copied() {
        let folder = tempfile::tempdir().unwrap();
        let installed = folder.path().join("installed.so");
        fs::write(&installed, "cut short").unwrap();
        let error = copy(&installed, folder.path(), "name", Seal::default()).unwrap_err();
        assert!(error.message.contains("0 times") && error.message.contains("installed.so"), "{error:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
