//! The file `calls`: which functions of the simulated libcuda the programs of the node call, and how often.
//! Nothing is counted where there is no such file; `fgpu-sim calls --start` makes one.
//!
//! ```text
//! 0      magic: u64
//! 8      taken: u64, how many entries are taken; they may be more than there is room for
//! 64     entries: [Entry], as many as the file has room for
//! ```
//! The first call of a function in a process takes an entry for it, so a name may be there more than once:
//! readers add them up. No process waits for another, and the counts of a killed process stay.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::sys;

/// First eight bytes of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"simgpuca");
/// Entries of a file that `fgpu-sim` makes.
pub const ENTRIES: usize = 65_536;
const HEAD: usize = 64;
/// Bytes of such a file.
pub const SIZE: usize = HEAD + ENTRIES * size_of::<Entry>();

/// What a call was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A function that is simulated.
    Simulated = 1,
    /// One that is not: it answered "not supported".
    Missing = 2,
    /// Somebody asked for something by name that does not exist, and was told so.
    Unknown = 3,
}

/// A function.
#[repr(C)]
pub struct Entry {
    name: [u8; 76],
    /// [`Kind`]; 0 until the name is there.
    kind: AtomicU32,
    /// Calls.
    pub calls: AtomicU64,
    /// Calls that took device memory.
    pub charges: AtomicU64,
}

const _: () = assert!(size_of::<Entry>() == 96);

impl Entry {
    /// Its name, and what its calls were; `None` while it is being written.
    pub fn name(&self) -> Option<(&str, Kind)> {
        let kind = match self.kind.load(Ordering::Acquire) {
            1 => Kind::Simulated,
            2 => Kind::Missing,
            3 => Kind::Unknown,
            _ => return None,
        };
        let end = self.name.iter().position(|&byte| byte == 0).unwrap_or(self.name.len());
        Some((core::str::from_utf8(&self.name[..end]).ok()?, kind))
    }
}

/// The file, mapped shared for the rest of the process's life.
#[derive(Clone, Copy)]
pub struct Calls {
    start: usize,
    entries: usize,
}

impl Calls {
    /// Maps the file. `None` if there is none, or it is no such file.
    pub fn map(path: &CStr, write: bool) -> Option<Self> {
        let fd = sys::open(path, if write { sys::O_RDWR } else { sys::O_RDONLY }).ok()?;
        let length = sys::file_length(fd).unwrap_or(0) as usize;
        let protection = if write { sys::PROT_READ_WRITE } else { sys::PROT_READ };
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            (length >= HEAD).then(|| unsafe { sys::mmap(0, length, protection, sys::MAP_SHARED, fd) });
        sys::close(fd);
        let calls = Self { start: start?.ok()?, entries: (length - HEAD) / size_of::<Entry>() };
        (calls.word(0).load(Ordering::Relaxed) == MAGIC).then_some(calls)
    }

    fn word(&self, index: usize) -> &'static AtomicU64 {
        // SAFETY: within the head of the mapping, which is never unmapped.
        unsafe { &*(self.start as *const AtomicU64).add(index) }
    }

    fn entry(&self, index: usize) -> Option<*mut Entry> {
        (index < self.entries)
            .then(|| (self.start + HEAD) as *mut Entry)
            .map(|first| first.wrapping_add(index))
    }

    /// The entries that are complete.
    pub fn entries(&self) -> impl Iterator<Item = &'static Entry> {
        let calls = *self;
        let taken = self.word(1).load(Ordering::Acquire) as usize;
        // SAFETY: within the mapping, which is never unmapped; every bit pattern is an entry.
        let all = (0..taken).map_while(move |index| calls.entry(index).map(|entry| unsafe { &*entry }));
        all.filter(|entry| entry.name().is_some())
    }

    /// Takes an entry for a function. `None` if the file is full.
    pub fn take(&self, name: &str, kind: Kind) -> Option<&'static Entry> {
        let index = self.word(1).fetch_add(1, Ordering::AcqRel) as usize;
        let entry = self.entry(index)?;
        let length = name.len().min(76);
        // SAFETY: the number was given to nobody else, so nobody reads or writes the name until the kind is
        // there.
        unsafe {
            core::ptr::copy_nonoverlapping(name.as_ptr(), entry.cast(), length);
            (*entry).kind.store(kind as u32, Ordering::Release);
            Some(&*entry)
        }
    }
}
