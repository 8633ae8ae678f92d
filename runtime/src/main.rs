//! An OCI runtime that gives a container its share of a GPU and hands everything else to runc or crun.
//!
//! The standard library's start would open `/dev/null` for each standard stream that is closed, and ignore
//! SIGPIPE: the real runtime would inherit that. So this program has a start of its own,
//! [`fgpu_engine::inherited`].

#![cfg_attr(not(test), no_main)]
#![deny(clippy::print_stderr)]

// musl's own allocator is slow: it costs a create 0.4 ms.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

#[cfg(not(test))]
#[allow(unsafe_code, reason = "C's start calls this, and gives words by pointers")]
#[unsafe(no_mangle)]
extern "C" fn main(count: std::ffi::c_int, words: *const *const std::ffi::c_char) -> std::ffi::c_int {
    use std::ffi::{CStr, OsStr};
    use std::os::unix::ffi::OsStrExt;

    fgpu_engine::inherited::keep();
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: C's start gives as many pointers to strings as it says, which stay until the end (C17,
    // 5.1.2.2.1).
    let word = |at| unsafe { CStr::from_ptr(*words.add(at)) };
    let words: Vec<_> = (1..count).map(|at| OsStr::from_bytes(word(at).to_bytes()).to_owned()).collect();
    match fgpu_runtime::run(&words) {
        Ok(ended) => ended.relay(),
        Err(error) => {
            fgpu_engine::say(error);
            1
        }
    }
}
