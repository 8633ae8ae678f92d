//! Virtual memory management: physical memory, addresses and mappings as separate things.
//!
//! Physical memory is only a number that counts against the GPU; a mapping makes host memory accessible in
//! the reserved range. So two mappings of one piece do not share their content, and unmapping loses it.

use alloc::collections::btree_map::BTreeMap;

use sim_node::sys;

use crate::abi::{Address, Answer, Failure, Handle, api, get, put};
use crate::context::Current;
use crate::driver::Driver;
use crate::memory;

/// Sizes, offsets and addresses are multiples of this many bytes.
const GRANULARITY: usize = 2 << 20;

/// `CUmemLocation`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    kind: i32,
    id: i32,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: i32 = 1;

/// `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Properties {
    kind: i32,
    handle_types: i32,
    location: Location,
    win32: usize,
    flags: u64,
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct Access {
    location: Location,
    flags: i32,
}

/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`.
const READ_WRITE: u64 = 3;

/// A piece of physical memory. It lives while it has a handle or is mapped.
struct Physical {
    size: usize,
    charged: u64,
    /// The GPU's number in the node.
    number: usize,
    properties: Properties,
    handles: u32,
    mappings: u32,
}

struct Mapping {
    size: usize,
    handle: Handle,
}

/// What the process has.
#[derive(Default)]
pub(crate) struct Vmm {
    physical: BTreeMap<Handle, Physical>,
    reserved: BTreeMap<Address, usize>,
    mapped: BTreeMap<Address, Mapping>,
}

impl Vmm {
    /// The mapping that `address` lies in: where it starts and its bytes.
    pub(crate) fn find(&self, address: Address) -> Option<(Address, usize)> {
        let (&start, mapping) = self.mapped.range(..=address).next_back()?;
        (address - start < mapping.size as u64).then_some((start, mapping.size))
    }

    /// The memory that is mapped at `address`.
    pub(crate) fn handle_at(&self, address: Address) -> Option<Handle> {
        let (start, _) = self.find(address)?;
        self.mapped.get(&start).map(|mapping| mapping.handle)
    }

    /// Keeps physical memory alive, as a mapping does.
    pub(crate) fn hold(&mut self, handle: Handle) -> Answer {
        self.physical.get_mut(&handle).ok_or(Failure::INVALID_VALUE)?.mappings += 1;
        Ok(())
    }

    /// Takes back one [`hold`](Self::hold).
    pub(crate) fn let_go(&mut self, handle: Handle, driver: &Driver) {
        if let Some(piece) = self.physical.get_mut(&handle) {
            piece.mappings -= 1;
        }
        if let Some(piece) = self.drop_unused(handle) {
            driver.account.refund(piece.number, piece.charged);
        }
    }

    fn is_reserved(&self, address: Address, size: usize) -> bool {
        let last = self.reserved.range(..=address).next_back();
        last.is_some_and(|(&start, &length)| (address - start) as usize + size <= length)
    }

    fn overlaps_mapping(&self, address: Address, size: usize) -> bool {
        let before = self.mapped.range(..address + size as u64).next_back();
        before.is_some_and(|(&start, mapping)| start + mapping.size as u64 > address)
    }

    /// Removes physical memory that nothing refers to any more.
    fn drop_unused(&mut self, handle: Handle) -> Option<Physical> {
        let piece = self.physical.get(&handle)?;
        if piece.handles == 0 && piece.mappings == 0 { self.physical.remove(&handle) } else { None }
    }
}

fn is_aligned(value: usize) -> bool {
    value != 0 && value.is_multiple_of(GRANULARITY)
}

unsafe fn create(out: *mut Handle, size: usize, properties: *const Properties) -> Answer {
    // SAFETY: handed on from the caller.
    let properties = *unsafe { get(properties) }?;
    if properties.location.kind != ON_DEVICE || !is_aligned(size) {
        return Err(Failure::INVALID_VALUE);
    }
    let driver = Driver::get()?;
    let ordinal = properties.location.id;
    let (number, gpu) = driver.gpu(ordinal)?;
    // No context is needed for physical memory.
    let place = Current { driver, handle: 0, ordinal, number, gpu };
    let charged = memory::charge(&place, size)?;
    let mut objects = driver.objects();
    let handle = objects.new_handle();
    let piece = Physical { size, charged, number, properties, handles: 1, mappings: 0 };
    objects.vmm.physical.insert(handle, piece);
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

fn release(handle: Handle) -> Answer {
    let driver = Driver::get()?;
    let mut objects = driver.objects();
    if let Some(bound) = objects.shared.multicast.remove(&handle) {
        bound.into_values().for_each(|memory| objects.vmm.let_go(memory, driver));
        return Ok(());
    }
    let piece = objects.vmm.physical.get_mut(&handle).ok_or(Failure::INVALID_VALUE)?;
    piece.handles = piece.handles.checked_sub(1).ok_or(Failure::INVALID_VALUE)?;
    if let Some(piece) = objects.vmm.drop_unused(handle) {
        driver.account.refund(piece.number, piece.charged);
    }
    Ok(())
}

unsafe fn reserve(out: *mut Address, size: usize) -> Answer {
    let driver = Driver::get()?;
    if !is_aligned(size) {
        return Err(Failure::INVALID_VALUE);
    }
    // Room for the start to be aligned; what is too much is given back.
    let room = size.checked_add(GRANULARITY).ok_or(Failure::OUT_OF_MEMORY)?;
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start =
        unsafe { sys::mmap(0, room, sys::PROT_NONE, flags, -1) }.map_err(|_| Failure::OUT_OF_MEMORY)?;
    let address = start.next_multiple_of(GRANULARITY);
    // SAFETY: both ends belong to the mapping just made, and nobody knows of it yet.
    unsafe {
        if address > start {
            sys::munmap(start, address - start);
        }
        sys::munmap(address + size, start + room - address - size);
    }
    driver.objects().vmm.reserved.insert(address as Address, size);
    // SAFETY: handed on from the caller.
    unsafe { put(out, address as Address) }
}

fn give_back(address: Address, size: usize) -> Answer {
    let mut objects = Driver::get()?.objects();
    let vmm = &mut objects.vmm;
    if vmm.reserved.get(&address) != Some(&size) || vmm.overlaps_mapping(address, size) {
        return Err(Failure::INVALID_VALUE);
    }
    vmm.reserved.remove(&address);
    // SAFETY: the range was reserved here, nothing is mapped in it, and it is in no table any more.
    unsafe { sys::munmap(address as usize, size) };
    Ok(())
}

fn map(address: Address, size: usize, offset: usize, handle: Handle) -> Answer {
    let mut objects = Driver::get()?.objects();
    let vmm = &mut objects.vmm;
    let piece = vmm.physical.get(&handle).ok_or(Failure::INVALID_VALUE)?;
    let fits = offset.checked_add(size).is_some_and(|end| end <= piece.size);
    if !fits || !is_aligned(size) || !vmm.is_reserved(address, size) || vmm.overlaps_mapping(address, size) {
        return Err(Failure::INVALID_VALUE);
    }
    if let Some(piece) = vmm.physical.get_mut(&handle) {
        piece.mappings += 1;
    }
    vmm.mapped.insert(address, Mapping { size, handle });
    Ok(())
}

/// Replaces the pages of a reserved range by fresh ones.
fn remap(address: Address, size: usize, protection: usize) -> Answer {
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE | sys::MAP_FIXED;
    // SAFETY: the range lies in one that was reserved here; what it held is the caller's to lose.
    let mapped = unsafe { sys::mmap(address as usize, size, protection, flags, -1) };
    mapped.map(drop).map_err(|_| Failure::OUT_OF_MEMORY)
}

fn unmap(address: Address, size: usize) -> Answer {
    let driver = Driver::get()?;
    let mut objects = driver.objects();
    let vmm = &mut objects.vmm;
    // The range may cover several mappings, but each one whole.
    let inside: alloc::vec::Vec<Address> =
        vmm.mapped.range(address..address + size as u64).map(|(&start, _)| start).collect();
    let covered: usize = inside.iter().map(|start| vmm.mapped[start].size).sum();
    if inside.is_empty() || covered != size {
        return Err(Failure::INVALID_VALUE);
    }
    remap(address, size, sys::PROT_NONE)?;
    for start in inside {
        let Some(Mapping { handle, .. }) = vmm.mapped.remove(&start) else { continue };
        vmm.let_go(handle, driver);
    }
    Ok(())
}

/// Makes mapped memory accessible; before that it faults, as on a GPU.
unsafe fn set_access(address: Address, size: usize, access: *const Access, count: usize) -> Answer {
    let objects = Driver::get()?.objects();
    // SAFETY: handed on from the caller.
    let access = unsafe { get(access) }?;
    if count == 0 || access.location.kind != ON_DEVICE {
        return Err(Failure::INVALID_VALUE);
    }
    let mut end = address;
    while end < address + size as u64 {
        let (start, length) = objects.vmm.find(end).ok_or(Failure::INVALID_VALUE)?;
        end = start + length as u64;
    }
    let protection = match access.flags {
        0 => sys::PROT_NONE,
        1 => sys::PROT_READ,
        _ => sys::PROT_READ_WRITE,
    };
    // SAFETY: the range lies in mappings made here.
    unsafe { sys::protect(address as usize, size, protection) }.map_err(|_| Failure::OUT_OF_MEMORY)
}

unsafe fn access(out: *mut u64, address: Address) -> Answer {
    let objects = Driver::get()?.objects();
    objects.vmm.find(address).ok_or(Failure::INVALID_VALUE)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, READ_WRITE) }
}

unsafe fn granularity(out: *mut usize, properties: *const Properties) -> Answer {
    // SAFETY: handed on from the caller.
    unsafe {
        Driver::get()?.gpu(get(properties)?.location.id)?;
        put(out, GRANULARITY)
    }
}

unsafe fn properties(out: *mut Properties, handle: Handle) -> Answer {
    let objects = Driver::get()?.objects();
    let piece = objects.vmm.physical.get(&handle).ok_or(Failure::INVALID_VALUE)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, piece.properties) }
}

/// A handle in a form that can be given away: here, the number itself.
unsafe fn export(out: *mut i32, handle: Handle) -> Answer {
    Driver::get()?.objects().vmm.physical.get(&handle).ok_or(Failure::INVALID_VALUE)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle as i32) }
}

unsafe fn import(out: *mut Handle, exported: usize) -> Answer {
    let mut objects = Driver::get()?.objects();
    let piece = objects.vmm.physical.get_mut(&exported).ok_or(Failure::INVALID_VALUE)?;
    piece.handles += 1;
    // SAFETY: handed on from the caller.
    unsafe { put(out, exported) }
}

unsafe fn retain(out: *mut Handle, address: Address) -> Answer {
    let mut objects = Driver::get()?.objects();
    let vmm = &mut objects.vmm;
    let (start, _) = vmm.find(address).ok_or(Failure::INVALID_VALUE)?;
    let handle = vmm.mapped[&start].handle;
    if let Some(piece) = vmm.physical.get_mut(&handle) {
        piece.handles += 1;
    }
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

api! {
    cuMemCreate(out: *mut Handle, size: usize, properties: *const Properties, _flags: u64) =>
        create(out, size, properties);
    cuMemRelease(handle: Handle) => release(handle);
    cuMemAddressReserve(out: *mut Address, size: usize, _align: usize, _wish: Address, _flags: u64) =>
        reserve(out, size);
    cuMemAddressFree(address: Address, size: usize) => give_back(address, size);
    cuMemMap(address: Address, size: usize, offset: usize, handle: Handle, _flags: u64) =>
        map(address, size, offset, handle);
    cuMemUnmap(address: Address, size: usize) => unmap(address, size);
    cuMemSetAccess(address: Address, size: usize, wanted: *const Access, count: usize) =>
        set_access(address, size, wanted, count);
    cuMemGetAccess(out: *mut u64, _location: *const Location, address: Address) => access(out, address);
    cuMemGetAllocationGranularity(out: *mut usize, wanted: *const Properties, _option: i32) =>
        granularity(out, wanted);
    cuMemGetAllocationPropertiesFromHandle(out: *mut Properties, handle: Handle) => properties(out, handle);
    cuMemExportToShareableHandle(out: *mut i32, handle: Handle, _kind: i32, _flags: u64) => export(out, handle);
    cuMemImportFromShareableHandle(out: *mut Handle, exported: usize, _kind: i32) => import(out, exported);
    cuMemRetainAllocationHandle(out: *mut Handle, address: Address) => retain(out, address);
}
