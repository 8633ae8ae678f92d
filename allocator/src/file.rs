//! The files of the store and the system calls that change them.
//!
//! ```text
//! lock                             flock; mode 0600, so that only root can hold it; never unlinked
//! allocations.json                 the leases
//! allocations.json.spare           the file before the last change, and the temporary of the next one
//! allocations.json.corrupt-<time>  a damaged file, kept for people
//! allocations.json.rebuild         the temporary of a rebuild
//! containers/<nonce>/              what is shared with a container; made by others, removed here
//! queue/<ticket>                   the pipe by which one that waits is woken (queue/ticket.rs)
//! ```
//!
//! A change writes the spare and *exchanges* it with the file (renameat2, RENAME_EXCHANGE): as atomic as a
//! plain rename, but the pages of the old file are written over next time instead of being freed and
//! allocated, which makes a change three times as fast. It also means that a release needs no new page on a
//! full disk. The price: a reader without the lock may, if two changes pass meanwhile, see the second one
//! being written. Our own readers notice by the checksum and read again.

use std::fs::{self, DirBuilder};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use fgpu_spec::Nonce;
use rustix::buffer::spare_capacity;
use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::mount::{UnmountFlags, unmount};

use crate::image::Draft;
use crate::{Error, Host, lock};

/// In a container folder, where the mounts of the lease are: the one that its containers write to, and others
/// in it.
pub const OWN: &str = "own";

const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;
/// The kernel's UIO_MAXIOV.
const PIECES_MAX: usize = 1024;

/// The store's directory.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) dir: PathBuf,
    pub(crate) main: PathBuf,
    pub(crate) containers: PathBuf,
    pub(crate) queue: PathBuf,
    lock: PathBuf,
    spare: PathBuf,
    rebuild: PathBuf,
    /// Whether the files can outlive the kernel, so that fsync means something.
    durable: bool,
}

/// The lock, held until dropped.
#[derive(Debug)]
pub(crate) struct Lock(OwnedFd);

impl Drop for Lock {
    fn drop(&mut self) {
        // A child forked meanwhile shares the open file: closing ours would leave it locked, so unlock by
        // name. It cannot fail on a descriptor that is locked.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl Files {
    pub(crate) fn open(dir: &Path) -> Result<Self, Error> {
        match DirBuilder::new().mode(0o755).create(dir) {
            // The umask does not decide who can see the node's state.
            Ok(()) => rustix::fs::chmod(dir, Mode::from_raw_mode(0o755))
                .map_err(|errno| Error::io("change the mode of", dir, errno))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Error::io("create", dir, error)),
        }
        let kind = rustix::fs::statfs(dir).map_err(|errno| Error::io("stat", dir, errno))?.f_type;
        Ok(Self {
            dir: dir.to_owned(),
            main: dir.join("allocations.json"),
            containers: dir.join("containers"),
            queue: dir.join("queue"),
            lock: dir.join("lock"),
            spare: dir.join("allocations.json.spare"),
            rebuild: dir.join("allocations.json.rebuild"),
            durable: !matches!(kind, TMPFS_MAGIC | RAMFS_MAGIC),
        })
    }

    /// Waits for the lock, [`lock::PATIENCE`] at most. The lock file is opened anew each time: a descriptor
    /// that was inherited by a fork or shared by threads would let both in.
    pub(crate) fn lock(&self, host: &Host) -> Result<Lock, Error> {
        // A FIFO in its place is opened and cannot be locked; without O_NONBLOCK it could be waited for.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        loop {
            let fd = retry_on_intr(|| rustix::fs::open(&self.lock, flags, Mode::RUSR | Mode::WUSR))
                .map_err(|errno| Error::io("open", &self.lock, errno))?;
            let fd = lock::take(fd, &self.lock, host, lock::PATIENCE)?;
            let stat = rustix::fs::fstat(&fd).map_err(|errno| Error::io("stat", &self.lock, errno))?;
            // The whole directory was removed while we waited: this lock excludes no other process.
            if stat.st_nlink > 0 {
                return Ok(Lock(fd));
            }
        }
    }

    /// The bytes of the allocator file; `None` if there is none.
    pub(crate) fn read(&self) -> Result<Option<Vec<u8>>, Error> {
        read(&self.main)
    }

    /// The bytes of the file before the last change.
    pub(crate) fn read_spare(&self) -> Result<Option<Vec<u8>>, Error> {
        read(&self.spare)
    }

    /// Makes `draft` the allocator file. On an error nothing has changed.
    pub(crate) fn replace(&self, _: &Lock, draft: &Draft<'_>) -> Result<(), Error> {
        self.write(&self.spare, draft)?;
        let exchanged = rustix::fs::renameat_with(CWD, &self.spare, CWD, &self.main, RenameFlags::EXCHANGE);
        match exchanged {
            Ok(()) => {}
            // There is no file yet, or a file system that cannot exchange.
            Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS) => rustix::fs::rename(&self.spare, &self.main)
                .map_err(|errno| Error::io("replace", &self.main, errno))?,
            Err(errno) => return Err(Error::io("replace", &self.main, errno)),
        }
        self.sync_dir();
        Ok(())
    }

    /// Like [`Files::replace`], but touches neither the old file nor the spare: the one is kept aside under
    /// another link, the other is what a rebuild that is killed starts from again.
    pub(crate) fn replace_damaged(&self, _: &Lock, draft: &Draft<'_>) -> Result<(), Error> {
        self.write(&self.rebuild, draft)?;
        rustix::fs::rename(&self.rebuild, &self.main)
            .map_err(|errno| Error::io("replace", &self.main, errno))?;
        self.sync_dir();
        Ok(())
    }

    /// Gives the damaged file a second name that lasts, the same one each time for the same damage.
    pub(crate) fn set_aside(&self, _: &Lock) -> Option<PathBuf> {
        let meta = fs::metadata(&self.main).ok()?;
        let aside =
            self.dir.join(format!("allocations.json.corrupt-{}.{:09}", meta.mtime(), meta.mtime_nsec()));
        match fs::hard_link(&self.main, &aside) {
            Ok(()) => Some(aside),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Some(aside),
            // A file system without links.
            Err(_) => match self.copy_aside(&aside) {
                Ok(()) => Some(aside),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Some(aside),
                // The file itself stays in place in any case.
                Err(_) => None,
            },
        }
    }

    /// Only into a new file: one that is there may be another link to the damaged file, which would be
    /// emptied.
    fn copy_aside(&self, aside: &Path) -> io::Result<()> {
        let mut from = fs::File::open(&self.main)?;
        let mut to = fs::File::create_new(aside)?;
        io::copy(&mut from, &mut to).map(drop).inspect_err(|_| drop(fs::remove_file(aside)))
    }

    /// Removes what a killed rebuild left.
    pub(crate) fn remove_leftovers(&self, _: &Lock) -> Result<(), Error> {
        match rustix::fs::unlink(&self.rebuild) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::io("remove", &self.rebuild, errno)),
        }
    }

    /// The grants that have a container folder.
    pub(crate) fn folders(&self) -> Result<Vec<Nonce>, Error> {
        let entries = match fs::read_dir(&self.containers) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("list", &self.containers, error)),
        };
        let mut nonces = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|source| Error::io("list", &self.containers, source))?;
            nonces.extend(entry.file_name().to_str().and_then(|name| name.parse::<Nonce>().ok()));
        }
        Ok(nonces)
    }

    /// Removes a grant's container folder if there is one, and the lease's own mounts with it.
    pub(crate) fn remove_folder(&self, nonce: &Nonce) -> Result<(), Error> {
        let folder = self.folder(nonce);
        // It may not be mounted, or only in other mount namespaces: there the kernel unmounts it when the
        // folder goes.
        let _ = unmount(folder.join(OWN), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", &folder, error)),
            _ => Ok(()),
        }
    }

    pub(crate) fn folder(&self, nonce: &Nonce) -> PathBuf {
        self.containers.join(nonce.to_string())
    }

    fn write(&self, path: &Path, draft: &Draft<'_>) -> Result<(), Error> {
        let failed = |errno| Error::io("write", path, errno);
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        let fd = match retry_on_intr(|| rustix::fs::open(path, flags, mode)) {
            Err(Errno::NOENT) => {
                let fd =
                    retry_on_intr(|| rustix::fs::open(path, flags | OFlags::CREATE, mode)).map_err(failed)?;
                rustix::fs::fchmod(&fd, mode).map_err(failed)?;
                fd
            }
            opened => opened.map_err(failed)?,
        };
        let mut pieces: Vec<_> = draft.pieces().map(IoSlice::new).collect();
        let size = pieces.iter().map(|piece| piece.len() as u64).sum();
        let mut rest = pieces.as_mut_slice();
        while !rest.is_empty() {
            let some = &rest[..rest.len().min(PIECES_MAX)];
            match retry_on_intr(|| rustix::io::writev(&fd, some)).map_err(failed)? {
                0 => return Err(failed(Errno::IO)),
                written => IoSlice::advance_slices(&mut rest, written),
            }
        }
        // What was here before may have been longer.
        rustix::fs::ftruncate(&fd, size).map_err(failed)?;
        if self.durable {
            retry_on_intr(|| rustix::fs::fsync(&fd)).map_err(failed)?;
        }
        Ok(())
    }

    /// Makes the last rename last. It has happened for every process either way, and after a crash of the
    /// kernel the leases are void: so a failure changes nothing that can be reported.
    fn sync_dir(&self) {
        if self.durable {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let _ = rustix::fs::open(&self.dir, flags, Mode::empty()).and_then(rustix::fs::fsync);
        }
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    let failed = |errno| Error::io("read", path, errno);
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = match retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty())) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened.map_err(failed)?,
    };
    let stat = rustix::fs::fstat(&fd).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        // A FIFO, say: it is damaged like a file with nothing in it.
        return Ok(Some(Vec::new()));
    }
    let size = stat.st_size;
    let size = usize::try_from(size).unwrap_or(0);
    // Room for one more byte: a short read then tells the end without a second call.
    let mut bytes = Vec::with_capacity(size + 1);
    loop {
        let wanted = bytes.capacity() - bytes.len();
        let got = retry_on_intr(|| rustix::io::read(&fd, spare_capacity(&mut bytes))).map_err(failed)?;
        if got == 0 || (got < wanted && bytes.len() == size) {
            return Ok(Some(bytes));
        }
        bytes.reserve(4096);
    }
}
