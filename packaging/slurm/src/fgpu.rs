//! Calls of the program `fgpu`.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// How long fgpu may take. It waits 20 s for the leases' lock at most, and says then who has it.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most that is read of what it says, bytes.
const MOST: usize = 16 << 10;

/// Runs fgpu to its end.
///
/// # Errors
/// What it says, or why it cannot be run.
pub(crate) fn call(program: &str, words: &[&str]) -> Result<(), String> {
    let mut running = Running::start(program, words)?;
    running.child.stdin = None;
    running.read(|_| false)?;
    running.end()
}

/// Runs `fgpu slurm task` up to its answer.
///
/// # Errors
/// As [`call`].
pub(crate) fn ask(program: &str, words: &[&str]) -> Result<Granted, String> {
    let mut running = Running::start(program, words)?;
    let said = running.read(|said| said.ends_with('\n'))?;
    match said.trim_end().strip_prefix("granted ") {
        Some(nodes) => Ok(Granted { nodes: nodes.split(' ').map(str::to_owned).collect(), running }),
        None => {
            running.end()?;
            Err(format!("fgpu: internal: {program} says nothing of a grant"))
        }
    }
}

/// fgpu, which waits in the share's mount namespace until this is dropped.
pub(crate) struct Granted {
    running: Running,
    nodes: Vec<String>,
}

impl Granted {
    pub(crate) fn namespace(&self) -> io::Result<File> {
        // It is our child, which nobody else reaps: the pid is its own.
        File::open(format!("/proc/{}/ns/mnt", self.running.child.id()))
    }

    /// The device nodes of the share's GPUs.
    pub(crate) fn nodes(self) -> Vec<String> {
        self.nodes.clone()
    }
}

struct Running {
    child: Child,
    program: String,
    until: Instant,
}

impl Running {
    /// With none of the caller's environment, which a job's user chooses.
    fn start(program: &str, words: &[&str]) -> Result<Self, String> {
        let child = Command::new(program)
            .args(words)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("fgpu: internal: cannot run {program}: {error}"))?;
        Ok(Self { child, program: program.to_owned(), until: Instant::now() + PATIENCE })
    }

    /// What it writes on standard output, until `is_all` or its end.
    fn read(&mut self, is_all: impl Fn(&str) -> bool) -> Result<String, String> {
        let mut said = String::new();
        let Some(out) = &mut self.child.stdout else { return Ok(said) };
        while said.len() < MOST && !is_all(&said) {
            let left = self.until.saturating_duration_since(Instant::now());
            let mut ready = [PollFd::new(out.as_fd(), PollFlags::POLLIN)];
            let count = poll(&mut ready, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO));
            let mut bytes = [0; 512];
            match count {
                Ok(0) => {
                    return Err(format!(
                        "fgpu: timed-out: {} has no answer after {PATIENCE:?}",
                        self.program
                    ));
                }
                Ok(_) => match out.read(&mut bytes) {
                    Ok(0) => break,
                    Ok(length) => {
                        said.push_str(&String::from_utf8_lossy(bytes.get(..length).unwrap_or_default()))
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                },
                Err(nix::errno::Errno::EINTR) => {}
                Err(_) => break,
            }
        }
        Ok(said)
    }

    /// Waits for its end.
    fn end(&mut self) -> Result<(), String> {
        self.child.stdin = None;
        let mut said = Vec::new();
        if let Some(err) = &mut self.child.stderr {
            // It has closed its output, and is about to end.
            let _ = err.take(MOST as u64).read_to_end(&mut said);
        }
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) if said.is_empty() => {
                Err(format!("fgpu: internal: {} ended with {status}", self.program))
            }
            Ok(_) => Err(String::from_utf8_lossy(&said).trim_end().to_owned()),
            Err(error) => Err(format!("fgpu: internal: {}: {error}", self.program)),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.stdin = None;
        // One that has no answer after all this time has none any more.
        if Instant::now() >= self.until {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
