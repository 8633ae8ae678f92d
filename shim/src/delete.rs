//! containerd's `delete`: tidying up after a shim that is gone. containerd 1.x also runs it after every regular
//! end, while a pod's shim goes on serving the other containers.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::invocation::Invocation;
use crate::{address, log, mention, rpc, stock, sys};

/// How long a process that got SIGKILL may take to be gone, in milliseconds.
const KILLED_WITHIN: u16 = 2000;

/// Runs the action. Returns the exit status.
pub(crate) fn run(invocation: &Invocation) -> anyhow::Result<i32> {
    let bundle = invocation.bundle()?;
    let id = invocation.text("id")?;
    if let Some(front) = front(&bundle)
        && address::is_orphaned(&front)
        && let Err(error) = end_orphan(&front, id)
    {
        log::warn(&bundle, id, format!("the stock shim behind a dead relay may still run: {error:#}"));
    }
    // Read before the stock shim tidies up.
    let asks = mention::of_fgpu(&bundle);
    let mut command = stock::command(invocation)?;
    let status =
        command.status().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    // The stock shim warns and goes on when runc could not kill the container. A share whose user lives on is
    // not free: then it is for the reconciler to say when it is.
    if asks
        && status.success()
        && is_gone(&bundle)
        && let Err(error) = fgpu_hook::release_container(invocation.text("namespace")?, id)
    {
        log::warn(&bundle, id, error);
    }
    Ok(stock::exit_code(status))
}

/// Our socket as the bundle has it: containerd 2.x writes `bootstrap.json`, 1.x reads `address`.
fn front(bundle: &Path) -> Option<PathBuf> {
    let read = |name: &str| std::fs::read(bundle.join(name)).ok();
    let bytes = read("bootstrap.json").or_else(|| read("address"))?;
    crate::answer::Answer::parse(&bytes).ok()?.socket().ok()
}

/// The relay died without tidying up (a relay that ends by itself removes its socket). containerd takes that
/// for the shim's end, so it has to be the stock shim's end too: nobody would ever come to it again. A pod's
/// other containers lost their connection as well, and get a `delete` of their own.
fn end_orphan(front: &Path, id: &str) -> anyhow::Result<()> {
    if let Some(stock) = address::stock_behind(front) {
        if address::is_alive(&stock) {
            kill(rpc::shim_pid(&stock, id)?)?;
        }
        if address::is_orphaned(&stock) {
            address::remove(&stock).with_context(|| format!("cannot remove {}", stock.display()))?;
        }
    }
    address::remove(front).with_context(|| format!("cannot remove {}", front.display()))
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
