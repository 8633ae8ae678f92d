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
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use fgpu_spec::Code;

    use super::*;

    const SHORT: Patience = Patience { word: Duration::from_millis(50), rest: Duration::from_millis(50) };

    fn open(path: &Path) -> OwnedFd {
        File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap().into()
    }

    /// Another process that has the lock until it is killed.
    fn hold(path: &Path) -> Child {
        let script = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); \
                      print(flush=True); time.sleep(3600)";
        let mut holder =
            Command::new("python3").args(["-c", script]).arg(path).stdout(Stdio::piped()).spawn().unwrap();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
        holder
    }

    fn signal(child: &Child, signal: &str) {
        let sent = Command::new("kill").arg(signal).arg(child.id().to_string()).status();
        assert!(sent.unwrap().success());
    }

    #[test]
    fn a_wait_ends_with_the_name_of_who_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let host = Host::default();
        let mut other = hold(&path);
        let error = take(open(&path), &path, &host, SHORT).unwrap_err();
        let error = fgpu_spec::Error::from(error);
        assert_eq!(error.code, Code::TimedOut);
        let holding = holder(&host, &path).unwrap();
        assert_eq!(holding.pid.unsigned_abs(), other.id());
        assert!(error.message.contains(&holding.to_string()), "{error}");
        signal(&other, "-STOP");
        while holder(&host, &path).unwrap().state != Some('T') {
            thread::yield_now();
        }
        assert!(holder(&host, &path).unwrap().to_string().ends_with(", which is stopped)"));
        other.kill().unwrap();
        other.wait().unwrap();
        // A waiter that gave up leaves no lock behind, though its thread gets it now.
        for _ in 0..2 {
            drop(take(open(&path), &path, &host, PATIENCE).unwrap());
        }
    }

    #[test]
    fn a_waiter_gets_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let host = Host::default();
        let mut other = hold(&path);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| take(open(&path), &path, &host, PATIENCE));
            // Either it waits by now, or it finds the lock free.
            thread::sleep(Duration::from_millis(20));
            other.kill().unwrap();
            other.wait().unwrap();
            waiter.join().unwrap().unwrap();
        });
    }
}
