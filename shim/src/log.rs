//! Messages to containerd's log: the FIFO `log` in the bundle, which containerd copies to its standard error
//! (containerd, core/runtime/v2/binary.go). The stock shim writes its own lines there, in the same form.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc;

/// Opens the log for writing. `None` while nobody reads it (containerd is down), which is when a write would
/// otherwise block or kill.
pub(crate) fn open(bundle: &Path) -> Option<File> {
    OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(bundle.join("log")).ok()
}

/// Writes one line. A log that cannot be written is no reason to stop relaying.
pub(crate) fn warn(bundle: &Path, id: &str, message: impl std::fmt::Display) {
    if let Some(mut log) = open(bundle) {
        let message = message.to_string();
        // One write of less than PIPE_BUF bytes is not torn apart by the stock shim's lines (pipe(7)).
        let _ = log.write_all(format!("level=warning msg={message:?} id={id} shim=fgpu\n").as_bytes());
    }
}
