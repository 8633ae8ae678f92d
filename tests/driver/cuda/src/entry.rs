//! How programs find functions and the words for results.
//!
//! `cuGetProcAddress` is asked for a name without suffix and the CUDA version that the program was built for,
//! and answers the newest variant that this version has: `cuMemAlloc` of 2.0 is `cuMemAlloc`, from 3.2 on
//! `cuMemAlloc_v2`. With the flag for per-thread default streams it answers `…_ptds` or `…_ptsz` variants.
//!
//! Which variant belongs to which version is in `versions.txt`: what NVIDIA's libcuda 550 answers, which it
//! does on a machine without a GPU too. Its manner is copied as well: the second version of the function
//! never fails for an unknown name, but answers null and a status.

use alloc::format;
use core::ffi::{CStr, c_char, c_void};

use crate::abi::{Answer, Failure, api, describe, get, put, put_if_asked};
use crate::calls::{self, Kind};
use crate::driver;
use crate::exports::EXPORTS;

/// An exported function.
pub(crate) struct Export {
    pub(crate) name: &'static str,
    pub(crate) address: unsafe extern "C" fn(),
}

/// Flag: variants for the legacy default stream, as without a flag.
const LEGACY: u64 = 1;
/// Flag: variants for per-thread default streams.
const PER_THREAD: u64 = 2;

/// `CUdriverProcAddressQueryResult`.
const FOUND: i32 = 0;
const NO_SUCH_NAME: i32 = 1;
const VERSION_TOO_OLD: i32 = 2;

/// Lines `name version symbol per-thread-symbol`, sorted by name and then by version (1000 × major + 10 ×
/// minor); `-` where the version has no such variant.
const VERSIONS: &str = include_str!("../versions.txt");
/// Likewise, of functions that came later: from `cudaTypedefs.h` of CUDA 13.5.
const NEWER: &str = if cfg!(feature = "newer") { include_str!("../newer/versions.txt") } else { "" };

fn exported(name: &str) -> Option<*const c_void> {
    let found = EXPORTS.binary_search_by(|export| export.name.cmp(name)).ok()?;
    Some(EXPORTS[found].address as *const c_void)
}

/// The address of a name for a version, or why there is none.
fn find(name: &str, version: u32, flags: u64) -> Result<*const c_void, i32> {
    let mut found = Err(NO_SUCH_NAME);
    // A node of an earlier version has not what came later.
    let own = driver::version().unwrap_or(0);
    let since = |line: &&str| line.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    for line in VERSIONS.lines().chain(NEWER.lines().filter(|line| since(line) <= own)) {
        let mut words = line.split(' ');
        if words.next() != Some(name) {
            continue;
        }
        let since = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let symbol = if flags & PER_THREAD == 0 { words.next() } else { words.nth(1) };
        // A later line of the same name is a newer variant.
        if version >= since {
            found = symbol.and_then(exported).ok_or(VERSION_TOO_OLD);
        } else if found == Err(NO_SUCH_NAME) {
            found = Err(VERSION_TOO_OLD);
        }
    }
    if found.is_err() {
        calls::note(&format!("{name}:{version}"), Kind::Unknown);
    }
    found
}

/// A name as the caller wrote it.
unsafe fn text<'a>(name: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: handed on from the caller: null or NUL-terminated.
    let name = unsafe { get(name).map(|_| CStr::from_ptr(name)) }?;
    Ok(name.to_str().unwrap_or(""))
}

fn check_flags(flags: u64) -> Answer {
    if flags <= LEGACY | PER_THREAD { Ok(()) } else { Err(Failure::INVALID_VALUE) }
}

/// Version 1: an unknown name is an error.
unsafe fn proc_address(name: *const c_char, out: *mut *const c_void, version: i32, flags: u64) -> Answer {
    check_flags(flags)?;
    // SAFETY: handed on from the caller.
    let found = find(unsafe { text(name) }?, version.max(0) as u32, flags);
    // SAFETY: handed on from the caller.
    unsafe { put(out, found.map_err(|_| Failure::NOT_FOUND)?) }
}

/// Version 2: an unknown name is null and a status.
unsafe fn proc_address_v2(
    name: *const c_char,
    out: *mut *const c_void,
    version: i32,
    flags: u64,
    status: *mut i32,
) -> Answer {
    check_flags(flags)?;
    // SAFETY: handed on from the caller.
    let found = find(unsafe { text(name) }?, version.max(0) as u32, flags);
    // SAFETY: handed on from the caller; the status may be null if it is not wanted.
    unsafe {
        put(out, found.unwrap_or(core::ptr::null()))?;
        put_if_asked(status, found.err().unwrap_or(FOUND));
    }
    Ok(())
}

unsafe fn words(
    code: u32,
    out: *mut *const c_char,
    which: fn((&'static CStr, &'static CStr)) -> &'static CStr,
) -> Answer {
    let text = describe(code).map(which);
    // SAFETY: handed on from the caller.
    unsafe { put(out, text.map_or(core::ptr::null(), CStr::as_ptr)) }?;
    text.map(drop).ok_or(Failure::INVALID_VALUE)
}

api! {
    cuGetErrorName(code: u32, out: *mut *const c_char) => words(code, out, |(name, _)| name);
    cuGetErrorString(code: u32, out: *mut *const c_char) => words(code, out, |(_, meaning)| meaning);
    cuGetProcAddress(name: *const c_char, out: *mut *const c_void, version: i32, flags: u64) =>
        proc_address(name, out, version, flags);
    cuGetProcAddress_v2(
        name: *const c_char, out: *mut *const c_void, version: i32, flags: u64, status: *mut i32,
    ) => proc_address_v2(name, out, version, flags, status);
    cuGetExportTable(out: *mut *const c_void, id: *const [u8; 16]) => crate::private::export(out, id);
}
