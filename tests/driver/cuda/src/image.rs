//! What is in an image of code, as far as sizes and names go: a fat binary, a cubin or PTX.
//!
//! ```text
//! wrapper (what nvcc puts into a program)   fat binary               an image in it
//! 0  0x466243b1                             0  0xba55ed50            0  kind: u16, 1 PTX, 2 cubin
//! 4  version, 1 or 2                        4  version: u16          4  bytes of this head
//! 8  address of the fat binary              6  bytes of this head    8  bytes of the image: u64
//! 16 version 2: address of a list of more   8  bytes of all images   16 bytes if compressed: u32, else 0
//!                                                                    28 for which GPU, e.g. 90: u32
//!                                                                    40 flags: u64; 56 bytes uncompressed: u64
//! ```
//! A cubin is an ELF file: `.text.NAME` is a kernel's code, `.nv.global` and `.nv.global.init` are variables,
//! `.nv.constant3` and `4` constants, `.nv.shared.NAME` what a kernel has of shared memory. The best image
//! for the GPU is taken: the newest cubin of its generation, else the newest PTX. Of one that is compressed
//! with zstd only the size is known.

use alloc::collections::btree_map::BTreeMap;
use alloc::ffi::CString;
use core::ffi::CStr;

use sim_node::lz4;

mod elf;
mod ptx;

/// What an image takes, and what is in it.
#[derive(Default)]
pub(crate) struct Code {
    /// Bytes of its variables and constants, which are there once it is loaded.
    pub(crate) data: u64,
    /// Bytes of its kernels, which are loaded when the first of them is needed.
    pub(crate) text: u64,
    /// `None`: not known, any name is taken.
    pub(crate) names: Option<Names>,
    /// There are names, and nobody can read them.
    pub(crate) is_hidden: bool,
}

/// Kernels and variables by name.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) kernels: BTreeMap<CString, Kernel>,
    pub(crate) variables: BTreeMap<CString, u64>,
}

/// What a kernel needs.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    /// Bytes of shared memory.
    pub(crate) shared: u32,
    /// Bytes of constants of its image.
    pub(crate) constant: u32,
    pub(crate) registers: u32,
}

const WRAPPER: u32 = 0x4662_43b1;
const FAT: u32 = 0xba55_ed50;
const PTX: u16 = 1;
const CUBIN: u16 = 2;
/// Of an image's flags: how it is compressed. The other way, since CUDA 13, is zstd.
const LZ4: u64 = 1 << 13;

/// Reads a number of the caller's memory.
unsafe fn number<T: Copy>(at: *const u8, offset: usize) -> T {
    // SAFETY: handed on from the caller: a `T` is there.
    unsafe { at.add(offset).cast::<T>().read_unaligned() }
}

/// What is known of the image for a GPU of that capability (e.g. 90); `None` if it is nothing that is known.
///
/// # Safety
/// `image` leads to an image as `cuModuleLoadData` takes it.
pub(crate) unsafe fn read(image: *const u8, capability: u32) -> Option<Code> {
    // SAFETY: an image has at least four bytes, or is a text that ends before.
    let is_text = unsafe { matches!(*image, b'/' | b'.' | b'\n' | b'\r' | b' ') };
    if is_text {
        // SAFETY: PTX ends with a NUL.
        return ptx::read(unsafe { CStr::from_ptr(image.cast()) }.to_bytes());
    }
    // SAFETY: what begins with these bytes is no text and has a head.
    unsafe {
        match *image {
            0x7f => elf::read(image),
            0xb1 if number::<u32>(image, 0) == WRAPPER => wrapped(image, capability),
            0x50 if number::<u32>(image, 0) == FAT => best(image, capability),
            _ => None,
        }
    }
}

/// # Safety
/// `image` is a wrapper.
unsafe fn wrapped(image: *const u8, capability: u32) -> Option<Code> {
    // SAFETY: a wrapper has these fields; with version 2 the last one leads to a list that ends with null.
    unsafe {
        if number::<u32>(image, 4) == 1 {
            return best(number(image, 8), capability);
        }
        let mut list: *const *const u8 = number(image, 16);
        let mut sum: Option<Code> = None;
        while !list.is_null() && !(*list).is_null() {
            let code = best(*list, capability)?;
            sum = Some(sum.map_or(Code::default(), |sum| sum).and(code));
            list = list.add(1);
        }
        sum
    }
}

impl Code {
    /// Both together.
    fn and(mut self, other: Self) -> Self {
        self.data += other.data;
        self.text += other.text;
        self.is_hidden |= other.is_hidden;
        self.names = match (self.names, other.names) {
            (Some(mut names), Some(more)) => {
                names.kernels.extend(more.kernels);
                names.variables.extend(more.variables);
                Some(names)
            }
            (None, more) if self.data + self.text == other.data + other.text => more,
            _ => None,
        };
        self
    }
}

/// # Safety
/// `fat` is a fat binary.
unsafe fn best(fat: *const u8, capability: u32) -> Option<Code> {
    // SAFETY: a fat binary has a head, and as many bytes of images as it says.
    let (head, length) = unsafe { (number::<u16>(fat, 6), number::<u64>(fat, 8)) };
    let (mut at, end) = (usize::from(head), usize::from(head) + length as usize);
    let mut found: Option<((bool, u32), *const u8)> = None;
    while at + 64 <= end {
        let image = fat.wrapping_add(at);
        // SAFETY: an image has a head.
        let (kind, head, size, compressed, gpu) = unsafe {
            let sizes = (number::<u32>(image, 4), number::<u64>(image, 8), number::<u32>(image, 16));
            (number::<u16>(image, 0), sizes.0, sizes.1, sizes.2, number::<u32>(image, 28))
        };
        let fits = match kind {
            CUBIN => gpu / 10 == capability / 10 && gpu <= capability,
            PTX => gpu <= capability,
            _ => false,
        };
        let rank = (kind == CUBIN, gpu);
        if fits && found.is_none_or(|(best, _)| rank > best) {
            found = Some((rank, image));
        }
        at += head as usize + (size as usize).max(compressed as usize);
    }
    let ((is_cubin, _), image) = found?;
    // SAFETY: an image in the fat binary, with its head.
    unsafe {
        let body = image.add(number::<u32>(image, 4) as usize);
        match number::<u32>(image, 16) {
            0 if is_cubin => elf::read(body),
            0 => ptx::read(core::slice::from_raw_parts(body, number::<u64>(image, 8) as usize)),
            length => {
                let (flags, size) = (number::<u64>(image, 40), number::<u64>(image, 56));
                let block = core::slice::from_raw_parts(body, length as usize);
                let expanded = if flags & LZ4 != 0 { lz4::expand(block, size as usize) } else { None };
                match expanded {
                    Some(whole) if is_cubin => elf::read(whole.as_ptr()),
                    Some(whole) => ptx::read(&whole),
                    None => Some(Code { data: 0, text: size, names: None, is_hidden: true }),
                }
            }
        }
    }
}
