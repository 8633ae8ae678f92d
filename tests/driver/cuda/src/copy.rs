//! Copies and fills. Device memory is host memory, so they are what they are on the host; but a synchronous
//! one waits for the kernels before it, and an address that is not device memory is refused where one must
//! be.

use crate::abi::{Address, Answer, Failure, Handle, api};
use crate::context::Current;

/// Whether a copy waits for what was launched before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Now,
    InStream,
}
use When::{InStream, Now};

/// What must be device memory.
#[derive(Clone, Copy)]
enum Device {
    Neither,
    To,
    From,
    Both,
}

fn check(current: &Current, address: Address, size: usize) -> Answer {
    let objects = current.driver.objects();
    let allocation = objects.allocations.find(address).map(|(start, allocation)| (start, allocation.size));
    let (start, length) = allocation.or_else(|| objects.vmm.find(address)).ok_or(Failure::INVALID_VALUE)?;
    let end = (address - start) as usize + size;
    if end <= length { Ok(()) } else { Err(Failure::INVALID_VALUE) }
}

unsafe fn copy(to: Address, from: Address, size: usize, device: Device, when: When) -> Answer {
    let current = Current::get()?;
    if size == 0 {
        return Ok(());
    }
    if matches!(device, Device::To | Device::Both) {
        check(&current, to, size)?;
    }
    if matches!(device, Device::From | Device::Both) {
        check(&current, from, size)?;
    }
    if when == Now {
        current.synchronize();
    }
    // SAFETY: device addresses lie in memory that this library mapped, host ones are the caller's to give.
    unsafe { core::ptr::copy(from as *const u8, to as *mut u8, size) };
    Ok(())
}

/// Fills `count` values of `T`.
unsafe fn fill<T: Copy>(to: Address, value: T, count: usize, when: When) -> Answer {
    // SAFETY: handed on.
    unsafe { fill_rows(to, 0, value, count, 1, when) }
}

/// Fills `height` rows of `width` values of `T`, `pitch` bytes apart.
unsafe fn fill_rows<T: Copy>(
    to: Address,
    pitch: usize,
    value: T,
    width: usize,
    height: usize,
    when: When,
) -> Answer {
    let current = Current::get()?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    if !to.is_multiple_of(align_of::<T>() as u64) {
        return Err(Failure::INVALID_VALUE);
    }
    let row = width.checked_mul(size_of::<T>()).ok_or(Failure::INVALID_VALUE)?;
    let rows = pitch.checked_mul(height - 1).and_then(|rows| rows.checked_add(row));
    check(&current, to, rows.ok_or(Failure::INVALID_VALUE)?)?;
    if when == Now {
        current.synchronize();
    }
    for y in 0..height {
        let start = (to as usize + y * pitch) as *mut T;
        for x in 0..width {
            // SAFETY: within the range checked above. Unaligned, for a pitch may be anything.
            unsafe { start.add(x).write_unaligned(value) };
        }
    }
    Ok(())
}

use Address as A;
use Device::{Both, From, Neither, To};

api! {
    cuMemcpy(to: A, from: A, n: usize) => copy(to, from, n, Neither, Now);
    cuMemcpy_ptds(to: A, from: A, n: usize) => copy(to, from, n, Neither, Now);
    cuMemcpyAsync(to: A, from: A, n: usize, _stream: Handle) => copy(to, from, n, Neither, InStream);
    cuMemcpyAsync_ptsz(to: A, from: A, n: usize, _stream: Handle) => copy(to, from, n, Neither, InStream);
    cuMemcpyHtoD_v2(to: A, from: A, n: usize) => copy(to, from, n, To, Now);
    cuMemcpyHtoD_v2_ptds(to: A, from: A, n: usize) => copy(to, from, n, To, Now);
    cuMemcpyHtoDAsync_v2(to: A, from: A, n: usize, _stream: Handle) => copy(to, from, n, To, InStream);
    cuMemcpyHtoDAsync_v2_ptsz(to: A, from: A, n: usize, _stream: Handle) => copy(to, from, n, To, InStream);
    cuMemcpyDtoH_v2(to: A, from: A, n: usize) => copy(to, from, n, From, Now);
    cuMemcpyDtoH_v2_ptds(to: A, from: A, n: usize) => copy(to, from, n, From, Now);
    // What arrives on the host is only looked at after a synchronisation, so it may arrive early.
    cuMemcpyDtoHAsync_v2(to: A, from: A, n: usize, _stream: Handle) => copy(to, from, n, From, InStream);
    cuMemcpyDtoHAsync_v2_ptsz(to: A, from: A, n: usize, _stream: Handle) => copy(to, from, n, From, InStream);
    cuMemcpyDtoD_v2(to: A, from: A, n: usize) => copy(to, from, n, Both, Now);
    cuMemcpyDtoD_v2_ptds(to: A, from: A, n: usize) => copy(to, from, n, Both, Now);
    cuMemcpyDtoDAsync_v2(to: A, from: A, n: usize, _stream: Handle) => copy(to, from, n, Both, InStream);
    cuMemcpyDtoDAsync_v2_ptsz(to: A, from: A, n: usize, _stream: Handle) => copy(to, from, n, Both, InStream);
    cuMemsetD8_v2(to: A, value: u8, n: usize) => fill(to, value, n, Now);
    cuMemsetD8_v2_ptds(to: A, value: u8, n: usize) => fill(to, value, n, Now);
    cuMemsetD8Async(to: A, value: u8, n: usize, _stream: Handle) => fill(to, value, n, InStream);
    cuMemsetD8Async_ptsz(to: A, value: u8, n: usize, _stream: Handle) => fill(to, value, n, InStream);
    cuMemsetD16_v2(to: A, value: u16, n: usize) => fill(to, value, n, Now);
    cuMemsetD16_v2_ptds(to: A, value: u16, n: usize) => fill(to, value, n, Now);
    cuMemsetD16Async(to: A, value: u16, n: usize, _stream: Handle) => fill(to, value, n, InStream);
    cuMemsetD16Async_ptsz(to: A, value: u16, n: usize, _stream: Handle) => fill(to, value, n, InStream);
    cuMemsetD32_v2(to: A, value: u32, n: usize) => fill(to, value, n, Now);
    cuMemsetD32_v2_ptds(to: A, value: u32, n: usize) => fill(to, value, n, Now);
    cuMemsetD32Async(to: A, value: u32, n: usize, _stream: Handle) => fill(to, value, n, InStream);
    cuMemsetD32Async_ptsz(to: A, value: u32, n: usize, _stream: Handle) => fill(to, value, n, InStream);
    cuMemsetD2D8_v2(to: A, pitch: usize, value: u8, width: usize, height: usize) =>
        fill_rows(to, pitch, value, width, height, Now);
    cuMemsetD2D8_v2_ptds(to: A, pitch: usize, value: u8, width: usize, height: usize) =>
        fill_rows(to, pitch, value, width, height, Now);
    cuMemsetD2D32_v2(to: A, pitch: usize, value: u32, width: usize, height: usize) =>
        fill_rows(to, pitch, value, width, height, Now);
    cuMemsetD2D32_v2_ptds(to: A, pitch: usize, value: u32, width: usize, height: usize) =>
        fill_rows(to, pitch, value, width, height, Now);
}
