//! The engine's work, done in a process of its own: a fork of the relay.
//!
//! The relay lives as long as the container; what the engine reads and builds must not stay in its memory,
//! its waiting (`fgpu/wait`) must not hold up the other calls of a pod, and its failing must not end the
//! relay. A job says what came of it in one line through a pipe; everything else goes to containerd's log.

use std::ffi::CStr;
use std::fs::File;
use std::io::Write;

use anyhow::Context;
use containerd_shim::protos::api::CreateTaskRequest;
use containerd_shim::protos::protobuf::Message;
use fgpu_allocator::Process;
use fgpu_engine::config::Config;
use fgpu_engine::diagnostics::{self, Format, Sink};
use fgpu_engine::{Container, RootfsMount};
use fgpu_spec::{Code, Error, Nonce};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

/// What came of a [`Work::Prepare`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prepared {
    /// The container asks for no GPU; nothing was changed.
    Nothing,
    /// It has a grant, and its bundle is edited.
    Granted(Nonce),
    /// It cannot have one; the error's code and its text for the user. Nothing was changed.
    Failed(Code, String),
}

impl Prepared {
    fn line(&self) -> String {
        match self {
            Self::Nothing => "nothing\n".to_owned(),
            Self::Granted(nonce) => format!("granted {nonce}\n"),
            Self::Failed(code, message) => format!("failed {code} {}\n", message.replace('\n', " ")),
        }
    }

    /// Reads the line. `None`: the job ended before it had written it.
    pub(crate) fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "nothing" => Some(Self::Nothing),
            "granted" => rest.parse().ok().map(Self::Granted),
            "failed" => {
                let (code, message) = rest.split_once(' ')?;
                Some(Self::Failed(code.parse().ok()?, message.to_owned()))
            }
            _ => None,
        }
    }
}

/// What a job has to do.
#[derive(Debug)]
pub(crate) enum Work {
    /// Reserve what a container asks for, and edit its bundle.
    Prepare {
        namespace: String,
        /// The relay.
        maker: i32,
        /// The encoded `CreateTaskRequest`.
        request: Vec<u8>,
    },
    /// Record a container's init in its lease.
    Activate { nonce: Nonce, pid: i32 },
    /// Give a grant back.
    Release { nonce: Nonce },
    /// Open what an update of a container's resources has closed.
    Reopen { namespace: String, id: String },
    /// Give back whatever a container has, when its nonce is not known.
    ReleaseContainer { namespace: String, id: String },
}

impl Work {
    /// The name of the process that does it, at most 15 bytes (prctl(2), `PR_SET_NAME`).
    pub(crate) fn name(&self) -> &'static CStr {
        match self {
            Self::Prepare { .. } => c"fgpu-prepare",
            Self::Activate { .. } => c"fgpu-activate",
            Self::Reopen { .. } => c"fgpu-reopen",
            Self::Release { .. } | Self::ReleaseContainer { .. } => c"fgpu-release",
        }
    }
}

/// Does a job. `result` takes the result of a [`Work::Prepare`]; its end tells the relay of ours, so no
/// program that the engine starts may inherit it.
pub(crate) fn run(work: Work, mut result: File) -> anyhow::Result<()> {
    let config = Config::load();
    // Standard error is containerd's log here.
    diagnostics::start(diagnostics::level(&config), Format::Text, Sink::Stderr);
    match work {
        Work::Prepare { namespace, maker, request } => {
            let prepared = prepare(config, &namespace, maker, &request)?;
            result.write_all(prepared.line().as_bytes()).context("cannot write the result")?;
        }
        Work::Activate { nonce, pid } => fgpu_engine::activate(&nonce, pid)?,
        Work::Reopen { namespace, id } => fgpu_engine::reopen_container(&namespace, &id)?,
        Work::Release { nonce } => fgpu_engine::release(&nonce)?,
        Work::ReleaseContainer { namespace, id } => fgpu_engine::release_container(&namespace, &id)?,
    }
    Ok(())
}

fn prepare(
    config: Result<Config, Error>,
    namespace: &str,
    maker: i32,
    request: &[u8],
) -> anyhow::Result<Prepared> {
    // This job must not wait for room after its relay died: the lease would have no owner.
    set_pdeathsig(Signal::SIGKILL).context("cannot ask to end with the relay")?;
    anyhow::ensure!(nix::unistd::getppid().as_raw() == maker, "the relay has ended already");
    let request = CreateTaskRequest::parse_from_bytes(request).context("the request does not decode")?;
    let rootfs: Vec<_> = request
        .rootfs
        .into_iter()
        .map(|mount| RootfsMount { kind: mount.type_, source: mount.source, options: mount.options })
        .collect();
    let bundle = std::path::Path::new(&request.bundle);
    let container = Container {
        namespace,
        id: &request.id,
        bundle,
        config: None,
        rootfs: &rootfs,
        maker: Process::of(maker).context("the relay has ended already")?,
        // The stock shim has runc write it (containerd, process/init.go `InitPidFile`).
        pid_file: Some(bundle.join("init.pid")),
        poststop: false,
    };
    Ok(match fgpu_engine::prepare_bundle(config, &container) {
        Ok(None) => Prepared::Nothing,
        Ok(Some(given)) => Prepared::Granted(given.nonce),
        Err(error) => Prepared::Failed(error.code, error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_survives_its_line() {
        let failed = |text: &str| Prepared::Failed(Code::NoCapacity, text.into());
        for prepared in
            [Prepared::Nothing, Prepared::Granted(Nonce([0xab; 16])), failed("fgpu: no-capacity: 2 left")]
        {
            assert_eq!(Prepared::parse(prepared.line().as_bytes()), Some(prepared));
        }
        for code in Code::ALL {
            let failed = Prepared::Failed(code, format!("fgpu: {code}: why"));
            assert_eq!(Prepared::parse(failed.line().as_bytes()), Some(failed));
        }
        let line = failed("two\nlines").line();
        assert_eq!(Prepared::parse(line.as_bytes()), Some(failed("two lines")));
    }

    #[test]
    fn a_job_that_was_killed_said_nothing() {
        for line in [
            &b""[..],
            b"gran",
            b"granted 0123",
            b"granted 0123\n",
            b"failed\n",
            b"failed nonsense why\n",
            b"\xff\n",
        ] {
            assert_eq!(Prepared::parse(line), None);
        }
    }
}
