//! This process's allocations: from the driver's value to what it counts for.

mod table;

use core::cell::UnsafeCell;

use crate::mutex::{Guard, Mutex};
pub use table::{Entry, Kind, Table};

/// The table, and the lock that guards it. All zeros is an empty one.
#[derive(Default)]
pub struct Allocations {
    lock: Mutex,
    table: UnsafeCell<Table>,
}

// SAFETY: the table is reached under the lock only, and is not tied to a thread.
unsafe impl Sync for Allocations {}

/// The table, while the lock is held.
pub struct Locked<'a> {
    table: &'a mut Table,
    _held: Guard<'a>,
}

impl Allocations {
    /// Takes the lock. Never hold it across a call into the driver.
    pub fn lock(&self) -> Locked<'_> {
        let held = self.lock.lock();
        // SAFETY: the lock is held as long as the reference lives.
        Locked { table: unsafe { &mut *self.table.get() }, _held: held }
    }
}

impl core::ops::Deref for Locked<'_> {
    type Target = Table;

    fn deref(&self) -> &Table {
        self.table
    }
}

impl core::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Table {
        self.table
    }
}
