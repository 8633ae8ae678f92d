//! The parts of `cuda.h` that are used everywhere: results, and how values get out.

use core::ffi::{CStr, c_char};

use crate::calls::{self, Counter};

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) u32);

impl Failure {
    pub(crate) const INVALID_VALUE: Self = Self(1);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const NOT_INITIALIZED: Self = Self(3);
    pub(crate) const NO_DEVICE: Self = Self(100);
    pub(crate) const INVALID_DEVICE: Self = Self(101);
    pub(crate) const INVALID_CONTEXT: Self = Self(201);
    pub(crate) const PEER_ACCESS_UNSUPPORTED: Self = Self(217);
    pub(crate) const INVALID_HANDLE: Self = Self(400);
    pub(crate) const NOT_FOUND: Self = Self(500);
    pub(crate) const NOT_READY: Self = Self(600);
    pub(crate) const CONTEXT_IS_DESTROYED: Self = Self(709);
    pub(crate) const NOT_SUPPORTED: Self = Self(801);
    pub(crate) const CAPTURE_UNSUPPORTED: Self = Self(900);
    pub(crate) const CAPTURE_INVALIDATED: Self = Self(901);
    pub(crate) const CAPTURE_IMPLICIT: Self = Self(906);
    pub(crate) const CAPTURED_EVENT: Self = Self(907);
}

/// What a simulated function computes before it becomes a `CUresult`.
pub(crate) type Answer = Result<(), Failure>;

/// An opaque handle: context, stream, event, module, function, pool, allocation.
pub(crate) type Handle = usize;

/// A `CUdeviceptr`.
pub(crate) type Address = u64;

/// The `CUresult` of an answer.
pub(crate) fn code(answer: Answer) -> u32 {
    answer.map_or_else(|failure| failure.0, |()| 0)
}

/// Calls and counts, and names the call and its result on standard error if the feature `trace` is on.
pub(crate) fn traced(counter: &'static Counter, name: &str, answer: impl FnOnce() -> Answer) -> u32 {
    let result = calls::counted(counter, || code(answer()));
    if cfg!(feature = "trace") {
        use core::fmt::Write;
        let _ = writeln!(sim_node::sys::Stderr, "sim-cuda: {name} = {result}");
    }
    result
}

/// A result's name and what it means.
pub(crate) fn describe(code: u32) -> Option<(&'static CStr, &'static CStr)> {
    Some(match code {
        0 => (c"CUDA_SUCCESS", c"no error"),
        1 => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        2 => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        3 => (c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
        4 => (c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down"),
        100 => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        101 => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        200 => (c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
        201 => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        217 => {
            (c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", c"peer access is not supported between these two devices")
        }
        400 => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        500 => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        600 => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
        700 => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        709 => (c"CUDA_ERROR_CONTEXT_IS_DESTROYED", c"context is destroyed"),
        719 => (c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
        801 => (c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
        802 => (c"CUDA_ERROR_SYSTEM_NOT_READY", c"system not yet initialized"),
        900 => {
            (c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing")
        }
        901 => (
            c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
            c"operation failed due to a previous error during capture",
        ),
        906 => (
            c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
            c"operation would make the legacy stream depend on a capturing blocking stream",
        ),
        907 => (
            c"CUDA_ERROR_CAPTURED_EVENT",
            c"operation not permitted on an event last recorded in a capturing stream",
        ),
        999 => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
        _ => return None,
    })
}

/// Writes a value where the caller wants it.
///
/// # Safety
/// `out` must be null or valid for a `T`.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return Err(Failure::INVALID_VALUE);
    }
    // SAFETY: not null, so valid for a `T` as the caller promises.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes a value if the caller wants it.
///
/// # Safety
/// `out` must be null or valid for a `T`.
pub(crate) unsafe fn put_if_asked<T>(out: *mut T, value: T) {
    // SAFETY: handed on; null means that it is not wanted.
    let _ = unsafe { put(out, value) };
}

/// Writes a text and its NUL, cut to what fits, into a buffer of `length` bytes.
///
/// # Safety
/// `out` must be null or valid for `length` bytes.
pub(crate) unsafe fn put_text(out: *mut c_char, length: i32, text: &CStr) -> Answer {
    if out.is_null() || length <= 0 {
        return Err(Failure::INVALID_VALUE);
    }
    let bytes = text.to_bytes();
    let n = bytes.len().min(length as usize - 1);
    // SAFETY: `n` and a NUL fit into the buffer.
    unsafe {
        core::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, n);
        out.add(n).write(0);
    }
    Ok(())
}

/// A reference to what a pointer of the caller's leads to.
///
/// # Safety
/// `pointer` must be null or valid for a `T` during the call.
pub(crate) unsafe fn get<'a, T>(pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: as the caller promises.
    unsafe { pointer.as_ref() }.ok_or(Failure::INVALID_VALUE)
}

/// Defines exported functions, one row each: `name(arguments) => answer;`. The answers may use what the
/// arguments lead to.
macro_rules! api {
    ($($name:ident($($argument:ident: $type:ty),* $(,)?) => $answer:expr;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            // SAFETY: pointers among the arguments are as cuda.h demands of the caller.
            let answer = || -> $crate::abi::Answer { #[allow(unused_unsafe)] unsafe { $answer } };
            static CALLED: $crate::calls::Counter = $crate::calls::Counter::new(stringify!($name));
            $crate::abi::traced(&CALLED, stringify!($name), answer)
        }
    )* };
}

pub(crate) use api;
