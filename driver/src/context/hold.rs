//! The holder's side: a process that has a context and does nothing with it.

#![expect(unsafe_code, reason = "libcuda is a C library")]

use std::ffi::{c_int, c_uint, c_void};
use std::io::{self, Read, Write};
use std::path::Path;

use libloading::Library;

use super::READY;

/// Makes a context on the first GPU that `CUDA_VISIBLE_DEVICES` leaves visible, says so on standard output,
/// and keeps it until standard input ends. The process's end gives it back.
///
/// # Errors
/// In words, what the driver refused: cuda.h's `CUresult` as a number.
pub fn hold(libcuda: &Path) -> Result<(), String> {
    // SAFETY: libcuda's initialisers run. It is the driver's own library, and this process does nothing else.
    let library = unsafe { Library::new(libcuda) }.map_err(|error| error.to_string())?;
    // SAFETY: the types are those of cuda.h, the same in every version.
    let (init, get, retain) = unsafe {
        (
            function::<unsafe extern "C" fn(c_uint) -> c_int>(&library, "cuInit")?,
            function::<unsafe extern "C" fn(*mut c_int, c_int) -> c_int>(&library, "cuDeviceGet")?,
            function::<unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int>(
                &library,
                "cuDevicePrimaryCtxRetain",
            )?,
        )
    };
    let (mut device, mut context) = (0, std::ptr::null_mut());
    // SAFETY: as cuda.h demands: flags 0; the variables outlive the calls.
    unsafe {
        done("cuInit", init(0))?;
        done("cuDeviceGet", get(&raw mut device, 0))?;
        done("cuDevicePrimaryCtxRetain", retain(&raw mut context, device))?;
    }
    let told = || -> io::Result<()> {
        io::stdout().write_all(READY.as_bytes())?;
        io::stdout().flush()?;
        io::stdin().read_to_end(&mut Vec::new()).map(drop)
    };
    let result = told().map_err(|error| error.to_string());
    // Not unloaded: libcuda may have threads that run in it.
    std::mem::forget(library);
    result
}

/// # Safety
/// `T` is the type of the function `name`.
unsafe fn function<T: Copy>(library: &Library, name: &str) -> Result<T, String> {
    // SAFETY: the caller's promise.
    unsafe { library.get::<T>(name.as_bytes()) }.map(|found| *found).map_err(|error| error.to_string())
}

fn done(what: &str, code: c_int) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{what}: CUDA error {code}")) }
}
