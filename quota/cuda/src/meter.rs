//! Memory that the driver itself keeps count of.
//!
//! Memory pools and the memory of graphs grow and shrink inside the driver: an allocation may use what an
//! earlier one left, and a free gives nothing back before some later synchronisation. The driver says how
//! much it holds for this process (`CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT`,
//! `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`), and that counts. Before a call that may make it grow, the most
//! that it can grow by is reserved. After the call the driver's number is booked ([`settle`]), and the rest
//! is given back.
//!
//! No lock is held while the driver is asked. Each reading has a number, so of two threads that settle at
//! once, the one that was overtaken reads again.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use fgpu_quota_core::allocations::{Entry, Kind};
use fgpu_quota_core::process::Process;

use crate::driver::{Device, GRAPHS_RESERVED, POOL_RESERVED, Pool, SUCCESS};
use crate::real;

/// One meter: [`Kind::Pool`] and the pool, or [`Kind::Graphs`] and the CUDA ordinal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Meter {
    kind: Kind,
    key: u64,
}

/// The GPU of a pool in the host's memory: none.
const NOWHERE: u32 = u32::MAX;
/// The most meters of a process that are settled in one call.
const MANY: usize = 64;

impl Meter {
    pub(crate) fn of_pool(pool: Pool) -> Self {
        Self { kind: Kind::Pool, key: pool as u64 }
    }

    pub(crate) fn of_graphs(device: Device) -> Self {
        Self { kind: Kind::Graphs, key: device as u64 }
    }

    /// The driver's number, bytes.
    fn read(self) -> Option<u64> {
        let mut bytes = 0u64;
        let out = (&raw mut bytes).cast();
        // SAFETY: the handle is one that the application used a moment ago; a 64-bit number is written.
        let result = unsafe {
            match self.kind {
                Kind::Pool => real::cuMemPoolGetAttribute(self.key as Pool, POOL_RESERVED, out),
                _ => real::cuDeviceGetGraphMemAttribute(self.key as c_int, GRAPHS_RESERVED, out),
            }
        };
        (result == SUCCESS).then_some(bytes)
    }

    /// Gives what is not in use back to the driver.
    fn trim(self, process: &Process) {
        // SAFETY: as in `read`; what is in use stays.
        unsafe {
            match self.kind {
                Kind::Pool => real::cuMemPoolTrimTo(self.key as Pool, 0),
                _ => {
                    process.trims.fetch_add(1, Ordering::Relaxed);
                    real::cuDeviceGraphMemTrim(self.key as c_int)
                }
            }
        };
    }
}

/// Begins to count a meter. `false`: the driver cannot read it, or it is not on a GPU.
pub(crate) fn open(process: &Process, meter: Meter, gpu: usize) -> bool {
    let known = process.allocations.lock().get_mut(meter.kind, meter.key).map(|entry| entry.gpu);
    if let Some(known) = known {
        return known != NOWHERE;
    }
    if meter.read().is_none() {
        return false;
    }
    insert(process, meter, gpu as u32)
}

/// Notes that a pool is not on a GPU.
pub(crate) fn on_host(process: &Process, pool: Pool) {
    insert(process, Meter::of_pool(pool), NOWHERE);
}

/// Whether a pool is known not to be on a GPU.
pub(crate) fn is_on_host(process: &Process, pool: Pool) -> bool {
    let meter = Meter::of_pool(pool);
    process.allocations.lock().get_mut(meter.kind, meter.key).is_some_and(|entry| entry.gpu == NOWHERE)
}

fn insert(process: &Process, meter: Meter, gpu: u32) -> bool {
    let mut table = process.allocations.lock();
    if table.get_mut(meter.kind, meter.key).is_some() {
        return true;
    }
    let done = table.insert(Entry { key: meter.key, kind: meter.kind, gpu, ..Entry::default() });
    if done {
        process.meters.fetch_add(1, Ordering::Relaxed);
    }
    done
}

/// Forgets a meter. Returns what was booked for it, which is still in the ledger.
pub(crate) fn close(process: &Process, meter: Meter) -> Option<Entry> {
    let entry = process.allocations.lock().remove(meter.kind, meter.key)?;
    process.meters.fetch_sub(1, Ordering::Relaxed);
    Some(entry)
}

/// Books the driver's number. `spare` was reserved for a call that is over; it is used up or given back.
/// `false`: the driver took more than was reserved, and that exceeds the limit; it counts nevertheless.
pub(crate) fn settle(process: &Process, meter: Meter, gpu: usize, spare: u64) -> bool {
    process.renew();
    let booked = || process.allocations.lock().get_mut(meter.kind, meter.key).copied();
    // This ends: a thread is overtaken only by one that is done.
    while let Some(before) = booked().filter(|entry| entry.gpu != NOWHERE) {
        let Some(now) = meter.read() else { break };
        let held = before.bytes.saturating_add(spare);
        // Reserved before it is booked: another thread's call may have taken it, and that thread gives its
        // reservation back as soon as it finds the memory booked.
        let missing = now.saturating_sub(held);
        let within = missing == 0 || process.reserve_between(gpu, missing, missing).is_some();
        if !within {
            process.force(gpu, missing);
        }
        let booked = {
            let mut table = process.allocations.lock();
            let entry = table.get_mut(meter.kind, meter.key).filter(|entry| entry.link == before.link);
            entry.map(|entry| {
                entry.link = entry.link.wrapping_add(1);
                entry.bytes = now;
            })
        };
        if booked.is_none() {
            process.release(gpu, missing);
            continue;
        }
        process.release(gpu, held.saturating_sub(now));
        return within;
    }
    process.release(gpu, spare);
    true
}

/// All meters of this process, [`MANY`] at most.
fn all(process: &Process) -> ([Option<(Meter, usize)>; MANY], usize) {
    let mut found = [None; MANY];
    let mut count = 0;
    let table = process.allocations.lock();
    for kind in [Kind::Pool, Kind::Graphs] {
        table.for_each(kind, |entry| {
            if let Some(place) = found.get_mut(count).filter(|_| entry.gpu != NOWHERE) {
                *place = Some((Meter { kind, key: entry.key }, entry.gpu as usize));
                count += 1;
            }
        });
    }
    (found, count)
}

/// Settles every meter: the driver may have given memory back since.
#[cold]
fn settle_each(process: &Process) {
    for (meter, gpu) in all(process).0.into_iter().flatten() {
        settle(process, meter, gpu, 0);
    }
}

/// Settles every meter of a process that has any.
#[inline]
pub(crate) fn settle_all(process: &Process) {
    if process.meters.load(Ordering::Relaxed) != 0 {
        settle_each(process);
    }
}

/// Memory is short: makes the driver give back what this process's pools and graphs do not use. `false` if
/// there are none.
#[cold]
pub(crate) fn give_up_spare(process: &Process, gpu: usize) -> bool {
    if process.meters.load(Ordering::Relaxed) == 0 {
        return false;
    }
    for (meter, place) in all(process).0.into_iter().flatten() {
        if place == gpu {
            meter.trim(process);
            settle(process, meter, gpu, 0);
        }
    }
    true
}
