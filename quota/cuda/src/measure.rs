//! The memory that a call takes without saying so: the difference that it makes.
//!
//! Free memory is read before and after the call (`cuMemGetInfo`), with no lock held, and what this container
//! booked meanwhile is subtracted. The GPU is shared, so a neighbour may allocate or free in between.
//! Therefore:
//!
//! - before the call the GPU must be at rest, which two equal answers show; else at most one piece of memory
//!   counts;
//! - if the most that a call can take is known, no more counts;
//! - a load that seems to take very much is done twice.
//!
//! A wrong amount is given back when the code is unloaded.

use fgpu_quota_core::process::Process;

use crate::driver::{Result, SUCCESS};
use crate::{place, real};

/// The pieces in which the driver takes memory for code.
pub(crate) const PIECE: u64 = 2 << 20;
/// How often a GPU that is not at rest is looked at.
const LOOKS: u32 = 4;

/// Memory in use on the current context's GPU, without what this container booked.
#[derive(Clone, Copy)]
struct Sample {
    process: &'static Process,
    gpu: usize,
    in_use: i64,
}

fn sample() -> Option<Sample> {
    let process = Process::registered()?;
    let gpu = place::of_context(process).ok()?;
    let (mut free, mut total) = (0usize, 0usize);
    // SAFETY: the driver writes both.
    let result = unsafe { real::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
    let in_use = total.saturating_sub(free) as i64 - process.total(gpu) as i64;
    (result == SUCCESS).then_some(Sample { process, gpu, in_use })
}

/// A sample, and whether the GPU is at rest.
fn at_rest() -> Option<(Sample, bool)> {
    let mut last = sample()?;
    for _ in 0..LOOKS {
        let next = sample()?;
        if next.in_use == last.in_use {
            return Some((next, true));
        }
        last = next;
    }
    Some((last, false))
}

/// Calls, and returns how many bytes that took on the current context's GPU; 0 if unknown.
pub(crate) fn around(call: impl FnOnce() -> Result) -> (Result, u64) {
    let before = at_rest();
    let result = call();
    let Some((before, rested)) = before.filter(|_| result == SUCCESS) else { return (result, 0) };
    let Some(after) = sample().filter(|after| after.gpu == before.gpu) else { return (result, 0) };
    let taken = u64::try_from(after.in_use - before.in_use).unwrap_or(0);
    (result, if rested { taken } else { taken.min(PIECE) })
}

/// Calls, and returns how many bytes that gave back.
pub(crate) fn given_back(call: impl FnOnce() -> Result) -> (Result, u64) {
    let before = at_rest();
    let result = call();
    let Some((before, true)) = before.filter(|_| result == SUCCESS) else { return (result, 0) };
    let Some(after) = sample().filter(|after| after.gpu == before.gpu) else { return (result, 0) };
    (result, u64::try_from(before.in_use - after.in_use).unwrap_or(0))
}

/// The GPU of the current context, and this process.
pub(crate) fn here() -> Option<(&'static Process, usize)> {
    sample().map(|sample| (sample.process, sample.gpu))
}
