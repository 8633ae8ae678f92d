//! The log file that callers ask for with `--log`: containerd, Docker and Podman show a runtime's error from it.

use std::fs::OpenOptions;
use std::io::Write;

use fgpu_spec::Error;

use super::arguments::Arguments;

/// Appends the error in runc's format. A log that cannot be written is not worth a second error: the message
/// is on standard error as well.
pub(super) fn error(arguments: &Arguments, error: &Error) {
    let Some(path) = &arguments.log else { return };
    let message = serde_json::Value::from(error.to_string());
    let line = if arguments.log_json {
        format!("{{\"level\":\"error\",\"msg\":{message}}}\n")
    } else {
        format!("level=error msg={message}\n")
    };
    if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path) {
        let _ = file.write_all(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fgpu_spec::Code;
    use std::ffi::OsString;

    #[test]
    fn the_error_is_appended_as_json_and_as_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let failure = Error::new(Code::NoCapacity, "a \"quoted\" word");
        for format in ["json", "text"] {
            let words = ["--log", path.to_str().unwrap(), "--log-format", format, "create", "c"];
            error(&Arguments::parse(&words.map(OsString::from)), &failure);
        }
        let text = std::fs::read_to_string(path).unwrap();
        let (json, plain) = text.trim().split_once('\n').unwrap();
        let entry: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(entry["level"], "error");
        assert_eq!(entry["msg"], "fgpu: no-capacity: a \"quoted\" word");
        assert_eq!(plain, r#"level=error msg="fgpu: no-capacity: a \"quoted\" word""#);
    }
}
