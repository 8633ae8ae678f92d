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
mod tests {
    use std::boxed::Box;
    use std::cell::Cell;

    use fgpu_wire::ledger::{self, CREDIT, Kernel, Ledger, Span};
    use fgpu_wire::limits::{self, Page};
    use fgpu_wire::turns::{Board, PLACES, Stake, Statement, Turn};

    struct Random(Cell<u64>);

    impl Random {
        /// Mostly words with a meaning: zero, all ones, a small number, a time; sometimes any word.
        fn word(&self) -> u64 {
            let mut word = self.0.get();
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            self.0.set(word);
            match word >> 60 {
                0..4 => 0,
                4..7 => u64::MAX,
                7..10 => word & 0xff,
                10..13 => word & 0xff_ffff_ffff,
                _ => word.rotate_left(29),
            }
        }

        /// A file's content, as what it is mapped as.
        fn fill<T>(&self, size: usize) -> Box<T> {
            assert_eq!((size, align_of::<T>()), (size_of::<T>(), 8));
            let words: Box<[u64]> = (0..size / 8).map(|_| self.word()).collect();
            // SAFETY: of this size and alignment; made of atomics, for which every content is a value.
            unsafe { Box::from_raw(Box::into_raw(words).cast()) }
        }
    }

    impl Kernel for Random {
        /// Every process is dead; else the test would wait for a lock that a random word names.
        fn locked(&self, _: usize) -> Option<bool> {
            Some(false)
        }

        fn namespace(&self) -> u64 {
            self.word()
        }

        fn gone(&self, _: u32) -> bool {
            self.word() & 1 == 0
        }

        fn pause(&self, _: u32) {}
    }

    impl Board for Random {
        fn exchange(&self, _: u64, _: usize, _: &Statement, places: &mut [Statement; PLACES]) {
            for said in places {
                let [virtual_time, wants, busy, stake] = std::array::from_fn(|_| self.word());
                *said = Statement { virtual_time, wants, busy, stake };
            }
        }

        fn publish(&self, _: usize, _: &Statement) {}
    }

    #[test]
    fn no_content_of_the_files_kills_a_process() {
        let random = Random(Cell::new(0x9E37_79B9_7F4A_7C15));
        for round in 0..130 {
            let ledger: Box<Ledger> = random.fill(ledger::SIZE);
            let page: Box<Page> = random.fill(limits::SIZE);
            let gpu = round % 65;
            let (memory, (_, ppm), now) = (page.memory(gpu), page.compute(gpu), random.word() >> 1);
            let _ = (page.is_valid(), page.read(gpu), page.find(&page.nonce()), page.context(gpu));
            let owner = ledger.register(random.word() as usize % 1025, 7, &random);
            let Some(owner) = owner else { continue };
            for _ in 0..20 {
                let (least, most) = crate::size::of(random.word());
                if let Some(bytes) = ledger.reserve(owner, gpu, least, most, memory, &random) {
                    assert!(bytes >= least);
                }
                ledger.release(owner, gpu, random.word(), &random);
                ledger.for_each_living(&random, |process| {
                    let _ = ledger.busy(process.slot, gpu).map(|busy| busy.ppm(now));
                });
            }
            let _ =
                (ledger.reap(owner, &random), ledger.is_registered(owner), ledger.is_valid(&page.nonce()));
            let Some(account) = ledger.compute(gpu) else { continue };
            let span = Span { from: now, length: random.word(), before: random.word() };
            account.charge(span, ppm, CREDIT, random.word(), random.word());
            account.prepay(now, random.word(), ppm, CREDIT);
            account.refund(random.word(), ppm);
            account.report(random.word(), random.word());
            assert!(account.busy(now) <= 1_000_000);
            account.owed(now, ppm);
            let turn = Turn::new(random.word() as usize % 64, account.own(), &random);
            for _ in 0..20 {
                let number = random.word() as u32;
                let stake = if number & 1 == 0 { Stake::Booked(ppm) } else { Stake::Unbooked(number) };
                turn.ask(now, stake, random.word());
                turn.advance(random.word(), stake);
                turn.busy(now + 1000);
                turn.done(now, random.word());
                turn.leave(now);
            }
        }
    }
}
