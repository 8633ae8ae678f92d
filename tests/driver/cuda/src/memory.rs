//! Device, managed and pinned host memory.

use alloc::collections::btree_map::BTreeMap;
use alloc::vec::Vec;

use sim_node::account::Account;
use sim_node::fault::Fault;
use sim_node::sys;

use crate::abi::{Address, Answer, Failure, Handle, api, put, put_if_asked};
use crate::context::Current;
use crate::current;
use crate::driver::{Driver, Objects};

/// Every allocation is counted in multiples of this many bytes.
const UNIT: u64 = 512;
const PAGE: usize = 4096;

/// What an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    /// Device memory whose address has 32 bits.
    Low,
    Managed,
    /// Page-locked host memory that this library allocated.
    Host,
    /// The program's own memory, registered.
    Registered,
}

/// A piece of memory that the program has.
#[derive(Clone, Copy)]
pub(crate) struct Allocation {
    /// Bytes asked for.
    pub(crate) size: usize,
    /// Bytes counted against the GPU.
    charged: u64,
    pub(crate) kind: Kind,
    pub(crate) context: Handle,
    pub(crate) ordinal: i32,
    /// The GPU's number in the node.
    number: usize,
    /// The pool it came from, 0 for none.
    pool: Handle,
}

/// The allocations of the process.
#[derive(Default)]
pub(crate) struct Allocations {
    by_address: BTreeMap<Address, Allocation>,
    /// Small mappings that were freed, by length: the next allocation of that length saves two system calls.
    /// What they hold is what it was, as on a GPU.
    spare: Vec<(usize, Address)>,
}

/// Most spare mappings, and the longest that is kept.
const SPARES: usize = 64;
const SPARE_LENGTH: usize = 1 << 20;
/// The highest address for the functions of before CUDA 3.2.
const LOW: Address = u32::MAX as Address;

/// Bytes, rounded up to what is counted.
pub(crate) fn units(size: usize) -> u64 {
    (size as u64).next_multiple_of(UNIT)
}

impl Allocations {
    /// The allocation that `address` lies in, and where it starts.
    pub(crate) fn find(&self, address: Address) -> Option<(Address, &Allocation)> {
        let (&start, allocation) = self.by_address.range(..=address).next_back()?;
        (address - start < allocation.size as u64).then_some((start, allocation))
    }

    /// Bytes in use that came from a pool, which has been charged for them.
    pub(crate) fn in_pool(&self, pool: Handle) -> u64 {
        let of_pool = self.by_address.values().filter(|allocation| allocation.pool == pool);
        of_pool.map(|allocation| units(allocation.size)).sum()
    }

    /// What came from a pool that ends is charged by itself from now on.
    pub(crate) fn leave_pool(&mut self, pool: Handle) {
        for allocation in self.by_address.values_mut().filter(|allocation| allocation.pool == pool) {
            allocation.charged = units(allocation.size);
            allocation.pool = 0;
        }
    }

    /// Addresses that something else is charged for, or nobody.
    pub(crate) fn map_uncharged(&mut self, size: usize, place: &Current) -> Result<Address, Failure> {
        let address = self.map(size.checked_next_multiple_of(PAGE).ok_or(Failure::OUT_OF_MEMORY)?, false)?;
        let Current { handle: context, ordinal, number, .. } = *place;
        let kind = Kind::Device;
        self.by_address
            .insert(address, Allocation { size, charged: 0, kind, context, ordinal, number, pool: 0 });
        Ok(address)
    }

    fn take(&mut self, address: Address, fits: impl Fn(Kind) -> bool) -> Result<Allocation, Failure> {
        match self.by_address.get(&address) {
            Some(allocation) if fits(allocation.kind) => {}
            _ => return Err(Failure::INVALID_VALUE),
        }
        self.by_address.remove(&address).ok_or(Failure::INVALID_VALUE)
    }

    /// Frees what was allocated in a context.
    pub(crate) fn free_all_of(&mut self, context: Handle, account: &Account) {
        let ended: Vec<_> =
            self.by_address.extract_if(.., |_, allocation| allocation.context == context).collect();
        for (address, allocation) in ended {
            self.release(address, &allocation, account);
        }
    }

    /// Gives memory back that is not in the table any more.
    fn release(&mut self, address: Address, allocation: &Allocation, account: &Account) {
        let length = allocation.size.next_multiple_of(PAGE);
        if allocation.kind == Kind::Registered {
            // The program's own.
        } else if length <= SPARE_LENGTH && self.spare.len() < SPARES {
            self.spare.push((length, address));
        } else {
            // SAFETY: the mapping was made by `map`; the program has freed it, and it is in no table any
            // more.
            unsafe { sys::munmap(address as usize, length) };
        }
        account.refund(allocation.number, allocation.charged);
    }

    /// Memory for `length` bytes, a multiple of a page.
    fn map(&mut self, length: usize, low: bool) -> Result<Address, Failure> {
        let fits = |&(spare, address): &(usize, Address)| spare == length && (!low || address <= LOW);
        if let Some(spare) = self.spare.iter().rposition(fits) {
            return Ok(self.spare.swap_remove(spare).1);
        }
        let low = if low { sys::MAP_32BIT } else { 0 };
        let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE | low;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe { sys::mmap(0, length, sys::PROT_READ_WRITE, flags, -1) };
        mapped.map(|address| address as Address).map_err(|_| Failure::OUT_OF_MEMORY)
    }
}

/// Counts `bytes` of the GPU's memory for the process, in whole units. Injected faults strike here.
pub(crate) fn charge(current: &Current, bytes: usize) -> Result<u64, Failure> {
    let state = current.driver.account.gpu(current.number);
    match state.fault(Fault::CudaAllocDelay) {
        0 => {}
        microseconds => sys::sleep(microseconds.saturating_mul(1000)),
    }
    match state.fault(Fault::CudaAlloc) {
        0 => {}
        code => return Err(Failure(code as u32)),
    }
    let bytes = (bytes as u64).checked_next_multiple_of(UNIT).ok_or(Failure::OUT_OF_MEMORY)?;
    if current.driver.account.charge(current.number, bytes, current.gpu.usable()) {
        if bytes != 0 {
            current::charged();
        }
        Ok(bytes)
    } else {
        Err(Failure::OUT_OF_MEMORY)
    }
}

/// Allocates memory of a kind in the current context.
pub(crate) fn allocate(current: &Current, size: usize, kind: Kind) -> Result<Address, Failure> {
    if size == 0 {
        return Err(Failure::INVALID_VALUE);
    }
    let charged = if kind == Kind::Host { 0 } else { charge(current, size)? };
    let allocation = Allocation { charged, ..of(current, size, kind, 0) };
    insert(&mut current.driver.objects(), allocation).inspect_err(|_| {
        current.driver.account.refund(current.number, charged);
    })
}

/// An allocation that is not charged by itself.
pub(crate) fn of(current: &Current, size: usize, kind: Kind, pool: Handle) -> Allocation {
    let Current { handle: context, ordinal, number, .. } = *current;
    Allocation { size, charged: 0, kind, context, ordinal, number, pool }
}

/// Gives an allocation an address.
pub(crate) fn insert(objects: &mut Objects, allocation: Allocation) -> Result<Address, Failure> {
    let length = allocation.size.checked_next_multiple_of(PAGE).ok_or(Failure::OUT_OF_MEMORY)?;
    let address = objects.allocations.map(length, allocation.kind == Kind::Low)?;
    objects.allocations.by_address.insert(address, allocation);
    Ok(address)
}

unsafe fn allocate_into(out: *mut Address, size: usize, kind: Kind) -> Answer {
    let address = allocate(&Current::get()?, size, kind)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, address) }.inspect_err(|_| {
        // Nobody will ever free what nobody was told of; the address is in the table, so this cannot fail.
        let _ = free(address, |_| true);
    })
}

/// Rows start at multiples of this many bytes.
const PITCH: usize = 512;

unsafe fn allocate_pitched(out: *mut Address, pitch: *mut usize, width: usize, height: usize) -> Answer {
    let row = width.checked_next_multiple_of(PITCH).ok_or(Failure::OUT_OF_MEMORY)?;
    let size = row.checked_mul(height).ok_or(Failure::OUT_OF_MEMORY)?;
    // SAFETY: handed on from the caller.
    unsafe {
        allocate_into(out, size, Kind::Device)?;
        put(pitch, row)
    }
}

/// Frees an allocation of a kind that fits.
fn free(address: Address, fits: impl Fn(Kind) -> bool) -> Answer {
    let driver = Driver::get()?;
    let mut objects = driver.objects();
    let allocation = objects.allocations.take(address, fits)?;
    objects.allocations.release(address, &allocation, &driver.account);
    Ok(())
}

/// Frees device memory, however it was allocated. Address 0 is nothing to free.
pub(crate) fn free_device(address: Address) -> Answer {
    if address == 0 {
        Ok(())
    } else {
        free(address, |kind| matches!(kind, Kind::Device | Kind::Low | Kind::Managed))
    }
}

/// Frees device memory after the GPU has come to rest, as the real function does.
fn free_synchronously(address: Address) -> Answer {
    if let Ok(current) = Current::get() {
        current.synchronize();
    }
    free_device(address)?;
    crate::pool::give_back_unused()
}

/// The functions of before CUDA 3.2, of 32-bit sizes and addresses.
unsafe fn allocate_low(out: *mut u32, size: u32) -> Answer {
    let address = allocate(&Current::get()?, size as usize, Kind::Low)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, address as u32) }
}

unsafe fn allocate_low_pitched(out: *mut u32, pitch: *mut u32, width: u32, height: u32) -> Answer {
    let row = width.checked_next_multiple_of(PITCH as u32).ok_or(Failure::OUT_OF_MEMORY)?;
    // SAFETY: handed on from the caller.
    unsafe {
        allocate_low(out, row.checked_mul(height).ok_or(Failure::OUT_OF_MEMORY)?)?;
        put(pitch, row)
    }
}

unsafe fn info_low(low_free: *mut u32, low_total: *mut u32) -> Answer {
    let (mut free, mut total) = (0, 0);
    // SAFETY: handed on from the caller; null means that it is not wanted.
    unsafe {
        info(&raw mut free, &raw mut total)?;
        put_if_asked(low_free, u32::try_from(free).unwrap_or(u32::MAX));
        put_if_asked(low_total, u32::try_from(total).unwrap_or(u32::MAX));
    }
    Ok(())
}

unsafe fn info(free: *mut usize, total: *mut usize) -> Answer {
    let current = Current::get()?;
    let used = current.driver.account.used(current.number);
    let rest = current.gpu.usable().saturating_sub(used);
    // A cgroup's limit is what its processes are told.
    let (usable, free_bytes) = match current.driver.account.partition(current.number) {
        Some((hard, used)) => (hard, hard.saturating_sub(used).min(rest)),
        None => (current.gpu.usable(), rest),
    };
    // SAFETY: handed on from the caller; null means that it is not wanted.
    unsafe {
        put_if_asked(free, free_bytes as usize);
        put_if_asked(total, usable as usize);
    }
    Ok(())
}

unsafe fn range(start: *mut Address, size: *mut usize, address: Address) -> Answer {
    let objects = Driver::get()?.objects();
    let found = objects.allocations.find(address).map(|(start, allocation)| (start, allocation.size));
    let (first, length) = found.or_else(|| objects.vmm.find(address)).ok_or(Failure::NOT_FOUND)?;
    // SAFETY: handed on from the caller; null means that it is not wanted.
    unsafe {
        put_if_asked(start, first);
        put_if_asked(size, length);
    }
    Ok(())
}

fn register(address: usize, size: usize) -> Answer {
    let Current { driver, handle: context, ordinal, number, .. } = Current::get()?;
    if address == 0 || size == 0 {
        return Err(Failure::INVALID_VALUE);
    }
    let kind = Kind::Registered;
    let allocation = Allocation { size, charged: 0, kind, context, ordinal, number, pool: 0 };
    driver.objects().allocations.by_address.insert(address as Address, allocation);
    Ok(())
}

/// `CUpointer_attribute`, as the 64 bits of its value and how many bytes of them are written.
fn attribute(which: i32, address: Address) -> Result<(u64, usize), Failure> {
    const HOST: u64 = 1;
    const DEVICE: u64 = 2;
    let objects = Driver::get()?.objects();
    let (start, allocation) = objects.allocations.find(address).ok_or(Failure::INVALID_VALUE)?;
    let on_host = matches!(allocation.kind, Kind::Host | Kind::Registered);
    Ok(match which {
        1 => (allocation.context as u64, 8),
        2 => (if on_host { HOST } else { DEVICE }, 4),
        3 => (address, 8),
        4 if on_host || allocation.kind == Kind::Managed => (address, 8),
        7 => (start, 8),
        8 => (u64::from(allocation.kind == Kind::Managed), 4),
        9 => (allocation.ordinal as u64, 4),
        11 => (start, 8),
        12 => (allocation.size as u64, 8),
        13 => (1, 4),
        _ => return Err(Failure::INVALID_VALUE),
    })
}

unsafe fn pointer_attribute(out: *mut u8, which: i32, address: Address) -> Answer {
    let (value, size) = attribute(which, address)?;
    if out.is_null() {
        return Err(Failure::INVALID_VALUE);
    }
    // SAFETY: the caller's variable is as large as the attribute.
    unsafe { core::ptr::copy_nonoverlapping((&raw const value).cast(), out, size) };
    Ok(())
}

/// What is unknown about an address, or all if it is ordinary host memory, stays zero.
unsafe fn pointer_attributes(count: u32, which: *const i32, out: *const *mut u8, address: Address) -> Answer {
    Driver::get()?;
    if which.is_null() || out.is_null() {
        return Err(Failure::INVALID_VALUE);
    }
    for i in 0..count as usize {
        // SAFETY: both arrays have `count` entries, as cuda.h demands of the caller.
        let (which, out) = unsafe { (*which.add(i), *out.add(i)) };
        // Unknown memory has no device: -2 as the real driver writes it.
        let (value, size) = attribute(which, address).unwrap_or(match which {
            9 => (-2_i64 as u64, 4),
            2 | 8 | 13 => (0, 4),
            _ => (0, 8),
        });
        // SAFETY: the caller's variable is as large as the attribute.
        unsafe { core::ptr::copy_nonoverlapping((&raw const value).cast(), out, size) };
    }
    Ok(())
}

fn is_host(kind: Kind) -> bool {
    kind == Kind::Host
}

fn is_registered(kind: Kind) -> bool {
    kind == Kind::Registered
}

api! {
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => info(free, total);
    cuMemAlloc_v2(out: *mut Address, size: usize) => allocate_into(out, size, Kind::Device);
    cuMemAllocManaged(out: *mut Address, size: usize, _flags: u32) => allocate_into(out, size, Kind::Managed);
    cuMemAllocPitch_v2(out: *mut Address, pitch: *mut usize, width: usize, height: usize, _element: u32) =>
        allocate_pitched(out, pitch, width, height);
    cuMemFree_v2(address: Address) => free_synchronously(address);
    cuMemAlloc(out: *mut u32, size: u32) => allocate_low(out, size);
    cuMemAllocPitch(out: *mut u32, pitch: *mut u32, width: u32, height: u32, _element: u32) =>
        allocate_low_pitched(out, pitch, width, height);
    cuMemFree(address: u32) => free_synchronously(address.into());
    cuMemGetInfo(free: *mut u32, total: *mut u32) => info_low(free, total);
    cuMemAllocHost_v2(out: *mut Address, size: usize) => allocate_into(out, size, Kind::Host);
    cuMemHostAlloc(out: *mut Address, size: usize, _flags: u32) => allocate_into(out, size, Kind::Host);
    cuMemFreeHost(address: Address) => free(address, is_host);
    cuMemHostGetDevicePointer_v2(out: *mut Address, address: Address, _flags: u32) => put(out, address);
    cuMemHostGetFlags(out: *mut u32, address: Address) =>
        attribute(2, address).and_then(|_| put(out, 0));
    cuMemHostRegister_v2(address: usize, size: usize, _flags: u32) => register(address, size);
    cuMemHostUnregister(address: Address) => free(address, is_registered);
    cuMemGetAddressRange_v2(start: *mut Address, size: *mut usize, address: Address) =>
        range(start, size, address);
    cuPointerGetAttribute(out: *mut u8, which: i32, address: Address) => pointer_attribute(out, which, address);
    cuPointerGetAttributes(count: u32, which: *const i32, out: *const *mut u8, address: Address) =>
        pointer_attributes(count, which, out, address);
    cuPointerSetAttribute(_value: usize, _which: i32, _address: Address) => Driver::get().map(drop);
    cuMemAdvise(_address: Address, _size: usize, _advice: i32, _ordinal: i32) => Current::get().map(drop);
    cuMemPrefetchAsync(_address: Address, _size: usize, _ordinal: i32, _stream: Handle) =>
        Current::get().map(drop);
    cuMemPrefetchAsync_ptsz(_address: Address, _size: usize, _ordinal: i32, _stream: Handle) =>
        Current::get().map(drop);
}
