//! The engine's work, done in a process of its own: this program again, with an action of its own.
//!
//! The relay lives as long as the container; what the engine reads and builds must not stay in its memory, its
//! waiting (`fgpu/wait`) must not hold up the other calls of a pod, and its failing must not end the relay. A
//! job says what came of it in one line on its standard output; everything else goes to containerd's log.

use std::io::{Read, Write};

use anyhow::Context;
use containerd_shim_protos::api::CreateTaskRequest;
use containerd_shim_protos::protobuf::Message;
use fgpu_allocator::Process;
use fgpu_hook::{Container, RootfsMount};
use fgpu_spec::{Error, Nonce};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use crate::invocation::Invocation;

/// What came of `fgpu-prepare`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Prepared {
    /// The container asks for no GPU; nothing was changed.
    Nothing,
    /// It has a grant, and its bundle is edited.
    Granted(Nonce),
    /// It cannot have one; the error's code and its text for the user. Nothing was changed.
    Failed(String, String),
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
                Some(Self::Failed(code.to_owned(), message.to_owned()))
            }
            _ => None,
        }
    }
}

/// `-namespace NS -maker PID fgpu-prepare`, the encoded `CreateTaskRequest` on standard input.
pub(crate) fn prepare(invocation: &Invocation) -> anyhow::Result<()> {
    // Nobody waits for room on behalf of a relay that died: its lease would be nobody's.
    set_pdeathsig(Signal::SIGKILL).context("cannot ask to end with the relay")?;
    let maker: i32 = invocation.text("maker")?.parse().context("-maker is no pid")?;
    if nix::unistd::getppid().as_raw() != maker {
        anyhow::bail!("the relay has ended already");
    }
    let mut stdout = claim_stdout()?;
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).context("cannot read the request")?;
    let request = CreateTaskRequest::parse_from_bytes(&bytes).context("the request does not decode")?;
    let rootfs: Vec<_> = request
        .rootfs
        .into_iter()
        .map(|mount| RootfsMount { kind: mount.type_, source: mount.source, options: mount.options })
        .collect();
    let bundle = std::path::Path::new(&request.bundle);
    let container = Container {
        namespace: invocation.text("namespace")?,
        id: &request.id,
        bundle,
        rootfs: &rootfs,
        maker: Process::of(maker).context("the relay has ended already")?,
        // The stock shim has runc write it (containerd, process/init.go `InitPidFile`).
        pid_file: Some(bundle.join("init.pid")),
        poststop: false,
    };
    let prepared = match fgpu_hook::prepare(&container) {
        Ok(None) => Prepared::Nothing,
        Ok(Some(nonce)) => Prepared::Granted(nonce),
        Err(error) => Prepared::Failed(error.code.to_string(), error.to_string()),
    };
    stdout.write_all(prepared.line().as_bytes()).context("cannot write the result")
}

/// `-nonce NONCE -pid PID fgpu-activate`.
pub(crate) fn activate(invocation: &Invocation) -> anyhow::Result<()> {
    let _stdout = claim_stdout()?;
    let pid = invocation.text("pid")?.parse().context("-pid is no pid")?;
    done(fgpu_hook::activate(&nonce(invocation)?, pid))
}

/// `-nonce NONCE fgpu-release`, or `-namespace NS -id ID fgpu-release` when the nonce is not known.
pub(crate) fn release(invocation: &Invocation) -> anyhow::Result<()> {
    let _stdout = claim_stdout()?;
    match invocation.flag("nonce") {
        Some(_) => done(fgpu_hook::release(&nonce(invocation)?)),
        None => done(fgpu_hook::release_container(invocation.text("namespace")?, invocation.text("id")?)),
    }
}

fn done(result: Result<(), Error>) -> anyhow::Result<()> {
    result.map_err(anyhow::Error::from)
}

fn nonce(invocation: &Invocation) -> anyhow::Result<Nonce> {
    invocation.text("nonce")?.parse().ok().context("-nonce is no nonce")
}

/// Takes standard output for ourselves: the relay learns of our end by its end, so no program that the engine
/// starts may inherit it.
fn claim_stdout() -> anyhow::Result<std::fs::File> {
    let claimed = nix::unistd::dup(std::io::stdout()).context("cannot duplicate standard output")?;
    nix::fcntl::fcntl(&claimed, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC))?;
    let null = std::fs::File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    nix::unistd::dup2_stdout(null).context("cannot replace standard output")?;
    Ok(claimed.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_survives_its_line() {
        let failed = |text: &str| Prepared::Failed("no-capacity".into(), text.into());
        for prepared in
            [Prepared::Nothing, Prepared::Granted(Nonce([0xab; 16])), failed("fgpu: no-capacity: 2 left")]
        {
            assert_eq!(Prepared::parse(prepared.line().as_bytes()), Some(prepared));
        }
        let line = failed("two\nlines").line();
        assert_eq!(Prepared::parse(line.as_bytes()), Some(failed("two lines")));
    }

    #[test]
    fn a_job_that_was_killed_said_nothing() {
        for line in [&b""[..], b"gran", b"granted 0123", b"granted 0123\n", b"failed\n", b"\xff\n"] {
            assert_eq!(Prepared::parse(line), None);
        }
    }
}
