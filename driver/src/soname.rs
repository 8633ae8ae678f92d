//! The SONAME of a shared library.

use std::fs::File;
use std::io;
use std::path::Path;

use object::Endianness;
use object::ReadRef;
use object::elf::{DT_SONAME, DT_STRSZ, DT_STRTAB, ET_DYN, FileHeader64, PT_LOAD};
use object::read::ReadCache;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};

/// `e_machine` of the programs of this architecture.
#[cfg(target_arch = "x86_64")]
const MACHINE: object::elf::Machine = object::elf::EM_X86_64;
#[cfg(target_arch = "aarch64")]
const MACHINE: object::elf::Machine = object::elf::EM_AARCH64;

/// The SONAME of the library at `path`, `None` if it has none. Reads the program headers and the dynamic
/// section, not the file: `libcuda.so` is tens of MiB long. Section headers are not needed.
///
/// # Errors
/// `InvalidData` if it is no 64-bit shared library of this architecture, or its dynamic section is broken.
pub(crate) fn read(path: &Path) -> io::Result<Option<String>> {
    let data = ReadCache::new(File::open(path)?);
    parse(&data).map_err(|what| io::Error::new(io::ErrorKind::InvalidData, what))
}

fn parse<'data, R: ReadRef<'data>>(data: R) -> Result<Option<String>, String> {
    let broken = |error: object::Error| error.to_string();
    let header = FileHeader64::<Endianness>::parse(data).map_err(broken)?;
    let endian = header.endian().map_err(broken)?;
    if header.e_machine(endian) != MACHINE || header.e_type(endian) != ET_DYN {
        return Err("no shared library of this architecture".into());
    }
    let segments = header.program_headers(endian, data).map_err(broken)?;

    let mut entries = None;
    for segment in segments {
        entries = segment.dynamic(endian, data).map_err(broken)?.or(entries);
    }
    let value = |tag| entries?.iter().find(|entry| entry.tag(endian) == tag).map(|entry| entry.val(endian));
    let Some(name) = value(DT_SONAME) else { return Ok(None) };
    let (table, length) = value(DT_STRTAB).zip(value(DT_STRSZ)).ok_or("no string table")?;
    if name >= length {
        return Err("the SONAME lies outside the string table".into());
    }

    // The table's address is of the loaded library; the segment that loads it says where it is in the file.
    let offset = segments
        .iter()
        .filter(|segment| segment.p_type(endian) == PT_LOAD)
        .find_map(|segment| {
            let within = table.checked_sub(segment.p_vaddr(endian))?;
            (within < segment.p_filesz(endian)).then_some(segment.p_offset(endian).checked_add(within)?)
        })
        .ok_or("no segment loads the string table")?;
    let range =
        offset.checked_add(name).zip(offset.checked_add(length)).ok_or("the string table overflows")?;
    let name = data.read_bytes_at_until(range.0..range.1, 0).map_err(|()| "the SONAME has no end")?;
    let name = std::str::from_utf8(name).map_err(|_| "the SONAME is not UTF-8")?;
    // It becomes a file name in a container.
    if name.is_empty() || name == "." || name == ".." || name.contains('/') {
        return Err(format!("the SONAME {name:?} is no file name"));
    }
    Ok(Some(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::library;

    #[test]
    fn reads_the_soname() {
        assert_eq!(parse(&*library(Some("libcuda.so.1"))), Ok(Some("libcuda.so.1".into())));
        assert_eq!(parse(&*library(None)), Ok(None));
    }

    #[test]
    fn reads_a_library_that_a_linker_made() {
        // The test links libc; where a process maps it is a file that some distribution's linker made.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let Some(path) = maps.split_ascii_whitespace().find(|word| word.ends_with("/libc.so.6")) else {
            return; // a static or musl build
        };
        assert_eq!(read(Path::new(path)).unwrap().as_deref(), Some("libc.so.6"));
    }

    #[test]
    fn a_path_is_no_soname() {
        for name in ["../../etc/passwd", "..", "", "a/b"] {
            assert!(parse(&*library(Some(name))).is_err(), "{name:?}");
        }
    }

    #[test]
    fn truncated_and_damaged_files_are_refused_or_read() {
        let good = library(Some("libcuda.so.1"));
        for end in 0..good.len() {
            assert!(parse(&good[..end]).is_err(), "{end}");
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                // Any answer will do, as long as it is one.
                let name = parse(&*bad);
                assert!(name.is_err() || name.is_ok_and(|name| name.is_none_or(|name| !name.contains('/'))));
            }
        }
    }

    #[test]
    fn other_architectures_and_programs_are_refused() {
        let mut other = library(Some("libcuda.so.1"));
        other[18] ^= 0xff; // e_machine
        assert!(parse(&*other).is_err());
        let mut program = library(Some("libcuda.so.1"));
        program[16] = 2; // e_type: ET_EXEC
        assert!(parse(&*program).is_err());
        assert!(parse(&b"#!/bin/sh\n"[..]).is_err());
    }
}
