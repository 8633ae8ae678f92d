//! The lanes of a process: one for each context in which something was launched.

use core::iter::successors;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence};

use fgpu_wire::MAX_GPUS;
use fgpu_wire::ledger::Compute;
use fgpu_wire::turns::Turn;

use super::constants::{LANES, PATIENCE};
use super::environment::Host;
use super::lane::Lane;
use super::shared::grant::Grant;
use crate::mutex::Mutex;
use crate::process::{self, Process};
use crate::turns::Seat;

/// In place of a context's address: the lane cannot be used again.
const LOST: usize = 1;

/// What the limiter knows in this process. All zeros is the beginning; it is not there in a forked child.
#[repr(C)]
pub struct Lanes {
    opening: Mutex,
    /// By the GPU's number in the grant.
    seats: [Seat; MAX_GPUS],
    first: Block,
}

/// A block of lanes. A process with more contexts at once has more blocks, and looks through all of them.
#[repr(C)]
struct Block {
    used: AtomicU32,
    slots: [Slot; LANES],
    /// Null: not needed yet.
    next: AtomicPtr<Self>,
}

#[repr(C)]
struct Slot {
    context: AtomicUsize,
    gpu: AtomicU32,
    lane: Lane,
}

impl Block {
    #[inline]
    fn next(&self) -> Option<&Self> {
        // SAFETY: a published mapping stays for good, and zeros are a `Block`.
        unsafe { self.next.load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    fn find(&self, context: usize) -> Option<&Slot> {
        let used = (self.used.load(Ordering::Acquire) as usize).min(LANES);
        self.slots[..used].iter().find(|slot| slot.context.load(Ordering::Acquire) == context)
    }
}

impl Lanes {
    #[inline]
    fn slot(&self, context: usize) -> Option<&Slot> {
        successors(Some(&self.first), |block| block.next()).find_map(|block| block.find(context))
    }

    /// The lane of a context, and the number of its GPU in the grant.
    #[inline]
    pub fn find(&self, context: usize) -> Option<(&Lane, usize)> {
        let slot = self.slot(context)?;
        Some((&slot.lane, slot.gpu.load(Ordering::Relaxed) as usize))
    }

    /// The same, and opens one for a context on GPU number `gpu` if there is none. `None`: the kernel has no
    /// memory for it.
    #[cold]
    pub fn open(&self, context: usize, gpu: usize) -> Option<(&Lane, usize)> {
        let _opening = self.opening.lock();
        if let Some(found) = self.find(context) {
            return Some(found);
        }
        let mut block = &self.first;
        // A lane whose context has ended is as good as new.
        let index = loop {
            match block.slots.iter().position(|slot| slot.context.load(Ordering::Acquire) == 0) {
                Some(index) => break index,
                None if block.next().is_none() => process::make(&block.next),
                None => {}
            }
            block = block.next()?;
        };
        let slot = &block.slots[index];
        slot.gpu.store(gpu as u32, Ordering::Relaxed);
        slot.context.store(context, Ordering::Release);
        block.used.fetch_max(index as u32 + 1, Ordering::AcqRel);
        // From now on `wait_for_holders` finds a holder of it, or the holder sees that a capture is
        // beginning.
        fence(Ordering::SeqCst);
        Some((&slot.lane, gpu))
    }

    /// Before a capture begins: waits until every thread that holds a lane has its answers from the driver.
    /// That takes microseconds, and [`PATIENCE`] at most. Before the call the caller makes
    /// [`is_capture_beginning`](super::Events::is_capture_beginning) true and passes a sequentially
    /// consistent fence; a thread that holds a lane afterwards sees that.
    pub fn wait_for_holders(&self, host: &impl Host) {
        let until = host.now().saturating_add(PATIENCE);
        for block in successors(Some(&self.first), |block| block.next()) {
            let used = (block.used.load(Ordering::Acquire) as usize).min(LANES);
            block.slots[..used].iter().for_each(|slot| slot.lane.wait_for_holder(until, host));
        }
    }

    /// A context has ended.
    pub fn close(&'static self, process: &Process, context: usize, host: &impl Host) {
        let Some(slot) = self.slot(context) else { return };
        let gpu = slot.gpu.load(Ordering::Relaxed) as usize;
        let is_closed =
            self.grant(process, gpu).is_some_and(|grant| slot.lane.close(host.now(), &grant, host));
        slot.context.store(if is_closed { 0 } else { LOST }, Ordering::Release);
    }

    /// What the container may use of a GPU.
    #[inline]
    pub fn grant(&'static self, process: &Process, gpu: usize) -> Option<Grant<'static>> {
        let account = process.compute(gpu)?;
        let (part, turn) = (process.part(gpu), self.turn(process, gpu, account));
        Some(Grant { page: process.limits(), gpu, account, part, turn })
    }

    #[inline]
    fn turn(
        &'static self,
        process: &Process,
        gpu: usize,
        account: &'static Compute,
    ) -> Option<Turn<'static>> {
        let seat = self.seats.get(gpu)?;
        let place = seat.place().unwrap_or_else(|| self.take(seat, process, gpu))?;
        Some(Turn::new(place, account.own(), seat))
    }

    #[cold]
    fn take(&self, seat: &Seat, process: &Process, gpu: usize) -> Option<usize> {
        let _opening = self.opening.lock();
        if let Some(place) = seat.place() {
            return place;
        }
        let limits = process.limits();
        seat.take(limits.read(gpu)?.minor, &limits.nonce())
    }
}
