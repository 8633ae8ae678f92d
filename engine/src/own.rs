//! A lease's own file systems, mounted on the host in the folder of its grant.
//!
//! ```text
//! own/           tmpfs as large as the ledger, with no file to spare: what the lease's containers write
//!   ledger       what their processes hold (fgpu_wire::ledger)
//!   none/        an empty layer: older kernels want two
//!   turns/       overlay of the boards of the lease's GPUs (board.rs)
//!   files/<n>/   overlay of a folder of the node with files of the driver's or ours
//! ```
//!
//! An overlay without an upper layer is read-only as a file system: no process can make it writable, whatever
//! capabilities it has. Its files are not the node's: a lease (`F_SETLEASE`) or a lock on one stays in this
//! overlay, so it holds up neither the node nor another tenant. A bind mount has neither property.
//!
//! The containers get clones of these mounts. The host's own end with the lease: `fgpu_allocator` unmounts
//! `own` when it removes the folder, and the kernel takes what is mounted in it along.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use fgpu_allocator::OWN;
use fgpu_spec::{Code, Error};
use fgpu_wire::ledger;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// The folders that are shown, a line each, beside [`OWN`].
const SHOWN: &str = "shown";

/// What is mounted for a lease.
#[derive(Debug)]
pub(crate) struct Own {
    root: PathBuf,
    /// The folders of the node that `files` shows, by number.
    folders: Vec<PathBuf>,
}

impl Own {
    /// Mounts the tmpfs in the folder of a grant. `files`: how many overlays of folders it may get at most.
    ///
    /// # Errors
    /// The kernel does not let us, or has no memory.
    pub(crate) fn mount(directory: &Path, ledger: Option<&[u8]>, files: usize) -> Result<Self, Error> {
        let root = directory.join(OWN);
        folder(&root)?;
        // The root, the ledger, `none`, `turns`, `files`, and what is in it. Extended attributes take from
        // the same number.
        let options = format!("size={},nr_inodes={},mode=700,huge=never", ledger::SIZE, 5 + files);
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("fgpu"), &root, Some("tmpfs"), flags, Some(options.as_str()))
            .map_err(|errno| Error::io("mount a tmpfs on", &root, &errno.into()))?;
        let own = Self { root, folders: Vec::new() };
        for name in ["none", "turns", "files"] {
            folder(&own.root.join(name))?;
        }
        if let Some(header) = ledger {
            own.create_ledger(header)?;
        }
        Ok(own)
    }

    /// What [`Own::mount`] has mounted in the folder of a grant that several containers share.
    ///
    /// # Errors
    /// It cannot be told what is shown there.
    pub(crate) fn open(directory: &Path) -> Result<Self, Error> {
        let root = directory.join(OWN);
        let list = directory.join(SHOWN);
        let folders = match fs::read_to_string(&list) {
            Ok(text) => text.lines().map(PathBuf::from).collect(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Error::io("read", &list, &error)),
        };
        Ok(Self { root, folders })
    }

    /// Writes down what is shown, for [`Own::open`].
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn note(&self) -> Result<(), Error> {
        let list = self.root.with_file_name(SHOWN);
        let text: String = self.folders.iter().map(|folder| format!("{}\n", folder.display())).collect();
        fs::write(&list, text).map_err(|error| Error::io("write", &list, &error))
    }

    fn create_ledger(&self, header: &[u8]) -> Result<(), Error> {
        let path = self.ledger();
        let make = || {
            let mut file = File::create_new(&path)?;
            file.write_all(header)?;
            file.set_len(ledger::SIZE as u64)?;
            // Every user of a container writes it. The folders above are root's alone.
            file.set_permissions(Permissions::from_mode(0o666))
        };
        make().map_err(|error: std::io::Error| Error::io("create", &path, &error))
    }

    /// The ledger.
    pub(crate) fn ledger(&self) -> PathBuf {
        self.root.join("ledger")
    }

    /// Where the boards are shown.
    pub(crate) fn boards(&self) -> PathBuf {
        self.root.join("turns")
    }

    /// Shows what is in these boards, and gives the folder.
    ///
    /// # Errors
    /// The kernel does not let us.
    pub(crate) fn show_boards(&self, boards: &[PathBuf]) -> Result<PathBuf, Error> {
        let turns = self.boards();
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        self.lay(boards, &turns, flags)?;
        Ok(turns)
    }

    /// The same regular file of the node, on an overlay. `None` for what is no regular file: it cannot have a
    /// lease.
    ///
    /// # Errors
    /// The file is not there, or its file system cannot be a layer of an overlay.
    pub(crate) fn show_file(&mut self, file: &Path) -> Result<Option<PathBuf>, Error> {
        let file = fs::canonicalize(file).map_err(|error| Error::io("find", file, &error))?;
        let (Some(parent), Some(name), true) = (file.parent(), file.file_name(), file.is_file()) else {
            return Ok(None);
        };
        let known = self.folders.iter().position(|folder| folder == parent);
        let number = known.unwrap_or(self.folders.len());
        let overlay = self.root.join("files").join(number.to_string());
        if known.is_none() {
            folder(&overlay)?;
            self.lay(&[parent.to_owned()], &overlay, MsFlags::MS_NOSUID | MsFlags::MS_NODEV)?;
            self.folders.push(parent.to_owned());
        }
        Ok(Some(overlay.join(name)))
    }

    /// Lays a read-only overlay of these folders.
    fn lay(&self, folders: &[PathBuf], target: &Path, flags: MsFlags) -> Result<(), Error> {
        // overlayfs.rst: a colon would separate, a backslash escape; a comma would end the option.
        let escape = |path: &Path| {
            path.display().to_string().replace('\\', "\\\\").replace(':', "\\:").replace(',', "\\,")
        };
        let none = self.root.join("none");
        let layers: Vec<_> = folders.iter().chain([&none]).map(|folder| escape(folder)).collect();
        let options = format!("lowerdir={}", layers.join(":"));
        let flags = flags | MsFlags::MS_RDONLY;
        mount(Some("fgpu"), target, Some("overlay"), flags, Some(options.as_str())).map_err(|errno| {
            let what = folders.first().map_or(target, PathBuf::as_path);
            Error::io("lay a read-only overlay over", what, &errno.into())
        })
    }
}

fn folder(path: &Path) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| Error::io("create", path, &error))
}

/// As [`Own::show_file`] says, but `None` also where an overlay cannot be had, unless it `must` be one: a
/// container that may change mounts could write to a file that is merely bound.
///
/// # Errors
/// As [`Own::show_file`], if it must be an overlay.
pub(crate) fn show(own: &mut Own, file: &Path, must: bool) -> Result<Option<PathBuf>, Error> {
    match own.show_file(file) {
        Err(error) if must => Err(Error::new(
            Code::Internal,
            format!("{}; a container that may change mounts cannot do without", error.message),
        )),
        shown => Ok(shown.unwrap_or(None)),
    }
}

/// The first of these files of the node that cannot be shown on an overlay, and why: its containers get it by
/// a bind mount, and those that may change mounts are refused. It is tried in a mount namespace of a thread's
/// own, over `place`, and goes with it. `None` also where this process may not try.
pub fn cannot_show(files: Vec<PathBuf>, place: PathBuf) -> Option<Error> {
    let attempt = move || {
        unshare(CloneFlags::CLONE_NEWNS).ok()?;
        let none = None::<&str>;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).ok()?;
        mount(Some("fgpu"), &place, Some("tmpfs"), MsFlags::empty(), none).ok()?;
        let mut own = Own::mount(&place, None, files.len()).ok()?;
        files.iter().find_map(|file| own.show_file(file).err())
    };
    std::thread::Builder::new().spawn(attempt).ok()?.join().ok()?
}

#[cfg(test)]
#[allow(unsafe_code, reason = "nix has no leases")]
pub(crate) mod tests {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    use nix::errno::Errno;
    use nix::libc;
    use nix::mount::{MntFlags, umount2};
    use nix::sys::signal::{SigHandler, Signal, signal};
    use rustix::fs::{FallocateFlags, XattrFlags, fallocate, fsetxattr};

    use super::*;

    /// Runs a test in a mount namespace of its own, with a folder.
    pub(crate) fn apart(test: impl FnOnce(&Path) + Send) {
        let folder = tempfile::tempdir().unwrap();
        let none = None::<&str>;
        let inside = || {
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            test(folder.path());
        };
        std::thread::scope(|scope| scope.spawn(inside).join().unwrap());
    }

    /// Holds a lease on a file: an open that the lease excludes waits.
    pub(crate) fn lease(path: &Path, kind: libc::c_int) -> File {
        let file = File::open(path).unwrap();
        // SAFETY: to ignore a signal has no handler that could do anything. It is what the kernel tells the
        // holder with.
        unsafe { signal(Signal::SIGIO, SigHandler::SigIgn) }.unwrap();
        // SAFETY: touches no memory.
        let held = unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::F_SETLEASE, kind) };
        assert_eq!(held, 0, "{}: {}", path.display(), std::io::Error::last_os_error());
        file
    }

    #[test]
    fn a_containers_writable_files_have_fixed_sizes() {
        apart(|folder| {
            let own = Own::mount(folder, Some(&ledger::encode(&[7; 16])), 3).unwrap();
            let file = File::options().read(true).write(true).open(own.ledger()).unwrap();
            assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o666);
            fallocate(&file, FallocateFlags::empty(), 0, ledger::SIZE as u64).unwrap();
            let more = fallocate(&file, FallocateFlags::KEEP_SIZE, ledger::SIZE as u64, 4096);
            assert_eq!(more, Err(rustix::io::Errno::NOSPC));
            // None of the three overlays has a folder yet; with them no inode is left.
            for number in 0..3 {
                fs::create_dir(own.root.join("files").join(number.to_string())).unwrap();
            }
            // A kernel before 6.6 has no such attributes on a tmpfs.
            let attribute = fsetxattr(&file, c"user.more", b"x", XattrFlags::empty());
            assert!(
                matches!(attribute, Err(rustix::io::Errno::NOSPC | rustix::io::Errno::OPNOTSUPP)),
                "{attribute:?}"
            );
            assert!(File::create(own.root.join("more")).is_err());
        });
    }

    #[test]
    fn shown_files_stay_read_only_after_any_remount() {
        apart(|folder| {
            let at = |name: &str| folder.join(name);
            for (name, text) in [("a:b,c\\d/file", "one"), ("plain/file", "two"), ("plain/other", "three")] {
                fs::create_dir_all(at(name).parent().unwrap()).unwrap();
                fs::write(at(name), text).unwrap();
            }
            std::os::unix::fs::symlink("file", at("plain/link")).unwrap();
            let mut own = Own::mount(&at("grant"), None, 4).unwrap();
            let names = ["plain/link", "plain/other", "a:b,c\\d/file", "plain/file"];
            for (name, text) in names.into_iter().zip(["two", "three", "one", "two"]) {
                let shown = own.show_file(&at(name)).unwrap().unwrap();
                assert_eq!(fs::read_to_string(&shown).unwrap(), text);
                let overlay = shown.parent().unwrap();
                let none = None::<&str>;
                assert_eq!(mount(none, overlay, none, MsFlags::MS_REMOUNT, none), Err(Errno::EROFS));
                mount(none, overlay, none, MsFlags::MS_REMOUNT | MsFlags::MS_BIND, none).unwrap();
                assert_eq!(fs::write(&shown, "mine").unwrap_err().raw_os_error(), Some(libc::EROFS));
            }
            assert_eq!(own.folders.len(), 2, "a folder has one overlay");
            assert_eq!(own.show_file(&at("plain")).unwrap(), None, "a folder");
            let missing = show(&mut own, &at("plain/none"), true).unwrap_err();
            assert!(missing.message.contains("plain/none"), "{missing}");
            assert_eq!(fs::read_to_string(at("plain/file")).unwrap(), "two");
        });
    }

    #[test]
    fn a_lease_on_what_is_shown_holds_up_nobody_else() {
        apart(|folder| {
            fs::create_dir(folder.join("host")).unwrap();
            let real = folder.join("host/nvidia-smi");
            fs::write(&real, "program").unwrap();
            let shown = |grant: &str| {
                let mut own = Own::mount(&folder.join(grant), None, 1).unwrap();
                own.show_file(&real).unwrap().unwrap()
            };
            let (first, second) = (shown("first"), shown("second"));
            for kind in [libc::F_RDLCK, libc::F_WRLCK] {
                let _held = lease(&first, kind);
                for path in [&second, &real] {
                    let mut options = File::options();
                    options.read(true).custom_flags(libc::O_NONBLOCK);
                    options.open(path).unwrap();
                }
                File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&real).unwrap();
            }
            // The check of the check: without an overlay the lease does it.
            let _held = lease(&real, libc::F_RDLCK);
            let mut options = File::options();
            let open = options.write(true).custom_flags(libc::O_NONBLOCK).open(&real);
            assert_eq!(open.unwrap_err().raw_os_error(), Some(libc::EWOULDBLOCK));
        });
    }

    #[test]
    fn all_of_it_goes_with_one_unmount() {
        apart(|folder| {
            let mounts = || fs::read_to_string("/proc/thread-self/mountinfo").unwrap().lines().count();
            let before = mounts();
            let mut own = Own::mount(folder, Some(&ledger::encode(&[7; 16])), 1).unwrap();
            own.show_boards(&[folder.to_owned()]).unwrap();
            own.show_file(&std::env::current_exe().unwrap()).unwrap();
            assert_eq!(mounts(), before + 3);
            umount2(&folder.join(OWN), MntFlags::MNT_DETACH).unwrap();
            assert_eq!(mounts(), before);
        });
    }
}
