//! The limiter of SM time: when a launch may go, and what it cost.
//!
//! # How time is measured
//!
//! A [`Lane`] is a context of this process on a GPU. From the first launch into an idle lane to the end of the last one
//! the lane is *at work*; events of the driver's tell how long that was: one before the first launch, and *marks*
//! after launches. What is launched far apart is marked one by one, what is launched close together every sixteen
//! launches of a stream. The rest is marked before a wait for the GPU, a question whether it is done, and what follows in a
//! stream: a copy, a fill, an event, a host function. Time between two kernels that is too short for a host to see counts as
//! work. A lane's time is charged to the container's account ([`Compute`]), which takes the union of what its processes report,
//! and moves on until when the container has paid.
//!
//! A stream may have to wait before the first of these events comes, for a copy for one. When it came is told only by what has
//! ended since: the time at work began so long before now, and not later.
//!
//! What counts too much: time that a kernel in the middle of others waits for a copy or for another GPU; gaps of some
//! microseconds between kernels; and where a burst is followed in its stream by something that is none of the above (a copy
//! between two GPUs), the time until that has ended. After a burst of whose end nothing but the program's own memory tells it,
//! what counts is the average of such kernels instead of their time; of the next 64 launches each is marked. What counts too
//! little: up to fifteen launches close together in the default stream of a thread that afterwards neither launches nor waits.
//!
//! Of threads that launch into default streams of their own each can mark its own only. One that finds the state held by another
//! waits for it: a mark left out is work that nobody is charged for.
//!
//! # When a launch may go
//!
//! 1. `cap`: what was used is paid for. Else the launch sleeps until then. The first one of a lane pays in advance what a kernel takes on
//!    average: of several processes that wait for that moment one goes. The very first one of a context, of which nobody knows how long it is,
//!    is waited for: it is charged while it runs, and the next process goes when it is paid for.
//! 2. No more is under way than fills [`AHEAD`]: what is launched cannot be taken back, so it must be little. A lane whose
//!    kernels do not end gets a launch in all the same after [`PATIENCE`]: they may be waiting for it. If it has not paid, either,
//!    the next one waits twice as long, until it has paid.
//! 3. It is the container's turn on the GPU ([`Turn`]). A container that has had less than its share for so long that it could not
//!    make up for more (20 ms of the GPU, within 3 points of a second) waits for nobody: what others wrote into a shared
//!    file cannot take its share.
//!
//! All of it is looked at every [`LOOK`] nanoseconds at most; a launch in between costs a look at the clock. A waiting launch
//! sleeps and asks again, so a new share is heeded within [`NAP`].
//!
//! # What a cap is
//!
//! A kernel cannot be interrupted. One of `k` seconds at a share of `s` is paid for after `k / s`, and then the next one goes. A second
//! holds `n = ⌊s / k⌋` such periods and a rest of `r = 1 - n k / s`, and so at most `n k + min(k, r)` of kernels. That is more than
//! the share by `min(k, r) - s r`, which is most where `r = k`: `k (1 - s)`. (111 ms at 25 %: two periods of 444 ms and 111 ms, which is 33.3 %.)
//! So within 3 points are all kernels of up to 33 ms at a share of 10 %, 40 ms at 25 %, 60 ms at 50 % and 300 ms at 90 %, and of the longer
//! ones those of which `r` is small: 60 ms at 25 % make 28 %. A container that had to leave the GPU to others makes up for 20 ms of it besides.
//!
//! Could longer ones be kept within 3 points? Let `m` of them fit into `s + 0.03` seconds, and `p` be what is left there. From the beginning
//! of one to that of the `m`-th after it at least `1 - p` must pass, else the second that begins with it holds more. That is at most
//! `m k / (1 - p)` of the GPU: at 25 % for 100 ms `0.2 / 0.92`, 21.7 % and so 87 % of the share; for 150 ms 17.2 %; for 300 ms nothing at all. So 3 points
//! over any second and 95 % of the share exclude each other there, for every limiter. The average is worth more, and holds for kernels of
//! every length.
//!
//! How long a kernel is, is known of those before it. So once more than that goes ahead where short kernels are followed by long
//! ones: what the host launches before the first of them has ended. If that is `u` of the GPU, a second holds `u (1 - s)` too much. A cap
//! lets no more be under way than makes 20 ms of that, if each launch is as long as the longest of the last ten seconds; so it is 2 points
//! where there have been such before, and the first time as much as forty kernels (`lane/ahead.rs`). And where the first ones of a
//! context are longer than [`PATIENCE`], one goes for each time that this passes.
//!
//! All of it is about a container. Which of its processes and streams goes next is its own matter: whoever asks first once it has
//! paid, kernel by kernel. Of two processes with kernels of 30 and of 100 ms the first gets 23 %.
//!
//! # What a share is
//!
//! Of two containers that always want the GPU, the order of turns gives each its part but for what one kernel of either is (start-time fair
//! queueing): with kernels of `a` and `b` seconds and shares that make up the whole, the first has over any span of time its share of it
//! within `a (1 - s) + b s`. That is 5 points over 20 times as long: 0.4 s where they are of 20 ms, 2 s where they are of 100 ms. By rule 3
//! one may begin in the middle of the other's, and then both take longer: of 250 ms it is 20 s and not 5.
//!
//! # What who booked nothing gets
//!
//! A container that asked for memory alone has a weight and no share ([`COMPUTE_REST`]). In the order of turns it has its part, by weight,
//! of what the booked shares that want the GPU leave ([`Stake`]): alone all of it, beside a share of 30 % the other 70 %. Where booked
//! shares that want the GPU make up all of it, a 64th of its weight is left to it, so it goes on; that much, too, it waits for nobody for (rule 3).
//!
//! # Who can die when
//!
//! The words that processes share change one at a time and each says something by itself; nothing is locked, and the
//! kernel tells whose container has ended. What a process keeps for itself is guarded by a lock that names its holder: a
//! thread that finds it taken does without, or waits for at most [`PATIENCE`] where only it can do what is to be done, and never for
//! itself: a signal handler or a profiler's callback may launch in the middle of it.
//!
//! A capture that begins waits for who holds such a lock, too, and a holder for it (`lane/held.rs`): a record in the legacy stream would break it.

mod lane;
mod lanes;
#[cfg(test)]
mod tests;

use fgpu_wire::ledger::{Busy, Compute, at_share};
use fgpu_wire::limits::{COMPUTE_CAP, COMPUTE_OFF, COMPUTE_REST, Page, least_share};
use fgpu_wire::turns::{Answer, Stake, Turn};

pub use lane::{Lane, Stream};
pub use lanes::Lanes;

/// How much work may be under way that has not been measured, nanoseconds of the GPU.
pub const AHEAD: u64 = 4_000_000;
/// The most that is paid for in advance, nanoseconds of the GPU: until somebody looks whether the kernel was shorter than those before it the
/// other processes of the container wait for that.
const BEFOREHAND: u64 = 250_000_000;
/// How long a launch may go on without another look.
pub const LOOK: u64 = 250_000;
/// The longest sleep before everything is looked at anew: a share may have changed.
pub const NAP: u64 = 10_000_000;
/// How long a launch waits for kernels that do not end.
pub const PATIENCE: u64 = 100_000_000;
/// How often that doubles while nothing is paid, and the longest from which on it does, nanoseconds.
const MOST_PATIENT: u32 = 10;
const BEYOND: u64 = 60_000_000_000;
/// GPU time that a capped container makes up for if it had to leave it to others, nanoseconds: with what
/// [`fgpu_wire::ledger::CREDIT`] allows for, within 3 points of a second.
const MADE_UP: u64 = 20_000_000;
/// The longest time for which a container lets others go first, nanoseconds.
const LONGEST: u64 = 100_000_000;
/// How long a container launches nothing until what it might have had meanwhile is not counted, nanoseconds.
const PAUSE: u64 = 30_000_000;
/// How far ahead of its share a container in `share` mode is thought to be: what it used while others were idle is not a debt.
const FORGIVEN: u64 = 100_000_000;
/// The whole GPU, ppm.
const WHOLE: u32 = 1_000_000;
/// Shortest sleeps while kernels end.
const SHORT: u64 = 50_000;

/// What the limiter asks of the system.
pub trait Host {
    /// CLOCK_MONOTONIC, nanoseconds.
    fn now(&self) -> u64;
    /// Sleeps for about so many nanoseconds.
    fn sleep(&self, nanoseconds: u64);
    /// An address that no other thread of the process has.
    fn thread(&self) -> usize;
}

/// What the limiter asks of the driver, in the current context. An event is a number that is not 0. What can break a capture
/// ([`record`](Self::record), [`is_idle`](Self::is_idle)) is asked by who holds a lane and has found none beginning since.
pub trait Events {
    /// Makes an event.
    fn create(&self) -> Option<usize>;
    /// Records an event in a stream. `false`: that cannot be done now, since it is captured or would break a capture.
    fn record(&self, event: usize, stream: Stream) -> bool;
    /// Whether all that was before the event's record has ended.
    fn is_done(&self, event: usize) -> bool;
    /// The time between two events.
    fn elapsed(&self, from: usize, to: usize) -> Elapsed;
    /// Whether nothing is under way in a stream. `false` also where that cannot be asked now, as for [`record`](Self::record).
    fn is_idle(&self, stream: Stream) -> bool;
    /// Whether what is launched into a stream is captured into a graph.
    fn is_captured(&self, stream: Stream) -> bool;
    /// Whether a capture is about to begin, in whatever stream; who begins it waits for the lanes' holders then
    /// ([`Lanes::wait_for_holders`]). In one order with the lanes' locks (sequentially consistent).
    fn is_capture_beginning(&self) -> bool;
}

/// What the driver says of the time between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elapsed {
    /// Nanoseconds; both are done.
    Time(u64),
    /// One of them is not done yet.
    NotReady,
    /// Nothing: one of them was never recorded, or the driver cannot tell.
    Unknown,
}

/// What this container may use of a GPU, and where it accounts for that.
#[derive(Clone, Copy)]
pub struct Grant<'a> {
    /// The limits.
    pub page: &'a Page,
    /// Number in the grant.
    pub gpu: usize,
    /// The container's account.
    pub account: &'a Compute,
    /// What of it was this process, for who looks.
    pub part: Option<&'a Busy>,
    /// The container's place among those on this GPU, if it has one.
    pub turn: Option<Turn<'a>>,
}

impl Grant<'_> {
    /// How `cores` is meant, and how much it is (ppm): of who booked none the least that his weight is worth.
    #[inline]
    pub fn share(&self) -> (u8, u32) {
        match self.page.compute(self.gpu) {
            (COMPUTE_REST, weight) => (COMPUTE_REST, least_share(weight)),
            share => share,
        }
    }

    /// What counts among those that want the GPU.
    fn stake(&self) -> Stake {
        match self.page.compute(self.gpu) {
            (COMPUTE_REST, weight) => Stake::Unbooked(weight),
            (_, ppm) => Stake::Booked(ppm),
        }
    }

    /// How long a container that has less than its share lets others go first, nanoseconds: as long as it can make up for
    /// afterwards.
    fn entitled(&self) -> u64 {
        at_share(MADE_UP, self.share().1).min(LONGEST)
    }

    /// Tells who looks how busy the GPU is of so many nanoseconds of work that ended at `end`.
    fn tell(&self, end: u64, time: u64) {
        self.account.tell(end, time);
        if let Some(part) = self.part {
            part.add(end, time);
        }
    }

    /// How far beyond what was used a container whose kernels take so long is thought to have paid, nanoseconds: one of them is
    /// paid for by turns that others have before it.
    fn ahead(&self, kernel: u64) -> u64 {
        match self.share() {
            (COMPUTE_CAP, _) => u64::MAX,
            (_, ppm) => at_share(kernel, ppm).saturating_add(FORGIVEN),
        }
    }
}

/// What a launch that came to the gate has seen so far.
struct Wait {
    /// Whether it has had to wait for its container's turn.
    turn: bool,
    /// And until its container had paid.
    owed: bool,
    /// How many launches had ended when it last looked, and when that changed.
    progress: (u64, u64),
    /// Whether it goes though its container owes, since kernels do not end.
    unpaid: bool,
}

impl Lane {
    /// Before a launch: comes back when it may go. Gives the time, or `None` if the launch is not to be counted. What has
    /// a time is to be followed by [`after`](Lane::after) or [`failed`](Lane::failed). `grant` is asked for where it is needed.
    #[inline]
    pub fn before<'a>(
        &self,
        grant: impl FnOnce() -> Option<Grant<'a>>,
        stream: Stream,
        host: &impl Host,
        events: &impl Events,
    ) -> Option<u64> {
        // What is captured does not run; counted, it would make kernels seem shorter than they are.
        if events.is_captured(stream) {
            return None;
        }
        let now = host.now();
        if self.may_go(now) { Some(now) } else { self.gate(now, &grant()?, stream, host, events) }
    }

    // Not inlined, and not cold either: whoever waits for each launch comes here as often.
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
        self.mark_late(now, grant, host, events);
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
                        SHORT
                    }
                    None => SHORT,
                },
                Answer::Wait(nap) => nap,
            };
            // What is not marked cannot be seen to end.
            self.mark(now, grant, host, events);
            host.sleep(nap.clamp(1, NAP));
            now = host.now();
        };
        let starts = !self.is_at_work() && self.start(now, grant, stream, prepaid, host, events);
        if !starts && prepaid != 0 {
            grant.account.refund(prepaid, grant.share().1);
        }
        self.note_unpaid(wait.unpaid);
        self.let_go(now, grant, window, wait.turn);
        Some(now)
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
                return Answer::Wait(owed.min(AHEAD / 4));
            }
        }
        if self.under_way() >= window && !self.is_stuck(now, wait) {
            return Answer::Wait((self.average() / 8).clamp(SHORT, AHEAD / 4));
        }
        let Some(turn) = grant.turn else { return Answer::Go };
        match turn.ask(now, grant.stake(), self.average()) {
            Answer::Go => Answer::Go,
            Answer::Wait(nap) => {
                wait.turn = true;
                if now.saturating_sub(grant.account.paid().max(self.since())) >= grant.entitled() {
                    return Answer::Go;
                }
                Answer::Wait(nap)
            }
        }
    }

    /// Whether it has waited long enough for kernels to end: as long as several take, or [`PATIENCE`].
    fn is_stuck(&self, now: u64, wait: &mut Wait) -> bool {
        self.waited_for(now, wait) >= self.patience()
    }

    /// Likewise while its container owes: twice as long each time since it last did not. Else kernels that end late because other
    /// processes have the GPU would bring ever more behind them.
    fn is_stuck_unpaid(&self, now: u64, wait: &mut Wait) -> bool {
        self.waited_for(now, wait) >= self.patience() << self.unpaid().min(MOST_PATIENT)
    }

    fn patience(&self) -> u64 {
        PATIENCE.max(self.average().saturating_mul(4)).min(BEYOND)
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
