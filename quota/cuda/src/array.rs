//! Arrays and mipmapped arrays.
//!
//! The driver does not say what an array takes (`cuArrayGetMemoryRequirements` answers only for arrays
//! without memory), so it is computed: rows in steps of 64 bytes and, from two dimensions on, steps of 8
//! rows, the smallest tile in which GPUs store them. A sparse array, or one whose memory comes later, takes
//! none itself; `cuMemCreate` counts what is mapped into it.

use core::ffi::c_uint;

use fgpu_quota_core::allocations::Kind;

use crate::driver::{Array3dDescriptor, ArrayDescriptor, Object, Result, SUCCESS};
use crate::{bind, place, reserve};

/// `CUDA_ARRAY3D_LAYERED`: `depth` is a number of layers, which do not shrink from level to level.
const LAYERED: c_uint = 0x01;
/// `CUDA_ARRAY3D_CUBEMAP`: `depth` is a number of faces.
const CUBEMAP: c_uint = 0x04;
/// `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`.
const WITHOUT_MEMORY: c_uint = 0x40 | 0x80;

/// A tile: bytes of a row, and rows.
const TILE_WIDTH: u64 = 64;
const TILE_HEIGHT: u64 = 8;

/// The size of an array's elements and its dimensions.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    bits: u64,
    width: u64,
    height: u64,
    depth: u64,
    layered: bool,
}

/// Bits of an element. An unknown format counts as the largest one.
fn bits(format: c_uint, channels: c_uint) -> u64 {
    let channels = u64::from(channels.max(1));
    match format {
        // Integers of 8, 16 and 32 bits, without and with a sign; half and float.
        0x01 | 0x08 => 8 * channels,
        0x02 | 0x09 | 0x10 => 16 * channels,
        0x03 | 0x0a | 0x20 => 32 * channels,
        // Normalised integers of 8 and 16 bits, without and with a sign. The format includes the channels.
        0xc0 | 0xc6 => 8,
        0xc1 | 0xc3 | 0xc7 | 0xc9 => 16,
        0xc2 | 0xc4 | 0xc8 | 0xca => 32,
        0xc5 | 0xcb => 64,
        // Blocks of 4 × 4: BC1 and BC4, and the others.
        0x91 | 0x92 | 0x97 | 0x98 => 4,
        0x93..=0x96 | 0x99..=0x9e => 8,
        // NV12: a plane of 8 bits and half of one.
        0xb0 => 12,
        _ => 32 * channels,
    }
}

impl Shape {
    fn bytes(self) -> u64 {
        let row = self.width.saturating_mul(self.bits).div_ceil(8);
        if self.height <= 1 && self.depth <= 1 {
            return row;
        }
        let row = row.checked_next_multiple_of(TILE_WIDTH).unwrap_or(u64::MAX);
        let rows = self.height.max(1).checked_next_multiple_of(TILE_HEIGHT).unwrap_or(u64::MAX);
        row.saturating_mul(rows).saturating_mul(self.depth.max(1))
    }

    /// All levels of a mipmapped array; the last is of one element.
    fn levels(mut self, levels: c_uint) -> u64 {
        let mut sum = 0u64;
        for _ in 0..levels.clamp(1, 32) {
            sum = sum.saturating_add(self.bytes());
            self.width = (self.width / 2).max(1);
            self.height = if self.height > 1 { self.height / 2 } else { self.height };
            if !self.layered && self.depth > 1 {
                self.depth /= 2;
            }
        }
        sum
    }
}

/// A descriptor of an array, of either number of dimensions and with sizes of either width.
pub(crate) trait Describe {
    /// `None`: the array takes no memory.
    fn shape(&self) -> Option<Shape>;
}

impl<T: Copy + TryInto<u64>> Describe for ArrayDescriptor<T> {
    fn shape(&self) -> Option<Shape> {
        let bits = bits(self.format, self.channels);
        Some(Shape { bits, width: wide(self.width), height: wide(self.height), depth: 0, layered: false })
    }
}

impl<T: Copy + TryInto<u64>> Describe for Array3dDescriptor<T> {
    fn shape(&self) -> Option<Shape> {
        let shape = Shape {
            bits: bits(self.format, self.channels),
            width: wide(self.width),
            height: wide(self.height),
            depth: wide(self.depth),
            layered: self.flags & (LAYERED | CUBEMAP) != 0,
        };
        (self.flags & WITHOUT_MEMORY == 0).then_some(shape)
    }
}

fn wide<T: TryInto<u64>>(size: T) -> u64 {
    size.try_into().unwrap_or(u64::MAX)
}

/// Makes an array of so many levels.
///
/// # Safety
/// `descriptor` is null or valid. If `call` succeeds, it has written `array`.
pub(crate) unsafe fn create<D: Describe>(
    array: *mut Object,
    descriptor: *const D,
    levels: c_uint,
    call: impl FnOnce() -> Result,
) -> Result {
    // SAFETY: the caller's promise.
    let shape = unsafe { descriptor.as_ref() }.and_then(D::shape);
    let bytes = shape.map_or(0, |shape| shape.levels(levels));
    let key = |array: Object| array as u64;
    // SAFETY: the caller's promise.
    unsafe { reserve::allocate(array, bytes, Kind::Array, key, place::of_context, call) }
}

/// The end of an array.
pub(crate) fn destroy(array: Object, call: impl FnOnce() -> Result) -> Result {
    let (result, _) = reserve::give_back(Kind::Array, array as u64, call);
    if result == SUCCESS {
        bind::end(array as u64);
    }
    result
}
