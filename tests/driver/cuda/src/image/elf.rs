//! A cubin.

use alloc::collections::btree_map::BTreeMap;
use alloc::ffi::CString;
use core::ffi::CStr;

use super::{Code, Kernel, Names, number};

/// A section's head, as far as it is needed.
struct Section {
    name: &'static [u8],
    kind: u32,
    offset: u64,
    size: u64,
    info: u32,
}

const SYMBOLS: u32 = 2;
/// Of a symbol: its type, and that it is a kernel.
const OBJECT: u8 = 1;
const FUNCTION: u8 = 2;
const ENTRY: u8 = 0x10;
/// Bytes of a symbol.
const SYMBOL: u64 = 24;

/// A text of the file. The image outlives the call, and what is kept of it is copied.
unsafe fn text(at: *const u8) -> &'static CStr {
    // SAFETY: handed on from the caller: it ends with a NUL.
    unsafe { CStr::from_ptr(at.cast()) }
}

unsafe fn sections(file: *const u8) -> alloc::vec::Vec<Section> {
    // SAFETY: the head of an ELF file of 64 bits says where the sections' heads are, and they are there.
    unsafe {
        let (heads, size) = (file.add(number::<u64>(file, 0x28) as usize), number::<u16>(file, 0x3a));
        let (count, names) = (number::<u16>(file, 0x3c), number::<u16>(file, 0x3e));
        let head = |index: u16| heads.add(usize::from(index) * usize::from(size));
        let names = file.add(number::<u64>(head(names), 24) as usize);
        let section = |index| {
            let head = head(index);
            Section {
                name: text(names.add(number::<u32>(head, 0) as usize)).to_bytes(),
                kind: number(head, 4),
                offset: number(head, 24),
                size: number(head, 32),
                info: number(head, 44),
            }
        };
        (0..count).map(section).collect()
    }
}

/// # Safety
/// `file` is a whole ELF file of 64 bits.
pub(super) unsafe fn read(file: *const u8) -> Option<Code> {
    const CLASS_64: u8 = 2;
    // SAFETY: handed on from the caller.
    let (magic, class) = unsafe { (number::<u32>(file, 0), *file.add(4)) };
    if magic != u32::from_le_bytes(*b"\x7fELF") || class != CLASS_64 {
        return None;
    }
    // SAFETY: see above.
    let sections = unsafe { sections(file) };
    let mut code = Code::default();
    // By kernel: shared bytes and registers.
    let mut shared: BTreeMap<&[u8], u64> = BTreeMap::new();
    let mut registers: BTreeMap<&[u8], u32> = BTreeMap::new();
    let (mut constant, mut reserved) = (0, 0);
    for section in &sections {
        match section.name {
            b".nv.global" | b".nv.global.init" => code.data += section.size,
            b".nv.constant4" => code.data += section.size,
            b".nv.constant3" => {
                code.data += section.size;
                constant += section.size;
            }
            // With it 1 KiB of the driver's own is in each kernel's.
            b".nv.shared.reserved.0" => reserved = 1024,
            name => {
                if let Some(kernel) = name.strip_prefix(b".text.") {
                    code.text += section.size;
                    registers.insert(kernel, section.info >> 24);
                } else if let Some(kernel) = name.strip_prefix(b".nv.shared.") {
                    shared.insert(kernel, section.size);
                }
            }
        }
    }
    let mut names = Names::default();
    let table = sections.iter().find(|section| section.kind == SYMBOLS)?;
    let strings = sections.iter().find(|section| section.name == b".strtab")?;
    for index in 0..table.size / SYMBOL {
        // SAFETY: the table has so many symbols, and their names are in the strings.
        let (name, info, other, place, size) = unsafe {
            let symbol = file.add((table.offset + index * SYMBOL) as usize);
            let name = text(file.add(strings.offset as usize + number::<u32>(symbol, 0) as usize));
            (name, *symbol.add(4), *symbol.add(5), number::<u16>(symbol, 6), number::<u64>(symbol, 16))
        };
        if info & 15 == FUNCTION && other & ENTRY != 0 {
            let bytes = shared.get(name.to_bytes()).map_or(0, |&bytes| bytes.saturating_sub(reserved));
            let registers = registers.get(name.to_bytes()).copied().filter(|&count| count != 0).unwrap_or(32);
            let kernel = Kernel { shared: bytes as u32, constant: constant as u32, registers };
            names.kernels.insert(name.into(), kernel);
        } else if info & 15 == OBJECT && sections.get(usize::from(place)).is_some_and(|s| is_data(s.name)) {
            names.variables.insert(CString::from(name), size);
        }
    }
    code.names = Some(names);
    Some(code)
}

fn is_data(section: &[u8]) -> bool {
    matches!(section, b".nv.global" | b".nv.global.init" | b".nv.constant3")
}
