//! Messages to containerd's log: the FIFO `log` in the bundle, which containerd copies to its standard error
//! (containerd, core/runtime/v2/binary.go). The stock shim writes its own lines there.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use containerd_shim::logger::FifoLogger;
use log::{Level, Log, Record};
use nix::libc;

/// Opens the log for writing. `None` while it has no reader (containerd is down), which is when a write would
/// otherwise block or kill.
pub(crate) fn open(bundle: &Path) -> Option<File> {
    OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(bundle.join("log")).ok()
}

/// Writes one line. A log that cannot be written is no reason to stop relaying.
pub(crate) fn warn(bundle: &Path, id: &str, message: impl std::fmt::Display) {
    let Some(file) = open(bundle) else { return };
    // The logger leaves out what is above the program's level, which is off by default.
    log::set_max_level(Level::Warn.to_level_filter());
    let names = [("id", id), ("shim", "fgpu")];
    let mut record = Record::builder();
    record.level(Level::Warn).key_values(&names);
    FifoLogger::with_file(file).log(&record.args(format_args!("{message}")).build());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_whatever_is_in_it() {
        let bundle = tempfile::tempdir().unwrap();
        let path = bundle.path().join("log");
        warn(bundle.path(), "c1", "there is no log");
        assert!(!path.exists(), "a log is containerd's to make");
        File::create(&path).unwrap();
        warn(bundle.path(), "c\n1", "a \"name\"\nlevel=error msg=forged\u{1b}[2J");
        let text = std::fs::read_to_string(&path).unwrap();
        let line = text.strip_suffix('\n').unwrap();
        assert!(!line.contains(|char: char| char.is_control()), "{line:?}");
        let rest = line.split_once(" level=").unwrap().1;
        let expected = r#"warn id="c\n1" shim="fgpu" msg="a \"name\"\nlevel=error msg=forged\u001b[2J""#;
        assert_eq!(rest, expected);
    }
}
