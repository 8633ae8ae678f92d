//! Contexts: those that a program creates and each GPU's primary one.

use core::sync::atomic::Ordering;

use sim_node::config::Gpu;
use sim_node::sm;

use crate::abi::{Answer, Failure, Handle, api, put};
use crate::current;
use crate::device::THREADS_PER_SM;
use crate::driver::{Driver, Objects};
use crate::private::Kept;
use crate::{module, pool, stream};

/// A context.
pub(crate) struct Context {
    /// Device ordinal.
    pub(crate) ordinal: i32,
    /// The GPU's number in the node.
    pub(crate) number: usize,
    pub(crate) gpu: &'static Gpu,
    /// How often the primary context was retained; `None` for one that the program created.
    retained: Option<u32>,
    flags: u32,
    /// Bytes charged for it.
    bytes: u64,
    /// Stack, printf buffer and heap, as `CUlimit` numbers them. Nothing here needs a stack, so a context
    /// begins without one.
    limits: [usize; 3],
    /// Of a green context: the primary context, to which its memory belongs.
    root: Option<Handle>,
    /// What the runtime library keeps for it.
    pub(crate) kept: Kept,
}

/// What the program has of a green context besides its context.
pub(crate) struct Green {
    ordinal: i32,
    context: Handle,
}

/// What a green context costs.
const GREEN_BYTES: u64 = 2 << 20;
const LIMITS: [usize; 3] = [0, 1 << 20, 8 << 20];

/// A context that is current in the calling thread.
pub(crate) struct Current {
    pub(crate) driver: &'static Driver,
    pub(crate) handle: Handle,
    pub(crate) ordinal: i32,
    pub(crate) number: usize,
    pub(crate) gpu: &'static Gpu,
}

impl Current {
    /// The calling thread's context.
    pub(crate) fn get() -> Result<Self, Failure> {
        let driver = Driver::get()?;
        let handle = current::get().ok_or(Failure::INVALID_CONTEXT)?;
        let objects = driver.objects();
        let &Context { ordinal, number, gpu, root, .. } =
            objects.contexts.get(&handle).ok_or(Failure::CONTEXT_IS_DESTROYED)?;
        Ok(Self { driver, handle: root.unwrap_or(handle), ordinal, number, gpu })
    }

    /// Waits for the kernels that the process launched on the GPU.
    pub(crate) fn synchronize(&self) {
        let account = &self.driver.account;
        sm::wait(account, self.number, sm::last(account, self.number));
    }
}

fn create(objects: &mut Objects, ordinal: i32, flags: u32, primary: bool) -> Result<Handle, Failure> {
    let driver = Driver::get()?;
    let (number, gpu) = driver.gpu(ordinal)?;
    if !driver.account.charge(number, gpu.context_bytes, gpu.usable()) {
        return Err(Failure::OUT_OF_MEMORY);
    }
    current::charged();
    driver.account.gpu(number).contexts[driver.account.slot()].fetch_add(1, Ordering::AcqRel);
    let handle = if primary { primary_handle_of(objects, ordinal) } else { objects.new_handle() };
    let retained = primary.then_some(0);
    let bytes = gpu.context_bytes;
    let (limits, kept) = (LIMITS, Kept::default());
    let context = Context { ordinal, number, gpu, retained, flags, bytes, limits, root: None, kept };
    objects.contexts.insert(handle, context);
    Ok(handle)
}

/// Ends a context and frees all that was allocated in it.
fn end(objects: &mut Objects, handle: Handle) -> Answer {
    let driver = Driver::get()?;
    let context = objects.contexts.remove(&handle).ok_or(Failure::INVALID_CONTEXT)?;
    free_all_of(driver, objects, handle);
    driver.account.gpu(context.number).contexts[driver.account.slot()].fetch_sub(1, Ordering::AcqRel);
    driver.account.refund(context.number, context.bytes);
    Ok(())
}

/// Frees all that is in a context.
fn free_all_of(driver: &Driver, objects: &mut Objects, handle: Handle) {
    objects.allocations.free_all_of(handle, &driver.account);
    objects.arrays.free_all_of(handle, &driver.account);
    module::unload_all_of(driver, objects, handle);
    objects.streams.retain(|_, stream| stream.context != handle);
    objects.events.retain(|_, event| event.context != handle);
}

pub(crate) unsafe fn create_current(out: *mut Handle, flags: u32, ordinal: i32) -> Answer {
    let handle = create(&mut Driver::get()?.objects(), ordinal, flags, false)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }?;
    current::push(handle)
}

fn destroy(handle: Handle) -> Answer {
    let_go(handle)?;
    let mut objects = Driver::get()?.objects();
    match objects.contexts.get(&handle) {
        Some(Context { retained: None, .. }) => end(&mut objects, handle)?,
        _ => return Err(Failure::INVALID_CONTEXT),
    }
    if current::get() == Some(handle) {
        current::pop();
    }
    Ok(())
}

fn get_or_create_primary(objects: &mut Objects, ordinal: i32) -> Result<Handle, Failure> {
    if let Some(&handle) = objects.primary.get(&ordinal) {
        return Ok(handle);
    }
    let handle = create(objects, ordinal, 0, true)?;
    objects.primary.insert(ordinal, handle);
    Ok(handle)
}

fn primary_handle_of(objects: &mut Objects, ordinal: i32) -> Handle {
    if let Some(&handle) = objects.primary_handles.get(&ordinal) {
        return handle;
    }
    let handle = objects.new_handle();
    objects.primary_handles.insert(ordinal, handle);
    handle
}

/// The handle of a primary context, whether it is there or not.
pub(crate) fn primary_handle(ordinal: i32) -> Result<Handle, Failure> {
    let driver = Driver::get()?;
    driver.gpu(ordinal)?;
    Ok(primary_handle_of(&mut driver.objects(), ordinal))
}

/// Tells those who keep something for a context that it ends.
fn let_go(handle: Handle) -> Answer {
    let mut objects = Driver::get()?.objects();
    let kept = objects.contexts.get_mut(&handle).map(|context| core::mem::take(&mut context.kept));
    drop(objects);
    kept.unwrap_or_default().end(handle);
    Ok(())
}

unsafe fn retain_primary(out: *mut Handle, ordinal: i32) -> Answer {
    let driver = Driver::get()?;
    let mut objects = driver.objects();
    let handle = get_or_create_primary(&mut objects, ordinal)?;
    if let Some(Context { retained: Some(count), .. }) = objects.contexts.get_mut(&handle) {
        *count += 1;
    }
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

fn release_primary(ordinal: i32) -> Answer {
    let driver = Driver::get()?;
    driver.gpu(ordinal)?;
    let mut objects = driver.objects();
    let handle = *objects.primary.get(&ordinal).ok_or(Failure::INVALID_CONTEXT)?;
    if let Some(Context { retained: Some(count), .. }) = objects.contexts.get_mut(&handle) {
        *count = count.saturating_sub(1);
        if *count > 0 {
            return Ok(());
        }
    }
    drop(objects);
    let_go(handle)?;
    let mut objects = driver.objects();
    objects.primary.remove(&ordinal);
    end(&mut objects, handle)
}

/// Frees everything in the primary context, which stays retained.
fn reset_primary(ordinal: i32) -> Answer {
    let driver = Driver::get()?;
    driver.gpu(ordinal)?;
    let primary = driver.objects().primary.get(&ordinal).copied();
    if let Some(handle) = primary {
        let_go(handle)?;
        free_all_of(driver, &mut driver.objects(), handle);
    }
    Ok(())
}

unsafe fn primary_state(ordinal: i32, flags: *mut u32, active: *mut i32) -> Answer {
    let driver = Driver::get()?;
    driver.gpu(ordinal)?;
    let is_active = driver.objects().primary.contains_key(&ordinal);
    // SAFETY: handed on from the caller.
    unsafe {
        put(flags, 0)?;
        put(active, i32::from(is_active))
    }
}

/// A primary context may be current before it is there; what needs it says then that it is destroyed.
fn check(handle: Handle) -> Answer {
    let objects = Driver::get()?.objects();
    let is_primary = || objects.primary_handles.values().any(|&primary| primary == handle);
    let known = handle == 0 || objects.contexts.contains_key(&handle) || is_primary();
    if known { Ok(()) } else { Err(Failure::INVALID_CONTEXT) }
}

/// A number that no other context has; 0 means the current one.
pub(crate) fn number(context: Handle) -> Result<u64, Failure> {
    let context = if context == 0 { Current::get()?.handle } else { check(context).map(|()| context)? };
    Ok(context as u64)
}

fn set_current(handle: Handle) -> Answer {
    Driver::get()?;
    check(handle)?;
    current::set(handle);
    Ok(())
}

fn push_current(handle: Handle) -> Answer {
    Driver::get()?;
    check(handle)?;
    current::push(handle)
}

unsafe fn pop_current(out: *mut Handle) -> Answer {
    Driver::get()?;
    let handle = current::pop().ok_or(Failure::INVALID_CONTEXT)?;
    // SAFETY: handed on from the caller; null means that it is not wanted.
    unsafe { crate::abi::put_if_asked(out, handle) };
    Ok(())
}

fn flags() -> Result<u32, Failure> {
    let current = Current::get()?;
    let objects = current.driver.objects();
    objects.contexts.get(&current.handle).map(|context| context.flags).ok_or(Failure::INVALID_CONTEXT)
}

/// `CUlimit`: what a new context of the real driver has, but for the stack.
fn limit(which: i32) -> Result<usize, Failure> {
    let current = Current::get()?;
    let objects = current.driver.objects();
    let context = objects.contexts.get(&current.handle).ok_or(Failure::INVALID_CONTEXT)?;
    match which {
        0..=2 => Ok(context.limits[which as usize]),
        // Synchronisation depth, pending launches, L2 fetch granularity, persisting L2.
        3 => Ok(2),
        4 => Ok(2048),
        5 => Ok(64),
        6 => Ok(0),
        _ => Err(Failure::INVALID_VALUE),
    }
}

/// A stack is there for every thread that the GPU can run.
fn set_limit(which: i32, value: usize) -> Answer {
    let before = limit(which)?;
    if which > 2 {
        return Ok(());
    }
    let current = Current::get()?;
    let threads = if which == 0 { u64::from(current.gpu.sm_count) * THREADS_PER_SM } else { 1 };
    let (before, now) = (before as u64 * threads, value as u64 * threads);
    if now > before {
        if !current.driver.account.charge(current.number, now - before, current.gpu.usable()) {
            return Err(Failure::OUT_OF_MEMORY);
        }
        current::charged();
    }
    current.driver.account.refund(current.number, before.saturating_sub(now));
    let mut objects = current.driver.objects();
    let context = objects.contexts.get_mut(&current.handle).ok_or(Failure::INVALID_CONTEXT)?;
    context.bytes = context.bytes + now - before;
    context.limits[which as usize] = value;
    Ok(())
}

unsafe fn create_green(out: *mut Handle, ordinal: i32) -> Answer {
    let driver = Driver::get()?;
    let mut objects = driver.objects();
    let root = get_or_create_primary(&mut objects, ordinal)?;
    let (number, gpu) = driver.gpu(ordinal)?;
    if !driver.account.charge(number, GREEN_BYTES, gpu.usable()) {
        return Err(Failure::OUT_OF_MEMORY);
    }
    current::charged();
    if let Some(Context { retained: Some(count), .. }) = objects.contexts.get_mut(&root) {
        *count += 1;
    }
    let (green, context) = (objects.new_handle(), objects.new_handle());
    objects.green.insert(green, Green { ordinal, context });
    let (retained, flags, limits) = (Some(0), 0, LIMITS);
    let (root, kept, bytes) = (Some(root), Kept::default(), GREEN_BYTES);
    let context_of = Context { ordinal, number, gpu, retained, flags, bytes, limits, root, kept };
    objects.contexts.insert(context, context_of);
    // SAFETY: handed on from the caller.
    unsafe { put(out, green) }
}

fn destroy_green(green: Handle) -> Answer {
    let driver = Driver::get()?;
    let Green { ordinal, context } = {
        let mut objects = driver.objects();
        let green = objects.green.remove(&green).ok_or(Failure::INVALID_CONTEXT)?;
        objects.contexts.remove(&green.context);
        green
    };
    driver.account.refund(driver.gpu(ordinal)?.0, GREEN_BYTES);
    if current::get() == Some(context) {
        current::pop();
    }
    release_primary(ordinal)
}

unsafe fn from_green(out: *mut Handle, green: Handle) -> Answer {
    let context = Driver::get()?.objects().green.get(&green).ok_or(Failure::INVALID_CONTEXT)?.context;
    // SAFETY: handed on from the caller.
    unsafe { put(out, context) }
}

/// The API version that a context was created with.
const API_VERSION: u32 = 3020;

unsafe fn priority_range(least: *mut i32, greatest: *mut i32) -> Answer {
    Current::get()?;
    // SAFETY: handed on from the caller; null means that it is not wanted.
    unsafe {
        crate::abi::put_if_asked(least, 0);
        crate::abi::put_if_asked(greatest, -5);
    }
    Ok(())
}

api! {
    cuCtxCreate(out: *mut Handle, flags: u32, ordinal: i32) => create_current(out, flags, ordinal);
    cuCtxCreate_v2(out: *mut Handle, flags: u32, ordinal: i32) => create_current(out, flags, ordinal);
    cuCtxCreate_v3(out: *mut Handle, _parameters: usize, _count: i32, flags: u32, ordinal: i32) =>
        create_current(out, flags, ordinal);
    cuCtxDestroy(context: Handle) => destroy(context);
    cuCtxDestroy_v2(context: Handle) => destroy(context);
    cuCtxSetCurrent(context: Handle) => set_current(context);
    cuCtxGetCurrent(out: *mut Handle) => Driver::get().and_then(|_| put(out, current::get().unwrap_or(0)));
    cuCtxPushCurrent(context: Handle) => push_current(context);
    cuCtxPushCurrent_v2(context: Handle) => push_current(context);
    cuCtxPopCurrent(out: *mut Handle) => pop_current(out);
    cuCtxPopCurrent_v2(out: *mut Handle) => pop_current(out);
    cuCtxGetDevice(out: *mut i32) => put(out, Current::get()?.ordinal);
    cuCtxGetFlags(out: *mut u32) => put(out, flags()?);
    cuCtxSetFlags(_flags: u32) => Current::get().map(drop);
    cuCtxGetId(context: Handle, out: *mut u64) => put(out, number(context)?);
    cuCtxSynchronize() => { stream::forbidden_in_capture()?; Current::get()?.synchronize(); pool::give_back_unused() };
    cuCtxGetApiVersion(context: Handle, out: *mut u32) => check(context).and_then(|()| put(out, API_VERSION));
    cuCtxGetLimit(out: *mut usize, which: i32) => put(out, limit(which)?);
    cuCtxSetLimit(which: i32, value: usize) => set_limit(which, value);
    cuGreenCtxCreate(out: *mut Handle, _resources: usize, ordinal: i32, _flags: u32) => create_green(out, ordinal);
    cuGreenCtxDestroy(green: Handle) => destroy_green(green);
    cuCtxFromGreenCtx(out: *mut Handle, green: Handle) => from_green(out, green);
    cuCtxGetCacheConfig(out: *mut i32) => Current::get().and_then(|_| put(out, 0));
    cuCtxSetCacheConfig(_config: i32) => Current::get().map(drop);
    cuCtxGetSharedMemConfig(out: *mut i32) => Current::get().and_then(|_| put(out, 1));
    cuCtxSetSharedMemConfig(_config: i32) => Current::get().map(drop);
    cuCtxResetPersistingL2Cache() => Current::get().map(drop);
    cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) => priority_range(least, greatest);
    cuDevicePrimaryCtxRetain(out: *mut Handle, ordinal: i32) => retain_primary(out, ordinal);
    cuDevicePrimaryCtxRelease(ordinal: i32) => release_primary(ordinal);
    cuDevicePrimaryCtxRelease_v2(ordinal: i32) => release_primary(ordinal);
    cuDevicePrimaryCtxReset(ordinal: i32) => reset_primary(ordinal);
    cuDevicePrimaryCtxReset_v2(ordinal: i32) => reset_primary(ordinal);
    cuDevicePrimaryCtxSetFlags(ordinal: i32, _flags: u32) => Driver::get()?.gpu(ordinal).map(drop);
    cuDevicePrimaryCtxSetFlags_v2(ordinal: i32, _flags: u32) => Driver::get()?.gpu(ordinal).map(drop);
    cuDevicePrimaryCtxGetState(ordinal: i32, flags: *mut u32, active: *mut i32) =>
        primary_state(ordinal, flags, active);
}
