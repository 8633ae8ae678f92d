//! A place in the queue, and the pipe by which its holder is woken.
//!
//! ```text
//! queue/<ticket>    a FIFO of mode 0600, held open by the waiter; made and removed with the lock held
//! ```
//!
//! What is written into it is [`WAKE`], or [`CANCEL`] for a waiter whose line is about to go. A FIFO that no
//! process has open tells the waker that its waiter is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fgpu_spec::Nonce;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::{Error, Process};

/// Look whether there is room now.
const WAKE: u8 = b'!';
/// The wait is over: it was cancelled.
const CANCEL: u8 = b'x';

/// A place in the queue, or none yet. It is given back by [`crate::WaitQueue::leave`], by a grant, or by the
/// end of the process.
#[derive(Debug)]
pub struct Ticket {
    /// The waiter.
    pub(crate) process: Process,
    pub(crate) place: Option<WakePipe>,
    /// Whether the last wait ended by a wake-up.
    pub(crate) woken: bool,
    /// Whether the wait was cancelled.
    pub(crate) cancelled: bool,
}

/// The pipe of one that waits.
#[derive(Debug)]
pub(crate) struct WakePipe {
    pub(crate) nonce: Nonce,
    fifo: OwnedFd,
    path: PathBuf,
}

impl WakePipe {
    /// Makes the pipe. To be called with the lock held.
    pub(crate) fn make(folder: &Path, nonce: Nonce) -> Result<Self, Error> {
        match rustix::fs::mkdir(folder, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(Error::io("create", folder, errno)),
        }
        let path = folder.join(nonce.to_string());
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .map_err(|errno| Error::io("create", &path, errno))?;
        // For reading and writing: with no writer of its own, a reader would see the end of the file for ever
        // after the first wake-up.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match retry_on_intr(|| rustix::fs::open(&path, flags, Mode::empty())) {
            Ok(fifo) => Ok(Self { nonce, fifo, path }),
            Err(errno) => {
                remove(folder, &nonce.to_string());
                Err(Error::io("open", &path, errno))
            }
        }
    }
}

impl Ticket {
    /// A ticket for this process, which has no place yet.
    pub fn new(process: Process) -> Self {
        Self { process, place: None, woken: false, cancelled: false }
    }

    /// Becomes readable when it is woken; then call [`Ticket::wait`]. `None` while it has no place.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.place.as_ref().map(|place| place.fifo.as_fd())
    }

    /// Sleeps until it is woken, for `longest` at most, and not at all without a place. A signal that is
    /// handled ends it, too.
    ///
    /// # Errors
    /// The kernel cannot poll(2).
    pub fn wait(&mut self, longest: Duration) -> Result<(), Error> {
        self.woken = false;
        let Some(place) = &self.place else { return Ok(()) };
        let timeout = Timespec::try_from(longest).ok();
        match poll(&mut [PollFd::new(&place.fifo, PollFlags::IN)], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::io("wait on", &place.path, errno)),
        }
        self.take_messages()
    }

    /// Takes what others wrote, however many there were.
    pub(crate) fn take_messages(&mut self) -> Result<(), Error> {
        let Some(place) = &self.place else { return Ok(()) };
        let mut messages = [0; 64];
        loop {
            match rustix::io::read(&place.fifo, &mut messages[..]) {
                Ok(count) => {
                    self.woken |= count > 0;
                    self.cancelled |= messages[..count].contains(&CANCEL);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(Error::io("read", &place.path, errno)),
            }
        }
    }
}

/// Removes a pipe. To be called with the lock held, after its line is gone.
pub(crate) fn remove(folder: &Path, ticket: &str) {
    // What is left is removed by the next reconcile.
    let _ = rustix::fs::unlink(folder.join(ticket));
}

/// Whether a process holds a ticket, as far as we may know.
pub(crate) fn is_open(folder: &Path, ticket: &str) -> bool {
    !matches!(open(folder, ticket), Err(Errno::NXIO | Errno::NOENT))
}

/// Wakes a waiter. `false` if no process holds its ticket any more.
pub(crate) fn wake(folder: &Path, ticket: &str) -> bool {
    tell(folder, ticket, WAKE)
}

/// Ends the wait of another process. To be called with the lock held, before its line goes: a waiter that
/// finds its line gone looks here for the reason.
pub(crate) fn cancel(folder: &Path, ticket: &str) {
    // A waiter that is gone need not be told.
    tell(folder, ticket, CANCEL);
}

fn tell(folder: &Path, ticket: &str, message: u8) -> bool {
    let Ok(fifo) = open(folder, ticket) else { return false };
    // A pipe that is full has been written to.
    matches!(retry_on_intr(|| rustix::io::write(&fifo, &[message])), Ok(1) | Err(Errno::AGAIN))
}

/// Opens a pipe for writing; with ENXIO where no process has it open (fifo(7)).
fn open(folder: &Path, ticket: &str) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    retry_on_intr(|| rustix::fs::open(folder.join(ticket), flags, Mode::empty()))
}

/// The tickets that have a pipe.
pub(crate) fn pipes(folder: &Path) -> io::Result<Vec<String>> {
    match std::fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
