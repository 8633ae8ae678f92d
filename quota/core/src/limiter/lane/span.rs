//! One time at work of a lane: its marks, and what of it is charged.

use fgpu_wire::ledger;

use super::lengths::Lengths;
use crate::limiter::constants::{MARKS, REPORT};
use crate::limiter::environment::{Events, Stream};
use crate::limiter::shared::grant::Grant;

/// An event that was recorded after launches.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mark {
    pub(crate) event: usize,
    /// How many launches of the lane came before it.
    pub(crate) launches: u64,
}

/// A time at work, which one thread at a time changes. All zeros is the beginning. Times within it are
/// nanoseconds after [`from`](Self::from).
pub(crate) struct Span {
    /// The event that was recorded before the first launch; 0: not made yet.
    pub(crate) start: usize,
    /// The GPU has not come to `start` yet: the stream is blocked.
    pub(crate) pending: bool,
    /// The GPU was seen to have come to `start`.
    pub(crate) has_come: bool,
    /// When it began.
    pub(crate) from: u64,
    /// Up to where it is charged, and what the account said then.
    charged: u64,
    before: u64,
    /// GPU time that was paid in advance and is not used yet.
    prepaid: u64,
    /// When the latest mark that is done was.
    pub(crate) ended: u64,
    pub(crate) lengths: Lengths,
    /// Charged time that is not reported yet.
    unreported: u64,
    /// Until when the lane was last announced as busy.
    pub(crate) busy: u64,
    /// The marks in flight: `count` of them from `first` on.
    first: usize,
    pub(crate) count: usize,
    marks: [Mark; MARKS],
    /// Events that are not in use.
    spare: [usize; MARKS],
    spares: usize,
}

impl Span {
    /// Begins; `prepaid` of it is paid, and `pending` tells that the stream is blocked.
    pub(crate) fn begin(&mut self, now: u64, grant: &Grant<'_>, prepaid: u64, pending: bool) {
        (self.pending, self.has_come) = (pending, false);
        (self.from, self.charged, self.ended) = (now, 0, 0);
        (self.before, self.prepaid) = (grant.account.charged(), prepaid);
    }

    /// Begins now, with marks whose beginning was not seen.
    pub(crate) fn begin_without_start(&mut self, now: u64, grant: &Grant<'_>) {
        (self.pending, self.from, self.charged, self.ended) = (false, now, 0, 0);
        self.before = grant.account.charged();
    }

    /// Forgets all events, which end with their context.
    pub(crate) fn forget_events(&mut self) {
        (self.start, self.count, self.spares, self.pending) = (0, 0, 0, false);
    }

    /// Marks a stream after so many launches of the lane. `false`: impossible now.
    pub(crate) fn record(&mut self, launches: u64, stream: Stream, events: &impl Events) -> bool {
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

    /// The oldest mark in flight.
    pub(crate) fn oldest(&self) -> Option<Mark> {
        (self.count > 0).then(|| self.marks[self.first % MARKS])
    }

    /// Takes out the oldest mark, which is `mark`.
    pub(crate) fn retire(&mut self, mark: Mark) {
        self.first = (self.first + 1) % MARKS;
        self.count -= 1;
        self.spare[self.spares % MARKS] = mark.event;
        self.spares += 1;
    }

    /// Whether the GPU has come to the beginning, which is asked until it has.
    pub(crate) fn has_come(&mut self, events: &impl Events) -> bool {
        self.has_come = self.has_come || events.is_done(self.start);
        self.has_come
    }

    /// Goes on as if it had begun with the mark that was retired last. It is charged at least up to there.
    pub(crate) fn rebase(&mut self) {
        let Some(last) = self.spares.checked_sub(1) else { return };
        core::mem::swap(&mut self.start, &mut self.spare[last % MARKS]);
        self.from = self.from.saturating_add(self.ended);
        self.charged = self.charged.saturating_sub(self.ended);
        self.ended = 0;
    }

    /// The GPU came to `start` some time in the last `length` nanoseconds: as late as later completions
    /// allow.
    pub(crate) fn infer_beginning(&mut self, length: u64, grant: &Grant<'_>) {
        let waited = length.saturating_sub(self.ended);
        self.from = self.from.saturating_add(waited);
        // What other processes were charged for meanwhile came before that, as far as it fits there.
        self.before = self.before.saturating_add(waited).min(grant.account.charged());
    }

    /// Charges it up to `until`.
    pub(crate) fn charge(&mut self, until: u64, grant: &Grant<'_>, credit: u64, kernel: u64) {
        let Some(length) = until.checked_sub(self.charged).filter(|&length| length > 0) else { return };
        let from = self.from.saturating_add(self.charged);
        let span = ledger::Span { from, length, before: self.before };
        let ppm = grant.share().1;
        let time = grant.account.charge(span, ppm, credit, grant.max_debt(kernel), self.prepaid);
        self.prepaid = self.prepaid.saturating_sub(time);
        if let Some(turn) = grant.turn {
            turn.advance(time, grant.stake());
        }
        self.unreported = self.unreported.saturating_add(time);
        if self.unreported >= REPORT {
            grant.report(from.saturating_add(length), core::mem::take(&mut self.unreported));
        }
        self.charged = until;
        self.before = grant.account.charged();
    }

    /// Gives back what was paid in advance and is not used.
    pub(crate) fn refund(&mut self, grant: &Grant<'_>) {
        if self.prepaid != 0 {
            grant.account.refund(core::mem::take(&mut self.prepaid), grant.share().1);
        }
    }
}
