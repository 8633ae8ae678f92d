//! The limits and the ledger, mapped.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};

use fgpu_wire::ledger::{self, Ledger};
use fgpu_wire::limits::{self, Page};
use fgpu_wire::{LEDGER_PATH, LIMITS_PATH, Seal};

use crate::elf;
use crate::message::Refusal;
use crate::sys::{self, File};

static LIMITS: AtomicPtr<Page> = AtomicPtr::new(core::ptr::null_mut());
static VIEW: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());

/// The limits, mapped once per process and shared with its children.
pub fn limits() -> Result<&'static Page, Refusal> {
    if let Some(page) = known(&LIMITS) {
        return Ok(page);
    }
    let file = File::open(LIMITS_PATH, false).ok().filter(is_made_for_us).ok_or(Refusal::Limits)?;
    let at = map_whole(&file, limits::SIZE).ok_or(Refusal::Limits)?;
    // SAFETY: mapped for good unless unmapped below, a whole page, and every bit pattern is a `Page`.
    let page: &'static Page = unsafe { at.cast().as_ref() };
    if !page.is_valid() {
        // SAFETY: nothing but `page` refers to it, and that is not used again.
        unsafe { sys::unmap(at, limits::SIZE) };
        return Err(Refusal::Limits);
    }
    Ok(publish(&LIMITS, at, limits::SIZE))
}

/// The ledger for reading only: without a slot, not writable.
pub fn ledger_view() -> Result<&'static Ledger, Refusal> {
    if let Some(ledger) = known(&VIEW) {
        return Ok(ledger);
    }
    let limits = limits()?;
    let file = File::open(LEDGER_PATH, false).map_err(|_| Refusal::Ledger)?;
    let at = map_whole(&file, ledger::SIZE).ok_or(Refusal::Ledger)?;
    // SAFETY: mapped for good unless unmapped below, of the right size, every bit pattern is a `Ledger`. The
    // pages are read-only; of its methods only those that load are called on a view.
    let ledger: &'static Ledger = unsafe { at.cast().as_ref() };
    if !ledger.is_valid(&limits.nonce()) {
        // SAFETY: nothing but `ledger` refers to it, and that is not used again.
        unsafe { sys::unmap(at, ledger::SIZE) };
        return Err(Refusal::Ledger);
    }
    Ok(publish(&VIEW, at, ledger::SIZE))
}

/// Whether a limits file is the one that the host mounted: on the file system that this library was sealed
/// for, and read-only. A container's root may move /run aside and write a file of its own, but that is on
/// another file system. The file that it may write on that file system, the ledger, is on a mount that is not
/// read-only.
fn is_made_for_us(file: &File) -> bool {
    let seal =
        elf::needed(core::ptr::from_ref(&LIMITS) as usize).and_then(|path| Seal::of_path(path.to_bytes()));
    match seal {
        None => false,
        Some(Seal { device: 0, .. }) => true,
        Some(seal) => file.device() == Ok(seal.device) && file.is_on_read_only_mount() == Ok(true),
    }
}

/// Maps a file for reading, if it is long enough: a shorter one would cause a SIGBUS later.
fn map_whole(file: &File, size: usize) -> Option<NonNull<u8>> {
    if file.size().ok()? < size {
        return None;
    }
    file.map(size, false).ok()
}

fn known<T>(cell: &AtomicPtr<T>) -> Option<&'static T> {
    // SAFETY: what is published stays mapped for good.
    unsafe { cell.load(Ordering::Acquire).as_ref() }
}

/// Publishes a mapping, or unmaps it if another thread was faster. There is no lock: after a fork at any
/// moment the child has the mapping or has none.
fn publish<T>(cell: &AtomicPtr<T>, at: NonNull<u8>, size: usize) -> &'static T {
    let mine = at.cast::<T>();
    match cell.compare_exchange(core::ptr::null_mut(), mine.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: published now, and so mapped for good.
        Ok(_) => unsafe { mine.as_ref() },
        Err(theirs) => {
            // SAFETY: no other thread has seen our mapping.
            unsafe { sys::unmap(at, size) };
            // SAFETY: published by another thread, and so mapped for good.
            unsafe { &*theirs }
        }
    }
}

/// Every process of a container can write its ledger, and every container its places of the boards.
#[cfg(test)]
mod tests;
