//! Which launches wait for a mark, and when they get it.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fgpu_wire::limits::COMPUTE_CAP;

use super::held::BRIEF;
use super::work::State;
use super::{Lane, Stream};
use crate::limiter::{AHEAD, Events, Grant, Host, PATIENCE, SHORT, WHOLE};

/// Streams whose launches can wait for a mark.
pub(super) const NOTES: usize = 32;
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

/// A stream whose launches are not marked yet.
#[derive(Default)]
pub(super) struct Note {
    /// The stream's handle, or the thread; 0: nobody.
    pub(super) key: AtomicUsize,
    /// Of a thread's: launches since its last mark, and when the last was.
    launches: AtomicU64,
    at: AtomicU64,
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
    pub fn after(&self, now: u64, grant: &Grant<'_>, stream: Stream, host: &impl Host, events: &impl Events) {
        let (found, is_own_due) = self.note(stream.key(host), now);
        self.launched.fetch_add(1, Ordering::AcqRel);
        self.leave();
        let apart = now.saturating_sub(self.launched_at.swap(now, Ordering::Relaxed)) >= APART;
        let since = self.marked.fetch_add(1, Ordering::Relaxed) + 1;
        let due = apart
            || is_own_due
            || self.is_close()
            || !found
            || since >= CLOSE * 4
            || (since >= CLOSE && self.is_due(since))
            || now.saturating_sub(self.marked_at.load(Ordering::Relaxed)) >= LONG;
        if due {
            self.mark_with(now, grant, (!found).then_some(stream), false, host, events);
            if self.average() == 0 {
                self.learn(grant, host, events);
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
        let streams = self.notes.iter().filter(|note| note.key.load(Ordering::Relaxed) != 0).count();
        since >= CLOSE * streams.clamp(1, 4) as u64
    }

    /// The places in which a stream can be noted.
    #[inline]
    fn notes_of(&self, key: usize) -> impl Iterator<Item = &Note> {
        let hash = (key >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 59;
        (0..4).map(move |probe| &self.notes[(hash + probe) % NOTES])
    }

    #[inline]
    fn is_noted(&self, key: usize) -> bool {
        self.notes_of(key).any(|note| note.key.load(Ordering::Acquire) == key)
    }

    /// Whether there is something that this thread could mark: what another one marked leaves out this one's own stream.
    #[inline]
    fn is_unmarked(&self, host: &impl Host) -> bool {
        self.marked.load(Ordering::Relaxed) != 0 || self.is_noted(of_thread(host))
    }

    /// Notes a launch in a stream: whether there was room, and whether it is a thread's that has to be marked now.
    #[inline]
    fn note(&self, key: usize, now: u64) -> (bool, bool) {
        for note in self.notes_of(key) {
            let is = note.key.load(Ordering::Relaxed);
            let is_ours = is == key
                || (is == 0
                    && match note.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Relaxed) {
                        Ok(_) => true,
                        Err(now) => now == key,
                    });
            if !is_ours {
                continue;
            }
            if !is_thread(key) {
                return (true, false);
            }
            let apart = now.saturating_sub(note.at.swap(now, Ordering::Relaxed)) >= APART;
            let many = note.launches.fetch_add(1, Ordering::Relaxed) + 1 >= CLOSE;
            return (true, apart || many);
        }
        (false, false)
    }

    /// Marks what is not marked yet, if there is anything.
    pub fn mark(&self, now: u64, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        if self.is_unmarked(host) {
            self.mark_with(now, grant, None, false, host, events);
        }
    }

    /// Likewise some time after the last launch: what has ended since is not said to have ended now.
    pub(in crate::limiter) fn mark_late(
        &self,
        now: u64,
        grant: &Grant<'_>,
        host: &impl Host,
        events: &impl Events,
    ) {
        let is_late = now.saturating_sub(self.launched_at.load(Ordering::Relaxed)) >= LATE;
        if is_late && self.is_unmarked(host) {
            self.mark_with(now, grant, None, true, host, events);
        }
    }

    #[cold]
    fn mark_with(
        &self,
        now: u64,
        grant: &Grant<'_>,
        also: Option<Stream>,
        late: bool,
        host: &impl Host,
        events: &impl Events,
    ) {
        let own = of_thread(host);
        let is_ours_alone = also.is_some() || self.is_noted(own);
        let held = if is_ours_alone { self.hold_soon(now, host) } else { self.hold(host) };
        let Some(held) = held else { return };
        let state = held.state();
        let launches = self.launched.load(Ordering::Acquire);
        let unmarked = self.marked.swap(0, Ordering::Relaxed);
        self.marked_at.store(now, Ordering::Relaxed);
        let mut recorded = false;
        let mut mark = |state: &mut State, stream: Stream| {
            // Asked, a stream that is captured, or the legacy one while a stream is that it waits for, ends the capture.
            if late && !events.is_captured(stream) && events.is_idle(stream) {
                return;
            }
            recorded |= state.record(launches, stream, events);
        };
        for note in &self.notes {
            let key = note.key.load(Ordering::Acquire);
            if key == 0 || (is_thread(key) && key != own) {
                continue;
            }
            note.key.store(0, Ordering::Release);
            note.launches.store(0, Ordering::Relaxed);
            mark(state, if key == own { Stream::OwnThread } else { Stream::Shared(key) });
        }
        if let Some(stream) = also {
            mark(state, stream);
        }
        state.covered = launches;
        // All has ended, at a time that nobody saw; or nobody may ask now, since there is a capture.
        let unseen = if late && !recorded { unmarked } else { 0 };
        if unseen > 0 {
            self.closely.store(CLOSELY, Ordering::Relaxed);
        }
        self.look(state, now, grant, host, events, unseen);
    }

    /// Before a wait for the GPU, and what comes after launches in a stream: marks what this thread can mark.
    #[inline]
    pub fn before_wait(&self, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        if self.is_unmarked(host) {
            self.mark_late(host.now(), grant, host, events);
            self.mark(host.now(), grant, host, events);
        }
    }

    /// Before what takes no time or is asked again and again: likewise, but not in the middle of launches.
    #[inline]
    pub fn before_late(&self, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        let is_late = || host.now().saturating_sub(self.launched_at.load(Ordering::Relaxed)) >= APART;
        if self.is_unmarked(host) && is_late() {
            self.before_wait(grant, host, events);
        }
    }

    /// The context is about to end: what has ended in it is charged for as long as it took, which nobody can be asked later.
    pub fn before_close(&self, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        self.before_wait(grant, host, events);
        self.settle(host.now(), grant, host, events);
    }

    /// A stream is about to end: marks what was launched into it, since no thread may name it any more afterwards.
    pub fn before_end(&self, stream: usize, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        let key = Stream::Shared(stream).key(host);
        if self.is_noted(key) {
            self.mark(host.now(), grant, host, events);
        }
        // Another thread may be recording in it at this moment; it does not wait for us with its lock held.
        for _ in 0..1000 {
            if self.lock.load(Ordering::Acquire) == 0 && !self.is_noted(key) {
                break;
            }
            host.sleep(BRIEF);
            self.mark(host.now(), grant, host, events);
        }
    }
}
