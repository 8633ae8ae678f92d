//! Finds symbols in a loaded library by reading its tables.
//!
//! `dlsym` is no alternative: other tools replace it, before glibc 2.34 it is in another library, it takes
//! locks, and in the application's scope it would find us. `dl_iterate_phdr` is in libc everywhere.

use core::ffi::{CStr, c_char, c_int, c_void};

/// A library that is loaded for good: ours needs it, and ours is never unloaded.
#[derive(Clone, Copy)]
pub struct Loaded {
    base: usize,
    symbols: *const Symbol,
    strings: *const c_char,
    gnu_hash: *const u32,
    hash: *const u32,
    versions: *const u16,
}

#[repr(C)]
struct ObjectInfo {
    base: usize,
    name: *const c_char,
    headers: *const Header,
    count: u16,
}

#[repr(C)]
struct Header {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    file_size: u64,
    memory_size: u64,
    align: u64,
}

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: usize,
    size: u64,
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NULL: i64 = 0;
const DT_NEEDED: i64 = 1;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;
const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
/// In an entry of `DT_VERSYM`: not the default version.
const HIDDEN: u16 = 0x8000;

unsafe extern "C" {
    fn dl_iterate_phdr(
        callback: unsafe extern "C" fn(*const ObjectInfo, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
}

/// An object that the loader has loaded.
struct Object {
    loaded: Loaded,
    /// Its path, as the loader knows it.
    name: &'static CStr,
    soname: Option<&'static CStr>,
    /// Its first `DT_NEEDED`.
    needed: Option<&'static CStr>,
    /// Whether the address that is searched for lies in it.
    holds_us: bool,
}

/// Finds the real library: the loaded one whose path is the `DT_NEEDED` of ours; failing that, the one that
/// has `soname` and is not ours. `ours`: an address in our own library.
pub fn real(soname: &str, ours: usize) -> Option<Loaded> {
    find(needed(ours)?.to_bytes(), soname.as_bytes(), ours)
}

/// The path in our own library's `DT_NEEDED`. `ours`: an address in it.
pub fn needed(ours: usize) -> Option<&'static CStr> {
    let mut found = None;
    each(ours, |object| {
        if object.holds_us {
            found = object.needed;
        }
        object.holds_us
    });
    found
}

/// Finds the loaded library whose path is `path`; failing that, the one that has `soname` and is not ours.
/// `ours`: an address in our own library.
pub fn find(path: &[u8], soname: &[u8], ours: usize) -> Option<Loaded> {
    let (mut by_path, mut by_soname) = (None, None);
    each(ours, |object| {
        if object.holds_us {
            return false;
        }
        if object.name.to_bytes() == path {
            by_path = Some(object.loaded);
        } else if by_soname.is_none() && object.soname.is_some_and(|name| name.to_bytes() == soname) {
            by_soname = Some(object.loaded);
        }
        by_path.is_some()
    });
    by_path.or(by_soname)
}

/// Calls `see` for each loaded object until it returns something.
fn each<F: FnMut(&Object) -> bool>(ours: usize, see: F) {
    let mut search = (ours, see);
    // SAFETY: the callback gets our pair back, during this call.
    unsafe { dl_iterate_phdr(visit::<F>, (&raw mut search).cast()) };
}

unsafe extern "C" fn visit<F: FnMut(&Object) -> bool>(
    object: *const ObjectInfo,
    _size: usize,
    search: *mut c_void,
) -> c_int {
    // SAFETY: `each` passes this pair, the loader a filled structure of which these fields are the oldest.
    let (object, (ours, see)) = unsafe { (&*object, &mut *search.cast::<(usize, F)>()) };
    if object.headers.is_null() || object.name.is_null() {
        return 0;
    }
    // SAFETY: the loader's program headers of a loaded object, `count` of them.
    let headers = unsafe { core::slice::from_raw_parts(object.headers, usize::from(object.count)) };
    let holds_us = headers.iter().any(|header| {
        let start = object.base.wrapping_add(header.address as usize);
        header.kind == PT_LOAD && ours.wrapping_sub(start) < header.memory_size as usize
    });
    let Some(dynamic) = headers.iter().find(|header| header.kind == PT_DYNAMIC) else { return 0 };
    let dynamic = object.base.wrapping_add(dynamic.address as usize) as *const Dynamic;
    // SAFETY: the dynamic section of a loaded object.
    let Some((loaded, soname, needed)) = (unsafe { read_dynamic(object.base, dynamic) }) else { return 0 };
    // SAFETY: an offset into the object's own string table, where strings end with a NUL; it stays loaded
    // during the call, and what is kept of it is ours or what ours needs, which are never unloaded.
    let string = |offset: usize| unsafe { CStr::from_ptr(loaded.strings.add(offset)) };
    // SAFETY: the loader's name of the object, NUL-terminated.
    let name = unsafe { CStr::from_ptr(object.name) };
    let object = Object { loaded, name, soname: soname.map(string), needed: needed.map(string), holds_us };
    c_int::from(see(&object))
}

/// The tables, and where in the strings the SONAME and the first `DT_NEEDED` are.
type Dynamics = (Loaded, Option<usize>, Option<usize>);

/// # Safety
/// `dynamic` is the dynamic section of an object that is loaded at `base`.
unsafe fn read_dynamic(base: usize, dynamic: *const Dynamic) -> Option<Dynamics> {
    let mut loaded = Loaded {
        base,
        symbols: core::ptr::null(),
        strings: core::ptr::null(),
        gnu_hash: core::ptr::null(),
        hash: core::ptr::null(),
        versions: core::ptr::null(),
    };
    let (mut soname, mut needed) = (None, None);
    // glibc has relocated these addresses, musl has not.
    let address = |value: usize| if value < base { base + value } else { value };
    let mut at = dynamic;
    loop {
        // SAFETY: the section ends with DT_NULL, and we have not passed it.
        let entry = unsafe { &*at };
        match entry.tag {
            DT_NULL => break,
            DT_SYMTAB => loaded.symbols = address(entry.value) as *const Symbol,
            DT_STRTAB => loaded.strings = address(entry.value) as *const c_char,
            DT_GNU_HASH => loaded.gnu_hash = address(entry.value) as *const u32,
            DT_HASH => loaded.hash = address(entry.value) as *const u32,
            DT_VERSYM => loaded.versions = address(entry.value) as *const u16,
            DT_SONAME => soname = Some(entry.value),
            DT_NEEDED => needed = needed.or(Some(entry.value)),
            _ => {}
        }
        // SAFETY: not at the end yet.
        at = unsafe { at.add(1) };
    }
    (!loaded.symbols.is_null() && !loaded.strings.is_null()).then_some((loaded, soname, needed))
}

/// # Safety
/// `name` is NUL-terminated.
unsafe fn is(name: *const c_char, text: &str) -> bool {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(name) }.to_bytes() == text.as_bytes()
}

impl Loaded {
    /// Address of the function `name`, if the library exports it.
    pub fn function(&self, name: &str) -> Option<usize> {
        // SAFETY: the tables of a loaded library, which the loader has used before us.
        unsafe {
            if !self.gnu_hash.is_null() {
                self.by_gnu_hash(name)
            } else if !self.hash.is_null() {
                self.by_hash(name)
            } else {
                None
            }
        }
    }

    /// The tables of `DT_GNU_HASH`: counts of buckets, first symbol, words of the filter, its shift; the
    /// filter, the buckets, and one hash per symbol whose lowest bit ends a chain.
    unsafe fn by_gnu_hash(&self, name: &str) -> Option<usize> {
        let wanted =
            name.bytes().fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(u32::from(byte)));
        // SAFETY: the table starts with four words, then come as many filter words and buckets as they say,
        // then the chains, which end within the table.
        unsafe {
            let (buckets, first, filter_words) =
                (*self.gnu_hash, *self.gnu_hash.add(1), *self.gnu_hash.add(2) as usize);
            if buckets == 0 {
                return None;
            }
            let bucket_table = self.gnu_hash.add(4 + filter_words * (size_of::<usize>() / 4));
            let chains = bucket_table.add(buckets as usize);
            let mut index = *bucket_table.add((wanted % buckets) as usize);
            if index < first {
                return None;
            }
            loop {
                let hash = *chains.add((index - first) as usize);
                if hash | 1 == wanted | 1
                    && let Some(address) = self.exported(index as usize, name)
                {
                    return Some(address);
                }
                if hash & 1 == 1 {
                    return None;
                }
                index += 1;
            }
        }
    }

    /// The tables of `DT_HASH`: counts of buckets and of symbols; the buckets, and one link per symbol.
    unsafe fn by_hash(&self, name: &str) -> Option<usize> {
        let wanted = name.bytes().fold(0u32, |hash, byte| {
            let hash = (hash << 4).wrapping_add(u32::from(byte));
            let high = hash & 0xf000_0000;
            (hash ^ high >> 24) & !high
        });
        // SAFETY: as many buckets and links as the first two words say; 0 ends a chain.
        unsafe {
            let buckets = *self.hash;
            if buckets == 0 {
                return None;
            }
            let links = self.hash.add(2 + buckets as usize);
            let mut index = *self.hash.add(2 + (wanted % buckets) as usize);
            while index != 0 {
                if let Some(address) = self.exported(index as usize, name) {
                    return Some(address);
                }
                index = *links.add(index as usize);
            }
        }
        None
    }

    /// Address of symbol number `index` if it is a function of that name that the library defines.
    unsafe fn exported(&self, index: usize, name: &str) -> Option<usize> {
        // SAFETY: the index comes from the library's hash table, the name's offset from its symbol.
        unsafe {
            let symbol = &*self.symbols.add(index);
            let kind = symbol.info & 0xf;
            let defined = symbol.section != 0 && symbol.value != 0 && matches!(kind, STT_NOTYPE | STT_FUNC);
            let current = self.versions.is_null() || *self.versions.add(index) & HIDDEN == 0;
            (defined && current && is(self.strings.add(symbol.name as usize), name))
                .then(|| self.base + symbol.value)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    unsafe extern "C" {
        fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
        fn dladdr(address: *const c_void, info: *mut [*const c_char; 4]) -> c_int;
    }

    /// libc's path, as the loader knows it.
    fn libc() -> String {
        let mut info = [core::ptr::null(); 4];
        // SAFETY: `Dl_info` is four pointers, the first of them the object's name.
        assert_ne!(unsafe { dladdr(dlsym as *const c_void, &mut info) }, 0);
        // SAFETY: set by `dladdr`.
        unsafe { CStr::from_ptr(info[0]) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn finds_what_the_loader_finds() {
        let ours = finds_what_the_loader_finds as *const () as usize;
        let by_path = find(libc().as_bytes(), b"", ours).expect("loaded");
        let by_soname = find(b"/nowhere", b"libc.so.6", ours).expect("loaded");
        for name in ["close", "getpid", "unshare", "pthread_cond_wait", "posix_spawn"] {
            let symbol = CString::new(name).unwrap();
            // SAFETY: null is the default scope, the name is NUL-terminated.
            let expected = unsafe { dlsym(core::ptr::null_mut(), symbol.as_ptr()) } as usize;
            assert_eq!(by_path.function(name), Some(expected), "{name}");
            assert_eq!(by_soname.function(name), Some(expected), "{name}");
            if !by_path.hash.is_null() {
                // SAFETY: the same library's other table.
                assert_eq!(unsafe { by_path.by_hash(name) }, Some(expected), "{name}");
            }
        }
        assert_eq!(by_path.function("cuMemAlloc_v2"), None);
    }

    #[test]
    fn reads_what_its_own_library_needs() {
        // This test program needs libgcc or libc first, by a name without a slash.
        let own =
            needed(reads_what_its_own_library_needs as *const () as usize).expect("is linked with libc");
        assert!(own.to_str().unwrap().starts_with("lib"), "{own:?}");
        assert_eq!(needed(0), None);
    }

    #[test]
    fn never_finds_the_library_that_asks() {
        let libc = find(libc().as_bytes(), b"", 0).expect("loaded");
        let inside = libc.function("close").expect("libc has it");
        assert!(find(b"/nowhere", b"libc.so.6", inside).is_none());
    }
}
