//! How programs find functions and the words for results.
//!
//! `cuGetProcAddress` is asked for a name without suffix and the CUDA version that the program was built for, and
//! answers the newest variant that this version has: `cuMemAlloc` of 2.0 is `cuMemAlloc`, from 3.2 on
//! `cuMemAlloc_v2`. With the flag for per-thread default streams it prefers `…_ptds` or `…_ptsz`.

use alloc::format;
use core::ffi::{CStr, c_char, c_void};

use crate::abi::{Answer, Failure, api, describe, get, put, put_if_asked};
use crate::exports::EXPORTS;

/// An exported function.
pub(crate) struct Export {
    pub(crate) name: &'static str,
    pub(crate) address: unsafe extern "C" fn(),
}

/// Flag: variants for per-thread default streams.
const PER_THREAD: u64 = 2;

/// `CUdriverProcAddressQueryResult`.
const FOUND: i32 = 0;
const NO_SUCH_NAME: i32 = 1;
const VERSION_TOO_OLD: i32 = 2;

/// First CUDA version (1000 × major + 10 × minor) of the variants of a name, from `cudaTypedefs.h`. Names that are
/// not here changed in 3.2, when device addresses and sizes became 64 bits wide, or have one variant.
const VERSIONS: &[(&str, &[u32])] = &[
    ("cuCtxCreate", &[2000, 3020, 11040]),
    ("cuCtxDestroy", &[2000, 4000]),
    ("cuCtxPopCurrent", &[2000, 4000]),
    ("cuCtxPushCurrent", &[2000, 4000]),
    ("cuDeviceGetUuid", &[9020, 11040]),
    ("cuDevicePrimaryCtxRelease", &[7000, 11000]),
    ("cuDevicePrimaryCtxReset", &[7000, 11000]),
    ("cuDevicePrimaryCtxSetFlags", &[7000, 11000]),
    ("cuEventDestroy", &[2000, 4000]),
    ("cuGetProcAddress", &[11030, 12000]),
    ("cuGraphAddDependencies", &[10000, 12030]),
    ("cuGraphAddKernelNode", &[10000, 12000]),
    ("cuGraphAddNode", &[12020, 12030]),
    ("cuGraphExecKernelNodeSetParams", &[10010, 12000]),
    ("cuGraphExecUpdate", &[10020, 12000]),
    ("cuGraphGetEdges", &[10000, 12030]),
    ("cuGraphInstantiate", &[10000, 11000]),
    ("cuGraphKernelNodeGetParams", &[10000, 12000]),
    ("cuGraphKernelNodeSetParams", &[10000, 12000]),
    ("cuGraphNodeGetDependencies", &[10000, 12030]),
    ("cuGraphNodeGetDependentNodes", &[10000, 12030]),
    ("cuGraphRemoveDependencies", &[10000, 12030]),
    ("cuGraphicsResourceSetMapFlags", &[3000, 6050]),
    ("cuIpcOpenMemHandle", &[4010, 11000]),
    ("cuLinkAddData", &[5050, 6050]),
    ("cuLinkAddFile", &[5050, 6050]),
    ("cuLinkCreate", &[5050, 6050]),
    ("cuMemAdvise", &[8000, 12020]),
    ("cuMemHostRegister", &[4000, 6050]),
    ("cuMemPrefetchAsync", &[8000, 12020]),
    ("cuStreamBatchMemOp", &[8000, 11070]),
    ("cuStreamBeginCapture", &[10000, 10010]),
    ("cuStreamDestroy", &[2000, 4000]),
    ("cuStreamGetCaptureInfo", &[10010, 11030, 12030]),
    ("cuStreamUpdateCaptureDependencies", &[11030, 12030]),
    ("cuStreamWaitValue32", &[8000, 11070]),
    ("cuStreamWaitValue64", &[9000, 11070]),
    ("cuStreamWriteValue32", &[8000, 11070]),
    ("cuStreamWriteValue64", &[9000, 11070]),
    ("cuTexRefSetAddress2D", &[2020, 3020, 4010]),
];

/// The versions of a name without an entry above.
const COMMON: &[u32] = &[2000, 3020];

fn exported(name: &str) -> Option<*const c_void> {
    let found = EXPORTS.binary_search_by(|export| export.name.cmp(name)).ok()?;
    Some(EXPORTS[found].address as *const c_void)
}

/// The address of a name for a version, or why there is none.
fn find(name: &str, version: u32, flags: u64) -> Result<*const c_void, i32> {
    let versions = VERSIONS.iter().find(|(base, _)| *base == name).map_or(COMMON, |(_, versions)| versions);
    let suffixes: &[&str] = if flags & PER_THREAD == 0 { &[""] } else { &["_ptsz", "_ptds", ""] };
    let mut newer_exists = false;
    // The newest variant comes first.
    for variant in (1..=versions.len()).rev() {
        let base = if variant == 1 { name.into() } else { format!("{name}_v{variant}") };
        let found = suffixes.iter().find_map(|suffix| exported(&format!("{base}{suffix}")));
        match found {
            Some(address) if version >= versions[variant - 1] => return Ok(address),
            Some(_) => newer_exists = true,
            None => {}
        }
    }
    Err(if newer_exists { VERSION_TOO_OLD } else { NO_SUCH_NAME })
}

unsafe fn proc_address(
    name: *const c_char,
    out: *mut *const c_void,
    version: i32,
    flags: u64,
    status: *mut i32,
) -> Answer {
    // SAFETY: handed on from the caller: null or NUL-terminated.
    let name = unsafe { get(name).map(|_| CStr::from_ptr(name)) }?.to_str().unwrap_or("");
    let found = find(name, version.max(0) as u32, flags);
    if cfg!(feature = "trace") && found.is_err() {
        use core::fmt::Write;
        let _ = writeln!(sim_node::sys::Stderr, "sim-cuda: {name} of {version} does not exist");
    }
    // SAFETY: handed on from the caller; the status may be null if it is not wanted.
    unsafe {
        put(out, found.unwrap_or(core::ptr::null()))?;
        put_if_asked(status, found.err().unwrap_or(FOUND));
    }
    found.map(drop).map_err(|_| Failure::NOT_FOUND)
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
        proc_address(name, out, version, flags, core::ptr::null_mut());
    cuGetProcAddress_v2(
        name: *const c_char, out: *mut *const c_void, version: i32, flags: u64, status: *mut i32,
    ) => proc_address(name, out, version, flags, status);
    // The private tables of the real driver.
    cuGetExportTable(_out: *mut *const c_void, _id: *const [u8; 16]) => Err(Failure::NOT_FOUND);
}
