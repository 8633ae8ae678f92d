//! A lane's time at work: when it begins, what has ended in it, and when it is over.

use core::sync::atomic::Ordering;

use crate::limiter::constants::{BUSY_MARGIN, BUSY_MOST, REBASE};
use crate::limiter::environment::{Elapsed, Events, Host, Stream};
use crate::limiter::lane::Lane;
use crate::limiter::lane::span::{Mark, Span};
use crate::limiter::shared::grant::Grant;

impl Lane {
    /// Begins the time at work, if the lane is idle; `prepaid` of it is paid. `false`: it does not begin now.
    pub(crate) fn start(
        &self,
        now: u64,
        grant: &Grant<'_>,
        stream: Stream,
        prepaid: u64,
        host: &impl Host,
        events: &impl Events,
    ) -> bool {
        let Some(mut held) = self.span.hold_soon(now, host) else { return false };
        // A capture may have begun while the launch waited at the gate.
        if self.is_at_work() || !held.may_ask(host, events) || events.is_captured(stream) {
            return false;
        }
        let span = held.value();
        if span.start == 0 {
            let Some(event) = events.create() else { return false };
            span.start = event;
        }
        // In a blocked stream the work begins when the block ends; unless it is blocked by another thread's
        // launch.
        let pending = self.calls.count().calling <= 1 && !events.is_idle(stream);
        if !events.record(span.start, stream) {
            return false;
        }
        span.begin(now, grant, prepaid, pending);
        self.set_at_work(true);
        self.announce(span, grant, now);
        true
    }

    /// Charges what has been worked since the last look.
    pub fn settle(&self, now: u64, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        if !self.is_at_work() {
            return;
        }
        if let Some(mut held) = self.span.hold(host) {
            self.collect(held.value(), now, grant, host, events, 0);
        }
    }

    /// Charges what can be seen to have ended, and `unseen` launches that ended without a mark.
    pub(crate) fn collect(
        &self,
        span: &mut Span,
        mut now: u64,
        grant: &Grant<'_>,
        host: &impl Host,
        events: &impl Events,
        unseen: u64,
    ) {
        if !self.is_at_work() {
            // There is no start event: the launch found the lane held by another thread.
            if span.count == 0 {
                self.retired.store(self.covered.load(Ordering::Relaxed), Ordering::Release);
                return;
            }
            span.begin_without_start(now, grant);
            self.set_at_work(true);
        }
        let was_pending = core::mem::take(&mut span.pending);
        if was_pending && !events.is_done(span.start) {
            span.pending = true;
            self.announce(span, grant, now);
            return;
        }
        let mut is_last = false;
        while let Some(mark) = span.oldest() {
            let elapsed = match events.elapsed(span.start, mark.event) {
                Elapsed::Time(time) => Some(time),
                Elapsed::NotReady if span.has_come(events) => break,
                // Without a start event, or with one behind another thread's launch, the driver does not know
                // the time.
                _ if !events.is_done(mark.event) => break,
                _ => None,
            };
            // The mark may be later than `now`, which was read before a launch; a launch can take long.
            if elapsed.is_some_and(|elapsed| elapsed > now.saturating_sub(span.from)) {
                now = host.now();
            }
            let length = now.saturating_sub(span.from);
            let ended = elapsed.unwrap_or(length).min(length);
            self.retire(span, mark, ended);
            is_last = ended == span.ended;
        }
        let length = now.saturating_sub(span.from);
        if unseen > 0 && span.count == 0 {
            let guess = span.ended.saturating_add(unseen.saturating_mul(self.average()));
            span.ended = guess.min(length);
            self.retire_all();
        }
        if was_pending {
            span.infer_beginning(length, grant);
        }
        let length = now.saturating_sub(span.from);
        let calls = self.calls.count();
        let is_all_marked = calls.calling == 0 && calls.launched <= self.covered.load(Ordering::Relaxed);
        let until = if span.count > 0 { length } else { span.ended };
        span.charge(until, grant, self.credit(grant, true), self.average());
        if span.count == 0 && is_all_marked {
            span.refund(grant);
            self.retire_all();
            self.set_at_work(false);
            if let Some(turn) = grant.turn {
                span.busy = turn.done(now, span.busy);
            }
        } else {
            if is_last && span.ended >= REBASE {
                span.rebase();
            }
            self.announce(span, grant, now);
        }
    }

    /// Everything that is marked has ended. Only a thread that holds the lock writes `retired`.
    fn retire_all(&self) {
        let covered = self.covered.load(Ordering::Relaxed);
        if covered > self.retired() {
            self.retired.store(covered, Ordering::Release);
        }
    }

    /// A mark has ended: learns how long its kernels were.
    fn retire(&self, span: &mut Span, mark: Mark, ended: u64) {
        span.retire(mark);
        let launches = mark.launches.saturating_sub(self.retired());
        if launches > 0 && !span.pending {
            let together = ended.saturating_sub(span.ended);
            let each = if launches == 1 { together } else { together / launches }.max(1);
            let average = self.average();
            let next = if average == 0 { each } else { (average * 3 + each) / 4 };
            self.average.store(next.max(1), Ordering::Relaxed);
            let longest = span.lengths.add(launches, each, span.from.saturating_add(ended));
            self.longest.store(longest, Ordering::Relaxed);
            self.retired.store(mark.launches, Ordering::Release);
        }
        span.ended = span.ended.max(ended);
    }

    /// Tells the other containers until when this one most likely has work on the GPU.
    pub(crate) fn announce(&self, span: &mut Span, grant: &Grant<'_>, now: u64) {
        if let Some(turn) = grant.turn {
            let left = self.in_flight().saturating_mul(self.average());
            let left = left.saturating_add(left / 8).saturating_add(BUSY_MARGIN);
            span.busy = now + left.min(BUSY_MOST);
            turn.busy(span.busy);
        }
    }

    /// The context ends, and its events with it. Work in flight is charged up to now. `false`: another thread
    /// has the state, which still names those events.
    pub fn close(&self, now: u64, grant: &Grant<'_>, host: &impl Host) -> bool {
        let Some(mut held) = self.span.hold_soon(now, host) else { return false };
        let span = held.value();
        if self.is_at_work() {
            let length = now.saturating_sub(span.from);
            // In a blocked stream the beginning of the kernels was not seen.
            let kernels = self.in_flight().saturating_mul(self.average());
            let length = if span.pending { length.min(kernels) } else { length };
            span.charge(length, grant, self.credit(grant, true), self.average());
        }
        span.refund(grant);
        if let Some(turn) = grant.turn {
            turn.done(now, span.busy);
        }
        span.forget_events();
        self.unmarked.clear();
        let launched = self.calls.count().launched;
        self.covered.store(launched, Ordering::Release);
        self.retired.store(launched, Ordering::Release);
        self.set_at_work(false);
        true
    }
}
