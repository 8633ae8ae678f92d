//! The state that a runtime writes to its hooks (OCI runtime-spec, runtime.md, "State").

use std::io::Read;
use std::path::{Path, PathBuf};

use fgpu_allocator::Key;
use fgpu_engine::bundle;
use fgpu_spec::{Code, Error};
use serde::Deserialize;

/// What is taken from it. `status`, `root` and `annotations` are not: runtimes differ in the first two, and
/// the annotations are in the bundle, which the container cannot write.
#[derive(Debug, Deserialize)]
pub(crate) struct State {
    /// The container's id.
    pub(crate) id: String,
    /// The bundle folder.
    pub(crate) bundle: PathBuf,
    /// The container's init; absent or 0 where there is none (poststop).
    #[serde(default)]
    pub(crate) pid: i32,
}

impl State {
    /// Reads the state, to the end of the input: a runtime that still writes must not meet a closed pipe, or
    /// it is killed by SIGPIPE (crun 1.21).
    ///
    /// # Errors
    /// It is larger than 16 MiB or is no state.
    pub(crate) fn read(mut input: impl Read) -> Result<Self, Error> {
        let text = bundle::text(&mut input, Path::new("the container's state"));
        // Whether the rest of too long a state can be read changes nothing.
        let _ = std::io::copy(&mut input, &mut std::io::sink());
        Self::parse(&text?)
    }

    /// The name of the container's lease. A state does not say below which runtime's state directory its
    /// container is, and a bundle is one container's, so the bundle is the namespace.
    ///
    /// # Errors
    /// The bundle's path is not UTF-8.
    pub(crate) fn key(&self) -> Result<Key, Error> {
        let namespace = self.bundle.to_str().ok_or_else(|| {
            Error::new(Code::Internal, format!("the bundle's path {:?} is not UTF-8", self.bundle))
        })?;
        Ok(Key { namespace: namespace.into(), id: self.id.clone() })
    }

    fn parse(text: &str) -> Result<Self, Error> {
        let wrong = |why: String| {
            Error::new(
                Code::Internal,
                format!(
                    "the state on standard input is none of a container: {why}; only an OCI runtime runs this"
                ),
            )
        };
        let state: Self = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if state.id.is_empty() {
            return Err(wrong("it has no id".into()));
        }
        if !state.bundle.is_absolute() {
            return Err(wrong("its bundle is no absolute path".into()));
        }
        Ok(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runc_crun_and_cri_o_write_is_read() {
        // runc 1.3.6, crun 1.28 and podman 5.8 (poststop), as recorded.
        for (text, pid) in [
            (r#"{"ociVersion":"1.2.1","id":"c1","status":"creating","pid":134,"bundle":"/tmp/b"}"#, 134),
            (
                r#"{"ociVersion":"1.0","id":"c1","pid":234,"root":"rootfs","bundle":"/tmp/b","status":"created",
                   "annotations":{"fgpu/fraction":"0.25"}}"#,
                234,
            ),
            (r#"{"ociVersion":"1.2.0","id":"c1","status":"stopped","bundle":"/tmp/b"}"#, 0),
        ] {
            let state = State::parse(text).unwrap();
            assert_eq!(
                (state.id.as_str(), state.bundle.as_path(), state.pid),
                ("c1", Path::new("/tmp/b"), pid)
            );
        }
    }

    #[test]
    fn what_is_no_state_is_refused() {
        for text in [
            "",
            "[]",
            r#"{"id":"c1"}"#,
            r#"{"id":"","bundle":"/b"}"#,
            r#"{"id":"c1","bundle":"b"}"#,
            r#"{"id":"c1","bundle":"/b","pid":"1"}"#,
            r#"{"id":"c1","bundle":"/b","pid":99999999999}"#,
        ] {
            assert!(State::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn too_long_a_state_is_read_to_its_end_all_the_same() {
        let mut input = std::io::repeat(b' ').take(bundle::LIMIT + 5);
        assert!(State::read(&mut input).unwrap_err().message.contains("16 MiB"));
        assert_eq!(input.limit(), 0);
    }
}
