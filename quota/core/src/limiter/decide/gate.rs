//! The gate: whether a launch goes now.

use core::sync::atomic::Ordering;

use fgpu_wire::limits::{COMPUTE_CAP, COMPUTE_OFF};
use fgpu_wire::turns::Answer;

use crate::limiter::constants::{
    IDLE, IN_FLIGHT, MAX_NAP, MAX_PREPAID, MIN_NAP, PATIENCE, PATIENCE_DOUBLINGS, PATIENCE_MOST, RECHECK,
};
use crate::limiter::environment::{Events, Host, Stream};
use crate::limiter::lane::Lane;
use crate::limiter::shared::grant::Grant;

/// What a launch at the gate has seen so far.
struct Wait {
    /// It had to wait for its container's turn.
    turn: bool,
    /// It had to wait until its container had paid.
    owed: bool,
    /// How many launches had ended when it last looked, and when that changed.
    progress: (u64, u64),
    /// It goes though its container owes, since kernels do not end.
    unpaid: bool,
}

impl Lane {
    /// Before a launch: returns when it may go. Returns the time, or `None` if the launch is not counted. A
    /// launch with a time is to be followed by [`after`](Lane::after) or [`failed`](Lane::failed). `grant` is
    /// called where it is needed.
    #[inline]
    pub fn before<'a>(
        &self,
        grant: impl FnOnce() -> Option<Grant<'a>>,
        stream: Stream,
        host: &impl Host,
        events: &impl Events,
    ) -> Option<u64> {
        // A captured launch does not run. If it counted, kernels would seem shorter than they are.
        if events.is_captured(stream) {
            return None;
        }
        let now = host.now();
        if self.may_go(now) { Some(now) } else { self.gate(now, &grant()?, stream, host, events) }
    }

    /// An admitted launch failed.
    #[cold]
    pub fn failed(&self) {
        self.calls.leave();
    }

    /// Whether a launch may go without another look. It is in flight from then on.
    #[inline]
    fn may_go(&self, now: u64) -> bool {
        if now >= self.go_until.load(Ordering::Relaxed) || !self.is_at_work() {
            return false;
        }
        // Entered before the next question, so that no thread takes the lane for idle in between.
        let before = self.calls.enter();
        let may = self.is_at_work() && before.admitted() < self.go_below.load(Ordering::Relaxed);
        if !may {
            self.calls.leave();
        }
        may
    }

    // Neither inlined nor cold: a program that waits for each launch comes here as often.
    #[inline(never)]
    fn gate(
        &self,
        mut now: u64,
        grant: &Grant<'_>,
        stream: Stream,
        host: &impl Host,
        events: &impl Events,
    ) -> Option<u64> {
        if grant.share().0 == COMPUTE_OFF {
            return None;
        }
        self.mark_after_pause(now, grant, host, events);
        self.arrive(now);
        let mut wait = Wait { turn: false, owed: false, progress: (self.retired(), now), unpaid: false };
        let (prepaid, window) = loop {
            self.settle(now, grant, host, events);
            let window = self.window(grant);
            let nap = match self.step(now, grant, window, &mut wait) {
                Answer::Go => match self.prepay(now, grant, &wait) {
                    Some(prepaid) if self.enter(window, wait.unpaid || self.is_stuck(now, &mut wait)) => {
                        break (prepaid, window);
                    }
                    Some(prepaid) => {
                        grant.account.refund(prepaid, grant.share().1);
                        MIN_NAP
                    }
                    None => MIN_NAP,
                },
                Answer::Wait(nap) => nap,
            };
            // Without a mark the end of the work cannot be seen.
            self.mark(now, grant, host, events);
            host.sleep(nap.clamp(1, MAX_NAP));
            now = host.now();
        };
        let starts = !self.is_at_work() && self.start(now, grant, stream, prepaid, host, events);
        if !starts && prepaid != 0 {
            grant.account.refund(prepaid, grant.share().1);
        }
        let unpaid = if wait.unpaid { self.unpaid.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.unpaid.store(unpaid, Ordering::Relaxed);
        self.admit(now, grant, window, wait.turn);
        Some(now)
    }

    /// A launch comes to the gate. After a pause the lane's time counts anew: the container did not want the
    /// GPU meanwhile, so there is nothing to catch up on.
    fn arrive(&self, now: u64) {
        if self.since_launch(now) > IDLE {
            self.since.store(now, Ordering::Relaxed);
            self.yielded.store(0, Ordering::Relaxed);
        }
    }

    /// Whether a launch may go now.
    fn step(&self, now: u64, grant: &Grant<'_>, window: u64, wait: &mut Wait) -> Answer {
        let (mode, ppm) = grant.share();
        if mode == COMPUTE_OFF {
            return Answer::Go;
        }
        let owed = grant.account.owed(now, ppm);
        wait.unpaid = mode == COMPUTE_CAP && owed > 0;
        if wait.unpaid {
            wait.owed = true;
            if !self.is_at_work() {
                if let Some(turn) = grant.turn {
                    turn.leave(now);
                }
                return Answer::Wait(owed);
            }
            if !self.is_stuck_unpaid(now, wait) {
                return Answer::Wait(owed.min(IN_FLIGHT / 4));
            }
        }
        if self.in_flight() >= window && !self.is_stuck(now, wait) {
            return Answer::Wait((self.average() / 8).clamp(MIN_NAP, IN_FLIGHT / 4));
        }
        let Some(turn) = grant.turn else { return Answer::Go };
        match turn.ask(now, grant.stake(), self.average()) {
            Answer::Go => Answer::Go,
            Answer::Wait(nap) => {
                wait.turn = true;
                let since = grant.account.paid().max(self.since.load(Ordering::Relaxed));
                if now.saturating_sub(since) >= grant.max_yield() {
                    return Answer::Go;
                }
                Answer::Wait(nap)
            }
        }
    }

    /// Pays for a kernel in advance, if the lane is idle. Else several processes that wait until nothing is
    /// owed would all go at once. Returns the GPU time, nanoseconds; `None`: another process was faster.
    fn prepay(&self, now: u64, grant: &Grant<'_>, wait: &Wait) -> Option<u64> {
        let (mode, ppm) = grant.share();
        if mode != COMPUTE_CAP || self.is_at_work() {
            return Some(0);
        }
        if wait.turn {
            self.yielded.store(1, Ordering::Relaxed);
        }
        let (time, credit) = match self.average() {
            // While the length is unknown, one process goes after the other.
            0 => (IN_FLIGHT, 0),
            average => (average.min(MAX_PREPAID), self.credit(grant, wait.owed)),
        };
        grant.account.prepay(now, time, ppm, credit).then_some(time)
    }

    /// After a look that let a launch go: whether no other thread's launch took the room at the same time. A
    /// launch that has waited for long enough goes in any case: the other one may be its own thread's, in a
    /// callback of the driver.
    fn enter(&self, window: u64, is_stuck: bool) -> bool {
        let others = self.calls.enter().calling;
        let has_room = others == 0 || is_stuck || self.in_flight() + others < window;
        if !has_room {
            self.calls.leave();
        }
        has_room
    }

    /// Admits launches until the next look, as many as `window` has room for.
    fn admit(&self, now: u64, grant: &Grant<'_>, window: u64, yielded: bool) {
        if yielded {
            self.yielded.store(1, Ordering::Relaxed);
        } else if grant.share().0 != COMPUTE_CAP || grant.account.paid() >= now {
            self.yielded.store(0, Ordering::Relaxed);
        }
        // The launch at the gate is among those that are admitted already.
        let room = window.saturating_sub(self.in_flight()).saturating_sub(1);
        self.go_below.store(self.calls.count().admitted() + room, Ordering::Relaxed);
        self.go_until.store(now + RECHECK, Ordering::Relaxed);
    }

    /// Whether the launch has waited long enough for kernels to end: four kernels, or [`PATIENCE`].
    fn is_stuck(&self, now: u64, wait: &mut Wait) -> bool {
        self.waited_for(now, wait) >= self.patience()
    }

    /// The same while the container owes: twice as long each time, until it has paid. Else kernels that end
    /// late, because other processes have the GPU, would bring ever more behind them.
    fn is_stuck_unpaid(&self, now: u64, wait: &mut Wait) -> bool {
        let doublings = self.unpaid.load(Ordering::Relaxed).min(PATIENCE_DOUBLINGS);
        self.waited_for(now, wait) >= self.patience() << doublings
    }

    fn patience(&self) -> u64 {
        PATIENCE.max(self.average().saturating_mul(4)).min(PATIENCE_MOST)
    }

    /// How long no kernel of the lane has ended.
    fn waited_for(&self, now: u64, wait: &mut Wait) -> u64 {
        let retired = self.retired();
        if retired != wait.progress.0 {
            wait.progress = (retired, now);
        }
        now.saturating_sub(wait.progress.1)
    }
}
