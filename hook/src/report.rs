//! Where an error is seen, beside standard error. runc shows what a hook printed; crun sends it to /dev/null
//! (unless the annotation `run.oci.hooks.stderr` names a file), and Podman would only say that a hook failed.
//! After a poststop it is not shown at all.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixDatagram;

use fgpu_spec::Error;
use nix::sys::stat::{major, minor};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Where syslog daemons and systemd's journal listen (syslog(3)).
const SOCKET: &str = "/dev/log";

/// Facility daemon, severity error (RFC 3164).
const PRIORITY: u8 = 3 << 3 | 3;

/// /dev/null (Linux, admin-guide/devices.txt).
const NULL: (u64, u64) = (1, 3);

/// Hands an error to the system's log and, where standard error leads nowhere, to the runtime's standard
/// error and log: that is where an engine looks for the reason when a create fails. None of them makes us
/// wait. If none of them listens, there is no other place to report to.
pub(crate) fn tell(error: &Error) {
    let message = format!("<{PRIORITY}>fgpu-hook: {error}");
    let _ = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(message.as_bytes(), SOCKET)
    });
    let nowhere =
        std::io::stderr().as_fd().try_clone_to_owned().is_ok_and(|fd| leads_nowhere(&File::from(fd)));
    // Without a runtime any more our parent is the system's init, which did not ask.
    if nowhere && let Some(runtime) = rustix::process::getppid().filter(|parent| *parent != Pid::INIT) {
        let _ = tell_runtime(runtime, error);
    }
}

fn leads_nowhere(file: &File) -> bool {
    file.metadata().is_ok_and(|file| {
        file.file_type().is_char_device() && (major(file.rdev()), minor(file.rdev())) == NULL
    })
}

fn tell_runtime(runtime: Pid, error: &Error) -> std::io::Result<()> {
    let process = pidfd_open(runtime, PidfdFlags::empty())?;
    // The very descriptor and not its file opened once more: of a file both would write to the same place.
    let mut stderr = File::from(pidfd_getfd(process, 2, PidfdGetfdFlags::empty())?);
    if leads_nowhere(&stderr) {
        return Ok(());
    }
    stderr.write_all(format!("{error}\n").as_bytes())?;
    // Podman shows the runtime's log if that is one entry. crun adds its own, that a hook failed; with two,
    // Podman shows what came on standard error.
    let line = std::fs::read(format!("/proc/{}/cmdline", runtime.as_raw_nonzero()))?;
    let words: Vec<OsString> =
        line.split(|byte| *byte == 0).skip(1).map(|word| OsString::from_vec(word.to_vec())).collect();
    fgpu_engine::runtime::log_for(&words, error);
    Ok(())
}
