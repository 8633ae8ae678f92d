//! Launches. A kernel is a span of the GPU's time:
//!
//! - one whose name begins with `spin_ns` takes as many nanoseconds as its first parameter, a 64-bit number, says;
//! - any other takes the GPU's `wave-us` for every wave of blocks: as many blocks as all multiprocessors hold at
//!   once.
//!
//! Within a process kernels run in the order of their launches, whatever their streams.

use alloc::collections::vec_deque::VecDeque;
use core::ffi::c_void;

use sim_node::fault::Fault;
use sim_node::sm::{self, Point};

use crate::abi::{Answer, Failure, Handle, api, get};
use crate::context::Current;
use crate::device::{BLOCKS_PER_SM, THREADS_PER_SM};
use crate::{graph, module, stream};

/// Launches that may wait for the GPU; one more waits for the first of them to end, as on a real GPU.
const QUEUE_DEPTH: usize = 1024;

/// The process's launches on a GPU that may not have run yet.
pub(crate) type Queue = VecDeque<Point>;

/// `CUlaunchConfig`.
#[repr(C)]
struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: Handle,
    attributes: usize,
    attribute_count: u32,
}

/// Blocks of so many threads that a multiprocessor holds.
pub(crate) fn blocks_per_sm(threads: u64) -> u64 {
    (THREADS_PER_SM / threads.clamp(1, THREADS_PER_SM)).min(BLOCKS_PER_SM)
}

/// How long a kernel takes, in nanoseconds of the whole GPU.
fn duration(current: &Current, grid: [u32; 3], block: [u32; 3]) -> u64 {
    let product = |sizes: [u32; 3]| sizes.into_iter().map(u64::from).product::<u64>();
    let at_once = blocks_per_sm(product(block)) * u64::from(current.gpu.sm_count.max(1));
    product(grid).div_ceil(at_once) * current.gpu.wave_ns
}

/// `CU_LAUNCH_PARAM_END` and `CU_LAUNCH_PARAM_BUFFER_POINTER`.
const PARAMETERS_END: usize = 0;
const PARAMETERS_BUFFER: usize = 1;

/// The first parameter as a 64-bit number: from the array of pointers, or from the buffer that the list of
/// extra options names.
unsafe fn first_parameter(parameters: *const *const c_void, extra: *const usize) -> Result<u64, Failure> {
    // SAFETY: as cuda.h demands of the caller: with parameters, the first one is a 64-bit number for these
    // kernels.
    if let Some(&first) = unsafe { parameters.as_ref() } {
        // SAFETY: see above.
        return unsafe { get(first.cast::<u64>()) }.copied();
    }
    let mut option = extra;
    // SAFETY: the list is pairs of a number and a pointer, and ends with PARAMETERS_END.
    while let Some(&key) = unsafe { option.as_ref() } {
        match key {
            PARAMETERS_END => break,
            // SAFETY: the pointer after the number leads to the buffer.
            PARAMETERS_BUFFER => return unsafe { get(*option.add(1) as *const u64) }.copied(),
            // SAFETY: a pair is followed by another or by the end.
            _ => option = unsafe { option.add(2) },
        }
    }
    Err(Failure::INVALID_VALUE)
}

unsafe fn launch(
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    stream: Handle,
    parameters: *const *const c_void,
    extra: *const usize,
) -> Answer {
    let current = Current::get()?;
    if grid.contains(&0) || block.contains(&0) {
        return Err(Failure::INVALID_VALUE);
    }
    match current.driver.account.gpu(current.number).fault(Fault::CudaLaunch) {
        0 => {}
        code => return Err(Failure(code as u32)),
    }
    let spins = {
        let mut objects = current.driver.objects();
        let launched = objects.functions.get(&function).ok_or(Failure::INVALID_HANDLE)?;
        let (spins, module) = (launched.name.to_bytes().starts_with(b"spin_ns"), launched.module);
        module::load_late(&current, &mut objects, module)?;
        spins
    };
    let nanoseconds = if spins {
        // SAFETY: handed on from the caller.
        unsafe { first_parameter(parameters, extra) }?
    } else {
        duration(&current, grid, block)
    };
    if graph::captured_kernel(&current, stream, nanoseconds)? {
        return Ok(());
    }
    let point = sm::submit(&current.driver.account, current.number, nanoseconds);
    stream::launched(&current, stream, point)?;
    throttle(&current, point);
    Ok(())
}

/// Puts a launch into the queue and waits if it is full.
fn throttle(current: &Current, point: Point) {
    let account = &current.driver.account;
    let oldest = {
        let mut objects = current.driver.objects();
        let queue = objects.queues.entry(current.number).or_default();
        queue.push_back(point);
        let served = sm::served(account, current.number);
        while queue.front().is_some_and(|&first| first <= served) {
            queue.pop_front();
        }
        if queue.len() > QUEUE_DEPTH { queue.pop_front() } else { None }
    };
    if let Some(oldest) = oldest {
        sm::wait(account, current.number, oldest);
    }
}

unsafe fn launch_config(
    config: *const Config,
    function: Handle,
    parameters: *const *const c_void,
    extra: *const usize,
) -> Answer {
    // SAFETY: handed on from the caller.
    unsafe {
        let config = get(config)?;
        launch(function, config.grid, config.block, config.stream, parameters, extra)
    }
}

type Parameters = *const *const c_void;

api! {
    cuLaunchKernel(
        function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, _shared: u32, stream: Handle,
        parameters: Parameters, extra: *const usize,
    ) => launch(function, [gx, gy, gz], [bx, by, bz], stream, parameters, extra);
    cuLaunchKernel_ptsz(
        function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, _shared: u32, stream: Handle,
        parameters: Parameters, extra: *const usize,
    ) => launch(function, [gx, gy, gz], [bx, by, bz], stream, parameters, extra);
    cuLaunchCooperativeKernel(
        function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, _shared: u32, stream: Handle,
        parameters: Parameters,
    ) => launch(function, [gx, gy, gz], [bx, by, bz], stream, parameters, core::ptr::null());
    cuLaunchCooperativeKernel_ptsz(
        function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, _shared: u32, stream: Handle,
        parameters: Parameters,
    ) => launch(function, [gx, gy, gz], [bx, by, bz], stream, parameters, core::ptr::null());
    cuLaunchKernelEx(config: *const Config, function: Handle, parameters: Parameters, extra: *const usize) =>
        launch_config(config, function, parameters, extra);
    cuLaunchKernelEx_ptsz(config: *const Config, function: Handle, parameters: Parameters, extra: *const usize) =>
        launch_config(config, function, parameters, extra);
}
