//! The errors a user can meet, each with a code that never changes.

use std::fmt;
use std::process::Output;

/// A stable error code. Its text is what scripts match on; see [`Code::as_str`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// An annotation is wrong by itself.
    InvalidRequest,
    /// Two annotations contradict each other, or the container is given a driver besides its share.
    Conflict,
    /// The node's configuration forbids the request.
    Denied,
    /// There is no GPU, no driver, or none that matches `fgpu/device` and `fgpu/model`.
    NoGpu,
    /// The request can never be satisfied on this node, even when it is empty.
    TooLarge,
    /// The node's total free capacity is short now.
    NoCapacity,
    /// The total would do, but no single GPU has it.
    Fragmented,
    /// There is no free placement for the MIG profile.
    NoMigPlacement,
    /// The request queued for `fgpu/wait` and no room came.
    TimedOut,
    /// The request queued for `fgpu/wait` and somebody took it out of the queue.
    Cancelled,
    /// The GPU refuses work.
    GpuUnhealthy,
    /// The NVIDIA driver or NVML failed.
    DriverError,
    /// The allocator file failed its check.
    StateCorrupt,
    /// The node or its configuration is at fault: a file cannot be read or written, a program is missing.
    Internal,
}

impl Code {
    /// Every code, in the order of the documentation.
    pub const ALL: [Code; 14] = [
        Code::InvalidRequest,
        Code::Conflict,
        Code::Denied,
        Code::NoGpu,
        Code::TooLarge,
        Code::NoCapacity,
        Code::Fragmented,
        Code::NoMigPlacement,
        Code::TimedOut,
        Code::Cancelled,
        Code::GpuUnhealthy,
        Code::DriverError,
        Code::StateCorrupt,
        Code::Internal,
    ];

    /// The code as it is printed, for example `no-capacity`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Code::InvalidRequest => "invalid-request",
            Code::Conflict => "conflict",
            Code::Denied => "denied",
            Code::NoGpu => "no-gpu",
            Code::TooLarge => "too-large",
            Code::NoCapacity => "no-capacity",
            Code::Fragmented => "fragmented",
            Code::NoMigPlacement => "no-mig-placement",
            Code::TimedOut => "timed-out",
            Code::Cancelled => "cancelled",
            Code::GpuUnhealthy => "gpu-unhealthy",
            Code::DriverError => "driver-error",
            Code::StateCorrupt => "state-corrupt",
            Code::Internal => "internal",
        }
    }
}

/// Reads a code as [`Code::as_str`] prints it.
impl std::str::FromStr for Code {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|known| known.as_str() == text).ok_or(())
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error as every front end prints it: `fgpu: CODE: MESSAGE`.
///
/// The message names the request, the reason and what to do next, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("fgpu: {code}: {message}")]
pub struct Error {
    /// The stable code.
    pub code: Code,
    /// What was asked, why it failed, what to do next.
    pub message: String,
}

impl Error {
    /// Makes an error from its parts.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Reads back a line that a program of ours printed: `fgpu: CODE: MESSAGE`.
    fn from_line(line: &str) -> Option<Self> {
        let (code, message) = line.strip_prefix("fgpu: ")?.split_once(": ")?;
        Some(Self::new(code.parse().ok()?, message))
    }

    /// Why `command`, a program of ours that asks the driver, has failed: the error that it printed, or else
    /// that it died.
    pub fn of_program(command: &str, output: &Output) -> Self {
        let text = String::from_utf8_lossy(&output.stderr);
        text.lines().find_map(Self::from_line).unwrap_or_else(|| {
            let last = text.trim().lines().last().unwrap_or("it printed nothing");
            Self::new(Code::DriverError, format!("{command}: {}: {last}; see `dmesg`", output.status))
        })
    }

    /// An I/O failure on the node, with the path it concerns.
    pub fn io(doing: &str, path: &std::path::Path, source: &std::io::Error) -> Self {
        Self::new(Code::Internal, format!("cannot {doing} {}: {source}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    #[test]
    fn a_printed_error_is_read_back() {
        for code in Code::ALL {
            let error = Error::new(code, "there is no driver: load it");
            assert_eq!(Error::from_line(&error.to_string()), Some(error));
        }
        for line in ["fgpu: nonsense: x", "fgpu: warning: GPU 1 is left out", "thread panicked", ""] {
            assert_eq!(Error::from_line(line), None, "{line}");
        }
    }

    #[test]
    fn a_program_that_died_is_an_error_of_the_drivers() {
        let told = |stderr: &str| {
            let (status, stderr) = (ExitStatus::from_raw(11), stderr.into());
            Error::of_program("fgpu driver look", &Output { status, stdout: Vec::new(), stderr })
        };
        assert_eq!(told("a word\nfgpu: no-gpu: gone\nmore\n"), Error::new(Code::NoGpu, "gone"));
        let died = told("one\nlast words\n");
        assert_eq!(died.code, Code::DriverError);
        assert!(died.message.starts_with("fgpu driver look: signal: 11"), "{died}");
        assert!(died.message.ends_with(": last words; see `dmesg`"), "{died}");
        assert!(told("").message.contains("it printed nothing"));
    }
}
