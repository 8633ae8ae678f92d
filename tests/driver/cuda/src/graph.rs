//! Graphs of kernels, allocations, frees and other graphs, made by hand or captured.
//!
//! An allocation node has an address from the beginning and memory from the first launch or upload of an
//! executable graph. The memory is a device's: what no executable uses any more is kept for the next one,
//! until it is trimmed.

use alloc::collections::btree_map::BTreeMap;
use alloc::collections::btree_set::BTreeSet;
use alloc::vec::Vec;

use sim_node::sm;

use crate::abi::{Address, Answer, Failure, Handle, api, get, put, put_if_asked};
use crate::context::Current;
use crate::driver::{Driver, Objects};
use crate::memory;
use crate::stream;

/// The graphs of the process.
#[derive(Default)]
pub(crate) struct Graphs {
    graphs: BTreeMap<Handle, Vec<Handle>>,
    nodes: BTreeMap<Handle, Node>,
    executables: BTreeMap<Handle, Executable>,
    /// By device ordinal, bytes charged.
    reserved: BTreeMap<i32, u64>,
}

/// `CUmemPoolProps` and the rest of `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Alloc {
    kind: i32,
    handle_types: i32,
    location: [i32; 2],
    rest: [u64; 11],
    size: usize,
    address: Address,
}

const _: () = assert!(size_of::<Alloc>() == 120);

#[derive(Clone, Copy)]
enum Node {
    Kernel { nanoseconds: u64 },
    Child(Handle),
    Alloc(Alloc),
    Free(Address),
    Empty,
}

impl Node {
    /// `CUgraphNodeType`.
    fn kind(&self) -> i32 {
        match self {
            Self::Kernel { .. } => 0,
            Self::Child(_) => 4,
            Self::Empty => 5,
            Self::Alloc(_) => 10,
            Self::Free(_) => 11,
        }
    }
}

struct Executable {
    nanoseconds: u64,
    /// By device ordinal, bytes.
    needs: BTreeMap<i32, u64>,
    has_memory: bool,
    /// All that it allocates it frees itself, so between its runs the memory can be taken away.
    frees_all: bool,
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: i32 = 1;

fn add(objects: &mut Objects, graph: Handle, node: Node) -> Result<Handle, Failure> {
    let handle = objects.new_handle();
    objects.graphs.graphs.get_mut(&graph).ok_or(Failure::INVALID_VALUE)?.push(handle);
    objects.graphs.nodes.insert(handle, node);
    Ok(handle)
}

fn create(objects: &mut Objects) -> Handle {
    let handle = objects.new_handle();
    objects.graphs.graphs.insert(handle, Vec::new());
    handle
}

fn destroy(graph: Handle) -> Answer {
    let mut objects = Driver::get()?.objects();
    let nodes = objects.graphs.graphs.remove(&graph).ok_or(Failure::INVALID_VALUE)?;
    for node in nodes {
        objects.graphs.nodes.remove(&node);
    }
    Ok(())
}

unsafe fn add_alloc(out: *mut Handle, graph: Handle, wanted: *mut Alloc) -> Answer {
    // SAFETY: handed on from the caller.
    let mut alloc = *unsafe { get(wanted) }?;
    if alloc.location[0] != ON_DEVICE || alloc.size == 0 {
        return Err(Failure::INVALID_VALUE);
    }
    let driver = Driver::get()?;
    let (number, gpu) = driver.gpu(alloc.location[1])?;
    let place = Current { driver, handle: 0, ordinal: alloc.location[1], number, gpu };
    let mut objects = driver.objects();
    alloc.address = objects.allocations.map_uncharged(alloc.size, &place)?;
    let node = add(&mut objects, graph, Node::Alloc(alloc))?;
    // SAFETY: handed on from the caller.
    unsafe {
        (*wanted).address = alloc.address;
        put(out, node)
    }
}

unsafe fn add_other(out: *mut Handle, graph: Handle, node: Node) -> Answer {
    let node = add(&mut Driver::get()?.objects(), graph, node)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, node) }
}

/// `CUgraphNodeParams`: a kind, and what belongs to it.
#[repr(C)]
pub(crate) struct Parameters {
    kind: i32,
    reserved: [i32; 3],
    content: [u64; 30],
}

pub(crate) unsafe fn add_any(out: *mut Handle, graph: Handle, parameters: *mut Parameters) -> Answer {
    // SAFETY: handed on from the caller.
    let kind = unsafe { get(parameters) }?.kind;
    // SAFETY: the structure's content is as its kind says.
    unsafe {
        let content = &raw mut (*parameters).content;
        match kind {
            4 => add_other(out, graph, Node::Child((*content)[0] as Handle)),
            5 => add_other(out, graph, Node::Empty),
            10 => add_alloc(out, graph, content.cast()),
            11 => add_other(out, graph, Node::Free((*content)[0])),
            _ => Err(Failure::NOT_SUPPORTED),
        }
    }
}

unsafe fn nodes(graph: Handle, out: *mut Handle, count: *mut usize) -> Answer {
    let objects = Driver::get()?.objects();
    let nodes = objects.graphs.graphs.get(&graph).ok_or(Failure::INVALID_VALUE)?;
    if out.is_null() {
        // SAFETY: handed on from the caller.
        return unsafe { put(count, nodes.len()) };
    }
    // SAFETY: handed on from the caller: there is room for so many.
    let room = *unsafe { get(count) }?;
    for index in 0..room {
        // SAFETY: see above; past the end there are nulls.
        unsafe { out.add(index).write(nodes.get(index).copied().unwrap_or(0)) };
    }
    // SAFETY: see above.
    unsafe { put(count, room.min(nodes.len())) }
}

fn node(handle: Handle) -> Result<Node, Failure> {
    Driver::get()?.objects().graphs.nodes.get(&handle).copied().ok_or(Failure::INVALID_VALUE)
}

unsafe fn alloc_of(handle: Handle, out: *mut Alloc) -> Answer {
    match node(handle)? {
        // SAFETY: handed on from the caller.
        Node::Alloc(alloc) => unsafe { put(out, alloc) },
        _ => Err(Failure::INVALID_VALUE),
    }
}

unsafe fn child_of(handle: Handle, out: *mut Handle) -> Answer {
    match node(handle)? {
        // SAFETY: handed on from the caller.
        Node::Child(graph) => unsafe { put(out, graph) },
        _ => Err(Failure::INVALID_VALUE),
    }
}

/// What a graph does, those in it included.
fn walk(graphs: &Graphs, graph: Handle, with: &mut impl FnMut(&Node)) -> Answer {
    for node in graphs.graphs.get(&graph).ok_or(Failure::INVALID_VALUE)? {
        let node = graphs.nodes.get(node).ok_or(Failure::INVALID_VALUE)?;
        with(node);
        if let Node::Child(child) = node {
            walk(graphs, *child, with)?;
        }
    }
    Ok(())
}

unsafe fn instantiate(out: *mut Handle, graph: Handle) -> Answer {
    Current::get()?;
    let mut objects = Driver::get()?.objects();
    let mut executable =
        Executable { nanoseconds: 0, needs: BTreeMap::new(), has_memory: false, frees_all: true };
    let mut open = BTreeSet::new();
    walk(&objects.graphs, graph, &mut |node| match node {
        Node::Kernel { nanoseconds } => executable.nanoseconds += nanoseconds,
        Node::Alloc(alloc) => {
            *executable.needs.entry(alloc.location[1]).or_default() += memory::units(alloc.size);
            open.insert(alloc.address);
        }
        Node::Free(address) => {
            open.remove(address);
        }
        Node::Child(_) | Node::Empty => {}
    })?;
    executable.frees_all = open.is_empty();
    let handle = objects.new_handle();
    objects.graphs.executables.insert(handle, executable);
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

/// Bytes that executables have on a device.
fn used(graphs: &Graphs, ordinal: i32) -> u64 {
    let with_memory = graphs.executables.values().filter(|executable| executable.has_memory);
    with_memory.filter_map(|executable| executable.needs.get(&ordinal)).sum()
}

/// Gives an executable its memory.
fn upload(handle: Handle) -> Answer {
    let driver = Driver::get()?;
    let mut objects = driver.objects();
    let executable = objects.graphs.executables.get(&handle).ok_or(Failure::INVALID_HANDLE)?;
    if executable.has_memory {
        return Ok(());
    }
    for (ordinal, need) in executable.needs.clone() {
        let used = used(&objects.graphs, ordinal);
        let reserved = objects.graphs.reserved.entry(ordinal).or_default();
        let (number, gpu) = driver.gpu(ordinal)?;
        let place = Current { driver, handle: 0, ordinal, number, gpu };
        let missing = (used + need).saturating_sub(*reserved);
        *reserved += memory::charge(&place, missing as usize)?;
    }
    let executable = objects.graphs.executables.get_mut(&handle).ok_or(Failure::INVALID_HANDLE)?;
    executable.has_memory = true;
    Ok(())
}

fn launch(handle: Handle, stream: Handle) -> Answer {
    let current = Current::get()?;
    upload(handle)?;
    let executable = |objects: &Objects| objects.graphs.executables.get(&handle).map(|e| e.nanoseconds);
    let nanoseconds = executable(&current.driver.objects()).ok_or(Failure::INVALID_HANDLE)?;
    let point = sm::submit(&current.driver.account, current.number, nanoseconds);
    stream::launched(&current, stream, point)
}

fn destroy_executable(handle: Handle) -> Answer {
    Driver::get()?.objects().graphs.executables.remove(&handle).map(drop).ok_or(Failure::INVALID_HANDLE)
}

fn trim(ordinal: i32) -> Answer {
    let driver = Driver::get()?;
    let (number, _) = driver.gpu(ordinal)?;
    let mut objects = driver.objects();
    for executable in objects.graphs.executables.values_mut().filter(|executable| executable.frees_all) {
        executable.has_memory = false;
    }
    let used = used(&objects.graphs, ordinal);
    let reserved = objects.graphs.reserved.entry(ordinal).or_default();
    driver.account.refund(number, reserved.saturating_sub(used));
    *reserved = used;
    Ok(())
}

/// `CUgraphMem_attribute`; the highest values are not kept.
unsafe fn attribute(ordinal: i32, which: i32, out: *mut u64) -> Answer {
    let driver = Driver::get()?;
    driver.gpu(ordinal)?;
    let objects = driver.objects();
    let value = match which {
        0 | 1 => used(&objects.graphs, ordinal),
        2 | 3 => objects.graphs.reserved.get(&ordinal).copied().unwrap_or(0),
        _ => return Err(Failure::INVALID_VALUE),
    };
    // SAFETY: handed on from the caller.
    unsafe { put(out, value) }
}

fn begin_capture(stream: Handle, mode: i32) -> Answer {
    let mut objects = Driver::get()?.objects();
    if objects.streams.get(&stream).ok_or(Failure::INVALID_HANDLE)?.capture.is_some() {
        return Err(Failure::INVALID_VALUE);
    }
    let graph = create(&mut objects);
    let stream = objects.streams.get_mut(&stream).ok_or(Failure::INVALID_HANDLE)?;
    (stream.capture, stream.capture_mode, stream.is_broken) = (Some(graph), mode, false);
    Ok(())
}

unsafe fn end_capture(stream: Handle, out: *mut Handle) -> Answer {
    let mut objects = Driver::get()?.objects();
    let stream = objects.streams.get_mut(&stream).ok_or(Failure::INVALID_HANDLE)?;
    let graph = stream.capture.take().ok_or(Failure::INVALID_VALUE)?;
    if stream.is_broken {
        return Err(Failure::CAPTURE_INVALIDATED);
    }
    // SAFETY: handed on from the caller.
    unsafe { put(out, graph) }
}

/// What `cuStreamGetCaptureInfo` tells. The nodes that the next one would come after are left out.
struct CaptureInfo {
    /// `CUstreamCaptureStatus`.
    status: *mut i32,
    id: *mut u64,
    graph: *mut Handle,
    after: *mut usize,
    count: *mut usize,
}

unsafe fn capture_info(stream: Handle, out: &CaptureInfo) -> Answer {
    let objects = Driver::get()?.objects();
    let stream = objects.streams.get(&stream).ok_or(Failure::INVALID_HANDLE)?;
    let status = match stream.capture {
        None => 0,
        Some(_) if stream.is_broken => 2,
        Some(_) => 1,
    };
    // SAFETY: handed on from the caller.
    unsafe {
        put(out.status, status)?;
        if status == 1 {
            let graph = stream.capture.unwrap_or(0);
            put_if_asked(out.id, graph as u64);
            put_if_asked(out.graph, graph);
            put_if_asked(out.after, 0);
            put_if_asked(out.count, 0);
        }
    }
    Ok(())
}

fn capture_of(objects: &Objects, stream: Handle) -> Option<Handle> {
    objects.streams.get(&stream)?.capture
}

/// Puts an allocation into the graph that a stream is captured into; `None` if it is not.
pub(crate) fn captured_alloc(
    current: &Current,
    stream: Handle,
    size: usize,
) -> Result<Option<Address>, Failure> {
    let mut objects = current.driver.objects();
    let Some(graph) = capture_of(&objects, stream) else { return Ok(None) };
    let address = objects.allocations.map_uncharged(size, current)?;
    let location = [ON_DEVICE, current.ordinal];
    let alloc = Alloc { kind: 1, handle_types: 0, location, rest: [0; 11], size, address };
    add(&mut objects, graph, Node::Alloc(alloc))?;
    Ok(Some(address))
}

/// Likewise a free.
pub(crate) fn captured_free(current: &Current, stream: Handle, address: Address) -> Result<bool, Failure> {
    let mut objects = current.driver.objects();
    let Some(graph) = capture_of(&objects, stream) else { return Ok(false) };
    add(&mut objects, graph, Node::Free(address)).map(|_| true)
}

/// Likewise a kernel.
pub(crate) fn captured_kernel(current: &Current, stream: Handle, nanoseconds: u64) -> Result<bool, Failure> {
    let mut objects = current.driver.objects();
    let Some(graph) = capture_of(&objects, stream) else { return Ok(false) };
    add(&mut objects, graph, Node::Kernel { nanoseconds }).map(|_| true)
}

type Out = *mut Handle;
type Id = *mut u64;
type Count = *mut usize;

const NONE: Count = core::ptr::null_mut();

api! {
    cuGraphCreate(out: Out, _flags: u32) => put(out, create(&mut Driver::get()?.objects()));
    cuGraphDestroy(graph: Handle) => destroy(graph);
    cuGraphGetNodes(graph: Handle, out: Out, count: *mut usize) => nodes(graph, out, count);
    cuGraphNodeGetType(handle: Handle, out: *mut i32) => put(out, node(handle)?.kind());
    cuGraphAddEmptyNode(out: Out, graph: Handle, _after: usize, _count: usize) =>
        add_other(out, graph, Node::Empty);
    cuGraphAddChildGraphNode(out: Out, graph: Handle, _after: usize, _count: usize, child: Handle) =>
        add_other(out, graph, Node::Child(child));
    cuGraphChildGraphNodeGetGraph(handle: Handle, out: Out) => child_of(handle, out);
    cuGraphAddMemAllocNode(out: Out, graph: Handle, _after: usize, _count: usize, wanted: *mut Alloc) =>
        add_alloc(out, graph, wanted);
    cuGraphMemAllocNodeGetParams(handle: Handle, out: *mut Alloc) => alloc_of(handle, out);
    cuGraphAddMemFreeNode(out: Out, graph: Handle, _after: usize, _count: usize, address: Address) =>
        add_other(out, graph, Node::Free(address));
    cuGraphAddNode(out: Out, graph: Handle, _after: usize, _count: usize, wanted: *mut Parameters) =>
        add_any(out, graph, wanted);
    cuGraphAddNode_v2(
        out: Out, graph: Handle, _after: usize, _edges: usize, _count: usize, wanted: *mut Parameters,
    ) => add_any(out, graph, wanted);
    cuGraphInstantiate(out: Out, graph: Handle, node: Out, _log: usize, _length: usize) => {
        put_if_asked(node, 0);
        instantiate(out, graph)
    };
    cuGraphInstantiate_v2(out: Out, graph: Handle, node: Out, _log: usize, _length: usize) => {
        put_if_asked(node, 0);
        instantiate(out, graph)
    };
    cuGraphInstantiateWithFlags(out: Out, graph: Handle, _flags: u64) => instantiate(out, graph);
    cuGraphInstantiateWithParams(out: Out, graph: Handle, _wanted: usize) => instantiate(out, graph);
    cuGraphInstantiateWithParams_ptsz(out: Out, graph: Handle, _wanted: usize) => instantiate(out, graph);
    cuGraphUpload(graph: Handle, _stream: Handle) => upload(graph);
    cuGraphUpload_ptsz(graph: Handle, _stream: Handle) => upload(graph);
    cuGraphLaunch(graph: Handle, stream: Handle) => launch(graph, stream);
    cuGraphLaunch_ptsz(graph: Handle, stream: Handle) => launch(graph, stream);
    cuGraphExecDestroy(graph: Handle) => destroy_executable(graph);
    cuDeviceGraphMemTrim(ordinal: i32) => trim(ordinal);
    cuDeviceGetGraphMemAttribute(ordinal: i32, which: i32, out: *mut u64) => attribute(ordinal, which, out);
    cuStreamBeginCapture(stream: Handle) => begin_capture(stream, 0);
    cuStreamBeginCapture_ptsz(stream: Handle) => begin_capture(stream, 0);
    cuStreamBeginCapture_v2(stream: Handle, mode: i32) => begin_capture(stream, mode);
    cuStreamBeginCapture_v2_ptsz(stream: Handle, mode: i32) => begin_capture(stream, mode);
    cuStreamEndCapture(stream: Handle, out: Out) => end_capture(stream, out);
    cuStreamEndCapture_ptsz(stream: Handle, out: Out) => end_capture(stream, out);
    cuStreamGetCaptureInfo(stream: Handle, status: *mut i32, id: Id) =>
        capture_info(stream, &CaptureInfo { status, id, graph: NONE.cast(), after: NONE, count: NONE });
    cuStreamGetCaptureInfo_ptsz(stream: Handle, status: *mut i32, id: Id) =>
        capture_info(stream, &CaptureInfo { status, id, graph: NONE.cast(), after: NONE, count: NONE });
    cuStreamGetCaptureInfo_v2(stream: Handle, status: *mut i32, id: Id, graph: Out, after: Count, count: Count) =>
        capture_info(stream, &CaptureInfo { status, id, graph, after, count });
    cuStreamGetCaptureInfo_v2_ptsz(stream: Handle, status: *mut i32, id: Id, graph: Out, after: Count, count: Count) =>
        capture_info(stream, &CaptureInfo { status, id, graph, after, count });
    cuStreamGetCaptureInfo_v3(
        stream: Handle, status: *mut i32, id: Id, graph: Out, after: Count, edges: Count, count: Count,
    ) => {
        put_if_asked(edges, 0);
        capture_info(stream, &CaptureInfo { status, id, graph, after, count })
    };
    cuStreamGetCaptureInfo_v3_ptsz(
        stream: Handle, status: *mut i32, id: Id, graph: Out, after: Count, edges: Count, count: Count,
    ) => {
        put_if_asked(edges, 0);
        capture_info(stream, &CaptureInfo { status, id, graph, after, count })
    };
}
