//! `fgpu-hook` as a runtime sees it.

#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but only sees test functions")]

use std::io::Write;
use std::process::{Command, Stdio};

/// crun writes the container's state to a hook and does not expect SIGPIPE: a poststop hook that ended
/// without reading killed `crun delete` now and then, with the container half deleted.
#[test]
fn the_state_is_read_to_its_end() {
    for words in [&["poststop", "no-grant"][..], &["poststop"], &[]] {
        let mut hook = Command::new(env!("CARGO_BIN_EXE_fgpu-hook"))
            .args(words)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // More than a pipe holds, so that this ends only when somebody has read it.
        let state = vec![b' '; 1 << 20];
        hook.stdin.take().unwrap().write_all(&state).unwrap_or_else(|error| panic!("{words:?}: {error}"));
        hook.wait().unwrap();
    }
}

/// A full disk, or a pipe that nobody reads: the exit status says what there is to say all the same.
#[test]
fn an_error_that_cannot_be_printed_changes_no_exit_status() {
    for (words, status) in [
        (&["poststop"][..], 0),
        (&["poststop", "no-grant"], 0),
        (&["createRuntime"], 1),
        (&["precreate"], 1),
        (&[], 2),
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut hook = Command::new(env!("CARGO_BIN_EXE_fgpu-hook"));
        let ended =
            hook.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(full).status().unwrap();
        assert_eq!(ended.code(), Some(status), "{words:?}");
    }
}
