//! Every number of the limiter, in one table. Times are in nanoseconds; "GPU time" means time at work on the
//! GPU.

// ---- Decide
// ----------------------------------------------------------------------------------------------------------

/// GPU time that may be in flight, that is launched and not seen to end. A launch cannot be taken back, so
/// this is small.
pub(crate) const IN_FLIGHT: u64 = 4_000_000;
/// Launches that may be in flight before a kernel of the context was measured. A first kernel may be a long
/// one.
pub(crate) const IN_FLIGHT_UNMEASURED: u64 = 1;
/// Launches that may be in flight however short the kernels are.
pub(crate) const IN_FLIGHT_MOST: u64 = 128;
/// GPU time by which one second of a capped container may hold more than its share because kernels turn out
/// longer than those before them. Together with [`CREDIT`](fgpu_wire::ledger::CREDIT) this stays within 3
/// points of a second.
pub(crate) const EXCESS: u64 = 20_000_000;
/// The shortest length that the next kernels are expected to reach, though none was that long recently.
pub(crate) const SURPRISE: u64 = 500_000;
/// How long a short sleep and a look take. As much of the share must be in flight meanwhile.
pub(crate) const SLEEP_AND_LOOK: u64 = 160_000;
/// How long the length of the longest kernels is remembered; at most twice as long.
pub(crate) const REMEMBER: u64 = 10_000_000_000;
/// Launches that are enough evidence for a length. Fewer may be a kernel that the driver had to load, or one
/// long kernel among many short ones.
pub(crate) const EVIDENCE: u64 = 4;

/// The most GPU time that is paid for in advance. The other processes of the container wait until it is seen
/// that the kernel was shorter.
pub(crate) const MAX_PREPAID: u64 = 250_000_000;
/// How long launches go without another look. A launch in between costs one reading of the clock.
pub(crate) const RECHECK: u64 = 250_000;
/// The longest sleep before everything is looked at again: a share may have changed.
pub(crate) const MAX_NAP: u64 = 10_000_000;
/// The shortest sleep while kernels end.
pub(crate) const MIN_NAP: u64 = 50_000;
/// How long a launch waits for kernels that do not end. They may be waiting for this launch.
pub const PATIENCE: u64 = 100_000_000;
/// How often [`PATIENCE`] doubles while the container owes time.
pub(crate) const PATIENCE_DOUBLINGS: u32 = 10;
/// [`PATIENCE`] of long kernels is four of them, and this at most.
pub(crate) const PATIENCE_MOST: u64 = 60_000_000_000;
/// GPU time that a container may catch up on after it yielded the GPU to others. Together with
/// [`CREDIT`](fgpu_wire::ledger::CREDIT) this stays within 3 points of a second.
pub(crate) const CATCH_UP: u64 = 20_000_000;
/// The longest time for which a container yields to others.
pub(crate) const MAX_YIELD: u64 = 100_000_000;
/// A container that launches nothing for so long does not catch up on that time.
pub(crate) const IDLE: u64 = 30_000_000;
/// The most that a container in `share` mode owes. What it used while others were idle is no debt.
pub(crate) const MAX_DEBT: u64 = 100_000_000;

// ---- Measure
// ---------------------------------------------------------------------------------------------------------

/// Marks of a lane that can be in flight at a time.
pub(crate) const MARKS: usize = 64;
/// Streams of a lane that can have launches without a mark.
pub(crate) const STREAMS: usize = 32;
/// Launches of a stream for which one mark is made, while launches follow each other closely.
pub(crate) const MARK_EVERY: u64 = 16;
/// Launches that get a mark each, after some have ended without one. The next ones may end in the same way.
pub(crate) const MARK_EACH: u32 = 64;
/// A launch that comes so much later than the one before is marked at once.
pub(crate) const MARK_APART: u64 = 25_000;
/// The longest time between marks while launches go on.
pub(crate) const MARK_AT_LEAST: u64 = 500_000;
/// A stream that has had no launch for so long may be idle: the driver is asked before it is marked.
pub(crate) const MAYBE_IDLE: u64 = 200_000;
/// After so much time at work the count begins anew. The driver tells times as a `float` of milliseconds
/// (`cuEventElapsedTime`), which is exact to a microsecond up to here.
pub(crate) const REBASE: u64 = 10_000_000_000;
/// Charged time is reported to readers of the utilisation in pieces of this size, a ten-thousandth of the
/// window that they read.
pub(crate) const REPORT: u64 = 50_000;

// ---- Share
// -----------------------------------------------------------------------------------------------------------

/// How long after the expected end of its kernels a lane is still announced as busy.
pub(crate) const BUSY_MARGIN: u64 = 1_000_000;
/// The longest time for which a lane is announced as busy.
pub(crate) const BUSY_MOST: u64 = 900_000_000;
/// The first sleep while another thread holds a lane's state.
pub(crate) const LOCK_NAP: u64 = 1000;
/// How long a holder waits for captures that begin: many times what the driver takes for it.
pub(crate) const CAPTURE_WAIT: u64 = 5_000_000;
/// The whole GPU, ppm.
pub(crate) const WHOLE: u32 = 1_000_000;
/// Contexts of a process for which one block has room.
pub(crate) const LANES: usize = 64;
