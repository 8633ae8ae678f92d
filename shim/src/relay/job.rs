//! The relay's side of a job (see [`crate::job`]).

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::job::{Prepared, Work};
use crate::{log, sys};

use super::Setup;

/// What a job is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// Of the call with this key.
    Prepare(u64),
    /// Of a call that has its result: there is nothing left but the job's end.
    Prepared,
    /// Of the container with this id.
    Activate(String),
    /// Of the container with this id.
    Release(String),
    /// Of the container with this id, for the call with this key.
    Reopen(String, u64),
}

/// A job that runs.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) purpose: Purpose,
    pid: Pid,
    result: File,
    output: Vec<u8>,
}

impl Job {
    /// Starts a job. Its standard error is containerd's log.
    pub(super) fn start(setup: &Setup, purpose: Purpose, work: Work) -> Result<Self> {
        let (result, writer) = std::io::pipe()?;
        let writer = File::from(std::os::fd::OwnedFd::from(writer));
        let log = log::open(&setup.bundle);
        let engine = setup.engine;
        let bundle = &setup.bundle;
        let pid = sys::fork(&writer, log.as_ref(), move |writer| {
            // For ps(1), and for a log that names the killed process; it works without.
            let _ = nix::sys::prctl::set_name(work.name());
            engine(bundle, work, writer)
        })?;
        Ok(Self { purpose, pid, result: File::from(std::os::fd::OwnedFd::from(result)), output: Vec::new() })
    }

    /// Becomes readable, and at last ends, with the job.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.result.as_fd()
    }

    /// Reads once. Returns whether the job has ended.
    pub(super) fn read(&mut self) -> bool {
        let mut buffer = [0; 1024];
        match self.result.read(&mut buffer) {
            Ok(count) if count > 0 => {
                self.output.extend_from_slice(&buffer[..count]);
                false
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => false,
            _ => true,
        }
    }

    /// The result of a reservation, once, as soon as it is there: the process may take a while to be gone.
    pub(super) fn result(&mut self) -> Option<(u64, Prepared)> {
        let Purpose::Prepare(call) = self.purpose else { return None };
        let prepared = Prepared::parse(&self.output)?;
        self.purpose = Purpose::Prepared;
        Some((call, prepared))
    }

    /// Reaps the job. Returns what it was for, and how it ended.
    pub(super) fn finish(self) -> (Purpose, String) {
        let how = match reap(self.pid) {
            Ok(WaitStatus::Exited(_, status)) => format!("exit status {status}"),
            Ok(WaitStatus::Signaled(_, signal, _)) => format!("killed by {signal}"),
            Ok(other) => format!("{other:?}"),
            Err(error) => error.to_string(),
        };
        (self.purpose, how)
    }

    /// Ends the job wherever it is.
    pub(super) fn kill(self) {
        // Fails only if it has been reaped, which only we do.
        let _ = kill(self.pid, Signal::SIGKILL);
        let _ = reap(self.pid);
    }
}

fn reap(pid: Pid) -> Result<WaitStatus> {
    loop {
        match waitpid(pid, None) {
            Err(nix::errno::Errno::EINTR) => {}
            done => return done.map_err(Error::from),
        }
    }
}
