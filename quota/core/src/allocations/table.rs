//! An open-addressing hash table in memory of its own.
//!
//! Linear probing. A removed entry is filled from behind, so there are no tombstones, and a table that is
//! filled and emptied for weeks stays as fast as a new one.

use core::ops::Range;
use core::ptr::NonNull;

use fgpu_wire::MAX_GPUS;

use crate::sys::{self, InChild};

const FIRST_CAPACITY: usize = 1024;

/// What a key means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u32)]
pub enum Kind {
    /// No entry.
    #[default]
    Empty = 0,
    /// Key: a device pointer.
    Pointer,
    /// Key: a device pointer into a memory pool; `bytes`: its size, which counts with the pool and not by
    /// itself. `link`: the pool.
    InPool,
    /// Key: an array or a mipmapped array.
    Array,
    /// Key: a handle of the virtual memory management. `link`: the key of its block.
    Handle,
    /// Key: the address at which a handle is mapped; `bytes`: how much of the address space. `link`: the key
    /// of its block.
    Mapping,
    /// Key: a number of our own, for the memory behind a handle. `link`: how many references it has.
    Block,
    /// Key: a place in a multicast object or a sparse array; `owner`: that. `link`: the key of the block that
    /// is bound there.
    Binding,
    /// Key: a context. `link`: how it was made, in the cuda library's terms.
    Context,
    /// Key: a module, a library, or the context into which code was loaded late.
    Code,
    /// Key: a memory pool, as the driver's own meter. `link`: how often it was read.
    Pool,
    /// Key: a CUDA ordinal, for the driver's memory for graphs there. `link`: how often it was read.
    Graphs,
    /// Key: an executable graph and an ordinal; `bytes`: what its allocations there need, which counts with
    /// the device's graphs and not by itself. `link`: the number of trims when it last had it.
    Executable,
}

/// One entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Entry {
    /// The driver's value.
    pub key: u64,
    /// What the key means.
    pub kind: Kind,
    /// Number of the GPU in the grant.
    pub gpu: u32,
    /// What it counts for, unless its kind says otherwise.
    pub bytes: u64,
    /// As its kind says.
    pub link: u64,
    /// The context with which it ends if it is not freed before; 0: none.
    pub owner: u64,
}

/// The table. All zeros is an empty one.
#[derive(Default)]
pub struct Table {
    cells: Option<NonNull<Entry>>,
    /// A power of two, or 0.
    capacity: usize,
    length: usize,
    next_block: u64,
}

impl Table {
    fn cells(&self) -> &[Entry] {
        match self.cells {
            // SAFETY: mapped with room for `capacity` entries, all of them initialised: zeros are `Empty`.
            Some(cells) => unsafe { core::slice::from_raw_parts(cells.as_ptr(), self.capacity) },
            None => &[],
        }
    }

    fn cells_mut(&mut self) -> &mut [Entry] {
        match self.cells {
            // SAFETY: as in `cells`, and `self` is borrowed exclusively.
            Some(cells) => unsafe { core::slice::from_raw_parts_mut(cells.as_ptr(), self.capacity) },
            None => &mut [],
        }
    }

    /// Where a key is if nothing collides with it.
    fn home(&self, kind: Kind, key: u64) -> usize {
        // Fibonacci hashing: the high bits of the product depend on all bits of the key, whose low ones are
        // zeros in a device pointer.
        let mixed = (key ^ (kind as u64) << 56).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 32) as usize & (self.capacity - 1)
    }

    /// Where a key is.
    fn position(&self, kind: Kind, key: u64) -> Option<usize> {
        if self.length == 0 {
            return None;
        }
        let cells = self.cells();
        let mut at = self.home(kind, key);
        // Ends: a quarter of the cells at least is empty.
        loop {
            let entry = cells.get(at)?;
            if entry.kind == Kind::Empty {
                return None;
            }
            if entry.kind == kind && entry.key == key {
                return Some(at);
            }
            at = (at + 1) & (self.capacity - 1);
        }
    }

    /// Looks an entry up.
    pub fn get_mut(&mut self, kind: Kind, key: u64) -> Option<&mut Entry> {
        let at = self.position(kind, key)?;
        self.cells_mut().get_mut(at)
    }

    /// Inserts an entry; one of the same kind and key is replaced. `false` if the kernel has no memory for
    /// it.
    pub fn insert(&mut self, entry: Entry) -> bool {
        if let Some(old) = self.get_mut(entry.kind, entry.key) {
            *old = entry;
            return true;
        }
        if self.length >= self.capacity / 4 * 3 && !self.grow() {
            return false;
        }
        self.put(entry);
        true
    }

    fn put(&mut self, entry: Entry) {
        let mask = self.capacity - 1;
        let mut at = self.home(entry.kind, entry.key);
        let cells = self.cells_mut();
        while let Some(cell) = cells.get_mut(at) {
            if cell.kind == Kind::Empty {
                *cell = entry;
                self.length += 1;
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// Removes an entry.
    pub fn remove(&mut self, kind: Kind, key: u64) -> Option<Entry> {
        let mut hole = self.position(kind, key)?;
        let removed = *self.cells().get(hole)?;
        let mask = self.capacity - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = *self.cells().get(at)?;
            if entry.kind == Kind::Empty {
                break;
            }
            // It may move into the hole if the hole is not before its home.
            let home = self.home(entry.kind, entry.key);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                *self.cells_mut().get_mut(hole)? = entry;
                hole = at;
            }
        }
        *self.cells_mut().get_mut(hole)? = Entry::default();
        self.length -= 1;
        Some(removed)
    }

    /// The first entry of a kind that `fits`. Looks at all of them.
    pub fn find(&self, kind: Kind, fits: impl Fn(&Entry) -> bool) -> Option<Entry> {
        self.cells().iter().find(|entry| entry.kind == kind && fits(entry)).copied()
    }

    /// The lowest key of a kind in a range. Looks at all entries.
    pub fn lowest_key(&self, kind: Kind, range: Range<u64>) -> Option<u64> {
        let keys = self.cells().iter().filter(|entry| entry.kind == kind).map(|entry| entry.key);
        keys.filter(|key| range.contains(key)).min()
    }

    /// Removes every entry that `fits`.
    pub fn drain(&mut self, fits: impl Fn(&Entry) -> bool, mut each: impl FnMut(Entry)) {
        let mut at = 0;
        while let Some(&entry) = self.cells().get(at) {
            // A removed entry may be replaced by one from behind it, which was not looked at unless it came
            // from the very beginning.
            match (entry.kind != Kind::Empty && fits(&entry)).then(|| self.remove(entry.kind, entry.key)) {
                Some(Some(entry)) => each(entry),
                _ => at += 1,
            }
        }
    }

    /// Lets `each` change entries, except for kind and key.
    pub fn change(&mut self, mut each: impl FnMut(&mut Entry)) {
        self.cells_mut().iter_mut().filter(|entry| entry.kind != Kind::Empty).for_each(&mut each);
    }

    /// Calls `each` for every entry of a kind.
    pub fn for_each(&self, kind: Kind, each: impl FnMut(&Entry)) {
        self.cells().iter().filter(|entry| entry.kind == kind).for_each(each);
    }

    /// The bytes that all entries count for, by GPU.
    pub fn counted(&self) -> [u64; MAX_GPUS] {
        let mut sums = [0u64; MAX_GPUS];
        for entry in self.cells() {
            let counts = matches!(
                entry.kind,
                Kind::Pointer
                    | Kind::Array
                    | Kind::Block
                    | Kind::Context
                    | Kind::Code
                    | Kind::Pool
                    | Kind::Graphs
            );
            if let Some(sum) = sums.get_mut(entry.gpu as usize).filter(|_| counts) {
                *sum = sum.saturating_add(entry.bytes);
            }
        }
        sums
    }

    /// A key for a new block.
    pub fn new_block(&mut self) -> u64 {
        self.next_block += 1;
        self.next_block
    }

    fn grow(&mut self) -> bool {
        let capacity = if self.capacity == 0 { FIRST_CAPACITY } else { self.capacity * 2 };
        let Ok(cells) = sys::map_zeros(capacity * size_of::<Entry>()) else { return false };
        // A forked child starts with an empty table and has no use for the parent's cells. If the kernel
        // refuses, the child keeps a copy that it never looks at.
        let _ = sys::at_fork(cells, capacity * size_of::<Entry>(), InChild::Absent);
        let next_block = self.next_block;
        let old =
            core::mem::replace(self, Self { cells: Some(cells.cast()), capacity, length: 0, next_block });
        for entry in old.cells().iter().filter(|entry| entry.kind != Kind::Empty) {
            self.put(*entry);
        }
        if let Some(cells) = old.cells {
            // SAFETY: a whole mapping of this size; `old` is gone with this function.
            unsafe { sys::unmap(cells.cast(), old.capacity * size_of::<Entry>()) };
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{Entry, Kind, Table};

    fn entry(kind: Kind, key: u64, bytes: u64) -> Entry {
        Entry { key, kind, gpu: 1, bytes, link: 0, owner: bytes % 3 }
    }

    #[test]
    fn an_empty_table_has_nothing() {
        let mut table = Table::default();
        assert_eq!(table.get_mut(Kind::Pointer, 0), None);
        assert_eq!(table.remove(Kind::Pointer, 1), None);
        assert_eq!(table.find(Kind::Pointer, |_| true), None);
    }

    #[test]
    fn kinds_do_not_meet() {
        let mut table = Table::default();
        assert!(table.insert(entry(Kind::Pointer, 7, 1)));
        assert!(table.insert(entry(Kind::Handle, 7, 2)));
        assert_eq!(table.remove(Kind::Mapping, 7), None);
        assert_eq!(table.remove(Kind::Pointer, 7).unwrap().bytes, 1);
        assert_eq!(table.remove(Kind::Handle, 7).unwrap().bytes, 2);
    }

    #[test]
    fn the_lowest_key_of_a_range() {
        let mut table = Table::default();
        for (kind, key) in [(Kind::Mapping, 30), (Kind::Mapping, 20), (Kind::Pointer, 10), (Kind::Mapping, 5)]
        {
            assert!(table.insert(entry(kind, key, 1)));
        }
        assert_eq!(table.lowest_key(Kind::Mapping, 6..40), Some(20));
        assert_eq!(table.lowest_key(Kind::Mapping, 6..20), None);
    }

    #[test]
    fn draining_takes_all_that_fit_and_leaves_the_rest() {
        let mut table = Table::default();
        for key in 0..3000 {
            assert!(table.insert(entry(Kind::Pointer, key * 512, key)));
        }
        table.change(|entry| entry.link = entry.owner);
        let (mut count, mut bytes) = (0, 0);
        table.drain(
            |entry| entry.link == 1,
            |entry| {
                count += 1;
                bytes += entry.bytes;
            },
        );
        assert_eq!((count, bytes), (1000, (0..1000).map(|third| third * 3 + 1).sum()));
        for key in 0..3000 {
            let found = table.remove(Kind::Pointer, key * 512).map(|entry| entry.bytes);
            assert_eq!(found, (key % 3 != 1).then_some(key));
        }
        let mut left = 0;
        table.for_each(Kind::Pointer, |_| left += 1);
        assert_eq!((left, table.length), (0, 0));
    }

    #[test]
    fn it_behaves_like_a_map() {
        let (mut table, mut map) = (Table::default(), HashMap::new());
        let mut random = 1u64;
        for round in 0..400_000u64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Few distinct keys, like device pointers: multiples of 512 in a narrow range.
            let key = (random % 6000) * 512;
            if random >> 40 & 1 == 0 {
                assert!(table.insert(entry(Kind::Pointer, key, round)));
                map.insert(key, round);
            } else {
                assert_eq!(table.remove(Kind::Pointer, key).map(|entry| entry.bytes), map.remove(&key));
            }
            assert_eq!(table.length, map.len());
        }
        assert!(table.capacity > super::FIRST_CAPACITY, "it has grown");
        for (key, bytes) in map {
            assert_eq!(table.remove(Kind::Pointer, key).unwrap().bytes, bytes);
        }
        assert_eq!(table.length, 0);
        assert!(table.cells().iter().all(|entry| entry.kind == Kind::Empty));
    }
}
