//! What the limiter asks of the system and of the driver. The tests have a simulated one of each.

/// Where something is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// A stream by its handle; up to 2 that is the legacy default stream.
    Shared(usize),
    /// The default stream of the thread that launches. No other thread can name it.
    OwnThread,
}

/// The system.
pub trait Host {
    /// CLOCK_MONOTONIC, nanoseconds.
    fn now(&self) -> u64;
    /// Sleeps for about so many nanoseconds.
    fn sleep(&self, nanoseconds: u64);
    /// An address that no other thread of the process has.
    fn thread(&self) -> usize;
}

/// The driver, in the current context. An event is a number that is not 0. [`record`](Self::record) and
/// [`is_idle`](Self::is_idle) can break a capture, so only a thread that holds a lane calls them, after it
/// has seen that no capture is beginning.
pub trait Events {
    /// Makes an event.
    fn create(&self) -> Option<usize>;
    /// Records an event in a stream. `false`: impossible now, since the stream is captured or the record
    /// would break a capture.
    fn record(&self, event: usize, stream: Stream) -> bool;
    /// Whether all work before the event's record has ended.
    fn is_done(&self, event: usize) -> bool;
    /// The time between two events.
    fn elapsed(&self, from: usize, to: usize) -> Elapsed;
    /// Whether a stream is idle. `false` also where that cannot be asked now, as for
    /// [`record`](Self::record).
    fn is_idle(&self, stream: Stream) -> bool;
    /// Whether what is launched into a stream is captured into a graph.
    fn is_captured(&self, stream: Stream) -> bool;
    /// Whether a capture is about to begin in any stream. The thread that begins it waits for the lanes'
    /// holders ([`Lanes::wait_for_holders`](super::Lanes::wait_for_holders)). Sequentially consistent with
    /// the lanes' locks.
    fn is_capture_beginning(&self) -> bool;
}

/// What the driver says of the time between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elapsed {
    /// Nanoseconds; both are done.
    Time(u64),
    /// One of them is not done yet.
    NotReady,
    /// Nothing: one of them was never recorded, or the driver does not know.
    Unknown,
}
