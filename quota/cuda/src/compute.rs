//! SM time: the driver's side of the [limiter].
//!
//! Each launch asks the limiter before and reports after. Waits for the GPU, and ends of streams and
//! contexts, let the limiter read what has ended. Its events are made in the application's context and
//! recorded in the application's streams. While the limiter asks the driver, the thread is in the relaxed
//! capture mode, so captures elsewhere are not disturbed. Nothing is recorded in a stream that is captured.
//!
//! [limiter]: fgpu_quota_core::limiter

use core::cell::Cell;
use core::ffi::{c_int, c_uint};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use fgpu_quota_core::limiter::{Elapsed, Events, Grant, Host, Lane, Lanes, Stream as Where};
use fgpu_quota_core::process::Process;
use fgpu_quota_core::{clock, sys};
use fgpu_wire::limits::COMPUTE_OFF;

use crate::driver::{
    Context, DefaultStream, LEGACY_STREAM, NOT_READY, Object, PER_THREAD_STREAM, Result, SUCCESS, Stream,
};
use crate::{place, real};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;
/// GPUs of one launch.
const MANY: usize = 64;
/// `CU_EVENT_DEFAULT`: with timing.
const TIMED: c_uint = 0;

/// The stream of a call.
#[inline]
pub(crate) fn stream(stream: Stream, default: DefaultStream) -> Where {
    match (stream as usize, default) {
        (0, DefaultStream::Legacy) => Where::Shared(LEGACY_STREAM),
        (0, DefaultStream::PerThread) | (PER_THREAD_STREAM, _) => Where::OwnThread,
        (handle, _) => Where::Shared(handle),
    }
}

fn handle(stream: Where) -> Stream {
    let number = match stream {
        Where::OwnThread => PER_THREAD_STREAM,
        Where::Shared(number) if number <= PER_THREAD_STREAM => LEGACY_STREAM,
        Where::Shared(number) => number,
    };
    number as Stream
}

/// Whether a capture was ever begun in this process. Captures also end with streams and contexts, so they are
/// not counted.
static CAPTURES: AtomicBool = AtomicBool::new(false);
/// Threads that are about to begin a capture.
static BEGINNING: AtomicU32 = AtomicU32::new(0);

/// Begins a capture, while no thread of ours asks the driver what could break it.
pub(crate) fn capture(call: impl FnOnce() -> Result) -> Result {
    CAPTURES.store(true, Ordering::SeqCst);
    BEGINNING.fetch_add(1, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    if let Some(lanes) = Process::registered().and_then(Process::known_lanes) {
        lanes.wait_for_holders(&System);
    }
    let result = call();
    BEGINNING.fetch_sub(1, Ordering::SeqCst);
    result
}

struct System;

impl Host for System {
    #[inline]
    fn now(&self) -> u64 {
        clock::now()
    }

    fn sleep(&self, nanoseconds: u64) {
        sys::sleep_nanoseconds(nanoseconds);
    }

    #[inline]
    fn thread(&self) -> usize {
        sys::thread()
    }
}

/// The driver, in the relaxed capture mode from the first question on.
#[derive(Default)]
struct Driver {
    mode: Cell<Option<c_int>>,
}

impl Driver {
    #[inline]
    fn relax(&self) {
        // Also before the first capture: it may begin between this and what is asked next.
        if self.mode.get().is_none() {
            let mut mode = RELAXED;
            // SAFETY: the driver exchanges the number for the previous mode. A driver without modes has no
            // captures.
            unsafe { real::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
            self.mode.set(Some(mode));
        }
    }
}

impl Drop for Driver {
    #[inline]
    fn drop(&mut self) {
        if let Some(mut mode) = self.mode.get() {
            // SAFETY: as in `relax`.
            unsafe { real::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
        }
    }
}

impl Events for Driver {
    fn create(&self) -> Option<usize> {
        self.relax();
        let mut event = null_mut();
        // SAFETY: the driver writes the event.
        let result = unsafe { real::cuEventCreate(&raw mut event, TIMED) };
        (result == SUCCESS && !event.is_null()).then_some(event as usize)
    }

    fn record(&self, event: usize, stream: Where) -> bool {
        self.relax();
        // SAFETY: our event; a stream that the application launched into, and has not ended.
        !self.is_captured(stream)
            && unsafe { real::cuEventRecord(event as Object, handle(stream)) == SUCCESS }
    }

    fn is_done(&self, event: usize) -> bool {
        self.relax();
        // After any other error the work is over.
        // SAFETY: our event.
        unsafe { real::cuEventQuery(event as Object) != NOT_READY }
    }

    fn elapsed(&self, from: usize, to: usize) -> Elapsed {
        self.relax();
        let mut milliseconds = 0f32;
        // SAFETY: our events; the driver writes the number.
        match unsafe { real::cuEventElapsedTime(&raw mut milliseconds, from as Object, to as Object) } {
            SUCCESS if milliseconds >= 0.0 => Elapsed::Time((f64::from(milliseconds) * 1e6) as u64),
            NOT_READY => Elapsed::NotReady,
            _ => Elapsed::Unknown,
        }
    }

    fn is_idle(&self, stream: Where) -> bool {
        self.relax();
        // SAFETY: as in `record`.
        !self.is_captured(stream) && unsafe { real::cuStreamQuery(handle(stream)) != NOT_READY }
    }

    #[inline]
    fn is_captured(&self, stream: Where) -> bool {
        if !CAPTURES.load(Ordering::Relaxed) {
            return false;
        }
        // Allowed in every mode. For the legacy stream the driver returns an error where a record would break
        // a capture.
        let mut status: c_int = 0;
        // SAFETY: as in `record`; the driver writes the status.
        let result = unsafe { real::cuStreamIsCapturing(handle(stream), &raw mut status) };
        result != SUCCESS || status != 0
    }

    #[inline]
    fn is_capture_beginning(&self) -> bool {
        BEGINNING.load(Ordering::SeqCst) != 0
    }
}

/// Whether SM time is limited on any GPU of the grant.
#[inline]
fn is_limited(process: &Process) -> bool {
    let limits = process.limits();
    (0..limits.gpus()).any(|gpu| limits.compute(gpu).0 != COMPUTE_OFF)
}

#[inline]
fn current() -> Option<Context> {
    let mut context: Context = null_mut();
    // SAFETY: the driver writes the context.
    let result = unsafe { real::cuCtxGetCurrent(&raw mut context) };
    (result == SUCCESS && !context.is_null()).then_some(context)
}

/// A context's lane, and where its grant is found.
#[derive(Clone, Copy)]
struct Here {
    process: &'static Process,
    lanes: &'static Lanes,
    lane: &'static Lane,
    gpu: usize,
}

impl Here {
    #[inline]
    fn grant(self) -> Option<Grant<'static>> {
        self.lanes.grant(self.process, self.gpu)
    }

    /// Before a launch; returns what [`after`](Self::after) takes.
    #[inline]
    fn before(self, stream: Where) -> Option<u64> {
        self.lane.before(|| self.grant(), stream, &System, &Driver::default())
    }

    #[inline]
    fn after(self, result: Result, counted: Option<u64>, stream: Where) {
        match counted {
            Some(now) if result == SUCCESS => {
                self.lane.after(now, || self.grant(), stream, &System, &Driver::default());
            }
            Some(_) => self.lane.failed(),
            None => {}
        }
    }
}

/// The current context's lane.
#[inline(always)]
fn here(process: &'static Process) -> Option<Here> {
    let context = current()?;
    let lanes = process.lanes()?;
    let (lane, gpu) = match lanes.find(context as usize) {
        Some(found) => found,
        None => lanes.open(context as usize, place::of_context(process).ok()?)?,
    };
    Some(Here { process, lanes, lane, gpu })
}

/// A launch into a stream of the current context.
#[inline]
pub(crate) fn launch(stream: Where, call: impl FnOnce() -> Result) -> Result {
    match Process::registered() {
        Some(process) if is_limited(process) => limited(process, stream, call),
        _ => call(),
    }
}

#[inline]
fn limited(process: &'static Process, stream: Where, call: impl FnOnce() -> Result) -> Result {
    let is_limited = |here: &Here| process.limits().compute(here.gpu).0 != COMPUTE_OFF;
    let Some(here) = here(process).filter(is_limited) else { return call() };
    let counted = here.before(stream);
    let result = call();
    here.after(result, counted, stream);
    result
}

/// A launch on several GPUs at once, into as many streams.
pub(crate) fn launch_many(
    count: usize,
    streams: impl Fn(usize) -> Stream,
    call: impl FnOnce() -> Result,
) -> Result {
    let Some(process) = Process::registered().filter(|process| is_limited(process) && count <= MANY) else {
        return call();
    };
    let each = |with: &mut dyn FnMut(usize, Here, Where)| {
        for entry in 0..count {
            let (handle, mut context) = (streams(entry), null_mut());
            // SAFETY: the application's stream; the driver writes the context.
            if unsafe { real::cuStreamGetCtx(handle, &raw mut context) } == SUCCESS {
                place::in_context(context, || {
                    if let Some(here) = here(process) {
                        with(entry, here, stream(handle, DefaultStream::Legacy));
                    }
                });
            }
        }
    };
    let mut counted = [None; MANY];
    each(&mut |entry, here, stream| counted[entry] = here.before(stream));
    let result = call();
    each(&mut |entry, here, stream| here.after(result, counted[entry], stream));
    result
}

/// The current context's lane, if it has launched something.
#[inline]
fn launched() -> Option<Here> {
    let process = Process::registered()?;
    let lanes = process.known_lanes()?;
    let (lane, gpu) = lanes.find(current()? as usize)?;
    Some(Here { process, lanes, lane, gpu })
}

/// A wait for the GPU.
#[inline]
pub(crate) fn wait(call: impl FnOnce() -> Result) -> Result {
    let Some(here) = launched() else { return call() };
    here.lane.before_wait(|| here.grant(), &System, &Driver::default());
    let result = call();
    here.lane.after_wait(|| here.grant(), &System, &Driver::default());
    result
}

/// A copy in a stream, or an event, callback or host function that tells the program how far the GPU is. The
/// launches before it are marked first: later their end cannot be measured.
#[inline]
pub(crate) fn follow(call: impl FnOnce() -> Result) -> Result {
    if let Some(here) = launched() {
        here.lane.before_next(|| here.grant(), &System, &Driver::default());
    }
    call()
}

/// A cheap or polled call, such as a query or a fill: as [`follow`], but not between launches that follow
/// each other closely.
#[inline]
pub(crate) fn poll(call: impl FnOnce() -> Result) -> Result {
    if let Some(here) = launched() {
        here.lane.before_poll(|| here.grant(), &System, &Driver::default());
    }
    call()
}

/// The end of a stream, which may belong to another context than the current one.
pub(crate) fn destroy_stream(stream: Stream, call: impl FnOnce() -> Result) -> Result {
    let known = Process::registered().filter(|process| process.known_lanes().is_some());
    let Some(process) = known.filter(|_| stream as usize > PER_THREAD_STREAM) else { return call() };
    let mut context = null_mut();
    // SAFETY: the application's stream, which the driver is about to end; the driver writes the context.
    if unsafe { real::cuStreamGetCtx(stream, &raw mut context) } == SUCCESS {
        place::in_context(context, || {
            if let Some(here) = here(process)
                && let Some(grant) = here.grant()
            {
                here.lane.before_end(stream as usize, &grant, &System, &Driver::default());
            }
        });
    }
    call()
}

/// A context is about to end, or all that is in it.
pub(crate) fn ending(process: &Process, context: u64) {
    let known = process.known_lanes();
    let Some((lanes, (lane, gpu))) = known.and_then(|lanes| Some((lanes, lanes.find(context as usize)?)))
    else {
        return;
    };
    if let Some(grant) = lanes.grant(process, gpu) {
        let close = || lane.before_close(&grant, &System, &Driver::default());
        place::in_context(context as Context, close);
    }
}

/// A context has ended, or all that was in it.
pub(crate) fn ended(process: &Process, context: u64) {
    if let Some(lanes) = process.known_lanes() {
        lanes.close(process, context as usize, &System);
    }
}
