//! Standard error, which may be a pipe without a reader or a file on a full disk.

use std::fmt::Display;
use std::io::Write;

/// Prints a line on standard error, if it takes it. `eprintln!` would panic: a front end would end with a
/// status of its own after the container was made, and a poststop hook with one at all.
pub fn say(line: impl Display) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}
