//! Stream-ordered allocations, and the pools that they come from.
//!
//! What counts is what a pool holds, not what was allocated from it ([`meter`]). A pool keeps memory that was
//! freed and gives it back to the GPU at some later synchronisation, so synchronisations are wrapped too. If
//! memory is short, the process's own pools give up what they do not use. A captured allocation takes no
//! memory; its graph does.

use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::Ordering;

use fgpu_quota_core::allocations::{Entry, Kind};
use fgpu_quota_core::process::Process;

use crate::driver::{
    DefaultStream, Device, Location, MANAGED, OUT_OF_MEMORY, Pointer, Pool, PoolProperties, Result, SUCCESS,
    Stream,
};
use crate::meter::{self, Meter};
use crate::reserve::{self, Reserved};
use crate::{compute, place, real};

/// Whether a stream is being captured: then nothing is allocated now.
pub(crate) fn is_captured(stream: Stream, asks: unsafe fn(Stream, *mut c_int) -> Result) -> bool {
    let mut status = 0;
    // SAFETY: the stream is the application's argument for the driver, which writes the status.
    (unsafe { asks(stream, &raw mut status) }) == SUCCESS && status != 0
}

/// Allocates from `pool`, or from the current pool of the stream's device.
///
/// # Safety
/// If `call` succeeds, it has written `pointer`.
pub(crate) unsafe fn allocate(
    pointer: *mut Pointer,
    bytes: usize,
    pool: Option<Pool>,
    stream: Stream,
    default: DefaultStream,
    call: impl FnOnce() -> Result,
) -> Result {
    type Capturing = unsafe fn(Stream, *mut c_int) -> Result;
    type Free = unsafe fn(Pointer, Stream) -> Result;
    let (capturing, undo): (Capturing, Free) = match default {
        DefaultStream::Legacy => (real::cuStreamIsCapturing, real::cuMemFreeAsync),
        DefaultStream::PerThread => (real::cuStreamIsCapturing_ptsz, real::cuMemFreeAsync_ptsz),
    };
    if bytes == 0 || pointer.is_null() || is_captured(stream, capturing) {
        return call();
    }
    let device = match place::device_of_stream(stream) {
        Ok(device) => device,
        Err(error) => return error,
    };
    let process = match reserve::account() {
        Ok(process) => process,
        Err(error) => return error,
    };
    let pool = pool.or_else(|| current_of(device));
    if pool.is_some_and(|pool| meter::is_on_host(process, pool)) {
        return call();
    }
    // A pool whose creation was not seen belongs to its stream's device.
    let gpu = |process: &Process| match pool.and_then(|pool| meter_gpu(process, pool)) {
        Some(gpu) => Ok(gpu),
        None => place::of_device(process, device),
    };
    let reserved = match Reserved::new(bytes as u64, gpu) {
        Ok(reserved) => reserved,
        Err(error) => return error,
    };
    let result = call();
    if result != SUCCESS {
        reserved.give_back();
        return result;
    }
    // SAFETY: the caller's promise.
    let address = unsafe { *pointer };
    let metered = pool.map(Meter::of_pool).filter(|&meter| meter::open(process, meter, reserved.gpu));
    let (Some(pool), Some(meter)) = (pool, metered) else {
        // The driver's pools cannot be read, so the allocation counts by its pointer.
        reserved.book(Kind::Pointer, address);
        return result;
    };
    let Reserved { gpu, bytes: spare, .. } = reserved;
    let entry = Entry {
        key: address,
        kind: Kind::InPool,
        gpu: gpu as u32,
        bytes: bytes as u64,
        link: pool as u64,
        owner: 0,
    };
    process.allocations.lock().insert(entry);
    if meter::settle(process, meter, gpu, spare) {
        return result;
    }
    // The pool grew by more than was asked for, and there is no room for that.
    process.allocations.lock().remove(Kind::InPool, address);
    // SAFETY: the application has not seen the pointer.
    unsafe { undo(address, stream) };
    meter::give_up_spare(process, gpu);
    OUT_OF_MEMORY
}

/// A device's pool for allocations that name none.
fn current_of(device: Device) -> Option<Pool> {
    let mut pool = null_mut();
    // SAFETY: the driver writes the pool.
    (unsafe { real::cuDeviceGetMemPool(&raw mut pool, device) } == SUCCESS).then_some(pool)
}

fn meter_gpu(process: &Process, pool: Pool) -> Option<usize> {
    process.allocations.lock().get_mut(Kind::Pool, pool as u64).map(|entry| entry.gpu as usize)
}

/// Whether this process has pools at all.
#[inline]
pub(crate) fn may_be_in_one(process: &Process) -> bool {
    process.meters.load(Ordering::Relaxed) != 0
}

/// Whether a pointer is a pool's.
pub(crate) fn has(process: &Process, pointer: Pointer) -> bool {
    process.allocations.lock().get_mut(Kind::InPool, pointer).is_some()
}

/// Frees a pool's pointer.
pub(crate) fn free(process: &Process, pointer: Pointer, call: impl FnOnce() -> Result) -> Result {
    let Some(entry) = process.allocations.lock().remove(Kind::InPool, pointer) else { return call() };
    let result = call();
    if result == SUCCESS {
        meter::settle(process, Meter::of_pool(entry.link as Pool), entry.gpu as usize, 0);
    } else {
        process.allocations.lock().insert(entry);
    }
    result
}

/// Begins to count a pool, with the memory that the driver has reserved for it at once.
fn opened(pool: Pool, kind: c_int, location: Location) -> Result {
    let process = match reserve::account() {
        Ok(process) => process,
        Err(error) => return error,
    };
    let place = match location.device() {
        Some(device) => place::of_device(process, device),
        None if kind == MANAGED => place::of_context(process),
        None => {
            meter::on_host(process, pool);
            return SUCCESS;
        }
    };
    match place {
        Ok(gpu) if !meter::open(process, Meter::of_pool(pool), gpu) => SUCCESS,
        Ok(gpu) if meter::settle(process, Meter::of_pool(pool), gpu, 0) => SUCCESS,
        Ok(_) => OUT_OF_MEMORY,
        Err(error) => error,
    }
}

/// Makes a pool.
///
/// # Safety
/// If `call` succeeds, it has read `properties` and written `pool`.
pub(crate) unsafe fn create(
    pool: *mut Pool,
    properties: *const PoolProperties,
    call: impl FnOnce() -> Result,
) -> Result {
    let result = call();
    if result != SUCCESS {
        return result;
    }
    // SAFETY: the driver has read the one and written the other.
    let (new, properties) = unsafe { (*pool, &*properties) };
    let result = opened(new, properties.kind, properties.location);
    if result != SUCCESS {
        // SAFETY: the application has not seen the pool.
        destroy(new, || unsafe { real::cuMemPoolDestroy(new) });
    }
    result
}

/// Notes where a pool is that the driver made.
///
/// # Safety
/// If `call` succeeds, it has read `location` and written `pool`.
pub(crate) unsafe fn note(
    pool: *mut Pool,
    location: *mut Location,
    kind: c_int,
    call: impl FnOnce() -> Result,
) -> Result {
    let result = call();
    if result == SUCCESS {
        // SAFETY: the caller's promise.
        opened(unsafe { *pool }, kind, unsafe { *location });
    }
    result
}

/// The end of a pool.
pub(crate) fn destroy(pool: Pool, call: impl FnOnce() -> Result) -> Result {
    let Some(process) = Process::registered() else { return call() };
    let closed = meter::close(process, Meter::of_pool(pool));
    let result = call();
    let Some(closed) = closed else { return result };
    let gpu = closed.gpu as usize;
    if result != SUCCESS {
        meter::open(process, Meter::of_pool(pool), gpu);
        process.release(gpu, closed.bytes);
        meter::settle(process, Meter::of_pool(pool), gpu, 0);
        return result;
    }
    // Its allocations live until they are freed, and count by themselves from now on.
    let mut alive = 0u64;
    let mut table = process.allocations.lock();
    while let Some(entry) = table.find(Kind::InPool, |entry| entry.link == pool as u64) {
        table.remove(Kind::InPool, entry.key);
        alive = alive.saturating_add(entry.bytes);
        table.insert(Entry { kind: Kind::Pointer, link: 0, ..entry });
    }
    drop(table);
    process.release(gpu, closed.bytes.saturating_sub(alive));
    if alive > closed.bytes {
        process.force(gpu, alive - closed.bytes);
    }
    result
}

/// A call at which the driver may give memory back.
pub(crate) fn settle_after(call: impl FnOnce() -> Result) -> Result {
    let result = call();
    if result == SUCCESS
        && let Some(process) = Process::registered()
    {
        meter::settle_all(process);
    }
    result
}

/// A wait for a stream, a context or an event.
pub(crate) fn synchronize(call: impl FnOnce() -> Result) -> Result {
    settle_after(|| compute::wait(call))
}
