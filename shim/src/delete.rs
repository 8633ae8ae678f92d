//! containerd's `delete`: tidying up after a shim that is gone. containerd 1.x also runs it after every
//! regular end, while a pod's shim goes on serving the other containers.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::SystemTime;

use anyhow::Context;
use containerd_shim::protos::api::DeleteResponse;
use containerd_shim::protos::protobuf::{Message, MessageField};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::address::Identity;
use crate::invocation::Invocation;
use crate::{address, log, rpc, stock, sys};

/// How long a process that got SIGKILL may take to be gone, in milliseconds.
const KILLED_WITHIN: u16 = 2000;

/// Runs the action. Returns the exit status.
pub(crate) fn run(invocation: &Invocation) -> anyhow::Result<i32> {
    let bundle = invocation.bundle()?;
    let id = invocation.text("id")?;
    let front = front(&bundle);
    if let Some(front) = &front
        && address::is_orphaned(front)
        && let Err(error) = end_orphan(front, id)
    {
        log::warn(
            &bundle,
            id,
            format!("the stock shim behind a dead relay may still run: {}", fgpu_spec::chain(error.as_ref())),
        );
    }
    if let Some(folder) = front.as_deref().and_then(Path::parent)
        && let Err(error) = address::sweep(folder)
    {
        log::warn(&bundle, id, format!("cannot sweep {}: {error}", folder.display()));
    }
    // Read before the stock shim tidies up. What cannot be read any more may have asked for a share.
    let asks = fgpu_engine::mention::of_fgpu(&bundle.join("config.json")).unwrap_or(true);
    let namespace = invocation.text("namespace")?;
    // The regular end: the relay has given the share back already.
    let holds_nothing = || !never_ran(&bundle) && fgpu_engine::holds(namespace, id).is_ok_and(|holds| !holds);
    if !asks || holds_nothing() {
        return stock::exec(invocation).map(|()| 0);
    }
    let mut command = stock::command(invocation)?;
    let output = command
        .stdin(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let (status, stdout, stderr) = if !output.status.success() && never_ran(&bundle) {
        (0, killed_now()?, Vec::new())
    } else {
        (stock::exit_code(output.status), output.stdout, output.stderr)
    };
    // Unread output is no reason to keep a share.
    let _ = std::io::stderr().write_all(&stderr);
    // The stock shim warns and goes on when runc could not kill the container. A share whose user lives on is
    // not free: then the reconciler decides when it is.
    if status == 0
        && is_gone(&bundle)
        && let Err(error) = fgpu_engine::release_container(namespace, id)
    {
        log::warn(&bundle, id, error);
    }
    std::io::stdout().write_all(&stdout).context("cannot answer containerd")?;
    Ok(status)
}

/// Whether the stock shim has never heard of the container: its `Create` was refused by us. The stock shim of
/// containerd 1.x fails over that, but there is nothing to tidy up, and nothing wrong for containerd to
/// report. (`runtime` is the first that a `Create` writes, `init.pid` the last.)
fn never_ran(bundle: &Path) -> bool {
    !["runtime", "init.pid"].iter().any(|file| bundle.join(file).exists())
}

/// The stock shim's answer for a container that is not there: killed, now.
fn killed_now() -> anyhow::Result<Vec<u8>> {
    let response = DeleteResponse {
        exit_status: 128 + Signal::SIGKILL as u32,
        exited_at: MessageField::some(SystemTime::now().into()),
        ..Default::default()
    };
    response.write_to_bytes().context("cannot encode the answer to containerd")
}

/// Our socket as the bundle has it: containerd 2.x writes `bootstrap.json`, 1.x reads `address`.
fn front(bundle: &Path) -> Option<PathBuf> {
    let read = |name: &str| std::fs::read(bundle.join(name)).ok();
    let bytes = read("bootstrap.json").or_else(|| read("address"))?;
    crate::answer::Answer::parse(&bytes).ok()?.socket().ok()
}

/// The relay died without tidying up (a relay that ends by itself removes its socket). containerd takes that
/// for the shim's end, so it has to be the stock shim's end too: no client would ever come to it again. A
/// pod's other containers lost their connection as well, and get a `delete` of their own.
fn end_orphan(front: &Path, id: &str) -> anyhow::Result<()> {
    let left_behind = Identity::of(front);
    if let Some(stock) = address::stock_behind(front) {
        let file = Identity::of(&stock);
        let killed = rpc::shim_pid(&stock, id).and_then(kill);
        // The `delete` of another container of the pod may have been faster.
        if address::is_alive(&stock) {
            killed?;
        }
        if address::is_orphaned(&stock) {
            file.map_or(Ok(()), |file| file.remove(&stock))?;
        }
    }
    left_behind.map_or(Ok(()), |file| file.remove(front))?;
    Ok(())
}

fn kill(pid: i32) -> anyhow::Result<()> {
    let pidfd = sys::pidfd_open(pid).with_context(|| format!("cannot open process {pid}"))?;
    sys::pidfd_kill(pidfd.as_fd()).with_context(|| format!("cannot kill process {pid}"))?;
    let mut ended = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    let count = poll(&mut ended, PollTimeout::from(KILLED_WITHIN)).context("cannot wait")?;
    anyhow::ensure!(count > 0, "process {pid} got SIGKILL and is still there");
    Ok(())
}

/// Whether the container's first process has ended, or there never was one.
fn is_gone(bundle: &Path) -> bool {
    let Ok(text) = std::fs::read_to_string(bundle.join("init.pid")) else { return true };
    let Ok(pid) = text.trim().parse::<i32>() else { return true };
    let Ok(pidfd) = sys::pidfd_open(pid) else { return true };
    let mut ended = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    poll(&mut ended, PollTimeout::from(KILLED_WITHIN)).is_ok_and(|count| count > 0)
}
