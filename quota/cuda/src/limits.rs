//! What a context's limits cost: stacks, the heap of kernels and their printf buffer.

use core::ffi::c_int;

use fgpu_quota_core::allocations::{Entry, Kind};

use crate::driver::{
    Device, HEAP, MULTIPROCESSORS, PRINTF, Result, STACK, SUCCESS, THREADS_PER_MULTIPROCESSOR,
};
use crate::{place, real, reserve};

/// Bytes of local memory on a device for stacks of `stack` bytes.
pub(crate) fn stacks(device: Device, stack: u64) -> u64 {
    let attribute = |which| {
        let mut value: c_int = 0;
        // SAFETY: the driver writes the number.
        let result = unsafe { real::cuDeviceGetAttribute(&raw mut value, which, device) };
        if result == SUCCESS { u64::try_from(value).unwrap_or(0) } else { 0 }
    };
    attribute(MULTIPROCESSORS).saturating_mul(attribute(THREADS_PER_MULTIPROCESSOR)).saturating_mul(stack)
}

/// A limit of the current context.
pub(crate) fn limit(which: c_int) -> Option<u64> {
    let mut value = 0usize;
    // SAFETY: the driver writes the number.
    (unsafe { real::cuCtxGetLimit(&raw mut value, which) } == SUCCESS).then_some(value as u64)
}

/// Sets a limit of the current context.
pub(crate) fn set(which: c_int, value: usize, call: impl FnOnce() -> Result) -> Result {
    if !matches!(which, STACK | PRINTF | HEAP) {
        return call();
    }
    let (Ok(device), Some(before)) = (place::device(), limit(which)) else { return call() };
    let (process, gpu) = match reserve::account_on(device) {
        Ok(account) => account,
        Err(error) => return error,
    };
    let of = |value: u64| if which == STACK { stacks(device, value) } else { value };
    let more = of(value as u64).saturating_sub(of(before));
    let taken = match reserve::exactly(process, gpu, more) {
        Ok(taken) => taken,
        Err(error) => return error,
    };
    let result = call();
    // The driver rounds.
    let now = if result == SUCCESS { limit(which).unwrap_or(value as u64) } else { before };
    let (before, now) = (of(before), of(now));
    let context = place::current();
    let mut table = process.allocations.lock();
    let owner = reserve::root(&mut table, context);
    let mut freed = 0;
    if let Some(entry) = table.get_mut(Kind::Context, owner) {
        freed = before.saturating_sub(now).min(entry.bytes);
        entry.bytes = entry.bytes - freed + now.saturating_sub(before).min(taken);
    } else {
        let bytes = now.saturating_sub(before).min(taken);
        table.insert(Entry { key: owner, kind: Kind::Context, gpu: gpu as u32, bytes, link: 0, owner });
    }
    drop(table);
    process.release(gpu, taken.saturating_sub(now.saturating_sub(before)) + freed);
    result
}
