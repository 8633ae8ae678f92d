//! What a call takes that does not say so: the difference that it makes.
//!
//! Free memory is asked for before and after (`cuMemGetInfo`), with no lock held, and what this container booked
//! meanwhile is taken off. The GPU is shared, so a neighbour may have allocated or freed in between. Hence: before
//! the call the GPU must be seen at rest, by two answers that agree, or else the difference says nothing beyond
//! one piece of memory; where it is known how much a call can take at most, no more is counted; and a load that
//! seems to take very much is done twice. What is counted wrongly all the same is given back with the code's end.

use fgpu_quota_core::process::Process;

use crate::driver::{Result, SUCCESS};
use crate::{place, real};

/// The pieces in which the driver takes memory for code.
pub(crate) const PIECE: u64 = 2 << 20;
/// Looks at a GPU that does not rest.
const LOOKS: u32 = 4;

/// How much is in use on the current context's GPU, but for what this container booked.
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

/// A sample of a GPU at rest, or the last of several and `false`.
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

/// Calls, and gives how many bytes that took on the current context's GPU; 0 where it cannot be told.
pub(crate) fn around(call: impl FnOnce() -> Result) -> (Result, u64) {
    let before = at_rest();
    let result = call();
    let Some((before, rested)) = before.filter(|_| result == SUCCESS) else { return (result, 0) };
    let Some(after) = sample().filter(|after| after.gpu == before.gpu) else { return (result, 0) };
    let taken = u64::try_from(after.in_use - before.in_use).unwrap_or(0);
    (result, if rested { taken } else { taken.min(PIECE) })
}

/// Calls, and gives how many bytes that gave back.
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
