//! The errors a user can meet, each with a code that never changes.

use std::fmt;
use std::process::Output;
use std::str::FromStr;
use std::sync::Arc;

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
    /// The request queued for `fgpu/wait` and was taken out of the queue.
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

/// What is not the text of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no error code of fgpu")]
pub struct UnknownCode;

impl FromStr for Code {
    type Err = UnknownCode;

    /// Reads a code as [`Code::as_str`] prints it.
    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        Self::ALL.into_iter().find(|code| code.as_str() == text).ok_or(UnknownCode)
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
#[derive(Debug, Clone, thiserror::Error)]
#[error("fgpu: {code}: {message}")]
pub struct Error {
    /// The stable code.
    pub code: Code,
    /// What was asked, why it failed, what to do next.
    pub message: String,
    /// The failure beneath it. The message has its text already ([`chain`]).
    #[source]
    pub source: Option<Cause>,
}

/// Two errors are the same if users meet the same: the code and the message.
impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        (self.code, &self.message) == (other.code, &other.message)
    }
}

impl Eq for Error {}

impl Error {
    /// Makes an error from its parts.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), source: None }
    }

    /// The same error, with the failure that caused it. The message must have its text.
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Cause(Arc::new(source)));
        self
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
        // An io::Error has no clone; of a system call its number is all that it has.
        let same = source.raw_os_error().map_or_else(
            || std::io::Error::new(source.kind(), source.to_string()),
            std::io::Error::from_raw_os_error,
        );
        Self::new(Code::Internal, format!("cannot {doing} {}: {source}", path.display())).caused_by(same)
    }
}

/// The failure beneath an [`Error`].
#[derive(Debug, Clone, thiserror::Error)]
#[error(transparent)]
pub struct Cause(Arc<dyn std::error::Error + Send + Sync>);

/// An error and its sources in one line. A source whose text the line has already is not repeated.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let text = source.to_string();
        if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        next = source.source();
    }
    line
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
    fn an_error_carries_its_source_and_prints_its_text_once() {
        let denied = std::io::Error::from_raw_os_error(13);
        let error = Error::io("read", std::path::Path::new("/x"), &denied);
        let source = std::error::Error::source(&error).expect("it has a source");
        let cause = source.downcast_ref::<Cause>().expect("it is a cause");
        let found = cause.0.downcast_ref::<std::io::Error>().expect("it is an I/O error");
        assert_eq!(found.raw_os_error(), Some(13));
        assert_eq!(chain(&error), "fgpu: internal: cannot read /x: Permission denied (os error 13)");
        let outer = std::io::Error::other(Error::new(Code::NoGpu, "none"));
        assert_eq!(chain(&outer), "fgpu: no-gpu: none");
        let apart = Error::new(Code::Internal, "cannot go on").caused_by(denied);
        assert_eq!(chain(&apart), "fgpu: internal: cannot go on: Permission denied (os error 13)");
        assert_eq!(apart, Error::new(Code::Internal, "cannot go on"), "the source is not compared");
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
