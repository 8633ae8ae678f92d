//! What a command prints, and how it says that it failed.

use std::io::{self, Write};
use std::process::ExitCode;

use fgpu_spec::{Code, Error};
use rustix::io::Errno;
use serde::Serialize;

/// What a command has to say. It is printed at once, when the command is done.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// For stdout.
    pub(crate) text: String,
    /// For stderr, one line each; the command did its work all the same.
    pub(crate) warnings: Vec<String>,
    /// An answer that is a refusal: `text` is printed, then this, and the exit code is 1.
    pub(crate) failure: Option<Error>,
    /// The exit code of an answer that is no failure; 0 unless it says otherwise.
    pub(crate) code: Option<u8>,
}

impl From<String> for Output {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}

/// Prints the outcome of a command and turns it into the exit code: 0 or 1.
pub(crate) fn finish(outcome: Result<Output, Error>) -> ExitCode {
    let output = outcome.unwrap_or_else(|failure| Output { failure: Some(failure), ..Output::default() });
    let mut code = output.code.map_or(ExitCode::SUCCESS, ExitCode::from);
    let complain = |line: String| {
        // A caller that closed stderr does not want to know.
        let _ = writeln!(io::stderr(), "{line}");
    };
    for warning in output.warnings {
        complain(format!("fgpu: warning: {warning}"));
    }
    match io::stdout().write_all(output.text.as_bytes()).and_then(|()| io::stdout().flush()) {
        // `fgpu status | head -1` is no failure.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            complain(format!("fgpu: {}: cannot write the output: {error}", Code::Internal));
            code = ExitCode::FAILURE;
        }
        _ => {}
    }
    if let Some(failure) = output.failure {
        complain(format!("{failure}{}", advice(&failure)));
        code = ExitCode::FAILURE;
    }
    code
}

/// The kernel does not say who would be permitted.
fn advice(error: &Error) -> &'static str {
    let denied = [Errno::ACCESS, Errno::PERM].map(|errno| io::Error::from(errno).to_string());
    let denied = denied.iter().any(|words| error.message.ends_with(words));
    if denied && !rustix::process::geteuid().is_root() { "; run it as root" } else { "" }
}

/// The version of every answer in JSON. What a field means never changes within it; new ones may come.
const SCHEMA: u32 = 1;

/// An answer in JSON.
#[derive(Serialize)]
struct Answer<'a, T> {
    schema: u32,
    #[serde(flatten)]
    value: &'a T,
}

/// `value`, an object, as indented JSON with its version and a line end.
///
/// # Errors
/// `internal` if it cannot be encoded, which only a path that is not UTF-8 can bring about.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Error> {
    let text = serde_json::to_string_pretty(&Answer { schema: SCHEMA, value })
        .map_err(|error| Error::new(Code::Internal, format!("cannot encode the answer: {error}")))?;
    Ok(text + "\n")
}

/// The name that serde gives a plain enum value.
pub(crate) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "?".into(),
    }
}
