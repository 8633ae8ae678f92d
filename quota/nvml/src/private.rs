//! The table of private functions that nvidia-smi uses in addition to the public ones.
//!
//! Known from NVIDIA's own public mock of NVML (drivers 550 to 580): slot 0 is the table's size in bytes, the
//! others are functions. We return a copy of the real table in which four are ours: device by index, and the
//! lists of processes, which nvidia-smi's default view shows.

use core::ffi::{c_uint, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use fgpu_quota_core::sys;

use crate::abi::{
    Device, INVALID_ARGUMENT, NO_INSTANCE, NO_PERMISSION, NOT_FOUND, PrivateProcess, Result, SUCCESS,
};
use crate::devices::{Whose, limits, whose};
use crate::{command, processes};

/// 6c3efec4-8fc9-4e6c-a327-ee696e12f7c4 in the memory layout of a GUID.
const TABLE_ID: [u8; 16] =
    [0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4];

const HANDLE_BY_INDEX: usize = 81;
const COMPUTE_PROCESSES: usize = 213;
const GRAPHICS_PROCESSES: usize = 214;
const MPS_PROCESSES: usize = 215;

/// The largest plausible table, bytes. Known tables have 2 to 4 KiB.
const LARGEST: usize = 64 << 10;
/// The most GPUs that a node has.
const INDICES: c_uint = 64;

/// A function of the table. The number of its arguments is not certain, so four are passed on.
type Slot = unsafe extern "C" fn(usize, usize, usize, usize) -> Result;

static COPY: AtomicPtr<usize> = AtomicPtr::new(core::ptr::null_mut());
static REAL_BY_INDEX: AtomicUsize = AtomicUsize::new(0);

/// Returns our copy in place of the real table.
///
/// # Safety
/// `id` is null or a GUID; if `call` succeeds, it has written `table`.
pub(crate) unsafe fn table(
    table: *mut *const c_void,
    id: *const [u8; 16],
    call: impl FnOnce() -> Result,
) -> Result {
    let result = call();
    // SAFETY: the caller's promise.
    if result != SUCCESS || table.is_null() || unsafe { id.as_ref() } != Some(&TABLE_ID) {
        return result;
    }
    // SAFETY: written by the library, which succeeded: a table that starts with its size.
    match unsafe { copy((*table).cast()) } {
        Some(ours) => {
            // SAFETY: the library has written there.
            unsafe { *table = ours.cast() };
            SUCCESS
        }
        // Never the real table: it shows the whole node.
        None => NO_PERMISSION,
    }
}

/// Our copy of the table, made at the first call.
///
/// # Safety
/// `real` is null or such a table.
unsafe fn copy(real: *const usize) -> Option<*const usize> {
    let known = COPY.load(Ordering::Acquire);
    if !known.is_null() {
        return Some(known);
    }
    // SAFETY: the caller's promise.
    let size = *unsafe { real.as_ref() }?;
    if !(size_of::<usize>()..=LARGEST).contains(&size) {
        return None;
    }
    let at = sys::map_zeros(size).ok()?;
    let ours: *mut usize = at.cast().as_ptr();
    // SAFETY: the real table has that size, and so has ours.
    let slots = unsafe {
        core::ptr::copy_nonoverlapping(real.cast::<u8>(), at.as_ptr(), size);
        core::slice::from_raw_parts_mut(ours, size / size_of::<usize>())
    };
    if let Some(slot) = slots.get_mut(HANDLE_BY_INDEX) {
        REAL_BY_INDEX.store(*slot, Ordering::Release);
        *slot = by_index as *const () as usize;
    }
    for (slot, function) in [
        (COMPUTE_PROCESSES, compute_processes as *const ()),
        (GRAPHICS_PROCESSES, no_processes as *const ()),
        (MPS_PROCESSES, no_processes as *const ()),
    ] {
        if let Some(slot) = slots.get_mut(slot) {
            *slot = function as usize;
        }
    }
    match COPY.compare_exchange(core::ptr::null_mut(), ours, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(ours),
        Err(theirs) => {
            // SAFETY: another thread was faster; no other thread has seen ours.
            unsafe { sys::unmap(at, size) };
            Some(theirs)
        }
    }
}

/// The real slot's handle of the GPU that has this number in the grant: looked for among all, so that the
/// handle is one that the private functions know.
unsafe extern "C" fn by_index(index: c_uint, device: *mut Device, flag: usize, more: usize) -> Result {
    match limits() {
        Ok(limits) if (index as usize) < limits.gpus() => {}
        Ok(_) => return INVALID_ARGUMENT,
        Err(error) => return error,
    }
    let real = REAL_BY_INDEX.load(Ordering::Acquire);
    if real == 0 || device.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the function that was in this slot of the real table.
    let real = unsafe { core::mem::transmute::<usize, Slot>(real) };
    for candidate in 0..INDICES {
        let mut handle = core::ptr::null_mut();
        // SAFETY: as nvidia-smi calls it, with a variable of ours for the handle.
        let result = unsafe { real(candidate as usize, &raw mut handle as usize, flag, more) };
        // SAFETY: a handle that NVML gave just now.
        if result == SUCCESS && unsafe { whose(handle) } == Ok(Whose::Granted(index as usize)) {
            // SAFETY: the caller's variable, not null.
            unsafe { *device = handle };
            return SUCCESS;
        }
    }
    NOT_FOUND
}

unsafe extern "C" fn compute_processes(
    device: Device,
    count: *mut c_uint,
    list: *mut PrivateProcess,
) -> Result {
    // SAFETY: null, or the caller's variable.
    let Some(count) = (unsafe { count.as_mut() }) else { return INVALID_ARGUMENT };
    let room = if list.is_null() { 0 } else { *count as usize };
    // SAFETY: the caller's list has room for as many as it says, and the handle is NVML's.
    let found = unsafe {
        processes::on(device, |place, pid, used| {
            if place < room {
                write(list.add(place), pid, used);
            }
        })
    };
    match found {
        Ok(found) => {
            *count = found.min(room) as c_uint;
            SUCCESS
        }
        Err(error) => error,
    }
}

/// Fills an entry in place: it is too large for the stack of the application's thread.
///
/// # Safety
/// `entry` can be written.
unsafe fn write(entry: *mut PrivateProcess, pid: u32, used: u64) {
    // SAFETY: the caller's promise. The name is zeroed first, so it can be referred to, and ends with a NUL.
    unsafe {
        (&raw mut (*entry).pid).write(pid);
        (&raw mut (*entry).used).write(used);
        (&raw mut (*entry).gpu_instance).write(NO_INSTANCE);
        (&raw mut (*entry).compute_instance).write(NO_INSTANCE);
        (&raw mut (*entry).protected).write(0);
        let name = &raw mut (*entry).name;
        name.write_bytes(0, 1);
        command::read(pid, &mut *name);
    }
}

unsafe extern "C" fn no_processes(device: Device, count: *mut c_uint, list: *mut c_void) -> Result {
    // SAFETY: as the public functions.
    unsafe { processes::none(device, count, list) }
}
