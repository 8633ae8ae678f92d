//! Mounts of files of the host that nobody can make writable.
//!
//! A read-only bind mount is read-only as a mount: whoever has `CAP_SYS_ADMIN` in the namespace that it was made for takes the flag
//! away, and writes to the host's file. An overlay without an upper layer is read-only as a file system: `remount,rw` fails (EROFS),
//! and so does every write, whatever the mount's flags are. So the folder that the file is in becomes the lower layer of such an
//! overlay, and the file alone is cloned from it. The overlay itself is attached nowhere that a container could see.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use fgpu_spec::{Code, Error};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

/// Makes such mounts. This process is in a mount namespace of its own from then on: what is attached on the way is seen by nobody
/// else, and goes with it.
pub(super) struct Shield {
    /// Where an overlay is attached while a file is cloned from it.
    stage: PathBuf,
    /// A lower layer with nothing in it: the kernel wants two.
    empty: PathBuf,
    /// The folder that is the lower layer at present.
    lower: Option<PathBuf>,
}

impl Shield {
    /// `directory`: one of our own on the host.
    ///
    /// # Errors
    /// The kernel does not let us.
    pub(super) fn new(directory: &Path) -> Result<Self, Error> {
        let shield = Self { stage: directory.join("stage"), empty: directory.join("empty"), lower: None };
        for folder in [&shield.stage, &shield.empty] {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|error| Error::io("create", folder, &error))?;
        }
        unshare(CloneFlags::CLONE_NEWNS)
            .map_err(|errno| failed("take a mount namespace at", Path::new("/"), errno))?;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
            .map_err(|errno| failed("keep apart the mounts of", Path::new("/"), errno))?;
        Ok(shield)
    }

    /// A detached mount of a regular file that stays read-only.
    ///
    /// # Errors
    /// The file is not there, or its file system cannot be the lower layer of an overlay.
    pub(super) fn clone(&mut self, file: &Path) -> Result<OwnedFd, Error> {
        let file = std::fs::canonicalize(file).map_err(|error| Error::io("find", file, &error))?;
        let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
            return Err(Error::new(Code::Internal, format!("{} is no file", file.display())));
        };
        if self.lower.as_deref() != Some(folder) {
            self.detach();
            // overlayfs.rst: a colon would separate, a backslash escape; a comma would end the option.
            let escape = |path: &Path| {
                path.display().to_string().replace('\\', "\\\\").replace(':', "\\:").replace(',', "\\,")
            };
            let options = format!("lowerdir={}:{}", escape(folder), escape(&self.empty));
            mount(Some("fgpu"), &self.stage, Some("overlay"), MsFlags::MS_RDONLY, Some(options.as_str()))
                .map_err(|errno| failed("lay a read-only overlay over", folder, errno))?;
            self.lower = Some(folder.to_owned());
        }
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
        open_tree(CWD, self.stage.join(name), flags)
            .map_err(|errno| Error::io("make a mount of", &file, &errno.into()))
    }

    fn detach(&mut self) {
        if self.lower.take().is_some() {
            // What stays goes with this process.
            let _ = umount2(&self.stage, MntFlags::MNT_DETACH);
        }
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        self.detach();
    }
}

fn failed(doing: &str, path: &Path, errno: nix::errno::Errno) -> Error {
    Error::io(doing, path, &errno.into())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::mount::{MoveMountFlags, move_mount};

    use super::*;

    /// In a thread, which has its mount namespace for itself.
    #[test]
    fn what_is_cloned_stays_read_only_whoever_remounts_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (name, text) in [("a:b,c\\d/file", "one"), ("plain/file", "two"), ("plain/other", "three")] {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), text).unwrap();
        }
        std::os::unix::fs::symlink("file", at("plain/link")).unwrap();
        fs::write(at("place"), "").unwrap();
        let attempts = || {
            let mut shield = Shield::new(&at("own")).unwrap();
            let names = ["plain/link", "plain/other", "a:b,c\\d/file", "plain/file"];
            let clones: Vec<_> = names.iter().map(|name| shield.clone(&at(name)).unwrap()).collect();
            drop(shield);
            for (clone, text) in clones.iter().zip(["two", "three", "one", "two"]) {
                let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
                move_mount(clone, "", CWD, at("place"), flags).unwrap();
                assert_eq!(fs::read_to_string(at("place")).unwrap(), text);
                let none = None::<&str>;
                let remount = MsFlags::MS_REMOUNT;
                let whole = mount(none, &at("place"), none, remount, none);
                assert_eq!(whole, Err(nix::errno::Errno::EROFS));
                mount(none, &at("place"), none, remount | MsFlags::MS_BIND, none).unwrap();
                let error = fs::write(at("place"), "mine").unwrap_err();
                assert_eq!(error.raw_os_error(), Some(nix::libc::EROFS));
                umount2(&at("place"), MntFlags::MNT_DETACH).unwrap();
            }
            let missing = Shield::new(&at("own")).unwrap().clone(&at("plain/none")).unwrap_err();
            assert!(missing.message.contains("plain/none"), "{missing}");
        };
        std::thread::scope(|scope| scope.spawn(attempts).join().unwrap());
        assert_eq!(fs::read_to_string(at("plain/file")).unwrap(), "two");
    }
}
