//! A reader of `/etc/ld.so.cache`, for libraries that a distribution puts into an unusual place.
//!
//! Layout (glibc's `sysdeps/generic/dl-cache.h`; all numbers in the byte order of the machine that wrote it):
//!
//! ```text
//! old part, optional      "ld.so-1.7.0" NUL, nlibs u32, nlibs × { flags i32, key u32, value u32 }, padding to 8
//! new part, at base       "glibc-ld.so.cache1.1", nlibs u32, len_strings u32, flags u8, 3 unused,
//!                         extension_offset u32, 3 × u32 unused                                      48 bytes
//!   nlibs ×               { flags i32, key u32, value u32, osversion u32, hwcap u64 }                24 bytes
//!   strings               NUL-terminated; key (SONAME) and value (path) are offsets from base
//! ```
//!
//! The file is treated as untrusted data: every offset is checked, nothing is allocated that the file does
//! not hold, and strings have a greatest length. Only the new part is read: every glibc since 2.2 writes it.

const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
const OLD_HEADER: usize = 16;
const OLD_ENTRY: usize = 12;
const NEW_MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const NEW_HEADER: usize = 48;
const NEW_ENTRY: usize = 24;
/// `PATH_MAX` of Linux; no path that is of use is longer.
const MAX_STRING: usize = 4096;

/// One library that the loader finds by its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name that programs ask for, usually the SONAME.
    pub name: &'a str,
    /// The absolute path, in the file system that the cache belongs to.
    pub path: &'a str,
}

/// Names that were asked for, each with a path.
pub type Paths<'a> = Vec<(&'static str, &'a [u8])>;

/// A cache has more paths than was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany;

/// The paths that a cache has for these names, each with its name, as far as there are no more than `most`:
/// `Err` if there are. Names are compared as bytes, and nothing else is read of the others: a large cache
/// costs little. `None` if the file is no such cache.
pub fn paths<'a>(cache: &'a [u8], names: &[&'static str], most: usize) -> Option<Result<Paths<'a>, TooMany>> {
    let (new, table) = table(cache)?;
    let mut found = Vec::new();
    let mut entries = 0;
    for entry in table {
        let text = |at| {
            let rest = new.get(usize::try_from(number(entry, at)?).ok()?..)?;
            Some(&rest[..rest.iter().take(MAX_STRING).position(|byte| *byte == 0)?])
        };
        let begins = |name: &&&'static str| {
            let rest =
                number(entry, 4).and_then(|at| new.get(usize::try_from(at).ok()?..)).unwrap_or_default();
            rest.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
        };
        if let Some(name) = names.iter().find(begins) {
            // Entries without a path count, too: each has been read.
            entries += 1;
            if entries > most {
                return Some(Err(TooMany));
            }
            found.extend(text(8).map(|path| (*name, path)));
        }
    }
    Some(Ok(found))
}

/// The entries of a cache in the machine's own byte order, those that are out of bounds or not UTF-8 left
/// out. Entries of other architectures (32-bit libraries) are among them. `None` if it is no such cache.
pub fn entries(cache: &[u8]) -> Option<impl Iterator<Item = Entry<'_>>> {
    let (new, table) = table(cache)?;
    Some(table.filter_map(move |entry| {
        Some(Entry { name: string(new, number(entry, 4)?)?, path: string(new, number(entry, 8)?)? })
    }))
}

/// The new part, and its entries.
fn table(cache: &[u8]) -> Option<(&[u8], impl Iterator<Item = &[u8]>)> {
    let new = new_part(cache)?;
    let count = usize::try_from(number(new, NEW_MAGIC.len())?).ok()?;
    // The smaller of what there is and what is claimed: a false count reads nothing beyond the end.
    Some((new, new.get(NEW_HEADER..)?.chunks_exact(NEW_ENTRY).take(count)))
}

/// The part that starts with the new magic: the whole file, or what follows the old part.
fn new_part(cache: &[u8]) -> Option<&[u8]> {
    let new = if cache.starts_with(OLD_MAGIC) {
        let count = usize::try_from(number(cache, 12)?).ok()?;
        let end = count.checked_mul(OLD_ENTRY)?.checked_add(OLD_HEADER)?;
        cache.get(end.checked_next_multiple_of(8)?..)?
    } else {
        cache
    };
    new.starts_with(NEW_MAGIC).then_some(new)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn string(new: &[u8], at: u32) -> Option<&str> {
    let rest = new.get(usize::try_from(at).ok()?..)?;
    let end = rest.iter().take(MAX_STRING).position(|byte| *byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

#[cfg(test)]
mod tests;
