//! The log file that callers ask for with `--log`: containerd, Docker and Podman show a runtime's error from
//! it.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fgpu_spec::Error;

use crate::diagnostics::{Format, Sink};

/// Where a runtime logs, and how.
#[derive(Debug, PartialEq, Eq)]
pub struct Log {
    path: Option<PathBuf>,
    json: bool,
}

impl Log {
    /// What a command line asks for, as far as it can be seen without knowing the runtime: an error of ours
    /// must find its way also when the line has no meaning.
    pub fn of(words: &[OsString]) -> Self {
        let path = value(words, &["log", "l"]).and_then(file);
        Self { path, json: value(words, &["log-format"]).is_some_and(|format| format == "json") }
    }

    /// Where diagnostics go: this file, or standard error, as the runtime's own.
    pub fn sink(&self) -> Sink {
        let open = |path: &PathBuf| OpenOptions::new().create(true).append(true).open(path).ok();
        self.path.as_ref().and_then(open).map_or(Sink::Stderr, Sink::File)
    }

    /// The form of the lines.
    pub fn format(&self) -> Format {
        if self.json { Format::Json } else { Format::Text }
    }

    /// Whether a path counts from the runtime's own working directory.
    pub fn is_absolute(&self) -> bool {
        self.path.as_deref().is_some_and(Path::is_absolute)
    }

    /// Appends the error in runc's format. A log that cannot be written is not worth a second error: the
    /// message is on standard error as well.
    pub fn error(&self, error: &Error) {
        let Some(path) = &self.path else { return };
        let message = serde_json::Value::from(error.to_string());
        let line = if self.json {
            format!("{{\"level\":\"error\",\"msg\":{message}}}\n")
        } else {
            format!("level=error msg={message}\n")
        };
        if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path) {
            let _ = file.write_all(line.as_bytes());
        }
    }
}

/// The file of crun's `[file:]PATH`; `journald:` and `syslog:` name none.
fn file(value: &OsStr) -> Option<PathBuf> {
    let bytes = value.as_bytes();
    if bytes.is_empty() || [&b"journald:"[..], b"syslog:"].iter().any(|start| bytes.starts_with(start)) {
        return None;
    }
    Some(OsStr::from_bytes(bytes.strip_prefix(b"file:").unwrap_or(bytes)).into())
}

/// The value of an option's last occurrence, as `--name value` or `--name=value`, with one dash or two.
fn value<'a>(words: &'a [OsString], names: &[&str]) -> Option<&'a OsStr> {
    let mut found = None;
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        let Some(option) = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-")) else { continue };
        for name in names {
            match option.strip_prefix(name.as_bytes()) {
                Some([]) => found = words.peek().map(|word| word.as_os_str()).or(found),
                Some([b'=', rest @ ..]) => found = Some(OsStr::from_bytes(rest)),
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use fgpu_spec::Code;

    #[test]
    fn the_error_is_appended_as_json_and_as_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let failure = Error::new(Code::NoCapacity, "a \"quoted\" word");
        for format in ["json", "text"] {
            let words = ["--log", path.to_str().unwrap(), "--log-format", format, "create", "c"];
            Log::of(&words.map(OsString::from)).error(&failure);
        }
        let text = std::fs::read_to_string(path).unwrap();
        let (json, plain) = text.trim().split_once('\n').unwrap();
        let entry: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(entry["level"], "error");
        assert_eq!(entry["msg"], "fgpu: no-capacity: a \"quoted\" word");
        assert_eq!(plain, r#"level=error msg="fgpu: no-capacity: a \"quoted\" word""#);
    }

    #[test]
    fn every_spelling_of_a_log_is_found() {
        for (line, path, json) in [
            ("--log /l create c", Some("/l"), false),
            ("--log=/l --log-format=json create c", Some("/l"), true),
            ("-log /l create c", Some("/l"), false),
            ("-l /l create c", Some("/l"), false),
            ("create c --log /l --log-format json", Some("/l"), true),
            ("--unknown --log /l create", Some("/l"), false),
            ("--log file:/l create c", Some("/l"), false),
            ("--log journald:x create c", None, false),
            ("--log syslog:x create c", None, false),
            ("--log-level debug create c", None, false),
            ("create c", None, false),
        ] {
            let words: Vec<_> = line.split(' ').map(OsString::from).collect();
            assert_eq!(Log::of(&words), Log { path: path.map(PathBuf::from), json }, "{line}");
        }
    }
}
