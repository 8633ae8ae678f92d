//! When launches get a mark.

use core::sync::atomic::Ordering;

use fgpu_wire::limits::COMPUTE_CAP;

use crate::limiter::constants::{
    IN_FLIGHT, LOCK_NAP, MARK_APART, MARK_AT_LEAST, MARK_EACH, MARK_EVERY, MAYBE_IDLE, MIN_NAP, PATIENCE,
    WHOLE,
};
use crate::limiter::environment::{Events, Host, Stream};
use crate::limiter::lane::Lane;
use crate::limiter::lane::streams::Key;
use crate::limiter::shared::grant::Grant;

/// Why launches are marked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// They are many, or far apart, or other work follows them in the stream.
    Due,
    /// The same, some time after the last launch. Work that has ended since did not end now.
    AfterPause,
    /// The program waits for them now; [`after_wait`](Lane::after_wait) comes next.
    Awaited,
}

impl Lane {
    /// Counts a launch that was admitted at `now` and that the driver took.
    #[inline]
    pub fn after<'a>(
        &self,
        now: u64,
        grant: impl FnOnce() -> Option<Grant<'a>>,
        stream: Stream,
        host: &impl Host,
        events: &impl Events,
    ) {
        let added = self.unmarked.add(Key::of(stream, host), now);
        let since = self.calls.launched().saturating_sub(self.covered.load(Ordering::Relaxed));
        let is_apart = self.since_launch(now) >= MARK_APART;
        self.launched_at.store(now, Ordering::Relaxed);
        let is_due = is_apart
            || added.is_due
            || self.takes_mark_each()
            || !added.has_place
            || since >= MARK_EVERY * 4
            || (since >= MARK_EVERY && self.is_due(since))
            || now.saturating_sub(self.marked_at.load(Ordering::Relaxed)) >= MARK_AT_LEAST;
        if is_due && let Some(grant) = grant() {
            self.mark_with(now, &grant, (!added.has_place).then_some(stream), Why::Due, host, events);
            if self.average() == 0 {
                self.wait_for_first(&grant, host, events);
            }
        }
    }

    /// Waits for the first kernel of a context, whose length is unknown, if it ends within [`PATIENCE`]. So
    /// it is charged while it runs, whatever the program does meanwhile. Else another process of the
    /// container would take it for a short one and launch beside it.
    #[cold]
    fn wait_for_first(&self, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        let (mode, ppm) = grant.share();
        if mode != COMPUTE_CAP || ppm >= WHOLE {
            return;
        }
        let until = host.now().saturating_add(PATIENCE);
        let mut nap = MIN_NAP;
        while self.average() == 0 && self.is_at_work() && self.in_flight() == 1 && host.now() < until {
            host.sleep(nap);
            nap = (nap * 2).min(IN_FLIGHT / 8);
            self.settle(host.now(), grant, host, events);
        }
    }

    /// Whether this launch is one of those that get a mark each.
    #[inline]
    fn takes_mark_each(&self) -> bool {
        let left = self.mark_each.load(Ordering::Relaxed);
        if left != 0 {
            self.mark_each.store(left - 1, Ordering::Relaxed);
        }
        left != 0
    }

    /// Many streams are marked less often: a mark is one record for each of them.
    #[cold]
    fn is_due(&self, since: u64) -> bool {
        since >= MARK_EVERY * u64::from(self.unmarked.count().clamp(1, 4))
    }

    /// Whether this thread can mark something. A mark of another thread leaves out this thread's default
    /// stream.
    #[inline]
    fn is_unmarked(&self, host: &impl Host) -> bool {
        self.calls.count().launched > self.covered.load(Ordering::Relaxed)
            || self.unmarked.has(Key::of_thread(host))
    }

    fn has_paused(&self, now: u64) -> bool {
        self.since_launch(now) >= MAYBE_IDLE
    }

    /// Marks what is not marked yet, if there is anything.
    pub(crate) fn mark(&self, now: u64, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        if self.is_unmarked(host) {
            self.mark_with(now, grant, None, Why::Due, host, events);
        }
    }

    /// The same, if the last launch was some time ago.
    pub(crate) fn mark_after_pause(
        &self,
        now: u64,
        grant: &Grant<'_>,
        host: &impl Host,
        events: &impl Events,
    ) {
        if self.has_paused(now) && self.is_unmarked(host) {
            self.mark_with(now, grant, None, Why::AfterPause, host, events);
        }
    }

    // Neither inlined nor cold: a program that waits for each launch comes here as often.
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
        let own = Key::of_thread(host);
        // Other threads cannot mark these.
        let is_ours_alone = also.is_some() || self.unmarked.has(own);
        let held = if is_ours_alone { self.span.hold_soon(now, host) } else { self.span.hold(host) };
        let Some(mut held) = held else { return };
        let launches = self.calls.count().launched;
        let unmarked = launches.saturating_sub(self.covered.load(Ordering::Relaxed));
        self.marked_at.store(now, Ordering::Relaxed);
        let mut recorded = false;
        let may_ask = held.may_ask(host, events);
        let span = held.value();
        let has_ended = |stream| why == Why::AfterPause && events.is_idle(stream);
        let mut mark = |stream| {
            if may_ask && !has_ended(stream) {
                recorded |= span.record(launches, stream, events);
            }
        };
        self.unmarked.drain(own, &mut mark);
        also.into_iter().for_each(&mut mark);
        self.covered.store(launches, Ordering::Release);
        // Everything has ended, at an unknown time; or there is a capture, and nothing can be asked.
        let unseen = if why == Why::AfterPause && !recorded { unmarked } else { 0 };
        if unseen > 0 {
            self.mark_each.store(MARK_EACH, Ordering::Relaxed);
        }
        // If the last launch was less than a kernel ago, it cannot have ended.
        let is_fresh = self.since_launch(now) < self.average();
        if why == Why::Awaited && span.count <= 1 && self.is_at_work() && is_fresh {
            self.announce(span, grant, now);
        } else {
            self.collect(span, now, grant, host, events, unseen);
        }
    }

    /// Before other work in a stream, such as a copy: marks what this thread can mark.
    #[inline]
    pub fn before_next<'a>(
        &self,
        grant: impl FnOnce() -> Option<Grant<'a>>,
        host: &impl Host,
        events: &impl Events,
    ) {
        self.mark_before(Why::Due, grant, host, events);
    }

    /// Before a wait for the GPU, after which comes [`after_wait`](Self::after_wait).
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

    /// Before cheap or polled calls: as [`before_next`](Self::before_next), but not between launches that
    /// follow each other closely.
    #[inline]
    pub fn before_poll<'a>(
        &self,
        grant: impl FnOnce() -> Option<Grant<'a>>,
        host: &impl Host,
        events: &impl Events,
    ) {
        if !self.is_unmarked(host) {
            return;
        }
        let now = host.now();
        if self.since_launch(now) >= MARK_APART
            && let Some(grant) = grant()
        {
            self.mark_now(now, &grant, Why::Due, host, events);
        }
    }

    fn mark_now(&self, now: u64, grant: &Grant<'_>, why: Why, host: &impl Host, events: &impl Events) {
        let why = if self.has_paused(now) { Why::AfterPause } else { why };
        self.mark_with(now, grant, None, why, host, events);
    }

    /// Before a context ends: charges what has ended in it. Later it cannot be asked how long that took.
    pub fn before_close(&self, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        self.before_next(|| Some(*grant), host, events);
        self.settle(host.now(), grant, host, events);
    }

    /// Before a stream ends: marks its launches. Afterwards no thread may name the stream.
    pub fn before_end(&self, stream: usize, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        let key = Key::of(Stream::Shared(stream), host);
        if self.unmarked.has(key) {
            self.mark(host.now(), grant, host, events);
        }
        // Another thread may be recording in it at this moment; it does not wait for us while it holds the
        // lock.
        for _ in 0..1000 {
            if self.span.is_free() && !self.unmarked.has(key) {
                break;
            }
            host.sleep(LOCK_NAP);
            self.mark(host.now(), grant, host, events);
        }
    }
}
