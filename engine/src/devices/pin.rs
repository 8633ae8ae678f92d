//! Files of a BPF file system that hold a device program. crun (seen with 1.28) does not attach its program
//! to a scope but puts it into such a file and names it to systemd (`BPFProgram=device:FILE`), which attaches
//! it, and attaches what is in the file once more whenever it reloads.

use std::ffi::{CString, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use fgpu_spec::Error;
use nix::errno::Errno;

use super::bpf;

/// Such a file, by the path that systemd knows.
#[derive(Debug, Clone)]
pub(super) struct Pin {
    path: CString,
}

impl Pin {
    /// `None` for what cannot be a path.
    pub(super) fn new(path: &str) -> Option<Self> {
        let path = path.starts_with('/').then(|| CString::new(path).ok())??;
        Some(Self { path })
    }

    /// Whether this program is in it.
    pub(super) fn holds(&self, program: &OwnedFd) -> bool {
        let id = |program: &OwnedFd| bpf::id(program.as_fd());
        let held = bpf::pinned(&self.path).and_then(|held| id(&held));
        held.is_ok() && held == id(program)
    }

    /// Puts a program in the place of what is in it.
    ///
    /// # Errors
    /// The file system of the file cannot be written.
    pub(super) fn put(&self, program: &OwnedFd) -> Result<(), Error> {
        // A dot is not allowed in a name there.
        let new = CString::from_vec_with_nul([self.path.as_bytes(), b"_fgpu\0"].concat());
        let new = new.unwrap_or_default();
        let failed = |errno: Errno| Error::io("replace the device program in", &self.path(), &errno.into());
        match nix::unistd::unlink(new.as_c_str()) {
            // What a hook that was killed left.
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(errno) => return Err(failed(errno)),
        }
        bpf::pin(&new, program.as_fd()).map_err(failed)?;
        let (here, new) = (nix::fcntl::AT_FDCWD, new.as_c_str());
        nix::fcntl::renameat(here, new, here, self.path.as_c_str()).map_err(|errno| {
            // The error that matters is that of the renaming.
            let _ = nix::unistd::unlink(new);
            failed(errno)
        })
    }

    fn path(&self) -> PathBuf {
        Path::new(&OsString::from_vec(self.path.as_bytes().to_vec())).to_owned()
    }
}
