//! The stock shim: which program it is, and running it in our place.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use anyhow::Context;

use crate::invocation::Invocation;

const NAME: &str = "containerd-shim-runc-v2";

/// Finds the stock shim: beside this program, else in PATH. A file of that name that is this very program (a
/// link that an administrator made) is passed over.
fn find() -> anyhow::Result<PathBuf> {
    let own = std::fs::metadata("/proc/self/exe").context("cannot stat /proc/self/exe")?;
    let is_it = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|file| {
            let ourselves = (file.dev(), file.ino()) == (own.dev(), own.ino());
            file.is_file() && file.mode() & 0o111 != 0 && !ourselves
        })
    };
    let beside = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_path_buf));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path =
        std::env::split_paths(&path).filter(|folder| folder.as_os_str().as_bytes().starts_with(b"/"));
    let mut candidates = beside.into_iter().chain(in_path).map(|folder| folder.join(NAME));
    candidates.find(|path| is_it(path)).with_context(|| {
        format!("{NAME} is neither beside this program nor in PATH; it comes with containerd")
    })
}

/// The stock shim with the arguments that we were given.
pub(crate) fn command(invocation: &Invocation) -> anyhow::Result<Command> {
    let mut command = Command::new(find()?);
    command.args(&invocation.args);
    Ok(command)
}

/// Becomes the stock shim. Returns only if that fails.
pub(crate) fn exec(invocation: &Invocation) -> anyhow::Result<()> {
    let mut command = command(invocation)?;
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run {}", command.get_program().display()))
}

/// The exit status to end with when the stock shim ended with this one; as a shell has it for a signal.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
