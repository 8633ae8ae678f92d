//! Graphs that allocate.
//!
//! An allocation node, added or captured, has an address and no memory. The driver finds the memory when the graph
//! is instantiated, uploaded or launched, shares it among the nodes and graphs of a device, and keeps it until it is
//! told to trim. So the memory counts by the driver's [meter](crate::meter). What must be known before is how much
//! a graph may need, which is the sum of its allocation nodes: it is asked of the driver when the graph is
//! instantiated, so it does not matter how the nodes came into it.
//!
//! A launch asks for memory when the graph has not been seen to have it since the last trim; every other launch, and
//! every launch of a graph without such nodes, costs nothing.

mod needs;

use core::ffi::{c_char, c_int, c_ulonglong, c_void};
use core::sync::atomic::Ordering;

use fgpu_quota_core::allocations::{Entry, Kind};
use fgpu_quota_core::process::Process;
use fgpu_wire::MAX_GPUS;

use self::needs::Needs;
use crate::driver::{
    ALLOC_NODE, AllocNode, Device, GRAPHS_RESERVED, GRAPHS_USED, NodeParameters, OUT_OF_MEMORY, Object,
    Result, SUCCESS, Stream,
};
use crate::measure::PIECE;
use crate::meter::{self, Meter};
use crate::reserve::{self, Placed};
use crate::wrapped::real;
use crate::{code, compute, place, pool};

/// Of an executable's `link`: it was not seen to have its memory yet.
const WITHOUT_MEMORY: u64 = u64::MAX;

/// An attribute of what the driver keeps for the graphs of a device.
fn attribute(device: Device, which: c_int) -> u64 {
    let mut bytes = 0u64;
    let out = (&raw mut bytes).cast();
    // SAFETY: a 64-bit number is written.
    if unsafe { real::cuDeviceGetGraphMemAttribute(device, which, out) } == SUCCESS { bytes } else { 0 }
}

/// Calls the driver with room for `needs` reserved, and settles what it took.
fn with_room(needs: &Needs, call: impl FnOnce() -> Result, undo: impl FnOnce()) -> Result {
    let process = match reserve::account() {
        Ok(process) => process,
        Err(error) => return error,
    };
    // By ordinal, the GPU's number in the grant plus 1, and what was reserved there.
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

/// Reserves what the driver may have to add on a device: gives the GPU's number in the grant, and the bytes.
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

/// The key of what an executable graph needs on a device: addresses leave the highest byte alone.
fn key(executable: Object, device: usize) -> u64 {
    executable as u64 ^ (device as u64) << 56
}

/// # Safety
/// If `call` succeeds, it has written `executable`.
unsafe fn instantiate(executable: *mut Object, graph: Object, call: impl FnOnce() -> Result) -> Result {
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
fn run(executable: Object, call: impl FnOnce() -> Result) -> Result {
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
    // What was launched cannot be taken back; if it took more than it needs, that counts.
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

/// # Safety
/// As `cuGraphInstantiate`.
pub(crate) unsafe fn instantiate_v1(
    executable: *mut Object,
    graph: Object,
    node: *mut Object,
    log: *mut c_char,
    length: usize,
) -> Result {
    // SAFETY: the driver writes the executable if it succeeds.
    unsafe {
        instantiate(executable, graph, || real::cuGraphInstantiate(executable, graph, node, log, length))
    }
}

/// # Safety
/// As `cuGraphInstantiate_v2`.
pub(crate) unsafe fn instantiate_v2(
    executable: *mut Object,
    graph: Object,
    node: *mut Object,
    log: *mut c_char,
    length: usize,
) -> Result {
    // SAFETY: the driver writes the executable if it succeeds.
    unsafe {
        instantiate(executable, graph, || real::cuGraphInstantiate_v2(executable, graph, node, log, length))
    }
}

/// # Safety
/// As `cuGraphInstantiateWithFlags`.
pub(crate) unsafe fn instantiate_flags(executable: *mut Object, graph: Object, flags: c_ulonglong) -> Result {
    // SAFETY: the driver writes the executable if it succeeds.
    unsafe { instantiate(executable, graph, || real::cuGraphInstantiateWithFlags(executable, graph, flags)) }
}

/// # Safety
/// As `cuGraphInstantiateWithParams`.
pub(crate) unsafe fn instantiate_parameters(
    executable: *mut Object,
    graph: Object,
    parameters: *mut c_void,
) -> Result {
    // SAFETY: the driver writes the executable if it succeeds.
    unsafe {
        instantiate(executable, graph, || real::cuGraphInstantiateWithParams(executable, graph, parameters))
    }
}

/// # Safety
/// As `cuGraphInstantiateWithParams_ptsz`.
pub(crate) unsafe fn instantiate_parameters_ptsz(
    executable: *mut Object,
    graph: Object,
    parameters: *mut c_void,
) -> Result {
    // SAFETY: the driver writes the executable if it succeeds.
    unsafe {
        instantiate(executable, graph, || {
            real::cuGraphInstantiateWithParams_ptsz(executable, graph, parameters)
        })
    }
}

/// # Safety
/// As `cuGraphUpload`.
pub(crate) unsafe fn upload(executable: Object, stream: Stream) -> Result {
    // SAFETY: the caller's promise.
    run(executable, || unsafe { real::cuGraphUpload(executable, stream) })
}

/// # Safety
/// As `cuGraphUpload_ptsz`.
pub(crate) unsafe fn upload_ptsz(executable: Object, stream: Stream) -> Result {
    // SAFETY: the caller's promise.
    run(executable, || unsafe { real::cuGraphUpload_ptsz(executable, stream) })
}

/// # Safety
/// As `cuGraphLaunch`.
pub(crate) unsafe fn launch(executable: Object, stream: Stream) -> Result {
    // SAFETY: the caller's promise.
    let call = || run(executable, || unsafe { real::cuGraphLaunch(executable, stream) });
    compute::launch(compute::stream(stream, false), call)
}

/// # Safety
/// As `cuGraphLaunch_ptsz`.
pub(crate) unsafe fn launch_ptsz(executable: Object, stream: Stream) -> Result {
    // SAFETY: the caller's promise.
    let call = || run(executable, || unsafe { real::cuGraphLaunch_ptsz(executable, stream) });
    compute::launch(compute::stream(stream, true), call)
}

/// # Safety
/// As `cuGraphExecDestroy`.
pub(crate) unsafe fn destroy(executable: Object) -> Result {
    let process = Process::registered().filter(|process| process.executables.load(Ordering::Relaxed) != 0);
    // SAFETY: the caller's promise.
    let call = || unsafe { real::cuGraphExecDestroy(executable) };
    let Some(process) = process else { return call() };
    // Forgotten first: another thread may be given the same handle.
    for device in 0..MAX_GPUS {
        if process.allocations.lock().remove(Kind::Executable, key(executable, device)).is_some() {
            process.executables.fetch_sub(1, Ordering::Relaxed);
        }
    }
    pool::settled(call())
}

/// # Safety
/// As `cuDeviceGraphMemTrim`.
pub(crate) unsafe fn trim(device: Device) -> Result {
    if let Some(process) = Process::registered() {
        process.trims.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the caller's promise.
    pool::settled(unsafe { real::cuDeviceGraphMemTrim(device) })
}

/// Whether an allocation node can ever have its memory: if not, it need not be made.
fn can_be(alloc: &AllocNode) -> Placed<()> {
    let Some(device) = alloc.pool.location.device() else { return Ok(()) };
    let process = reserve::account()?;
    let gpu = place::of_device(process, device)?;
    if alloc.bytes as u64 > process.limits().memory(gpu) { Err(OUT_OF_MEMORY) } else { Ok(()) }
}

/// # Safety
/// As `cuGraphAddMemAllocNode`.
pub(crate) unsafe fn add_alloc(
    node: *mut Object,
    graph: Object,
    after: *const Object,
    count: usize,
    alloc: *mut AllocNode,
) -> Result {
    // SAFETY: null, or the application's structure.
    if let Some(Err(error)) = unsafe { alloc.as_ref() }.map(can_be) {
        return error;
    }
    // SAFETY: the caller's promise.
    unsafe { real::cuGraphAddMemAllocNode(node, graph, after, count, alloc) }
}

/// # Safety
/// `parameters` is null or as `cuGraphAddNode` has it.
unsafe fn add_any(parameters: *const NodeParameters, call: impl FnOnce() -> Result) -> Result {
    // SAFETY: the caller's promise.
    let alloc = unsafe { parameters.as_ref() }.filter(|node| node.kind == ALLOC_NODE).map(|node| &node.alloc);
    match alloc.map(can_be) {
        Some(Err(error)) => error,
        _ => call(),
    }
}

/// # Safety
/// As `cuGraphAddNode`.
pub(crate) unsafe fn add_node(
    node: *mut Object,
    graph: Object,
    after: *const Object,
    count: usize,
    parameters: *mut NodeParameters,
) -> Result {
    // SAFETY: the caller's promise.
    unsafe { add_any(parameters, || real::cuGraphAddNode(node, graph, after, count, parameters)) }
}

/// # Safety
/// As `cuGraphAddNode_v2`.
pub(crate) unsafe fn add_node_v2(
    node: *mut Object,
    graph: Object,
    after: *const Object,
    edges: *const c_void,
    count: usize,
    parameters: *mut NodeParameters,
) -> Result {
    // SAFETY: the caller's promise.
    unsafe { add_any(parameters, || real::cuGraphAddNode_v2(node, graph, after, edges, count, parameters)) }
}

/// # Safety
/// As `cuGraphAddNode_v3`.
pub(crate) unsafe fn add_node_v3(
    node: *mut Object,
    graph: Object,
    after: *const Object,
    edges: *const c_void,
    count: usize,
    parameters: *mut NodeParameters,
) -> Result {
    // SAFETY: the caller's promise.
    unsafe { add_any(parameters, || real::cuGraphAddNode_v3(node, graph, after, edges, count, parameters)) }
}
