//! Allocations, and their frees by pointer.
//!
//! Stream-ordered frees (`cuMemFreeAsync`) count at the call, and what a memory pool keeps for later is not
//! counted. Managed memory counts on the device that is current, though it may live in the host's memory.

use core::ffi::c_uint;

use fgpu_quota_core::allocations::{Entry, Kind};
use fgpu_quota_core::process::Process;

use crate::driver::{OUT_OF_MEMORY, Pointer, Pool, Result, SUCCESS, Stream};
use crate::place;
use crate::wrapped::real;

/// Texture pitch is aligned to this on the GPUs that we know; only the guess that is made before the driver
/// says the pitch.
const PITCH: u64 = 512;

/// Memory that is reserved in the ledger and not booked yet.
pub(crate) struct Reserved {
    process: &'static Process,
    /// Number in the grant.
    pub(crate) gpu: usize,
    /// What it counts for.
    pub(crate) bytes: u64,
}

impl Reserved {
    /// Reserves on the GPU that `place` says; the error is what the application gets.
    pub(crate) fn new(
        bytes: u64,
        place: impl FnOnce(&Process) -> core::result::Result<usize, Result>,
    ) -> core::result::Result<Self, Result> {
        let process = Process::current().map_err(|refusal| {
            refusal.say();
            OUT_OF_MEMORY
        })?;
        let gpu = place(process)?;
        let bytes = process.reserve(gpu, bytes).ok_or(OUT_OF_MEMORY)?;
        Ok(Self { process, gpu, bytes })
    }

    /// The driver refused.
    pub(crate) fn give_back(self) {
        self.process.release(self.gpu, self.bytes);
    }

    /// The driver agreed, and gave `pointer`. If the kernel has no memory for the entry, the allocation counts
    /// until the process ends.
    fn book(self, pointer: Pointer) {
        let Self { process, gpu, bytes } = self;
        let entry = Entry { key: pointer, kind: Kind::Pointer, gpu: gpu as u32, bytes, link: 0 };
        process.allocations.lock().insert(entry);
    }

    /// The process, for bookings of other kinds.
    pub(crate) fn process(&self) -> &'static Process {
        self.process
    }
}

/// Reserves, calls the driver, books. What the driver rejects anyway, it is left to reject.
///
/// # Safety
/// If `call` succeeds, it has written `pointer`.
unsafe fn allocate<P: Copy + Into<u64>>(
    pointer: *mut P,
    bytes: u64,
    place: impl FnOnce(&Process) -> core::result::Result<usize, Result>,
    call: impl FnOnce() -> Result,
) -> Result {
    if bytes == 0 || pointer.is_null() {
        return call();
    }
    let reserved = match Reserved::new(bytes, place) {
        Ok(reserved) => reserved,
        Err(error) => return error,
    };
    let result = call();
    if result == SUCCESS {
        // SAFETY: the caller's promise.
        reserved.book(unsafe { *pointer }.into());
    } else {
        reserved.give_back();
    }
    result
}

/// Calls the driver, gives back. The pointer is taken out first: once the driver has freed it, another thread
/// may be given the same.
fn give_back(pointer: Pointer, call: impl FnOnce() -> Result) -> Result {
    let Some(process) = Process::registered() else { return call() };
    let entry = process.allocations.lock().remove(Kind::Pointer, pointer);
    let result = call();
    if let Some(entry) = entry {
        if result == SUCCESS {
            process.release(entry.gpu as usize, entry.bytes);
        } else {
            process.allocations.lock().insert(entry);
        }
    }
    result
}

/// # Safety
/// As `cuMemAlloc_v2`.
pub(crate) unsafe fn alloc(pointer: *mut Pointer, bytes: usize) -> Result {
    // SAFETY: the driver writes the pointer if it succeeds; the arguments are the caller's.
    unsafe { allocate(pointer, bytes as u64, place::of_context, || real::cuMemAlloc_v2(pointer, bytes)) }
}

/// # Safety
/// As `cuMemAlloc`.
pub(crate) unsafe fn alloc_32(pointer: *mut u32, bytes: c_uint) -> Result {
    // SAFETY: the driver writes the pointer if it succeeds; the arguments are the caller's.
    unsafe { allocate(pointer, bytes.into(), place::of_context, || real::cuMemAlloc(pointer, bytes)) }
}

/// # Safety
/// As `cuMemAllocManaged`.
pub(crate) unsafe fn alloc_managed(pointer: *mut Pointer, bytes: usize, flags: c_uint) -> Result {
    // SAFETY: the driver writes the pointer if it succeeds; the arguments are the caller's.
    unsafe {
        allocate(pointer, bytes as u64, place::of_context, || real::cuMemAllocManaged(pointer, bytes, flags))
    }
}

/// # Safety
/// As `cuMemAllocAsync`.
pub(crate) unsafe fn alloc_async(pointer: *mut Pointer, bytes: usize, stream: Stream) -> Result {
    let place = |process: &Process| place::of_stream(process, stream);
    // SAFETY: the driver writes the pointer if it succeeds; the arguments are the caller's.
    unsafe { allocate(pointer, bytes as u64, place, || real::cuMemAllocAsync(pointer, bytes, stream)) }
}

/// # Safety
/// As `cuMemAllocAsync_ptsz`.
pub(crate) unsafe fn alloc_async_ptsz(pointer: *mut Pointer, bytes: usize, stream: Stream) -> Result {
    let place = |process: &Process| place::of_stream(process, stream);
    // SAFETY: the driver writes the pointer if it succeeds; the arguments are the caller's.
    unsafe { allocate(pointer, bytes as u64, place, || real::cuMemAllocAsync_ptsz(pointer, bytes, stream)) }
}

/// # Safety
/// As `cuMemAllocFromPoolAsync`.
pub(crate) unsafe fn alloc_from_pool(
    pointer: *mut Pointer,
    bytes: usize,
    pool: Pool,
    stream: Stream,
) -> Result {
    let place = |process: &Process| place::of_stream(process, stream);
    // SAFETY: the driver writes the pointer if it succeeds; the arguments are the caller's.
    unsafe {
        allocate(pointer, bytes as u64, place, || real::cuMemAllocFromPoolAsync(pointer, bytes, pool, stream))
    }
}

/// # Safety
/// As `cuMemAllocFromPoolAsync_ptsz`.
pub(crate) unsafe fn alloc_from_pool_ptsz(
    pointer: *mut Pointer,
    bytes: usize,
    pool: Pool,
    stream: Stream,
) -> Result {
    let place = |process: &Process| place::of_stream(process, stream);
    // SAFETY: the driver writes the pointer if it succeeds; the arguments are the caller's.
    unsafe {
        allocate(pointer, bytes as u64, place, || {
            real::cuMemAllocFromPoolAsync_ptsz(pointer, bytes, pool, stream)
        })
    }
}

/// # Safety
/// As `cuMemAllocPitch_v2`.
pub(crate) unsafe fn alloc_pitch(
    pointer: *mut Pointer,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Result {
    // SAFETY: the driver writes pointer and pitch if it succeeds; the arguments are the caller's.
    unsafe {
        allocate_pitch(pointer, pitch, width as u64, height as u64, || {
            real::cuMemAllocPitch_v2(pointer, pitch, width, height, element)
        })
    }
}

/// # Safety
/// As `cuMemAllocPitch`.
pub(crate) unsafe fn alloc_pitch_32(
    pointer: *mut u32,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    element: c_uint,
) -> Result {
    // SAFETY: the driver writes pointer and pitch if it succeeds; the arguments are the caller's.
    unsafe {
        allocate_pitch(pointer, pitch, width.into(), height.into(), || {
            real::cuMemAllocPitch(pointer, pitch, width, height, element)
        })
    }
}

/// A pitched allocation is `pitch × height` bytes, and the pitch is known only afterwards. So it is guessed,
/// and if the driver's turns out larger, the rest is reserved then, or the memory freed again.
///
/// # Safety
/// If `call` succeeds, it has written `pointer` and `pitch`.
unsafe fn allocate_pitch<P: Copy + Into<u64>, S: Copy + TryInto<u64>>(
    pointer: *mut P,
    pitch: *mut S,
    width: u64,
    height: u64,
    call: impl FnOnce() -> Result,
) -> Result {
    if width == 0 || height == 0 || pointer.is_null() || pitch.is_null() {
        return call();
    }
    let guess = width.checked_next_multiple_of(PITCH).unwrap_or(u64::MAX).saturating_mul(height);
    let mut reserved = match Reserved::new(guess, place::of_context) {
        Ok(reserved) => reserved,
        Err(error) => return error,
    };
    let result = call();
    if result != SUCCESS {
        reserved.give_back();
        return result;
    }
    // SAFETY: the caller's promise.
    let (pointer, pitch) = unsafe { ((*pointer).into(), (*pitch).try_into().unwrap_or(u64::MAX)) };
    let missing = pitch.saturating_mul(height).saturating_sub(reserved.bytes);
    if missing > 0 {
        match reserved.process.reserve(reserved.gpu, missing) {
            Some(more) => reserved.bytes += more,
            None => {
                // SAFETY: the application has not seen the pointer.
                unsafe { real::cuMemFree_v2(pointer) };
                reserved.give_back();
                return OUT_OF_MEMORY;
            }
        }
    }
    reserved.book(pointer);
    result
}

/// # Safety
/// As `cuMemFree_v2`.
pub(crate) unsafe fn free(pointer: Pointer) -> Result {
    // SAFETY: the caller's promise.
    give_back(pointer, || unsafe { real::cuMemFree_v2(pointer) })
}

/// # Safety
/// As `cuMemFree`.
pub(crate) unsafe fn free_32(pointer: u32) -> Result {
    // SAFETY: the caller's promise.
    give_back(pointer.into(), || unsafe { real::cuMemFree(pointer) })
}

/// # Safety
/// As `cuMemFreeAsync`.
pub(crate) unsafe fn free_async(pointer: Pointer, stream: Stream) -> Result {
    // SAFETY: the caller's promise.
    give_back(pointer, || unsafe { real::cuMemFreeAsync(pointer, stream) })
}

/// # Safety
/// As `cuMemFreeAsync_ptsz`.
pub(crate) unsafe fn free_async_ptsz(pointer: Pointer, stream: Stream) -> Result {
    // SAFETY: the caller's promise.
    give_back(pointer, || unsafe { real::cuMemFreeAsync_ptsz(pointer, stream) })
}
