//! Copies of rows and boxes. What lies in arrays is not kept, so a copy from or to one only checks its other
//! end.

use crate::abi::{Answer, Failure, Handle, api, get};
use crate::context::Current;

/// One end of `CUDA_MEMCPY2D`.
#[derive(Clone, Copy)]
#[repr(C)]
struct FlatEnd {
    x: usize,
    y: usize,
    kind: u32,
    host: usize,
    device: usize,
    array: Handle,
    pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
struct Flat {
    from: FlatEnd,
    to: FlatEnd,
    width: usize,
    height: usize,
}

/// One end of `CUDA_MEMCPY3D`.
#[derive(Clone, Copy)]
#[repr(C)]
struct SolidEnd {
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: u32,
    host: usize,
    device: usize,
    array: Handle,
    reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
struct Solid {
    from: SolidEnd,
    to: SolidEnd,
    width: usize,
    height: usize,
    depth: usize,
}

const _: () = assert!(size_of::<Flat>() == 128 && size_of::<Solid>() == 200);

/// `CUmemorytype`.
const HOST: u32 = 1;
const ARRAY: u32 = 3;

/// Where an end begins, and how far its rows and its planes are apart; `None` for an array.
fn place(end: SolidEnd, width: usize) -> Result<Option<(usize, usize, usize)>, Failure> {
    let start = match end.kind {
        HOST => end.host,
        2 | 4 => end.device,
        ARRAY => return Ok(None),
        _ => return Err(Failure::INVALID_VALUE),
    };
    let pitch = if end.pitch == 0 { width } else { end.pitch };
    if start == 0 || end.x + width > pitch {
        return Err(Failure::INVALID_VALUE);
    }
    let plane = pitch * end.height;
    Ok(Some((start + end.x + end.y * pitch + end.z * plane, pitch, plane)))
}

unsafe fn copy(solid: &Solid, waits: bool) -> Answer {
    let current = Current::get()?;
    if waits {
        current.synchronize();
    }
    let (from, to) = (place(solid.from, solid.width)?, place(solid.to, solid.width)?);
    let (Some((from, from_pitch, from_plane)), Some((to, to_pitch, to_plane))) = (from, to) else {
        return Ok(());
    };
    for z in 0..solid.depth {
        for y in 0..solid.height {
            let from = (from + y * from_pitch + z * from_plane) as *const u8;
            let to = (to + y * to_pitch + z * to_plane) as *mut u8;
            // SAFETY: device memory is memory that this library mapped, and the program says that all rows
            // are there.
            unsafe { core::ptr::copy(from, to, solid.width) };
        }
    }
    Ok(())
}

unsafe fn flat(wanted: *const Flat, waits: bool) -> Answer {
    // SAFETY: handed on from the caller.
    let &Flat { from, to, width, height } = unsafe { get(wanted) }?;
    let end = |end: FlatEnd| {
        let FlatEnd { x, y, kind, host, device, array, pitch } = end;
        SolidEnd { x, y, z: 0, level: 0, kind, host, device, array, reserved: 0, pitch, height: 0 }
    };
    let solid = Solid { from: end(from), to: end(to), width, height, depth: 1 };
    // SAFETY: handed on from the caller.
    unsafe { copy(&solid, waits) }
}

unsafe fn solid(wanted: *const Solid, waits: bool) -> Answer {
    // SAFETY: handed on from the caller.
    unsafe { copy(get(wanted)?, waits) }
}

api! {
    cuMemcpy2D_v2(wanted: *const Flat) => flat(wanted, true);
    cuMemcpy2D_v2_ptds(wanted: *const Flat) => flat(wanted, true);
    cuMemcpy2DUnaligned_v2(wanted: *const Flat) => flat(wanted, true);
    cuMemcpy2DUnaligned_v2_ptds(wanted: *const Flat) => flat(wanted, true);
    cuMemcpy2DAsync_v2(wanted: *const Flat, _stream: Handle) => flat(wanted, false);
    cuMemcpy2DAsync_v2_ptsz(wanted: *const Flat, _stream: Handle) => flat(wanted, false);
    cuMemcpy3D_v2(wanted: *const Solid) => solid(wanted, true);
    cuMemcpy3D_v2_ptds(wanted: *const Solid) => solid(wanted, true);
    cuMemcpy3DAsync_v2(wanted: *const Solid, _stream: Handle) => solid(wanted, false);
    cuMemcpy3DAsync_v2_ptsz(wanted: *const Solid, _stream: Handle) => solid(wanted, false);
}
