//! Calls about the node as a whole: init, versions, what it has none of.

use core::ffi::{c_char, c_int};

use sim_node::config::MAX_GPUS;

use crate::abi::{self, Answer, Failure, Handle, code, put, put_list, put_text};
use crate::session::{self, Session};

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> u32 {
    code(session::init())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> u32 {
    code(session::init())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: u32) -> u32 {
    code(session::init())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> u32 {
    code(session::shutdown())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: u32) -> *const c_char {
    abi::describe(result).as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(version: *mut c_char, length: u32) -> u32 {
    // SAFETY: the buffer is the caller's, as nvml.h demands.
    code(
        Session::current()
            .and_then(|s| unsafe { put_text(version, length, s.node.driver_version.as_cstr()) }),
    )
}

/// NVML's own version is the driver's with the CUDA major in front, e.g. `12.550.163.01`.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: u32) -> u32 {
    code(Session::current().and_then(|session| {
        let text =
            alloc::format!("{}.{}", session.node.cuda_version / 1000, session.node.driver_version.as_str());
        let text = alloc::ffi::CString::new(text).unwrap_or_default();
        // SAFETY: the buffer is the caller's, as nvml.h demands.
        unsafe { put_text(version, length, &text) }
    }))
}

unsafe fn cuda_version(version: *mut c_int) -> Answer {
    // SAFETY: handed on from the caller.
    Session::current().and_then(|session| unsafe { put(version, session.node.cuda_version as c_int) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(version: *mut c_int) -> u32 {
    // SAFETY: `version` is null or valid, as nvml.h demands of the caller.
    code(unsafe { cuda_version(version) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> u32 {
    // SAFETY: `version` is null or valid, as nvml.h demands of the caller.
    code(unsafe { cuda_version(version) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetProcessName(pid: u32, name: *mut c_char, length: u32) -> u32 {
    code(Session::current().and_then(|session| {
        let mut users = (0..MAX_GPUS).flat_map(|gpu| session.onlooker.users(gpu));
        let user = users.find(|user| user.pid == pid).ok_or(Failure::NOT_FOUND)?;
        // SAFETY: the buffer is the caller's, as nvml.h demands.
        unsafe { put_text(name, length, user.name.as_cstr()) }
    }))
}

/// Counts of things that a simulated node has none of.
macro_rules! none_of {
    ($($name:ident(u32) => none;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(count: *mut u32) -> u32 {
            // SAFETY: `count` is null or valid, as nvml.h demands of the caller.
            code(Session::current().and_then(|_| unsafe { put(count, 0) }))
        }
    )* };
}

none_of! {
    nvmlUnitGetCount(u32) => none;
    nvmlGetExcludedDeviceCount(u32) => none;
    nvmlGetBlacklistDeviceCount(u32) => none;
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetHicVersion(count: *mut u32, _entries: *mut u8) -> u32 {
    // SAFETY: `count` is null or valid, as nvml.h demands of the caller.
    code(Session::current().and_then(|_| unsafe { put_list::<u8>(count, core::ptr::null_mut(), &[]) }))
}

/// An event set is a number that nothing ever happens to.
const EVENT_SET: Handle = 1;

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlEventSetCreate(set: *mut Handle) -> u32 {
    // SAFETY: `set` is null or valid, as nvml.h demands of the caller.
    code(Session::current().and_then(|_| unsafe { put(set, EVENT_SET) }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(_set: Handle) -> u32 {
    code(Session::current().map(drop))
}

fn wait_for_event(milliseconds: u32) -> u32 {
    code(Session::current().and_then(|_| {
        sim_node::sys::sleep(u64::from(milliseconds) * 1_000_000);
        Err(Failure::TIMEOUT)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait(_set: Handle, _data: *mut u8, milliseconds: u32) -> u32 {
    wait_for_event(milliseconds)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(_set: Handle, _data: *mut u8, milliseconds: u32) -> u32 {
    wait_for_event(milliseconds)
}
