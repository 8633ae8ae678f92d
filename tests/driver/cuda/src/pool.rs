//! Stream-ordered allocation from memory pools. A pool grows when it has to, by what is missing; one whose
//! memory can be exported grows by 32 MiB at a time, as NVIDIA's are said to. What is freed it keeps until
//! something is synchronised or trimmed, and then what its threshold lets it.

use crate::abi::{Address, Answer, Failure, Handle, api, get, put};
use crate::context::Current;
use crate::driver::{Driver, Objects};
use crate::graph;
use crate::memory::{self, Kind};
use crate::vmm::Location;

/// A pool.
pub(crate) struct Pool {
    ordinal: i32,
    /// Most bytes, 0: as many as the GPU has.
    max_size: usize,
    release_threshold: u64,
    /// It grows by multiples of so many bytes.
    step: u64,
    /// Bytes charged.
    reserved: u64,
    /// Most bytes ever in use.
    high: u64,
    /// Another process's: what is in it is there, and nothing can be allocated from it.
    is_imported: bool,
}

/// `CUmemPoolProps`, up to what is used here.
#[repr(C)]
struct Properties {
    kind: i32,
    handle_types: i32,
    location: [i32; 2],
    win32: usize,
    max_size: usize,
}

impl Pool {
    fn new(ordinal: i32) -> Self {
        Self { ordinal, max_size: 0, release_threshold: 0, step: 1, reserved: 0, high: 0, is_imported: false }
    }
}

/// The ordinal of a pool's GPU, if the pool can be given to another process.
pub(crate) fn shareable(objects: &Objects, pool: Handle) -> Result<i32, Failure> {
    let pool = objects.pools.get(&pool).filter(|pool| pool.step > 1 && !pool.is_imported);
    pool.map(|pool| pool.ordinal).ok_or(Failure::INVALID_VALUE)
}

/// A pool of another process on the GPU with that ordinal.
pub(crate) fn import(ordinal: i32) -> Result<Handle, Failure> {
    let driver = Driver::get()?;
    driver.gpu(ordinal)?;
    let mut objects = driver.objects();
    let handle = objects.new_handle();
    objects.pools.insert(handle, Pool { is_imported: true, ..Pool::new(ordinal) });
    Ok(handle)
}

fn default_pool(objects: &mut Objects, ordinal: i32) -> Result<Handle, Failure> {
    Driver::get()?.gpu(ordinal)?;
    if let Some(&handle) = objects.default_pools.get(&ordinal) {
        return Ok(handle);
    }
    let handle = objects.new_handle();
    objects.pools.insert(handle, Pool::new(ordinal));
    objects.default_pools.insert(ordinal, handle);
    Ok(handle)
}

pub(crate) unsafe fn put_default_pool(out: *mut Handle, ordinal: i32) -> Answer {
    let handle = default_pool(&mut Driver::get()?.objects(), ordinal)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

unsafe fn create(out: *mut Handle, properties: *const Properties) -> Answer {
    // SAFETY: handed on from the caller.
    let properties = unsafe { get(properties) }?;
    let ordinal = properties.location[1];
    let step = if properties.handle_types == 0 { 1 } else { 32 << 20 };
    let driver = Driver::get()?;
    driver.gpu(ordinal)?;
    let mut objects = driver.objects();
    let handle = objects.new_handle();
    objects.pools.insert(handle, Pool { max_size: properties.max_size, step, ..Pool::new(ordinal) });
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

fn destroy(handle: Handle) -> Answer {
    let mut objects = Driver::get()?.objects();
    if objects.default_pools.values().any(|&pool| pool == handle) {
        return Err(Failure::INVALID_VALUE);
    }
    shrink(&mut objects, handle, 0)?;
    objects.pools.remove(&handle).map(drop).ok_or(Failure::INVALID_VALUE)?;
    objects.allocations.leave_pool(handle);
    Ok(())
}

/// Gives back what a pool does not use, but for `keep` bytes in all.
fn shrink(objects: &mut Objects, handle: Handle, keep: u64) -> Answer {
    let driver = Driver::get()?;
    let in_use = objects.allocations.in_pool(handle);
    let pool = objects.pools.get_mut(&handle).ok_or(Failure::INVALID_VALUE)?;
    let (number, _) = driver.gpu(pool.ordinal)?;
    let unused = pool.reserved.saturating_sub(in_use.max(keep));
    pool.reserved -= unused;
    driver.account.refund(number, unused);
    Ok(())
}

/// A synchronisation: every pool gives back what is above its threshold.
pub(crate) fn give_back_unused() -> Answer {
    let mut objects = Driver::get()?.objects();
    let pools: alloc::vec::Vec<_> =
        objects.pools.iter().map(|(&handle, pool)| (handle, pool.release_threshold)).collect();
    pools.into_iter().try_for_each(|(handle, keep)| shrink(&mut objects, handle, keep))
}

/// Charges a pool for what it needs more, to allocate `size` bytes. Gives where it is.
fn grow(objects: &mut Objects, current: Current, handle: Handle, size: usize) -> Result<Current, Failure> {
    let in_use = objects.allocations.in_pool(handle);
    let pool =
        objects.pools.get_mut(&handle).filter(|pool| !pool.is_imported).ok_or(Failure::INVALID_VALUE)?;
    let need = in_use.saturating_add(memory::units(size));
    if pool.max_size != 0 && need > pool.max_size as u64 {
        return Err(Failure::OUT_OF_MEMORY);
    }
    pool.high = pool.high.max(need);
    let missing = need.saturating_sub(pool.reserved).next_multiple_of(pool.step);
    let (number, gpu) = current.driver.gpu(pool.ordinal)?;
    let place = Current { ordinal: pool.ordinal, number, gpu, ..current };
    pool.reserved += memory::charge(&place, missing as usize)?;
    Ok(place)
}

/// Allocates from a pool; without one from the default pool of the current context's GPU. In a stream that is
/// captured, a node is made of it.
unsafe fn allocate(out: *mut Address, size: usize, pool: Option<Handle>, stream: Handle) -> Answer {
    let current = Current::get()?;
    if size == 0 {
        return Err(Failure::INVALID_VALUE);
    }
    if let Some(address) = graph::captured_alloc(&current, stream, size)? {
        // SAFETY: handed on from the caller.
        return unsafe { put(out, address) };
    }
    // In one go: what is not in the table yet is in nobody's use, and the next growth would have to make up
    // for it.
    let mut objects = current.driver.objects();
    let handle = match pool {
        Some(handle) => handle,
        None => default_pool(&mut objects, current.ordinal)?,
    };
    let place = grow(&mut objects, current, handle, size)?;
    let address = memory::insert(&mut objects, memory::of(&place, size, Kind::Device, handle))?;
    drop(objects);
    // SAFETY: handed on from the caller.
    unsafe { put(out, address) }
}

fn free(address: Address, stream: Handle) -> Answer {
    let current = Current::get()?;
    if graph::captured_free(&current, stream, address)? { Ok(()) } else { memory::free_device(address) }
}

/// `CUmemPool_attribute`s that are 64-bit numbers.
const RELEASE_THRESHOLD: i32 = 4;
const RESERVED_CURRENT: i32 = 5;
const RESERVED_HIGH: i32 = 6;
const USED_CURRENT: i32 = 7;
const USED_HIGH: i32 = 8;

unsafe fn get_attribute(handle: Handle, which: i32, out: *mut u64) -> Answer {
    let objects = Driver::get()?.objects();
    let pool = objects.pools.get(&handle).ok_or(Failure::INVALID_VALUE)?;
    let value = match which {
        // How freed memory may be reused: always allowed, as by default; these are C ints.
        // SAFETY: handed on from the caller.
        1..=3 => return unsafe { put(out.cast::<i32>(), 1) },
        RELEASE_THRESHOLD => pool.release_threshold,
        RESERVED_CURRENT => pool.reserved,
        USED_CURRENT => objects.allocations.in_pool(handle),
        RESERVED_HIGH | USED_HIGH => pool.high,
        _ => return Err(Failure::INVALID_VALUE),
    };
    // SAFETY: handed on from the caller.
    unsafe { put(out, value) }
}

unsafe fn set_attribute(handle: Handle, which: i32, value: *const u64) -> Answer {
    let mut objects = Driver::get()?.objects();
    let in_use = objects.allocations.in_pool(handle);
    let pool = objects.pools.get_mut(&handle).ok_or(Failure::INVALID_VALUE)?;
    match which {
        1..=3 => {}
        // SAFETY: handed on from the caller.
        RELEASE_THRESHOLD => pool.release_threshold = *unsafe { get(value) }?,
        RESERVED_HIGH | USED_HIGH => pool.high = in_use,
        _ => return Err(Failure::INVALID_VALUE),
    }
    Ok(())
}

fn exists(handle: Handle) -> Answer {
    Driver::get()?.objects().pools.get(&handle).map(drop).ok_or(Failure::INVALID_VALUE)
}

use Address as A;

api! {
    cuDeviceGetDefaultMemPool(out: *mut Handle, ordinal: i32) => put_default_pool(out, ordinal);
    cuDeviceGetMemPool(out: *mut Handle, ordinal: i32) => put_default_pool(out, ordinal);
    cuMemPoolCreate(out: *mut Handle, properties: *const Properties) => create(out, properties);
    cuMemPoolDestroy(pool: Handle) => destroy(pool);
    cuMemPoolGetAttribute(pool: Handle, which: i32, out: *mut u64) => get_attribute(pool, which, out);
    cuMemPoolSetAttribute(pool: Handle, which: i32, value: *const u64) => set_attribute(pool, which, value);
    cuMemPoolTrimTo(pool: Handle, keep: usize) => shrink(&mut Driver::get()?.objects(), pool, keep as u64);
    cuMemPoolSetAccess(pool: Handle, _access: usize, _count: usize) => exists(pool);
    cuMemPoolGetAccess(out: *mut i32, pool: Handle, _location: *const Location) =>
        exists(pool).and_then(|()| put(out, 3));
    cuMemAllocAsync(out: *mut A, size: usize, stream: Handle) => allocate(out, size, None, stream);
    cuMemAllocAsync_ptsz(out: *mut A, size: usize, stream: Handle) => allocate(out, size, None, stream);
    cuMemAllocFromPoolAsync(out: *mut A, size: usize, pool: Handle, stream: Handle) =>
        allocate(out, size, Some(pool), stream);
    cuMemAllocFromPoolAsync_ptsz(out: *mut A, size: usize, pool: Handle, stream: Handle) =>
        allocate(out, size, Some(pool), stream);
    cuMemFreeAsync(address: A, stream: Handle) => free(address, stream);
    cuMemFreeAsync_ptsz(address: A, stream: Handle) => free(address, stream);
}
