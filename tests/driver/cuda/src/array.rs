//! Arrays and mipmapped arrays: only what they cost. Nothing can be copied into them.

use alloc::collections::btree_map::BTreeMap;

use sim_node::account::Account;

use crate::abi::{Answer, Failure, Handle, api, get, put};
use crate::context::Current;
use crate::driver::Driver;
use crate::memory;

/// An array, or a mipmapped one.
struct Array {
    charged: u64,
    context: Handle,
    /// The GPU's number in the node.
    number: usize,
    mipmapped: bool,
}

/// The arrays of the process.
#[derive(Default)]
pub(crate) struct Arrays(BTreeMap<Handle, Array>);

impl Arrays {
    /// Frees what was made in a context.
    pub(crate) fn free_all_of(&mut self, context: Handle, account: &Account) {
        for (_, array) in self.0.extract_if(.., |_, array| array.context == context) {
            account.refund(array.number, array.charged);
        }
    }
}

/// `CUDA_ARRAY_DESCRIPTOR` and `CUDA_ARRAY3D_DESCRIPTOR`, of 32-bit (before CUDA 3.2) or of 64-bit sizes.
#[repr(C)]
struct Flat<T> {
    width: T,
    height: T,
    format: u32,
    channels: u32,
}

#[repr(C)]
struct Deep<T> {
    width: T,
    height: T,
    depth: T,
    format: u32,
    channels: u32,
    flags: u32,
}

/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`: no memory of its own.
const WITHOUT_MEMORY: u32 = 0xc0;

/// Bytes of an element; only the plain formats are known.
fn element(format: u32, channels: u32) -> Result<usize, Failure> {
    let size = match format {
        0x01 | 0x08 => 1,
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => return Err(Failure::INVALID_VALUE),
    };
    if matches!(channels, 1 | 2 | 4) { Ok(size * channels as usize) } else { Err(Failure::INVALID_VALUE) }
}

fn bytes(sizes: [usize; 3], element: usize) -> Result<usize, Failure> {
    let product = sizes.iter().try_fold(element, |product, &size| product.checked_mul(size.max(1)));
    product.ok_or(Failure::OUT_OF_MEMORY)
}

unsafe fn make(out: *mut Handle, size: usize, mipmapped: bool) -> Answer {
    let current = Current::get()?;
    let charged = if size == 0 { 0 } else { memory::charge(&current, size)? };
    let mut objects = current.driver.objects();
    let handle = objects.new_handle();
    let array = Array { charged, context: current.handle, number: current.number, mipmapped };
    objects.arrays.0.insert(handle, array);
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

unsafe fn flat<T: Copy + Into<u64>>(out: *mut Handle, wanted: *const Flat<T>) -> Answer {
    // SAFETY: handed on from the caller.
    let wanted = unsafe { get(wanted) }?;
    let sizes = [wanted.width.into() as usize, wanted.height.into() as usize, 1];
    // SAFETY: handed on from the caller.
    unsafe { make(out, bytes(sizes, element(wanted.format, wanted.channels)?)?, false) }
}

unsafe fn deep<T: Copy + Into<u64>>(out: *mut Handle, wanted: *const Deep<T>, levels: Option<u32>) -> Answer {
    // SAFETY: handed on from the caller.
    let wanted = unsafe { get(wanted) }?;
    let element = element(wanted.format, wanted.channels)?;
    let mut sizes = [wanted.width, wanted.height, wanted.depth].map(|size| size.into() as usize);
    let mut sum = 0usize;
    for _ in 0..levels.unwrap_or(1) {
        sum = sum.checked_add(bytes(sizes, element)?).ok_or(Failure::OUT_OF_MEMORY)?;
        sizes = sizes.map(|size| if size > 1 { size / 2 } else { size });
    }
    let size = if wanted.flags & WITHOUT_MEMORY == 0 { sum } else { 0 };
    // SAFETY: handed on from the caller.
    unsafe { make(out, size, levels.is_some()) }
}

fn destroy(handle: Handle, mipmapped: bool) -> Answer {
    let driver = Driver::get()?;
    let mut objects = driver.objects();
    match objects.arrays.0.get(&handle) {
        Some(array) if array.mipmapped == mipmapped => {}
        _ => return Err(Failure::INVALID_HANDLE),
    }
    if let Some(array) = objects.arrays.0.remove(&handle) {
        driver.account.refund(array.number, array.charged);
    }
    for memory in objects.shared.take_tiles(handle) {
        objects.vmm.let_go(memory, driver);
    }
    Ok(())
}

api! {
    cuArrayCreate(out: *mut Handle, wanted: *const Flat<u32>) => flat(out, wanted);
    cuArrayCreate_v2(out: *mut Handle, wanted: *const Flat<u64>) => flat(out, wanted);
    cuArray3DCreate(out: *mut Handle, wanted: *const Deep<u32>) => deep(out, wanted, None);
    cuArray3DCreate_v2(out: *mut Handle, wanted: *const Deep<u64>) => deep(out, wanted, None);
    cuMipmappedArrayCreate(out: *mut Handle, wanted: *const Deep<u64>, levels: u32) =>
        deep(out, wanted, Some(levels.max(1)));
    cuArrayDestroy(array: Handle) => destroy(array, false);
    cuMipmappedArrayDestroy(array: Handle) => destroy(array, true);
}
