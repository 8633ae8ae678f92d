//! The time at work: when it began, what is under way, and what of it is charged.

use core::sync::atomic::Ordering;

use fgpu_wire::ledger::Span;

use super::ahead::Lengths;
use super::{Lane, Stream};
use crate::limiter::{Elapsed, Events, Grant, Host};

/// Marks that can be under way at a time.
const MARKS: usize = 64;
/// How long after its last kernel a lane most likely is idle, beyond what its kernels take on average.
const SPARE: u64 = 1_000_000;
/// How long after the beginning of a time at work that is counted from anew: the driver tells of times in a `float` of milliseconds
/// (`cuEventElapsedTime`), which is exact to a microsecond up to there.
const ANEW: u64 = 10_000_000_000;
/// The longest that it says to be busy.
const BUSY: u64 = 900_000_000;
/// So much work is told to who looks how busy the GPU is at once, nanoseconds: a ten-thousandth of the time that it is told of.
const TOLD: u64 = 50_000;

/// A record after launches.
#[derive(Clone, Copy, Default)]
struct Mark {
    event: usize,
    /// How many launches of the lane came before it.
    launches: u64,
}

/// What one thread at a time changes. All zeros is the beginning.
pub(super) struct State {
    /// Recorded before the first launch of the time at work; 0: not made yet.
    start: usize,
    /// The GPU has not come to `start` yet: the stream waits for something.
    pub(super) pending: bool,
    /// It was seen to have come there.
    has_come: bool,
    /// When the time at work began.
    pub(super) from: u64,
    /// How much of it was charged, and what the account said then.
    charged: u64,
    before: u64,
    /// What of it was paid in advance and is not used yet.
    prepaid: u64,
    /// How long after the beginning the latest of the marks that are done was.
    pub(super) ended: u64,
    lengths: Lengths,
    /// Work that was charged, of which who looks has not been told yet.
    untold: u64,
    /// What this process last told others.
    busy: u64,
    /// Marks under way: `count` of them from `first` on.
    first: usize,
    pub(super) count: usize,
    marks: [Mark; MARKS],
    /// Events that are not in use.
    spare: [usize; MARKS],
    spares: usize,
}

impl Lane {
    /// Begins the time at work, if the lane is idle; `prepaid` of it is paid. `false`: it does not begin now.
    pub(in crate::limiter) fn start(
        &self,
        now: u64,
        grant: &Grant<'_>,
        stream: Stream,
        prepaid: u64,
        host: &impl Host,
        events: &impl Events,
    ) -> bool {
        let Some(held) = self.hold_soon(now, host) else { return false };
        let state = held.state();
        // A capture may have begun while the launch waited to be let go.
        if self.is_at_work() || !held.may_ask(host, events) || events.is_captured(stream) {
            return false;
        }
        if state.start == 0 {
            let Some(event) = events.create() else { return false };
            state.start = event;
        }
        // In a stream that waits, the work begins when the stream comes to it; unless it waits for what another thread has launched.
        let waits = self.calls.count().calling <= 1 && !events.is_idle(stream);
        if !events.record(state.start, stream) {
            return false;
        }
        (state.pending, state.has_come) = (waits, false);
        (state.from, state.charged, state.ended) = (now, 0, 0);
        (state.before, state.prepaid) = (grant.account.charged(), prepaid);
        self.at_work.store(1, Ordering::Release);
        self.tell(state, grant, now);
        true
    }

    /// Charges what has been worked since the last look.
    pub fn settle(&self, now: u64, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        if !self.is_at_work() {
            return;
        }
        if let Some(held) = self.hold(host) {
            self.look(held.state(), now, grant, host, events, 0);
        }
    }

    /// Charges what can be seen to have ended, and `unseen` launches that ended since, without a mark.
    pub(super) fn look(
        &self,
        state: &mut State,
        mut now: u64,
        grant: &Grant<'_>,
        host: &impl Host,
        events: &impl Events,
        unseen: u64,
    ) {
        if !self.is_at_work() {
            // Nobody saw the beginning: whoever launched found the lane held by another thread.
            if state.count == 0 {
                self.retired.store(self.covered.load(Ordering::Relaxed), Ordering::Release);
                return;
            }
            (state.pending, state.from, state.charged, state.ended) = (false, now, 0, 0);
            state.before = grant.account.charged();
            self.at_work.store(1, Ordering::Release);
        }
        let has_waited = core::mem::take(&mut state.pending);
        if has_waited && !events.is_done(state.start) {
            state.pending = true;
            self.tell(state, grant, now);
            return;
        }
        let mut is_last = false;
        while state.count > 0 {
            let mark = state.marks[state.first % MARKS];
            let elapsed = match events.elapsed(state.start, mark.event) {
                Elapsed::Time(time) => Some(time),
                Elapsed::NotReady if state.has_come(events) => break,
                // Who has no beginning, or one behind another thread's launch, is not told when the mark came.
                _ if !events.is_done(mark.event) => break,
                _ => None,
            };
            // It may have ended since `now` was asked for: before a launch, and that can take long.
            if elapsed.is_some_and(|elapsed| elapsed > now.saturating_sub(state.from)) {
                now = host.now();
            }
            let length = now.saturating_sub(state.from);
            let ended = elapsed.unwrap_or(length).min(length);
            self.retire(state, mark, ended);
            is_last = ended == state.ended;
        }
        let length = now.saturating_sub(state.from);
        if unseen > 0 && state.count == 0 {
            let guess = state.ended.saturating_add(unseen.saturating_mul(self.average()));
            state.ended = guess.min(length);
            self.retire_all();
        }
        if has_waited {
            state.begin_unseen(length, grant);
        }
        let length = now.saturating_sub(state.from);
        let calls = self.calls.count();
        let all_marked = calls.calling == 0 && calls.launched <= self.covered.load(Ordering::Relaxed);
        let until = if state.count > 0 { length } else { state.ended };
        state.charge(until, grant, self.credit(grant, true), self.average());
        if state.count == 0 && all_marked {
            state.refund(grant);
            self.retire_all();
            self.at_work.store(0, Ordering::Release);
            if let Some(turn) = grant.turn {
                state.busy = turn.done(now, state.busy);
            }
        } else {
            if is_last && state.ended >= ANEW {
                state.count_anew();
            }
            self.tell(state, grant, now);
        }
    }

    /// All that is covered has ended. For who holds the state, as all that write `retired` do.
    fn retire_all(&self) {
        let covered = self.covered.load(Ordering::Relaxed);
        if covered > self.retired() {
            self.retired.store(covered, Ordering::Release);
        }
    }

    fn retire(&self, state: &mut State, mark: Mark, ended: u64) {
        state.first = (state.first + 1) % MARKS;
        state.count -= 1;
        state.spare[state.spares % MARKS] = mark.event;
        state.spares += 1;
        let launches = mark.launches.saturating_sub(self.retired());
        if launches > 0 && !state.pending {
            let together = ended.saturating_sub(state.ended);
            let each = if launches == 1 { together } else { together / launches }.max(1);
            let average = self.average();
            let next = if average == 0 { each } else { (average * 3 + each) / 4 };
            self.average.store(next.max(1), Ordering::Relaxed);
            let longest = state.lengths.add(launches, each, state.from.saturating_add(ended));
            self.longest.store(longest, Ordering::Relaxed);
            self.retired.store(mark.launches, Ordering::Release);
        }
        state.ended = state.ended.max(ended);
    }

    /// Tells the other containers how long this one most likely has work on the GPU.
    pub(super) fn tell(&self, state: &mut State, grant: &Grant<'_>, now: u64) {
        if let Some(turn) = grant.turn {
            let left = self.under_way().saturating_mul(self.average());
            let left = left.saturating_add(left / 8).saturating_add(SPARE);
            state.busy = now + left.min(BUSY);
            turn.busy(state.busy);
        }
    }

    /// The context ends, and its events with it. What was under way is charged up to now. `false`: the state cannot be had,
    /// and still names those events.
    pub fn close(&self, now: u64, grant: &Grant<'_>, host: &impl Host) -> bool {
        let Some(held) = self.hold_soon(now, host) else { return false };
        let state = held.state();
        if self.is_at_work() {
            let length = now.saturating_sub(state.from);
            // Behind what the stream waited for nobody has seen the kernels.
            let kernels = self.under_way().saturating_mul(self.average());
            let length = if state.pending { length.min(kernels) } else { length };
            state.charge(length, grant, self.credit(grant, true), self.average());
        }
        state.refund(grant);
        if let Some(turn) = grant.turn {
            turn.done(now, state.busy);
        }
        (state.start, state.count, state.spares, state.pending) = (0, 0, 0, false);
        self.notes.clear();
        let launched = self.calls.count().launched;
        self.covered.store(launched, Ordering::Release);
        self.retired.store(launched, Ordering::Release);
        self.at_work.store(0, Ordering::Release);
        true
    }
}

impl State {
    pub(super) fn record(&mut self, launches: u64, stream: Stream, events: &impl Events) -> bool {
        if self.count == MARKS {
            return false;
        }
        let event = match self.spares.checked_sub(1) {
            Some(last) => {
                self.spares = last;
                self.spare[last % MARKS]
            }
            None => match events.create() {
                Some(event) => event,
                None => return false,
            },
        };
        if !events.record(event, stream) {
            self.spare[self.spares % MARKS] = event;
            self.spares += 1;
            return false;
        }
        self.marks[(self.first + self.count) % MARKS] = Mark { event, launches };
        self.count += 1;
        true
    }

    /// Whether the GPU has come to the beginning, which is asked until it has.
    fn has_come(&mut self, events: &impl Events) -> bool {
        self.has_come = self.has_come || events.is_done(self.start);
        self.has_come
    }

    /// Goes on as if the time at work had begun with the mark that was retired last, which is what has been charged up to at least.
    fn count_anew(&mut self) {
        let Some(last) = self.spares.checked_sub(1) else { return };
        core::mem::swap(&mut self.start, &mut self.spare[last % MARKS]);
        self.from = self.from.saturating_add(self.ended);
        self.charged = self.charged.saturating_sub(self.ended);
        self.ended = 0;
    }

    /// The GPU came to `start` some time in the last `length` nanoseconds: as late as what has ended since allows.
    fn begin_unseen(&mut self, length: u64, grant: &Grant<'_>) {
        let waited = length.saturating_sub(self.ended);
        self.from = self.from.saturating_add(waited);
        // What other processes were charged for meanwhile was before that, as far as it fits there.
        self.before = self.before.saturating_add(waited).min(grant.account.charged());
    }

    /// Charges the time at work up to `until` after its beginning.
    fn charge(&mut self, until: u64, grant: &Grant<'_>, credit: u64, kernel: u64) {
        let Some(length) = until.checked_sub(self.charged).filter(|&length| length > 0) else { return };
        let span = Span { from: self.from.saturating_add(self.charged), length, before: self.before };
        let ppm = grant.share().1;
        let time = grant.account.charge(span, ppm, credit, grant.ahead(kernel), self.prepaid);
        self.prepaid = self.prepaid.saturating_sub(time);
        if let Some(turn) = grant.turn {
            turn.advance(time, grant.stake());
        }
        self.untold = self.untold.saturating_add(time);
        if self.untold >= TOLD {
            grant.tell(span.from.saturating_add(length), core::mem::take(&mut self.untold));
        }
        self.charged = until;
        self.before = grant.account.charged();
    }

    /// What was paid in advance and is not used is given back.
    fn refund(&mut self, grant: &Grant<'_>) {
        if self.prepaid != 0 {
            grant.account.refund(core::mem::take(&mut self.prepaid), grant.share().1);
        }
    }
}
