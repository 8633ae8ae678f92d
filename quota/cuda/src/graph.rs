//! Graphs that allocate.
//!
//! An allocation node, added or captured, has an address and no memory. The driver allocates when the graph
//! is instantiated, uploaded or launched, shares the memory among the nodes and graphs of a device, and keeps
//! it until a trim. So the memory counts by the driver's [meter](crate::meter). A graph needs at most the sum
//! of its allocation nodes. The driver lists them when the graph is instantiated, so it does not matter how
//! the nodes came into it.
//!
//! A launch reserves memory if the graph has not had its memory since the last trim. Every other launch, and
//! every launch of a graph without such nodes, costs nothing.

mod needs;

use core::ffi::c_int;
use core::ptr::null;
use core::sync::atomic::Ordering;

use fgpu_quota_core::allocations::{Entry, Kind};
use fgpu_quota_core::process::Process;
use fgpu_wire::MAX_GPUS;

use self::needs::Needs;
use crate::driver::{
    ALLOC_NODE, AllocNode, DefaultStream, Device, GRAPHS_RESERVED, GRAPHS_USED, NodeParameters,
    OUT_OF_MEMORY, Object, Result, SUCCESS, Stream,
};
use crate::measure::PIECE;
use crate::meter::{self, Meter};
use crate::reserve::{self, Placed};
use crate::{code, compute, place, pool, real};

/// In an executable's `link`: it has not had its memory yet.
const WITHOUT_MEMORY: u64 = u64::MAX;

/// An attribute of what the driver keeps for the graphs of a device.
fn attribute(device: Device, which: c_int) -> u64 {
    let mut bytes = 0u64;
    let out = (&raw mut bytes).cast();
    // SAFETY: a 64-bit number is written.
    if unsafe { real::cuDeviceGetGraphMemAttribute(device, which, out) } == SUCCESS { bytes } else { 0 }
}

/// Reserves `needs`, calls the driver, and settles what it took.
fn with_room(needs: &Needs, call: impl FnOnce() -> Result, undo: impl FnOnce()) -> Result {
    let process = match reserve::account() {
        Ok(process) => process,
        Err(error) => return error,
    };
    // By ordinal: the GPU's number in the grant plus 1, and the bytes reserved there.
    let mut reserved = [(0usize, 0u64); MAX_GPUS];
    let mut refused = None;
    for ((device, &need), reserved) in needs.iter().enumerate().zip(&mut reserved) {
        if need == 0 {
            continue;
        }
        match reserve_for(process, device as Device, need) {
            Ok((gpu, bytes)) => *reserved = (gpu + 1, bytes),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let result = refused.unwrap_or_else(call);
    let mut within = true;
    for (device, &(gpu, bytes)) in reserved.iter().enumerate() {
        let Some(gpu) = gpu.checked_sub(1) else { continue };
        let meter = Meter::of_graphs(device as Device);
        if meter::open(process, meter, gpu) {
            within &= meter::settle(process, meter, gpu, bytes);
        } else {
            process.release(gpu, bytes);
        }
    }
    if result == SUCCESS && !within {
        undo();
        return OUT_OF_MEMORY;
    }
    result
}

/// Reserves what the driver may have to add on a device. Returns the GPU's number in the grant, and the
/// bytes.
fn reserve_for(process: &Process, device: Device, need: u64) -> Placed<(usize, u64)> {
    let gpu = place::of_device(process, device)?;
    let more = || {
        let unused = attribute(device, GRAPHS_RESERVED).saturating_sub(attribute(device, GRAPHS_USED));
        need.saturating_sub(unused)
    };
    let try_it = || match more() {
        0 => Some(0),
        bytes => process.reserve(gpu, bytes),
    };
    let retry = || if meter::give_up_spare(process, gpu) { try_it() } else { None };
    try_it().or_else(retry).map(|bytes| (gpu, bytes)).ok_or(OUT_OF_MEMORY)
}

/// The key of what an executable graph needs on a device. The highest byte of an address is free.
fn key(executable: Object, device: usize) -> u64 {
    executable as u64 ^ (device as u64) << 56
}

/// Makes an executable graph.
///
/// # Safety
/// If `call` succeeds, it has written `executable`.
pub(crate) unsafe fn instantiate(
    executable: *mut Object,
    graph: Object,
    call: impl FnOnce() -> Result,
) -> Result {
    let needs = needs::of(graph);
    if executable.is_null() || needs.iter().all(|&need| need == 0) {
        // The code of its kernels may be loaded now.
        return code::late(|| PIECE, call);
    }
    // SAFETY: the caller's promise; the application has not seen it.
    let result = with_room(&needs, call, || unsafe {
        real::cuGraphExecDestroy(*executable);
    });
    if result == SUCCESS
        && let Some(process) = Process::registered()
    {
        // SAFETY: the caller's promise.
        let executable = unsafe { *executable };
        let mut table = process.allocations.lock();
        for (device, &bytes) in needs.iter().enumerate().filter(|&(_, &need)| need != 0) {
            let key = key(executable, device);
            let entry =
                Entry { key, kind: Kind::Executable, bytes, link: WITHOUT_MEMORY, ..Entry::default() };
            if table.insert(entry) {
                process.executables.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    result
}

/// A launch or an upload.
pub(crate) fn run(executable: Object, call: impl FnOnce() -> Result) -> Result {
    match Process::registered() {
        Some(process) if process.executables.load(Ordering::Relaxed) != 0 => {
            run_counted(process, executable, call)
        }
        _ => call(),
    }
}

#[cold]
fn run_counted(process: &Process, executable: Object, call: impl FnOnce() -> Result) -> Result {
    let trims = || process.trims.load(Ordering::Relaxed);
    let mut needs = [0; MAX_GPUS];
    let mut without = false;
    {
        let mut table = process.allocations.lock();
        for (device, need) in needs.iter_mut().enumerate() {
            if let Some(entry) = table.get_mut(Kind::Executable, key(executable, device)) {
                without |= entry.link != trims();
                *need = entry.bytes;
            }
        }
    }
    if !without {
        return call();
    }
    // A launch cannot be undone; if it took more than the graph needs, that counts.
    let result = with_room(&needs, call, || ());
    if result == SUCCESS {
        let mut table = process.allocations.lock();
        for device in 0..MAX_GPUS {
            if let Some(entry) = table.get_mut(Kind::Executable, key(executable, device)) {
                entry.link = trims();
            }
        }
    }
    result
}

/// A launch of a graph.
#[inline]
pub(crate) fn launch(
    executable: Object,
    stream: Stream,
    default: DefaultStream,
    call: impl FnOnce() -> Result,
) -> Result {
    compute::launch(compute::stream(stream, default), || run(executable, call))
}

/// The end of an executable graph.
pub(crate) fn destroy(executable: Object, call: impl FnOnce() -> Result) -> Result {
    let process = Process::registered().filter(|process| process.executables.load(Ordering::Relaxed) != 0);
    let Some(process) = process else { return call() };
    // Forgotten first: another thread may be given the same handle.
    for device in 0..MAX_GPUS {
        if process.allocations.lock().remove(Kind::Executable, key(executable, device)).is_some() {
            process.executables.fetch_sub(1, Ordering::Relaxed);
        }
    }
    pool::settle_after(call)
}

/// The driver gives back what the graphs of a device do not use.
pub(crate) fn trim(call: impl FnOnce() -> Result) -> Result {
    if let Some(process) = Process::registered() {
        process.trims.fetch_add(1, Ordering::Relaxed);
    }
    pool::settle_after(call)
}

/// Refuses an allocation node that can never have its memory.
fn check(alloc: &AllocNode) -> Placed<()> {
    let Some(device) = alloc.pool.location.device() else { return Ok(()) };
    let process = reserve::account()?;
    let gpu = place::of_device(process, device)?;
    if alloc.bytes as u64 > process.limits().memory(gpu) { Err(OUT_OF_MEMORY) } else { Ok(()) }
}

/// Adds an allocation node.
///
/// # Safety
/// `alloc` is null or valid.
pub(crate) unsafe fn add_alloc_node(alloc: *const AllocNode, call: impl FnOnce() -> Result) -> Result {
    // SAFETY: the caller's promise.
    match unsafe { alloc.as_ref() }.map(check) {
        Some(Err(error)) => error,
        _ => call(),
    }
}

/// Adds a node of any kind.
///
/// # Safety
/// `parameters` is null or valid as far as its kind says.
pub(crate) unsafe fn add_node(parameters: *const NodeParameters, call: impl FnOnce() -> Result) -> Result {
    // SAFETY: the caller's promise.
    let alloc = unsafe { parameters.as_ref() }.filter(|node| node.kind == ALLOC_NODE).map(|node| &node.alloc);
    // SAFETY: null or a reference.
    unsafe { add_alloc_node(alloc.map_or(null(), core::ptr::from_ref), call) }
}
