//! Running a command to its end.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Seconds after which a command, or an event, is given up: far above what any takes, so that a hang is a
/// failure and not the end of the run.
const PATIENCE: u64 = 300;

/// What came of a command.
#[derive(Debug, Clone)]
pub struct Output {
    /// The command, for messages.
    pub line: String,
    /// Exit status; 128 and the signal's number when it was killed, 124 when it was given up.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Standard output without the white space around it; panics if the command failed.
    #[track_caller]
    pub fn ok(&self) -> &str {
        assert!(self.status == 0, "{}", self.story());
        self.stdout.trim()
    }

    /// Standard error; panics if the command succeeded.
    #[track_caller]
    pub fn refused(&self) -> &str {
        assert!(self.status != 0, "should have failed: {}", self.story());
        self.stderr.trim()
    }

    /// Everything about it, for a message.
    pub fn story(&self) -> String {
        format!(
            "{}\n  status {}\n  stdout: {}\n  stderr: {}",
            self.line, self.status, self.stdout, self.stderr
        )
    }
}

/// Runs a command with an empty standard input.
#[track_caller]
pub fn run<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> Output {
    run_with(words, "")
}

/// Runs a command with `input` as its standard input. The command reads it before it prints much.
#[track_caller]
pub fn run_with<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>, input: &str) -> Output {
    let words: Vec<_> = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
    let line = words.iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ");
    let mut child = Command::new("timeout")
        .args(["--kill-after=10", &PATIENCE.to_string()])
        .args(&words)
        .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {line}: {error}"));
    if let Some(mut stdin) = child.stdin.take() {
        // A command that ends without reading all of it says why by itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let done = child.wait_with_output().unwrap_or_else(|error| panic!("cannot wait for {line}: {error}"));
    Output {
        line,
        // `timeout` hands through the status; killed itself it has none.
        status: done.status.code().unwrap_or(137),
        stdout: String::from_utf8_lossy(&done.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&done.stderr).into_owned(),
    }
}

/// Runs a line of shell.
#[track_caller]
pub fn shell(line: &str) -> Output {
    run(["sh", "-c", line])
}

/// Waits until `found` has something, looking often and for long; panics with `what` when it never comes.
#[track_caller]
pub fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(it) = found() {
            return it;
        }
        assert!(start.elapsed() < Duration::from_secs(PATIENCE), "waited in vain for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until `is` is true; see [`wait_for`].
#[track_caller]
pub fn wait_until(what: &str, mut is: impl FnMut() -> bool) {
    wait_for(what, || is().then_some(()));
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=%,@+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
