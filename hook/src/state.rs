//! The state that a runtime writes to its hooks (OCI runtime-spec, runtime.md, "State").

use std::io::Read;
use std::path::Path;

use fgpu_allocator::Key;
use fgpu_engine::bundle;
use fgpu_spec::{Code, Error};
pub(crate) use oci_spec::runtime::State;

/// Reads the state, to the end of the input: a runtime that still writes must not meet a closed pipe, or it
/// is killed by SIGPIPE (crun 1.21).
///
/// # Errors
/// It is larger than 16 MiB or is no state.
pub(crate) fn read(mut input: impl Read) -> Result<State, Error> {
    let text = bundle::text(&mut input, Path::new("the container's state"));
    // Whether the rest of too long a state can be read changes nothing.
    let _ = std::io::copy(&mut input, &mut std::io::sink());
    parse(&text?)
}

/// The name of the container's lease. A state does not say below which runtime's state directory its
/// container is, and a bundle is one container's, so the bundle is the namespace.
///
/// # Errors
/// The bundle's path is not UTF-8.
pub(crate) fn key(state: &State) -> Result<Key, Error> {
    let bundle = state.bundle();
    let namespace = bundle
        .to_str()
        .ok_or_else(|| Error::new(Code::Internal, format!("the bundle's path {bundle:?} is not UTF-8")))?;
    Ok(Key { namespace: namespace.into(), id: state.id().clone() })
}

/// The container's init; 0 where there is none (poststop).
pub(crate) fn init(state: &State) -> i32 {
    state.pid().unwrap_or(0)
}

fn parse(text: &str) -> Result<State, Error> {
    let wrong = |why: String| {
        let message = format!(
            "the state on standard input is none of a container: {why}; only an OCI runtime runs this"
        );
        Error::new(Code::Internal, message)
    };
    let state: State = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    if state.id().is_empty() {
        return Err(wrong("it has no id".into()));
    }
    if !state.bundle().is_absolute() {
        return Err(wrong("its bundle is no absolute path".into()));
    }
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_runc_crun_and_cri_o_are_read() {
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
            let state = parse(text).unwrap();
            assert_eq!((state.id().as_str(), state.bundle().as_path()), ("c1", Path::new("/tmp/b")));
            assert_eq!(init(&state), pid);
        }
    }

    #[test]
    fn a_text_that_is_no_state_is_refused() {
        for text in [
            "",
            "[]",
            r#"{"id":"c1"}"#,
            r#"{"id":"","bundle":"/b"}"#,
            r#"{"id":"c1","bundle":"b"}"#,
            r#"{"id":"c1","bundle":"/b","pid":"1"}"#,
            r#"{"id":"c1","bundle":"/b","pid":99999999999}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn too_long_a_state_is_read_to_its_end_all_the_same() {
        let mut input = std::io::repeat(b' ').take(bundle::LIMIT + 5);
        assert!(read(&mut input).unwrap_err().message.contains("16 MiB"));
        assert_eq!(input.limit(), 0);
    }
}
