//! What can go wrong with the store itself, as opposed to with a request.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fgpu_spec::{Code, Nonce};

use crate::holding::Holding;

/// A failure of the allocator file or of the node around it. Turns into a [`fgpu_spec::Error`] with a stable
/// code: `state-corrupt` for a file that cannot be trusted, `internal` for the rest.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The verb, for example `lock`.
        doing: &'static str,
        /// What it was done to.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Another process has held the allocator's lock for too long.
    #[error(
        "{} has been held for {} s by {}; it is held for some microseconds at a time: let that process go on, or end it, and try again",
        path.display(),
        waited.as_secs(),
        holder.as_ref().map_or("a process that cannot be seen from here".to_owned(), ToString::to_string)
    )]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// The process that has it, if that can be seen.
        holder: Option<Holding>,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The allocator file failed its check. Nothing was changed, and nothing is granted or released until it
    /// is rebuilt.
    #[error(
        "{} {reason}; {}no share is granted or freed until it is rebuilt, because running containers may hold \
         what it lost: run fgpu gc --rebuild",
        path.display(),
        aside.as_ref().map_or(String::new(), |aside| format!("it is kept as {}; ", aside.display()))
    )]
    Corrupt {
        /// The allocator file.
        path: PathBuf,
        /// What is wrong with it, as the rest of a sentence.
        reason: &'static str,
        /// The name under which the damaged file is kept.
        aside: Option<PathBuf>,
    },
    /// A file was written by another version of fgpu.
    #[error(
        "{} has format version {found}, and fgpu {} knows {known}; a newer fgpu wrote it: use that one, or end its containers and reboot",
        path.display(),
        env!("CARGO_PKG_VERSION")
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// Ours.
        known: u64,
    },
    /// The allocator file is whole, and has something in it that only a newer version of fgpu knows.
    #[error(
        "{} is whole and holds what fgpu {} cannot read; a newer fgpu wrote it: use that one, or end its containers and reboot",
        path.display(),
        env!("CARGO_PKG_VERSION")
    )]
    Unknown {
        /// The allocator file.
        path: PathBuf,
    },
    /// A rebuild would forget grants whose containers may still run.
    #[error(
        "{} leaves no trace of the leases of {} container folder(s) in {}: {}; end these containers (annotation \
         fgpu/grant), or accept the loss with fgpu gc --rebuild --force",
        path.display(),
        lost.len(),
        folder.display(),
        lost.iter().map(Nonce::to_string).collect::<Vec<_>>().join(", ")
    )]
    Unaccounted {
        /// The allocator file.
        path: PathBuf,
        /// Where the container folders are.
        folder: PathBuf,
        /// The grants whose leases are lost.
        lost: Vec<Nonce>,
    },
    /// procfs does not show this process, so no judgement about others can be trusted.
    #[error("{} does not show this process: is procfs mounted there? No lease can be judged without it", .0.display())]
    NoProc(PathBuf),
    /// A lease cannot be written as text.
    #[error("cannot write the lease: {0}")]
    Unwritable(#[source] serde_json::Error),
}

impl Error {
    /// An I/O error with what was being done.
    pub(crate) fn io(doing: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { doing, path: path.to_owned(), source: source.into() }
    }
}

impl From<Error> for fgpu_spec::Error {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Corrupt { .. }
            | Error::Version { .. }
            | Error::Unknown { .. }
            | Error::Unaccounted { .. } => Code::StateCorrupt,
            Error::Locked { .. } => Code::TimedOut,
            Error::Io { .. } | Error::NoProc(_) | Error::Unwritable(_) => Code::Internal,
        };
        Self::new(code, error.to_string()).caused_by(error)
    }
}
