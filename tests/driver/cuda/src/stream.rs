//! Streams and events: points in the process's sequence of kernels.

use core::ffi::c_void;

use sim_node::fault::Fault;
use sim_node::sm::{self, Point};

use crate::abi::{Answer, Failure, Handle, api, get, put};
use crate::context::Current;
use crate::current;
use crate::driver::{Driver, Objects};

/// A stream.
pub(crate) struct Stream {
    pub(crate) context: Handle,
    flags: u32,
    priority: i32,
    /// Where its last kernel will have ended.
    last: Point,
    /// The graph into which it is captured, the capture's mode, and whether somebody did what breaks a
    /// capture.
    pub(crate) capture: Option<Handle>,
    pub(crate) capture_mode: i32,
    pub(crate) is_broken: bool,
}

/// An event.
pub(crate) struct Event {
    pub(crate) context: Handle,
    /// The GPU's number in the node, and what was launched before the record there; `None` before a record.
    recorded: Option<(usize, Point)>,
    /// Monotonic nanoseconds of the record: an event never comes earlier.
    recorded_at: u64,
    /// It was recorded into a graph, and never comes.
    is_captured: bool,
}

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_CAPTURE_MODE_GLOBAL`.
const GLOBAL: i32 = 0;

/// At calls that may make the program wait: they break every capture in global mode, unless the thread is in
/// another one.
pub(crate) fn forbidden_in_capture() -> Answer {
    if current::capture_mode() != GLOBAL {
        return Ok(());
    }
    let mut objects = Driver::get()?.objects();
    let mut capturing = objects
        .streams
        .values_mut()
        .filter(|stream| stream.capture.is_some() && stream.capture_mode == GLOBAL)
        .peekable();
    if capturing.peek().is_none() {
        return Ok(());
    }
    capturing.for_each(|stream| stream.is_broken = true);
    Err(Failure::CAPTURE_UNSUPPORTED)
}

/// The legacy default stream waits for all blocking streams, and cannot while one is captured.
fn implicit(objects: &mut Objects, stream: Handle, breaks: bool) -> Answer {
    if stream > 1 {
        return Ok(());
    }
    let is_blocking = |stream: &&mut Stream| stream.capture.is_some() && stream.flags & NON_BLOCKING == 0;
    let mut capturing = objects.streams.values_mut().filter(is_blocking).peekable();
    if capturing.peek().is_none() {
        return Ok(());
    }
    capturing.for_each(|stream| stream.is_broken |= breaks);
    Err(Failure::CAPTURE_IMPLICIT)
}

/// Handles that name a default stream: the context's, the legacy one, the thread's.
fn is_default(stream: Handle) -> bool {
    stream <= 2
}

/// Notes a launch in its stream.
pub(crate) fn launched(current: &Current, stream: Handle, point: Point) -> Answer {
    if is_default(stream) {
        return Ok(());
    }
    let mut objects = current.driver.objects();
    objects.streams.get_mut(&stream).ok_or(Failure::INVALID_HANDLE)?.last = point;
    Ok(())
}

/// Where the last kernel of a stream will have ended. The default streams wait for all of the process.
fn last(objects: &Objects, current: &Current, stream: Handle) -> Result<Point, Failure> {
    if is_default(stream) {
        return Ok(sm::last(&current.driver.account, current.number));
    }
    objects.streams.get(&stream).map(|stream| stream.last).ok_or(Failure::INVALID_HANDLE)
}

fn fault(current: &Current) -> Answer {
    match current.driver.account.gpu(current.number).fault(Fault::CudaLaunch) {
        0 => Ok(()),
        code => Err(Failure(code as u32)),
    }
}

unsafe fn create(out: *mut Handle, flags: u32, priority: i32) -> Answer {
    let current = Current::get()?;
    let mut objects = current.driver.objects();
    let handle = objects.new_handle();
    objects.streams.insert(
        handle,
        Stream {
            context: current.handle,
            flags,
            priority,
            last: Point(0),
            capture: None,
            capture_mode: GLOBAL,
            is_broken: false,
        },
    );
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

fn destroy(stream: Handle) -> Answer {
    Driver::get()?.objects().streams.remove(&stream).map(drop).ok_or(Failure::INVALID_HANDLE)
}

fn point_of(stream: Handle) -> Result<(Current, Point), Failure> {
    let current = Current::get()?;
    fault(&current)?;
    let point = last(&current.driver.objects(), &current, stream)?;
    Ok((current, point))
}

fn synchronize(stream: Handle) -> Answer {
    forbidden_in_capture()?;
    let (current, point) = point_of(stream)?;
    sm::wait(&current.driver.account, current.number, point);
    crate::pool::give_back_unused()
}

fn query(stream: Handle) -> Answer {
    forbidden_in_capture()?;
    let (current, point) = point_of(stream)?;
    implicit(&mut current.driver.objects(), stream, true)?;
    if sm::is_done(&current.driver.account, current.number, point) { Ok(()) } else { Err(Failure::NOT_READY) }
}

/// Kernels of a process run in the order of their launches, so a stream need not be told to wait.
fn wait_event(stream: Handle, event: Handle) -> Answer {
    let current = Current::get()?;
    let objects = current.driver.objects();
    last(&objects, &current, stream)?;
    objects.events.get(&event).map(drop).ok_or(Failure::INVALID_HANDLE)
}

/// Calls a function of the program when the stream has got there: here, by waiting.
unsafe fn host_function(
    stream: Handle,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> Answer {
    let function = function.ok_or(Failure::INVALID_VALUE)?;
    synchronize(stream)?;
    // SAFETY: the caller's function, with the caller's argument.
    unsafe { function(data) };
    Ok(())
}

/// Something of a stream; the default streams have zeros.
unsafe fn property<T: Default>(stream: Handle, out: *mut T, of: fn(&Stream) -> T) -> Answer {
    let current = Current::get()?;
    let objects = current.driver.objects();
    last(&objects, &current, stream)?;
    let value = objects.streams.get(&stream).map(of).unwrap_or_default();
    // SAFETY: handed on from the caller.
    unsafe { put(out, value) }
}

unsafe fn is_capturing(stream: Handle, out: *mut i32) -> Answer {
    implicit(&mut Driver::get()?.objects(), stream, false)?;
    // SAFETY: handed on from the caller.
    unsafe { property(stream, out, |stream| stream.capture.is_some().into()) }
}

unsafe fn context_of(stream: Handle, out: *mut Handle) -> Answer {
    let current = Current::get()?;
    let objects = current.driver.objects();
    last(&objects, &current, stream)?;
    let context = objects.streams.get(&stream).map_or(current.handle, |stream| stream.context);
    // SAFETY: handed on from the caller.
    unsafe { put(out, context) }
}

unsafe fn create_event(out: *mut Handle) -> Answer {
    let current = Current::get()?;
    let mut objects = current.driver.objects();
    let handle = objects.new_handle();
    objects.events.insert(
        handle,
        Event { context: current.handle, recorded: None, recorded_at: 0, is_captured: false },
    );
    // SAFETY: handed on from the caller.
    unsafe { put(out, handle) }
}

fn destroy_event(event: Handle) -> Answer {
    Driver::get()?.objects().events.remove(&event).map(drop).ok_or(Failure::INVALID_HANDLE)
}

fn record(event: Handle, stream: Handle) -> Answer {
    let (current, point) = point_of(stream)?;
    let mut objects = current.driver.objects();
    implicit(&mut objects, stream, true)?;
    let is_captured = objects.streams.get(&stream).is_some_and(|stream| stream.capture.is_some());
    let event = objects.events.get_mut(&event).ok_or(Failure::INVALID_HANDLE)?;
    event.is_captured = is_captured;
    event.recorded = (!is_captured).then_some((current.number, point));
    event.recorded_at = sim_node::sys::now();
    Ok(())
}

/// What an event waits for, if it was recorded, and when that was.
fn recorded(driver: &Driver, event: Handle) -> Result<(Option<(usize, Point)>, u64), Failure> {
    let objects = driver.objects();
    let event = objects.events.get(&event).ok_or(Failure::INVALID_HANDLE)?;
    if event.is_captured {
        return Err(Failure::CAPTURED_EVENT);
    }
    Ok((event.recorded, event.recorded_at))
}

/// An event that was never recorded has happened.
fn query_event(event: Handle) -> Answer {
    forbidden_in_capture()?;
    let driver = Driver::get()?;
    match recorded(driver, event)?.0 {
        Some((gpu, point)) if !sm::is_done(&driver.account, gpu, point) => Err(Failure::NOT_READY),
        _ => Ok(()),
    }
}

fn synchronize_event(event: Handle) -> Answer {
    forbidden_in_capture()?;
    let driver = Driver::get()?;
    if let Some((gpu, point)) = recorded(driver, event)?.0 {
        sm::wait(&driver.account, gpu, point);
    }
    crate::pool::give_back_unused()
}

/// When an event happened, in monotonic nanoseconds.
fn happened_at(driver: &Driver, event: Handle) -> Result<u64, Failure> {
    let (recorded, recorded_at) = recorded(driver, event)?;
    let (gpu, point) = recorded.ok_or(Failure::INVALID_HANDLE)?;
    if !sm::is_done(&driver.account, gpu, point) {
        return Err(Failure::NOT_READY);
    }
    Ok(sm::ended_at(&driver.account, gpu, point).max(recorded_at))
}

unsafe fn elapsed(milliseconds: *mut f32, start: Handle, end: Handle) -> Answer {
    let driver = Driver::get()?;
    let nanoseconds = happened_at(driver, end)? as i64 - happened_at(driver, start)? as i64;
    // SAFETY: handed on from the caller.
    unsafe { put(milliseconds, nanoseconds as f32 / 1e6) }
}

/// Another process's event. Nothing tells when that comes, so it has come.
unsafe fn open_event(out: Out) -> Answer {
    // SAFETY: handed on from the caller.
    unsafe { create_event(out) }
}

/// `CUipcEventHandle`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Shared([u64; 8]);

unsafe fn share_event(out: *mut Shared, event: Handle) -> Answer {
    Driver::get()?.objects().events.get(&event).ok_or(Failure::INVALID_HANDLE)?;
    // SAFETY: handed on from the caller.
    unsafe { put(out, Shared([event as u64, 0, 0, 0, 0, 0, 0, 0])) }
}

type HostFunction = Option<unsafe extern "C" fn(*mut c_void)>;
type Out = *mut Handle;

api! {
    cuStreamCreate(out: Out, flags: u32) => create(out, flags, 0);
    cuStreamCreateWithPriority(out: Out, flags: u32, priority: i32) => create(out, flags, priority);
    cuStreamDestroy(stream: Handle) => destroy(stream);
    cuStreamDestroy_v2(stream: Handle) => destroy(stream);
    cuStreamSynchronize(stream: Handle) => synchronize(stream);
    cuStreamSynchronize_ptsz(stream: Handle) => synchronize(stream);
    cuStreamQuery(stream: Handle) => query(stream);
    cuStreamQuery_ptsz(stream: Handle) => query(stream);
    cuStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) => wait_event(stream, event);
    cuStreamWaitEvent_ptsz(stream: Handle, event: Handle, _flags: u32) => wait_event(stream, event);
    cuStreamGetFlags(stream: Handle, out: *mut u32) => property(stream, out, |stream| stream.flags);
    cuStreamGetFlags_ptsz(stream: Handle, out: *mut u32) => property(stream, out, |stream| stream.flags);
    cuStreamGetPriority(stream: Handle, out: *mut i32) => property(stream, out, |stream| stream.priority);
    cuStreamGetPriority_ptsz(stream: Handle, out: *mut i32) => property(stream, out, |stream| stream.priority);
    cuStreamGetCtx(stream: Handle, out: Out) => context_of(stream, out);
    cuStreamGetCtx_ptsz(stream: Handle, out: Out) => context_of(stream, out);
    cuStreamGetId(stream: Handle, out: *mut u64) => put(out, stream as u64);
    cuStreamGetId_ptsz(stream: Handle, out: *mut u64) => put(out, stream as u64);
    // CU_STREAM_CAPTURE_STATUS_ACTIVE or _NONE.
    cuStreamIsCapturing(stream: Handle, out: *mut i32) => is_capturing(stream, out);
    cuStreamIsCapturing_ptsz(stream: Handle, out: *mut i32) =>
        property(stream, out, |s| s.capture.is_some().into());
    cuThreadExchangeStreamCaptureMode(mode: *mut i32) => put(mode, current::exchange_capture_mode(*get(mode)?));
    cuLaunchHostFunc(stream: Handle, function: HostFunction, data: *mut c_void) =>
        host_function(stream, function, data);
    cuLaunchHostFunc_ptsz(stream: Handle, function: HostFunction, data: *mut c_void) =>
        host_function(stream, function, data);
    cuEventCreate(out: Out, _flags: u32) => create_event(out);
    cuEventDestroy(event: Handle) => destroy_event(event);
    cuEventDestroy_v2(event: Handle) => destroy_event(event);
    cuEventRecord(event: Handle, stream: Handle) => record(event, stream);
    cuEventRecord_ptsz(event: Handle, stream: Handle) => record(event, stream);
    cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: u32) => record(event, stream);
    cuEventRecordWithFlags_ptsz(event: Handle, stream: Handle, _flags: u32) => record(event, stream);
    cuEventQuery(event: Handle) => query_event(event);
    cuEventSynchronize(event: Handle) => synchronize_event(event);
    cuIpcGetEventHandle(out: *mut Shared, event: Handle) => share_event(out, event);
    cuIpcOpenEventHandle(out: Out, _shared: Shared) => open_event(out);
    cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) => elapsed(milliseconds, start, end);
}
