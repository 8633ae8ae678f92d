//! The wait for the allocator's lock, and the lock's holder.
//!
//! It is held for some microseconds at a time, so a wait of seconds means that its holder was stopped, or
//! waits for a disk. The wait ends with an error that names the holder; before that, a line on standard error
//! (the terminal or the journal) names it.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use fgpu_spec::escape_for_display;
use rustix::fs::{FlockOperation, flock, major, minor};
use rustix::io::{Errno, retry_on_intr};

use crate::holding::Holding;
use crate::proc::parse_stat;
use crate::{Error, Host};

/// How long a process waits for the lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// After so long the lock's holder is named.
    word: Duration,
    /// Then so much longer.
    rest: Duration,
}

/// Shorter than an engine's and a hook's own limits, so that the reason is told by us.
pub(crate) const PATIENCE: Patience =
    Patience { word: Duration::from_secs(2), rest: Duration::from_secs(18) };

/// The holder of an exclusive lock (flock(2)) on a file. `None`: there is none, or it cannot be seen.
pub fn holder(host: &Host, path: &Path) -> Option<Holding> {
    let stat = rustix::fs::stat(path).ok()?;
    let locks = fs::read_to_string(host.proc.join("locks")).ok()?;
    let file = format!("{:02x}:{:02x}:{}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino);
    // `1: FLOCK  ADVISORY  WRITE 708 08:01:131 0 EOF`; a waiter has an arrow after the number (proc(5)).
    let holds = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, "FLOCK", _, "WRITE", pid, of, ..] if of == file => pid.parse().ok(),
            _ => None,
        }
    };
    let pid: i32 = locks.lines().find_map(holds)?;
    if pid <= 0 {
        return Some(Holding { pid, name: String::new(), state: None, start: None });
    }
    let text = |file: &str| fs::read(host.proc.join(pid.to_string()).join(file)).ok();
    // A name may have any bytes, parentheses among them.
    let name = escape_for_display(String::from_utf8_lossy(&text("comm")?).trim_end());
    let stat = text("stat").and_then(|stat| parse_stat(&stat));
    let (state, start) = stat.map(|stat| (stat.state, stat.starttime)).unzip();
    Some(Holding { pid, name, state, start })
}

/// Takes the lock on an open file.
pub(crate) fn take(file: OwnedFd, path: &Path, host: &Host, patience: Patience) -> Result<OwnedFd, Error> {
    let failed = |errno: Errno| Error::io("lock", path, errno);
    match retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
        Err(Errno::WOULDBLOCK) => {}
        taken => return taken.map(|()| file).map_err(failed),
    }
    // A thread waits in the kernel's queue, which is first come, first served. Polling would not be.
    let (sender, receiver) = mpsc::channel();
    let wait = move || {
        let taken = retry_on_intr(|| flock(&file, FlockOperation::LockExclusive)).map(|()| file);
        if let Err(mpsc::SendError(Ok(file))) = sender.send(taken) {
            // The caller waits no more. A child forked meanwhile shares the open file, so closing it may not
            // be enough.
            let _ = flock(file.as_fd(), FlockOperation::Unlock);
        }
    };
    thread::Builder::new().spawn(wait).map_err(|error| Error::io("lock", path, error))?;
    for (step, is_last) in [(patience.word, false), (patience.rest, true)] {
        match receiver.recv_timeout(step) {
            Ok(taken) => return taken.map_err(failed),
            Err(RecvTimeoutError::Disconnected) => return Err(failed(Errno::NOLCK)),
            Err(RecvTimeoutError::Timeout) if is_last => {}
            Err(RecvTimeoutError::Timeout) => tell(path, host),
        }
    }
    let waited = patience.word + patience.rest;
    Err(Error::Locked { path: path.to_owned(), holder: holder(host, path), waited })
}

/// Names the lock's holder on standard error.
fn tell(path: &Path, host: &Host) {
    use std::io::Write;
    let who = holder(host, path).map_or("another process".to_owned(), |holder| holder.to_string());
    let path = path.display();
    // If the holder is unknown, we wait all the same.
    let _ = writeln!(std::io::stderr(), "fgpu: waits for {path}, which {who} holds");
}

#[cfg(test)]
mod tests;
