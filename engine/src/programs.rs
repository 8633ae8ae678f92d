//! Where the programs of one installation find each other: all host programs are in one directory, the quota
//! libraries in `../lib/fgpu` of it. Neither PATH nor any other variable of the caller's is asked.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use fgpu_spec::{Code, Error};

use crate::child;

/// The directory of the running program, without a link in it (proc_pid_exe(5)).
fn directory() -> Result<PathBuf, Error> {
    let link = std::path::Path::new("/proc/self/exe");
    let program = std::fs::read_link(link).map_err(|error| Error::io("read", link, &error))?;
    match program.parent() {
        Some(directory) => Ok(directory.to_owned()),
        None => Err(Error::new(Code::Internal, "/proc/self/exe has no parent directory")),
    }
}

/// The path of another program of this installation.
///
/// # Errors
/// It is not there.
pub fn sibling(name: &str) -> Result<PathBuf, Error> {
    there(directory()?.join(name))
}

fn there(path: PathBuf) -> Result<PathBuf, Error> {
    if path.exists() {
        return Ok(path);
    }
    Err(Error::new(Code::Internal, format!("{} is missing; reinstall fgpu", path.display())))
}

/// The path of a quota library of this installation.
pub(crate) fn library(name: &str) -> Result<PathBuf, Error> {
    let mut path = directory()?;
    path.pop();
    path.extend(["lib/fgpu", name]);
    there(path)
}

/// Runs `fgpu inventory --refresh`: the one program that loads NVML, so that a crash in the driver kills only
/// it.
///
/// # Errors
/// The error that it printed, or [`Code::DriverError`] when it died.
pub(crate) fn refresh_inventory() -> Result<(), Error> {
    let program = sibling("fgpu")?;
    child::notice_ends();
    let output = Command::new(&program)
        .args(["inventory", "--refresh"])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .current_dir("/")
        .output()
        .map_err(|error| Error::io("run", &program, &error))?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::of_program("fgpu inventory --refresh", &output))
}
