//! The relay's side of a job (see [`crate::job`]).

use std::fs::File;
use std::io::{Read, Result, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::log;

use super::Setup;

/// What a job is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// Of the call with this key.
    Prepare(u64),
    /// Of the container with this id.
    Activate(String),
    /// Of the container with this id.
    Release(String),
}

/// A job that runs.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) purpose: Purpose,
    child: Child,
    output: Vec<u8>,
}

impl Job {
    /// Starts a job. Its standard error is containerd's log.
    pub(super) fn spawn(
        setup: &Setup,
        purpose: Purpose,
        args: &[&str],
        stdin: Option<&[u8]>,
    ) -> Result<Self> {
        let mut child = Command::new(&setup.program)
            .args(args)
            .stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .stderr(log::open(&setup.bundle).map_or_else(Stdio::null, |log: File| log.into()))
            .spawn()?;
        if let (Some(bytes), Some(mut pipe)) = (stdin, child.stdin.take()) {
            // A job that does not read has died, and its output will say so by being empty.
            let _ = pipe.write_all(bytes);
        }
        Ok(Self { purpose, child, output: Vec::new() })
    }

    /// Becomes readable, and at last ends, with the job.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.child.stdout.as_ref().map(AsFd::as_fd)
    }

    /// Reads once. Returns whether the job has ended.
    pub(super) fn read(&mut self) -> bool {
        let mut buffer = [0; 1024];
        match self.child.stdout.as_mut().map(|stdout| stdout.read(&mut buffer)) {
            Some(Ok(count)) if count > 0 => {
                self.output.extend_from_slice(&buffer[..count]);
                false
            }
            Some(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => false,
            _ => true,
        }
    }

    /// Reaps the job. Returns what it wrote, and how it ended.
    pub(super) fn finish(mut self) -> (Purpose, Vec<u8>, Result<ExitStatus>) {
        let status = self.child.wait();
        (self.purpose, self.output, status)
    }

    /// Ends the job wherever it is.
    pub(super) fn kill(mut self) {
        // Fails only if it has been reaped, which nobody but us does.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
