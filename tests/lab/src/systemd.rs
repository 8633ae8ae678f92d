//! systemd as the first process of namespaces of its own; see `inside/systemd`.

use std::fs;
use std::process::{Child, Command, Stdio};

use crate::command::{Output, run, wait_until};

const PID: &str = "/run/lab/systemd.pid";

/// A running systemd. It ends, with all that runs below it, when this is dropped.
#[derive(Debug)]
pub struct Systemd {
    script: Child,
    pid: String,
}

/// Starts one, and waits until its bus answers.
#[track_caller]
pub fn start() -> Systemd {
    let mut command = Command::new("/lab/systemd");
    // It ends with its input.
    command.arg("cat").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut script = command.spawn().unwrap_or_else(|error| panic!("/lab/systemd: {error}"));
    let mut ended = false;
    wait_until("systemd", || {
        ended = script.try_wait().is_ok_and(|status| status.is_some());
        ended || fs::exists(PID).unwrap_or(false)
    });
    let log = || fs::read_to_string("/var/log/lab/systemd.log").unwrap_or_default();
    assert!(!ended, "systemd does not come up: {}", log());
    let pid = fs::read_to_string(PID).unwrap_or_default().trim().to_owned();
    Systemd { script, pid }
}

impl Systemd {
    /// The words before a command that is to run below it.
    pub fn enter(&self) -> Vec<String> {
        ["nsenter", "--target", &self.pid, "--mount", "--pid", "--cgroup", "--"].map(str::to_owned).to_vec()
    }

    /// Runs a command below it.
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> Output {
        run(self.enter().iter().map(String::as_str).chain(words.iter().copied()))
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        drop(self.script.stdin.take());
        let _ = self.script.wait();
    }
}
