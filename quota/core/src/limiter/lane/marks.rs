//! Which launches wait for a mark, and when they get it.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use fgpu_wire::limits::COMPUTE_CAP;

use super::held::BRIEF;
use super::work::State;
use super::{Lane, Stream};
use crate::limiter::{AHEAD, Events, Grant, Host, PATIENCE, SHORT, WHOLE};

/// Streams whose launches can wait for a mark.
const NOTES: usize = 32;
/// Launches of a stream until they are marked.
const CLOSE: u64 = 16;
/// Launches that are marked one by one after some that ended without anybody's asking: the next ones may end so, too.
const CLOSELY: u32 = 64;
/// What is launched so much later than the launch before is marked at once, nanoseconds.
const APART: u64 = 25_000;
/// The longest time between marks while launches go on, nanoseconds.
const LONG: u64 = 500_000;
/// A stream that has had no launch for so long may have ended since: it is asked before it is marked.
const LATE: u64 = 200_000;

/// The streams whose launches are not marked yet. All zeros: none.
pub(super) struct Notes {
    /// A bit for each place with a key: set after that, and cleared before.
    used: AtomicU32,
    /// The stream's handle, or the thread; 0: nobody.
    keys: [AtomicUsize; NOTES],
    of_threads: [OfThread; NOTES],
}

/// Of a thread's default stream: launches since its last mark, and when the last was.
struct OfThread {
    launches: AtomicU64,
    at: AtomicU64,
}

/// Why launches are marked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// They are many, or far apart; or something comes after them.
    Due,
    /// Likewise some time after the last one: what has ended since is not said to have ended now.
    Late,
    /// The program waits for them now, and [`after_wait`](Lane::after_wait) comes next.
    Awaited,
}

impl Stream {
    pub(super) fn key(self, host: &impl Host) -> usize {
        match self {
            Self::Shared(handle) => handle.max(2),
            Self::OwnThread => of_thread(host),
        }
    }
}

/// No address has this bit.
const THREAD: usize = 1 << 63;

fn of_thread(host: &impl Host) -> usize {
    host.thread() | THREAD
}

fn is_thread(key: usize) -> bool {
    key & THREAD != 0
}

impl Lane {
    /// Counts a launch that was let go at `now` and that the driver took.
    #[inline]
    pub fn after<'a>(
        &self,
        now: u64,
        grant: impl FnOnce() -> Option<Grant<'a>>,
        stream: Stream,
        host: &impl Host,
        events: &impl Events,
    ) {
        let (found, is_own_due) = self.notes.note(stream.key(host), now);
        let since = self.calls.launched().saturating_sub(self.covered.load(Ordering::Relaxed));
        let apart = now.saturating_sub(self.launched_at.load(Ordering::Relaxed)) >= APART;
        self.launched_at.store(now, Ordering::Relaxed);
        let due = apart
            || is_own_due
            || self.is_close()
            || !found
            || since >= CLOSE * 4
            || (since >= CLOSE && self.is_due(since))
            || now.saturating_sub(self.marked_at.load(Ordering::Relaxed)) >= LONG;
        if due && let Some(grant) = grant() {
            self.mark_with(now, &grant, (!found).then_some(stream), Why::Due, host, events);
            if self.average() == 0 {
                self.learn(&grant, host, events);
            }
        }
    }

    /// Waits for the first kernel of a context, whose length nobody knows, if it ends within [`PATIENCE`]. So it is charged for while it runs,
    /// whatever the program does meanwhile, and no other process of the container takes it for a short one and goes beside it.
    #[cold]
    fn learn(&self, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        let (mode, ppm) = grant.share();
        if mode != COMPUTE_CAP || ppm >= WHOLE {
            return;
        }
        let until = host.now().saturating_add(PATIENCE);
        let mut nap = SHORT;
        while self.average() == 0 && self.is_at_work() && self.under_way() == 1 && host.now() < until {
            host.sleep(nap);
            nap = (nap * 2).min(AHEAD / 8);
            self.settle(host.now(), grant, host, events);
        }
    }

    #[inline]
    fn is_close(&self) -> bool {
        let left = self.closely.load(Ordering::Relaxed);
        if left != 0 {
            self.closely.store(left - 1, Ordering::Relaxed);
        }
        left != 0
    }

    /// Many streams are marked less often: each mark is one record for each of them.
    #[cold]
    fn is_due(&self, since: u64) -> bool {
        let streams = self.notes.used.load(Ordering::Relaxed).count_ones();
        since >= CLOSE * u64::from(streams.clamp(1, 4))
    }

    /// Whether there is something that this thread could mark: what another one marked leaves out this one's own stream.
    #[inline]
    fn is_unmarked(&self, host: &impl Host) -> bool {
        self.calls.count().launched > self.covered.load(Ordering::Relaxed) || self.notes.has(of_thread(host))
    }

    fn is_late(&self, now: u64) -> bool {
        now.saturating_sub(self.launched_at.load(Ordering::Relaxed)) >= LATE
    }

    /// Marks what is not marked yet, if there is anything.
    pub fn mark(&self, now: u64, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        if self.is_unmarked(host) {
            self.mark_with(now, grant, None, Why::Due, host, events);
        }
    }

    /// Likewise if the last launch was some time ago.
    pub(in crate::limiter) fn mark_late(
        &self,
        now: u64,
        grant: &Grant<'_>,
        host: &impl Host,
        events: &impl Events,
    ) {
        if self.is_late(now) && self.is_unmarked(host) {
            self.mark_with(now, grant, None, Why::Late, host, events);
        }
    }

    // Not inlined, and not cold either: whoever waits for each launch comes here as often.
    #[inline(never)]
    fn mark_with(
        &self,
        now: u64,
        grant: &Grant<'_>,
        also: Option<Stream>,
        why: Why,
        host: &impl Host,
        events: &impl Events,
    ) {
        let own = of_thread(host);
        let is_ours_alone = also.is_some() || self.notes.has(own);
        let held = if is_ours_alone { self.hold_soon(now, host) } else { self.hold(host) };
        let Some(held) = held else { return };
        let state = held.state();
        let launches = self.calls.count().launched;
        let unmarked = launches.saturating_sub(self.covered.load(Ordering::Relaxed));
        self.marked_at.store(now, Ordering::Relaxed);
        let mut recorded = false;
        let may_ask = held.may_ask(host, events);
        let has_ended = |stream| why == Why::Late && events.is_idle(stream);
        let mut mark = |state: &mut State, stream: Stream| {
            if may_ask && !has_ended(stream) {
                recorded |= state.record(launches, stream, events);
            }
        };
        let mut used = self.notes.used.load(Ordering::Acquire);
        while used != 0 {
            let place = used.trailing_zeros() as usize % NOTES;
            used &= used - 1;
            let key = self.notes.keys[place].load(Ordering::Acquire);
            if is_thread(key) && key != own {
                continue;
            }
            self.notes.take(place);
            mark(state, if key == own { Stream::OwnThread } else { Stream::Shared(key) });
        }
        if let Some(stream) = also {
            mark(state, stream);
        }
        self.covered.store(launches, Ordering::Release);
        // All has ended, at a time that nobody saw; or nobody may ask now, since there is a capture.
        let unseen = if why == Why::Late && !recorded { unmarked } else { 0 };
        if unseen > 0 {
            self.closely.store(CLOSELY, Ordering::Relaxed);
        }
        if why == Why::Awaited && state.count <= 1 && self.is_at_work() && self.is_fresh(now) {
            self.tell(state, grant, now);
        } else {
            self.look(state, now, grant, host, events, unseen);
        }
    }

    /// Whether the last launch was less than a kernel ago: there is no need to ask whether it has ended.
    fn is_fresh(&self, now: u64) -> bool {
        now.saturating_sub(self.launched_at.load(Ordering::Relaxed)) < self.average()
    }

    /// Before what comes after launches in a stream: marks what this thread can mark.
    #[inline]
    pub fn before_next<'a>(
        &self,
        grant: impl FnOnce() -> Option<Grant<'a>>,
        host: &impl Host,
        events: &impl Events,
    ) {
        self.mark_before(Why::Due, grant, host, events);
    }

    /// Likewise before a wait for the GPU, after which comes [`after_wait`](Self::after_wait).
    #[inline]
    pub fn before_wait<'a>(
        &self,
        grant: impl FnOnce() -> Option<Grant<'a>>,
        host: &impl Host,
        events: &impl Events,
    ) {
        self.mark_before(Why::Awaited, grant, host, events);
    }

    #[inline]
    fn mark_before<'a>(
        &self,
        why: Why,
        grant: impl FnOnce() -> Option<Grant<'a>>,
        host: &impl Host,
        events: &impl Events,
    ) {
        if self.is_unmarked(host)
            && let Some(grant) = grant()
        {
            self.mark_now(host.now(), &grant, why, host, events);
        }
    }

    /// Charges what a wait has waited for.
    #[inline]
    pub fn after_wait<'a>(
        &self,
        grant: impl FnOnce() -> Option<Grant<'a>>,
        host: &impl Host,
        events: &impl Events,
    ) {
        if self.is_at_work()
            && let Some(grant) = grant()
        {
            self.settle(host.now(), &grant, host, events);
        }
    }

    /// Before what takes no time or is asked again and again: as [`before_next`](Self::before_next), but not in the middle of launches.
    #[inline]
    pub fn before_late<'a>(
        &self,
        grant: impl FnOnce() -> Option<Grant<'a>>,
        host: &impl Host,
        events: &impl Events,
    ) {
        if !self.is_unmarked(host) {
            return;
        }
        let now = host.now();
        if now.saturating_sub(self.launched_at.load(Ordering::Relaxed)) >= APART
            && let Some(grant) = grant()
        {
            self.mark_now(now, &grant, Why::Due, host, events);
        }
    }

    fn mark_now(&self, now: u64, grant: &Grant<'_>, why: Why, host: &impl Host, events: &impl Events) {
        let why = if self.is_late(now) { Why::Late } else { why };
        self.mark_with(now, grant, None, why, host, events);
    }

    /// The context is about to end: what has ended in it is charged for as long as it took, which nobody can be asked later.
    pub fn before_close(&self, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        self.before_next(|| Some(*grant), host, events);
        self.settle(host.now(), grant, host, events);
    }

    /// A stream is about to end: marks what was launched into it, since no thread may name it any more afterwards.
    pub fn before_end(&self, stream: usize, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        let key = Stream::Shared(stream).key(host);
        if self.notes.has(key) {
            self.mark(host.now(), grant, host, events);
        }
        // Another thread may be recording in it at this moment; it does not wait for us with its lock held.
        for _ in 0..1000 {
            if self.lock.load(Ordering::Acquire) == 0 && !self.notes.has(key) {
                break;
            }
            host.sleep(BRIEF);
            self.mark(host.now(), grant, host, events);
        }
    }
}

impl Notes {
    /// The places in which a stream can be noted.
    #[inline]
    fn places_of(key: usize) -> impl Iterator<Item = usize> {
        let hash = (key >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 59;
        (0..4).map(move |probe| (hash + probe) % NOTES)
    }

    #[inline]
    fn has(&self, key: usize) -> bool {
        Self::places_of(key).any(|place| self.keys[place].load(Ordering::Acquire) == key)
    }

    /// Notes a launch in a stream: whether there was room, and whether it is a thread's that has to be marked now.
    #[inline]
    fn note(&self, key: usize, now: u64) -> (bool, bool) {
        for place in Self::places_of(key) {
            let noted = &self.keys[place];
            let is = noted.load(Ordering::Relaxed);
            let is_ours = is == key
                || (is == 0
                    && match noted.compare_exchange(0, key, Ordering::AcqRel, Ordering::Relaxed) {
                        Ok(_) => {
                            self.used.fetch_or(1 << place, Ordering::AcqRel);
                            true
                        }
                        Err(now) => now == key,
                    });
            if !is_ours {
                continue;
            }
            if !is_thread(key) {
                return (true, false);
            }
            let OfThread { launches, at } = &self.of_threads[place];
            let apart = now.saturating_sub(at.swap(now, Ordering::Relaxed)) >= APART;
            let many = launches.fetch_add(1, Ordering::Relaxed) + 1 >= CLOSE;
            return (true, apart || many);
        }
        (false, false)
    }

    /// Takes a note away. Who launches in its stream meanwhile finds it still, and is in time for the record that comes next.
    fn take(&self, place: usize) {
        self.used.fetch_and(!(1 << place), Ordering::AcqRel);
        self.of_threads[place].launches.store(0, Ordering::Relaxed);
        self.keys[place].store(0, Ordering::Release);
    }

    /// Forgets all of them.
    pub(super) fn clear(&self) {
        (0..NOTES).for_each(|place| self.take(place));
    }
}
