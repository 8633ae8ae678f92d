//! Sleeping until something changes in a directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fgpu_spec::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::inotify;
use rustix::io::Errno;

/// A directory that is watched (inotify(7)).
pub(crate) struct Changes {
    directory: PathBuf,
    events: OwnedFd,
}

impl Changes {
    /// Watches for these kinds of changes.
    ///
    /// # Errors
    /// `internal` if the kernel does not watch it.
    pub(crate) fn of(directory: &Path, kinds: inotify::WatchFlags) -> Result<Self, Error> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        inotify::init(flags)
            .and_then(|events| inotify::add_watch(&events, directory, kinds).map(|_| events))
            .map(|events| Self { directory: directory.to_owned(), events })
            .map_err(|errno| failed(directory, errno))
    }

    /// Sleeps until there was one since the last call, or as long as that.
    ///
    /// # Errors
    /// `internal` if it cannot be watched any more.
    pub(crate) fn sleep(&self, longest: Duration) -> Result<(), Error> {
        let timeout = Timespec::try_from(longest).ok();
        match poll(&mut [PollFd::new(&self.events, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(failed(&self.directory, errno)),
        }
        // The events say nothing that the directory does not.
        loop {
            match rustix::io::read(&self.events, &mut [0; 4096][..]) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(failed(&self.directory, errno)),
            }
        }
    }
}

fn failed(directory: &Path, errno: Errno) -> Error {
    Error::io("watch", directory, &errno.into())
}
