//! The two files, mapped.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, Ordering};

use fgpu_wire::ledger::{self, Ledger};
use fgpu_wire::limits::{self, Page};
use fgpu_wire::{LEDGER_PATH, LIMITS_PATH};

use crate::message::Refusal;
use crate::sys::{self, File};

static LIMITS: AtomicPtr<Page> = AtomicPtr::new(core::ptr::null_mut());
static VIEW: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());

/// The limits, mapped once per process and shared with its children.
pub fn limits() -> Result<&'static Page, Refusal> {
    if let Some(page) = known(&LIMITS) {
        return Ok(page);
    }
    let at = map_whole(LIMITS_PATH, limits::SIZE).ok_or(Refusal::Limits)?;
    // SAFETY: mapped for good unless unmapped below, a whole page, and every bit pattern is a `Page`.
    let page: &'static Page = unsafe { at.cast().as_ref() };
    if !page.is_valid() {
        // SAFETY: nothing but `page` refers to it, and that is not used again.
        unsafe { sys::unmap(at, limits::SIZE) };
        return Err(Refusal::Limits);
    }
    Ok(publish(&LIMITS, at, limits::SIZE))
}

/// The ledger for looking only: nobody's slot, not writable.
pub fn ledger_view() -> Result<&'static Ledger, Refusal> {
    if let Some(ledger) = known(&VIEW) {
        return Ok(ledger);
    }
    let limits = limits()?;
    let at = map_whole(LEDGER_PATH, ledger::SIZE).ok_or(Refusal::Ledger)?;
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

/// Maps a file for reading, if it is as long as it should be: a shorter one would be a SIGBUS later.
fn map_whole(path: &str, size: usize) -> Option<NonNull<u8>> {
    let file = File::open(path, false).ok()?;
    if file.size().ok()? < size {
        return None;
    }
    file.map(size, false).ok()
}

fn known<T>(cell: &AtomicPtr<T>) -> Option<&'static T> {
    // SAFETY: what is published stays mapped for good.
    unsafe { cell.load(Ordering::Acquire).as_ref() }
}

/// Makes a mapping the one that everybody uses, or takes it away again if another thread was faster. No lock:
/// a fork at any moment leaves the child with a mapping or without one.
fn publish<T>(cell: &AtomicPtr<T>, at: NonNull<u8>, size: usize) -> &'static T {
    let mine = at.cast::<T>();
    match cell.compare_exchange(core::ptr::null_mut(), mine.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: published now, and so mapped for good.
        Ok(_) => unsafe { mine.as_ref() },
        Err(theirs) => {
            // SAFETY: nobody has seen our mapping.
            unsafe { sys::unmap(at, size) };
            // SAFETY: published by another thread, and so mapped for good.
            unsafe { &*theirs }
        }
    }
}
