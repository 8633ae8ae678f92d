//! This container's places on the boards of its GPUs ([`fgpu_wire::turns`]).
//!
//! Everything is read and written by system calls, each with its own descriptor: the application might close
//! one that stays open, and reuse its number. No open blocks: another container may hold a lease
//! (`F_SETLEASE`) on a file that it can read.
//!
//! Without a place a container keeps its own share and takes no turns: 64 containers at most have a place on
//! one GPU.

use core::fmt::Write;
use core::mem::size_of_val;
use core::slice;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fgpu_wire::TURNS_PATH;
use fgpu_wire::turns::{self, Board, PLACES, Statement};

use crate::sys::File;

/// How long an index is used, nanoseconds: the others see a new container no later.
const FRESH: u64 = 10_000_000;
/// In [`Seat::place`]: there is none.
const NONE: u32 = u32::MAX;

/// A container's place on the board of one GPU. All zeros: not looked up yet.
#[repr(C)]
pub struct Seat {
    /// Plus 1; 0: not looked up yet.
    place: AtomicU32,
    /// The minor number of the GPU's device node.
    minor: AtomicU32,
    /// The places that are taken, a bit each.
    taken: AtomicU64,
    /// When the index was read, CLOCK_MONOTONIC.
    looked: AtomicU64,
}

impl Seat {
    /// The place. `None`: not looked up yet; `Some(None)`: there is none.
    #[inline]
    pub fn place(&self) -> Option<Option<usize>> {
        match self.place.load(Ordering::Acquire) {
            0 => None,
            NONE => Some(None),
            place => Some(Some(place as usize - 1)),
        }
    }

    /// Looks up the place of this grant on the GPU with this minor number. One thread at a time does it.
    pub fn take(&self, minor: u32, nonce: &[u8; 16]) -> Option<usize> {
        self.minor.store(minor, Ordering::Relaxed);
        let mut index = [0; turns::INDEX];
        let mut grants = read_index(minor, &mut index);
        let place = grants.as_mut().and_then(|grants| grants.position(|grant| grant == nonce));
        // A place that we cannot write belongs to another container.
        let place = place.filter(|&place| File::open(Name::place(minor, place).as_str(), true).is_ok());
        self.place.store(place.map_or(NONE, |place| place as u32 + 1), Ordering::Release);
        place
    }

    /// The places that are taken.
    fn taken(&self, now: u64) -> u64 {
        if now.saturating_sub(self.looked.load(Ordering::Acquire)) >= FRESH {
            let mut index = [0; turns::INDEX];
            if let Some(grants) = read_index(self.minor.load(Ordering::Relaxed), &mut index) {
                let bit = |(place, grant): (usize, &[u8; 16])| u64::from(*grant != [0; 16]) << place;
                self.taken.store(grants.enumerate().map(bit).sum(), Ordering::Release);
                self.looked.store(now, Ordering::Release);
            }
        }
        self.taken.load(Ordering::Acquire)
    }
}

impl Board for Seat {
    fn exchange(&self, now: u64, place: usize, statement: &Statement, places: &mut [Statement; PLACES]) {
        self.publish(place, statement);
        let (taken, minor) = (self.taken(now), self.minor.load(Ordering::Relaxed));
        let others =
            places.iter_mut().enumerate().filter(|(other, _)| taken >> other & 1 == 1 && *other != place);
        for (other, theirs) in others {
            if let Ok(file) = File::open(Name::place(minor, other).as_str(), false) {
                read(&file, theirs);
            }
        }
    }

    fn publish(&self, place: usize, statement: &Statement) {
        let name = Name::place(self.minor.load(Ordering::Relaxed), place);
        let Ok(file) = File::open(name.as_str(), true) else { return };
        // SAFETY: four words without padding, read only.
        let bytes =
            unsafe { slice::from_raw_parts(core::ptr::from_ref(statement).cast(), size_of_val(statement)) };
        // If it cannot be written, the others do not see it.
        let _ = file.write_at(bytes, 0);
    }
}

fn read_index(minor: u32, index: &mut [u8; turns::INDEX]) -> Option<impl Iterator<Item = &[u8; 16]>> {
    let file = File::open(Name::index(minor).as_str(), false).ok()?;
    if file.read_at(index, 0).ok()? < turns::INDEX {
        return None;
    }
    turns::grants(index)
}

fn read(file: &File, statement: &mut Statement) {
    // SAFETY: four words without padding, for which every content is a value.
    let bytes = unsafe {
        slice::from_raw_parts_mut(core::ptr::from_mut(statement).cast::<u8>(), size_of_val(statement))
    };
    // Where the file ends early it stays zeros.
    let _ = file.read_at(bytes, 0);
}

/// The path of a file of a board.
struct Name {
    bytes: [u8; 48],
    length: usize,
}

impl Name {
    fn index(minor: u32) -> Self {
        Self::of(format_args!("{TURNS_PATH}/{minor}-index"))
    }

    fn place(minor: u32, place: usize) -> Self {
        Self::of(format_args!("{TURNS_PATH}/{minor}-{place}"))
    }

    fn of(text: core::fmt::Arguments<'_>) -> Self {
        let mut name = Self { bytes: [0; 48], length: 0 };
        // The longest, of a minor number of ten digits, has 34 bytes.
        let _ = name.write_fmt(text);
        name
    }

    fn as_str(&self) -> &str {
        self.bytes.get(..self.length).and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

impl Write for Name {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(core::fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}
