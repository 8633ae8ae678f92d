//! The lanes of a process: one for each context in which something was launched.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use fgpu_wire::MAX_GPUS;
use fgpu_wire::ledger::Compute;
use fgpu_wire::turns::Turn;

use super::{Grant, Host, Lane};
use crate::mutex::Mutex;
use crate::process::Process;
use crate::turns;

/// Contexts of one process that are limited by themselves.
const LANES: usize = 64;
/// Instead of a context's address: the lane cannot be used again.
const LOST: usize = 1;
/// Of a place's word: it was sought, and there is none.
const NONE: u32 = u32::MAX;

/// What the limiter knows in this process. All zeros is the beginning; it is not there in a forked child.
#[repr(C)]
pub struct Lanes {
    opening: Mutex,
    /// By the GPU's number in the grant, the place in the turns file plus 1; 0: not sought yet.
    places: [AtomicU32; MAX_GPUS],
    used: AtomicU32,
    lanes: [Of; LANES],
}

#[repr(C)]
struct Of {
    context: AtomicUsize,
    gpu: AtomicU32,
    lane: Lane,
}

impl Lanes {
    /// The lane of a context, and the number of its GPU in the grant.
    #[inline]
    pub fn find(&self, context: usize) -> Option<(&Lane, usize)> {
        let used = (self.used.load(Ordering::Acquire) as usize).min(LANES);
        let of = self.lanes[..used].iter().find(|of| of.context.load(Ordering::Acquire) == context)?;
        Some((&of.lane, of.gpu.load(Ordering::Relaxed) as usize))
    }

    /// Likewise, and opens one for a context on GPU number `gpu` if there is none. `None`: no more can be had.
    #[cold]
    pub fn open(&self, context: usize, gpu: usize) -> Option<(&Lane, usize)> {
        let _opening = self.opening.lock();
        if let Some(found) = self.find(context) {
            return Some(found);
        }
        // One whose context has ended is as good as new.
        let index = self.lanes.iter().position(|of| of.context.load(Ordering::Acquire) == 0)?;
        let of = &self.lanes[index];
        of.gpu.store(gpu as u32, Ordering::Relaxed);
        of.context.store(context, Ordering::Release);
        self.used.fetch_max(index as u32 + 1, Ordering::AcqRel);
        Some((&of.lane, gpu))
    }

    /// A context has ended.
    pub fn close(&self, process: &Process, context: usize, host: &impl Host) {
        let Some((lane, gpu)) = self.find(context) else { return };
        let is_closed = self.grant(process, gpu).is_some_and(|grant| lane.close(host.now(), &grant, host));
        if let Some(of) = self.lanes.iter().find(|of| of.context.load(Ordering::Acquire) == context) {
            of.context.store(if is_closed { 0 } else { LOST }, Ordering::Release);
        }
    }

    /// What the container may use of a GPU.
    #[inline]
    pub fn grant(&self, process: &Process, gpu: usize) -> Option<Grant<'static>> {
        let account = process.compute(gpu)?;
        let (part, turn) = (process.part(gpu), self.turn(process, gpu, account));
        Some(Grant { page: process.limits(), gpu, account, part, turn })
    }

    #[inline]
    fn turn(&self, process: &Process, gpu: usize, account: &'static Compute) -> Option<Turn<'static>> {
        let place = match self.places.get(gpu)?.load(Ordering::Acquire) {
            0 => self.join(process, gpu)?,
            NONE => return None,
            place => place as usize - 1,
        };
        Some(Turn::new(place, account.own(), &turns::Shared))
    }

    #[cold]
    fn join(&self, process: &Process, gpu: usize) -> Option<usize> {
        let _opening = self.opening.lock();
        if self.places[gpu].load(Ordering::Acquire) != 0 {
            return None;
        }
        let limits = process.limits();
        let place = limits.read(gpu).and_then(|limit| turns::join(limit.minor, &limits.nonce()));
        self.places[gpu].store(place.map_or(NONE, |place| place as u32 + 1), Ordering::Release);
        place
    }
}
