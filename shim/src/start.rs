//! containerd's `start`: the stock shim is started, a relay is put in front of it, and containerd is told the
//! relay's address.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use containerd_shim::util::write_address;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::answer::{Answer, address_of};
use crate::invocation::Invocation;
use crate::{address, rpc, stock};

/// Runs the action. Returns the exit status.
pub(crate) fn run(invocation: &Invocation) -> anyhow::Result<i32> {
    let mut command = stock::command(invocation)?;
    let output = command
        .stdin(Stdio::inherit())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    let answer = if output.status.success() {
        let answer = Answer::parse(&output.stdout)?;
        let socket = answer.socket()?;
        let id = invocation.text("id")?;
        front(invocation, answer, &socket).inspect_err(|_| {
            // It has no container yet, or it is a pod's and says no. Our own error is the one to report.
            let _ = rpc::shutdown(&socket, id);
        })?
    } else {
        output.stdout
    };
    std::io::stdout().write_all(&answer).context("cannot answer containerd")?;
    Ok(stock::exit_code(output.status))
}

/// Sees to it that a relay is in front of the stock shim. Returns the answer to containerd.
fn front(invocation: &Invocation, answer: Answer, stock: &Path) -> anyhow::Result<Vec<u8>> {
    let socket = address::front_of(stock);
    let failed = || format!("cannot put a relay at {}", socket.display());
    if !address::is_alive(&socket) {
        // Held by the relay for as long as it lives: its end is how the relay learns of the stock shim's.
        let control = UnixStream::connect(stock)
            .with_context(|| format!("cannot connect to the stock shim at {}", stock.display()))?;
        if let Some(listener) = address::listen(&socket).with_context(failed)? {
            spawn(invocation, stock, &socket, &listener, &control)
                .inspect_err(|_| drop(address::remove(&socket)))
                .with_context(failed)?;
        }
    }
    rewrite_address_file(&socket)?;
    answer.with_socket(&socket)
}

/// Starts the relay. It needs nothing more of us: its socket listens already.
fn spawn(
    invocation: &Invocation,
    stock: &Path,
    socket: &Path,
    listener: &UnixListener,
    control: &UnixStream,
) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot tell our own path")?;
    for fd in [listener.as_fd(), control.as_fd()] {
        fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty())).context("cannot hand on a descriptor")?;
    }
    Command::new(&program)
        .arg0("containerd-shim-fgpu-v2")
        .args(["-namespace", invocation.text("namespace")?, "-id", invocation.text("id")?, "-bundle"])
        .arg(invocation.bundle()?)
        .arg("-stock")
        .arg(stock)
        .arg("-socket")
        .arg(socket)
        .args(["-listener", &listener.as_raw_fd().to_string()])
        .args(["-control", &control.as_raw_fd().to_string()])
        .arg("fgpu-relay")
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    Ok(())
}

/// Puts our address into the file `address`, if the stock shim wrote one (containerd 1.x): that is where
/// containerd 1.x looks for the shim after a restart of its own.
fn rewrite_address_file(socket: &Path) -> anyhow::Result<()> {
    if !Path::new("address").try_exists().context("cannot look for the file address")? {
        return Ok(());
    }
    write_address(&address_of(socket)?).context("cannot rewrite the file address in the bundle")
}
