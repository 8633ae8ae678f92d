//! What a container's process prints, through files.
//!
//! A container engine copies a container's output from pipe to pipe, and under load one in some hundred short
//! runs comes out empty, with plain runc as with anything else. So tests that look at output have it written
//! into a folder bound into the container.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::command::Output;

/// The folder's place in the container.
pub(crate) const INSIDE: &str = "/lab-output";

/// The folder of one container.
#[derive(Debug, Clone)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// A new one.
    pub(crate) fn new() -> Self {
        let path = PathBuf::from(format!("/run/lab/output/{}", number()));
        // The container's user, whatever its id is out here, writes there.
        fs::create_dir_all(&path)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o777)))
            .unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
        Self(path)
    }

    /// Its path outside of the container.
    pub(crate) fn path(&self) -> &str {
        self.0.to_str().expect("made of ASCII")
    }

    /// Makes a command write its output here, and returns it with the name under which [`Folder::collect`]
    /// finds that.
    pub(crate) fn wrap(&self, command: &[String]) -> (String, Vec<String>) {
        let name = number().to_string();
        let script = format!(r#"exec "$@" >{INSIDE}/{name}.out 2>{INSIDE}/{name}.err"#);
        let head = ["sh", "-c", &script, "sh"].map(str::to_owned);
        (name, head.into_iter().chain(command.iter().cloned()).collect())
    }

    /// Puts what the command wrote into the place of what the engine's client printed, if it was started at
    /// all.
    pub(crate) fn collect(&self, name: &str, mut output: Output) -> Output {
        let read = |stream| fs::read(self.0.join(format!("{name}.{stream}")));
        if let (Ok(out), Ok(err)) = (read("out"), read("err")) {
            output.stdout = String::from_utf8_lossy(&out).into_owned();
            output.stderr = String::from_utf8_lossy(&err).into_owned();
        }
        output
    }
}

/// A number that no other folder or command has.
fn number() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}
