//! The parts of `nvml.h` that are used here: return codes, structs, and how values get out.

use core::ffi::{CStr, c_char};

/// An `nvmlReturn_t` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) u32);

impl Failure {
    pub(crate) const UNINITIALIZED: Self = Self(1);
    pub(crate) const INVALID_ARGUMENT: Self = Self(2);
    pub(crate) const NOT_SUPPORTED: Self = Self(3);
    pub(crate) const NO_PERMISSION: Self = Self(4);
    pub(crate) const NOT_FOUND: Self = Self(6);
    pub(crate) const INSUFFICIENT_SIZE: Self = Self(7);
    pub(crate) const DRIVER_NOT_LOADED: Self = Self(9);
    pub(crate) const TIMEOUT: Self = Self(10);
    pub(crate) const OPERATING_SYSTEM: Self = Self(17);
    pub(crate) const IN_USE: Self = Self(19);
    pub(crate) const INSUFFICIENT_RESOURCES: Self = Self(23);
    pub(crate) const ARGUMENT_VERSION_MISMATCH: Self = Self(25);
    pub(crate) const UNKNOWN: Self = Self(999);
}

/// What a simulated function computes before it becomes an `nvmlReturn_t`.
pub(crate) type Answer = Result<(), Failure>;

/// The `nvmlReturn_t` of an answer.
pub(crate) fn code(answer: Answer) -> u32 {
    answer.map_or_else(|failure| failure.0, |()| 0)
}

/// What `nvmlErrorString` says.
pub(crate) fn describe(code: u32) -> &'static CStr {
    match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        5 => c"Already Initialized",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        8 => c"Insufficient External Power",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        11 => c"Interrupt Request Issue",
        12 => c"NVML Shared Library Not Found",
        13 => c"Function Not Found",
        14 => c"Corrupted infoROM",
        15 => c"GPU is lost",
        16 => c"GPU requires reset",
        17 => c"GPU access blocked by the operating system",
        18 => c"Driver/library version mismatch",
        19 => c"In use by another client",
        20 => c"Insufficient Memory",
        21 => c"No data",
        22 => c"Requested vGPU operation is not available on target device when ECC is enabled",
        23 => c"Insufficient Resources",
        24 => c"Requested frequency is not supported",
        25 => c"Argument version mismatch",
        26 => c"Deprecated",
        27 => c"Not Ready",
        28 => c"GPU not found",
        29 => c"Invalid state",
        _ => c"Unknown Error",
    }
}

/// An opaque `nvmlDevice_t`.
pub(crate) type Handle = usize;

/// Writes a value where the caller wants it.
///
/// # Safety
/// `out` must be null or valid for a `T`.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return Err(Failure::INVALID_ARGUMENT);
    }
    // SAFETY: not null, so valid for a `T` as the caller promises.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes a text and its NUL into a buffer of `length` bytes.
///
/// # Safety
/// `out` must be null or valid for `length` bytes.
pub(crate) unsafe fn put_text(out: *mut c_char, length: u32, text: &CStr) -> Answer {
    if out.is_null() {
        return Err(Failure::INVALID_ARGUMENT);
    }
    let bytes = text.to_bytes_with_nul();
    if bytes.len() > length as usize {
        return Err(Failure::INSUFFICIENT_SIZE);
    }
    // SAFETY: the text fits into the buffer.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len()) };
    Ok(())
}

/// Writes a list as NVML does: `count` says how many fit and then how many there are. With less room than
/// entries nothing is written and the answer is "insufficient size".
///
/// # Safety
/// `count` must be null or valid; `out` must be null or valid for `*count` values.
pub(crate) unsafe fn put_list<T: Copy>(count: *mut u32, out: *mut T, values: &[T]) -> Answer {
    if count.is_null() {
        return Err(Failure::INVALID_ARGUMENT);
    }
    // SAFETY: not null, so valid.
    let room = unsafe { count.replace(values.len() as u32) } as usize;
    if room < values.len() {
        return Err(Failure::INSUFFICIENT_SIZE);
    }
    if values.is_empty() {
        return Ok(());
    }
    if out.is_null() {
        return Err(Failure::INVALID_ARGUMENT);
    }
    // SAFETY: there is room for at least as many values.
    unsafe { core::ptr::copy_nonoverlapping(values.as_ptr(), out, values.len()) };
    Ok(())
}

/// Checks a versioned struct: the first field holds its size and version, `size | version << 24`.
///
/// # Safety
/// `out` must be null or valid for a `u32`.
pub(crate) unsafe fn check_version<T>(out: *const T, version: u32) -> Answer {
    if out.is_null() {
        return Err(Failure::INVALID_ARGUMENT);
    }
    // SAFETY: not null; every versioned struct begins with its version.
    let given = unsafe { out.cast::<u32>().read() };
    if given == size_of::<T>() as u32 | version << 24 {
        Ok(())
    } else {
        Err(Failure::ARGUMENT_VERSION_MISMATCH)
    }
}

/// A NUL-padded array of `N` bytes.
pub(crate) fn padded<const N: usize>(text: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let n = text.len().min(N - 1);
    bytes[..n].copy_from_slice(&text[..n]);
    bytes
}

/// Defines functions `nvml…(device, *out)` that write one value: `name(type) => |device| value;`.
macro_rules! values {
    ($($name:ident($type:ty) => $value:expr;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: $crate::abi::Handle, out: *mut $type) -> u32 {
            let value: fn(&$crate::session::Device) -> Result<$type, $crate::abi::Failure> = $value;
            let found = $crate::session::Device::of(device).and_then(|device| value(&device));
            // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
            $crate::abi::code(found.and_then(|value| unsafe { $crate::abi::put(out, value) }))
        }
    )* };
}

/// Defines functions `nvml…(device, *text, length)`: `name(text) => |device| text;`.
macro_rules! texts {
    ($($name:ident(text) => $value:expr;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            device: $crate::abi::Handle,
            out: *mut core::ffi::c_char,
            length: u32,
        ) -> u32 {
            let text: fn(&$crate::session::Device) -> alloc::ffi::CString = $value;
            let found = $crate::session::Device::of(device).map(|device| text(&device));
            // SAFETY: `out` is null or valid for `length` bytes, as nvml.h demands of the caller.
            $crate::abi::code(found.and_then(|text| unsafe { $crate::abi::put_text(out, length, &text) }))
        }
    )* };
}

pub(crate) use {texts, values};
