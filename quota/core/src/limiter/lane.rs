//! What is under way in one context, and how long it took.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use fgpu_wire::ledger::{CREDIT, Span};
use fgpu_wire::limits::COMPUTE_CAP;

use super::{AHEAD, Events, Grant, Host, LOOK, MOST, PATIENCE, PAUSE, SHORT, UNKNOWN};

/// Marks that can be under way at a time.
const MARKS: usize = 64;
/// Streams whose launches can wait for a mark.
const NOTES: usize = 32;
/// Launches of a stream until they are marked.
const CLOSE: u64 = 16;
/// What is launched so much later than the launch before is marked at once, nanoseconds.
const APART: u64 = 25_000;
/// The longest time between marks while launches go on, nanoseconds.
const LONG: u64 = 500_000;
/// A stream that has had no launch for so long may have ended since: it is asked before it is marked.
const LATE: u64 = 200_000;
/// How long after its last kernel a lane most likely is idle, beyond what its kernels take on average.
const SPARE: u64 = 1_000_000;
/// The longest that it says to be busy.
const BUSY: u64 = 500_000_000;
/// The first sleep while another thread has the state, nanoseconds.
const BRIEF: u64 = 1000;

/// Where something is launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// A stream by its handle; up to 2 that is the legacy default stream.
    Shared(usize),
    /// The default stream of the thread that launches. No other thread can name it.
    OwnThread,
}

/// A record after launches.
#[derive(Clone, Copy, Default)]
struct Mark {
    event: usize,
    /// How many launches of the lane came before it.
    launches: u64,
}

/// What one thread at a time changes. All zeros is the beginning.
struct State {
    /// Recorded before the first launch of the time at work; 0: not made yet.
    start: usize,
    /// The GPU has not come to `start` yet: the stream waits for something.
    pending: bool,
    /// When the time at work began.
    from: u64,
    /// How much of it was charged, and what the account said then.
    charged: u64,
    before: u64,
    /// What of it was paid in advance and is not used yet.
    prepaid: u64,
    /// How long after the beginning the latest of the marks that are done was.
    ended: u64,
    /// Launches that are behind a mark.
    covered: u64,
    /// What this process last told others.
    busy: u64,
    /// Marks under way: `count` of them from `first` on.
    first: usize,
    count: usize,
    marks: [Mark; MARKS],
    /// Events that are not in use.
    spare: [usize; MARKS],
    spares: usize,
}

/// A stream whose launches are not marked yet.
#[derive(Default)]
struct Note {
    /// The stream's handle, or the thread; 0: nobody.
    key: AtomicUsize,
    /// Of a thread's: launches since its last mark, and when the last was.
    launches: AtomicU64,
    at: AtomicU64,
}

/// A context's work on its GPU. All zeros is an idle one.
pub struct Lane {
    /// Until when launches go without another look, and how many.
    go_until: AtomicU64,
    allowed: AtomicI64,
    at_work: AtomicU32,
    /// The thread that holds `state`; 0: nobody.
    lock: AtomicUsize,
    /// Launches that were let go and are not counted yet: threads in the driver's call.
    calling: AtomicU32,
    launched: AtomicU64,
    launched_at: AtomicU64,
    marked: AtomicU64,
    marked_at: AtomicU64,
    retired: AtomicU64,
    /// Nanoseconds of a launch; 0: not known.
    average: AtomicU64,
    since: AtomicU64,
    /// 1: a launch had to wait for its container's turn, and what was missed meanwhile is not made up for yet.
    waited: AtomicU32,
    /// Launches that went unpaid since one was paid for.
    unpaid: AtomicU32,
    notes: [Note; NOTES],
    state: UnsafeCell<State>,
}

// SAFETY: `state` is reached under `lock` only.
unsafe impl Sync for Lane {}

/// The state, while the lock is held.
struct Held<'a>(&'a Lane);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.lock.store(0, Ordering::Release);
    }
}

impl Held<'_> {
    #[expect(clippy::mut_from_ref, reason = "the lock is what makes it the only one")]
    fn state(&self) -> &mut State {
        // SAFETY: the lock is held, by this thread and once (it is only tried for), and each function below takes the
        // state one time.
        unsafe { &mut *self.0.state.get() }
    }
}

impl Stream {
    fn key(self, host: &impl Host) -> usize {
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
    /// Whether a launch may go without another look. It is under way from then on.
    #[inline]
    pub(super) fn may_go(&self, now: u64) -> bool {
        // First, so that nobody takes the lane for idle in between.
        self.calling.fetch_add(1, Ordering::AcqRel);
        let may = now < self.go_until.load(Ordering::Relaxed)
            && self.at_work.load(Ordering::Acquire) != 0
            && self.allowed.fetch_sub(1, Ordering::Relaxed) > 0;
        if !may {
            self.leave();
        }
        may
    }

    /// After a look that let a launch go: whether no other thread's took the room at the same time. It does not matter to one
    /// that has waited for long enough (`is_stuck`): the other may be itself, in a callback of the driver's.
    pub(super) fn enter(&self, is_stuck: bool) -> bool {
        let others = self.calling.fetch_add(1, Ordering::AcqRel);
        let has_room = others == 0 || is_stuck || self.under_way() + u64::from(others) < self.window();
        if !has_room {
            self.leave();
        }
        has_room
    }

    fn leave(&self) {
        self.calling.fetch_sub(1, Ordering::AcqRel);
    }

    /// A launch that was let go failed.
    #[cold]
    pub fn failed(&self) {
        self.leave();
    }

    pub(super) fn unpaid(&self) -> u32 {
        self.unpaid.load(Ordering::Relaxed)
    }

    /// A launch goes, paid or not.
    pub(super) fn note_unpaid(&self, is_unpaid: bool) {
        let next = if is_unpaid { self.unpaid().saturating_add(1) } else { 0 };
        self.unpaid.store(next, Ordering::Relaxed);
    }

    /// Lets launches go until the next look.
    pub(super) fn let_go(&self, now: u64, grant: &Grant<'_>, waited: bool) {
        if waited {
            self.waited.store(1, Ordering::Relaxed);
        } else if grant.share().0 != COMPUTE_CAP || grant.account.paid().saturating_add(CREDIT) >= now {
            self.waited.store(0, Ordering::Relaxed);
        }
        let room = self.window().saturating_sub(self.under_way()).saturating_sub(1);
        self.allowed.store(room as i64, Ordering::Relaxed);
        self.go_until.store(now + LOOK, Ordering::Relaxed);
    }

    /// A launch comes to the gate. After a pause the lane's time counts anew: what it did not want it has not missed.
    pub(super) fn arrive(&self, now: u64) {
        if now.saturating_sub(self.launched_at.load(Ordering::Relaxed)) > PAUSE {
            self.since.store(now, Ordering::Relaxed);
            self.waited.store(0, Ordering::Relaxed);
        }
    }

    /// Since when it has launched without a pause.
    pub(super) fn since(&self) -> u64 {
        self.since.load(Ordering::Relaxed)
    }

    pub(super) fn is_at_work(&self) -> bool {
        self.at_work.load(Ordering::Acquire) != 0
    }

    pub(super) fn average(&self) -> u64 {
        self.average.load(Ordering::Relaxed)
    }

    pub(super) fn retired(&self) -> u64 {
        self.retired.load(Ordering::Acquire)
    }

    fn under_way(&self) -> u64 {
        self.launched.load(Ordering::Acquire).saturating_sub(self.retired())
    }

    /// How many launches may be under way.
    fn window(&self) -> u64 {
        match self.average() {
            0 => UNKNOWN,
            average => (AHEAD / average).clamp(1, MOST),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.under_way() >= self.window()
    }

    /// Time that the container had to leave to others is not lost to it as idle time is.
    fn credit(&self, grant: &Grant<'_>) -> u64 {
        if self.waited.load(Ordering::Relaxed) == 0 { CREDIT } else { CREDIT + grant.entitled() }
    }

    /// The state, unless somebody has it. No thread's address is 0.
    fn hold(&self, host: &impl Host) -> Option<Held<'_>> {
        let free = self.lock.compare_exchange(0, host.thread(), Ordering::Acquire, Ordering::Relaxed);
        free.is_ok().then_some(Held(self))
    }

    /// Likewise for what no other thread can do: who has the state asks the driver a few things and lets it go. Not waited
    /// for is the calling thread itself, in a callback of the driver's or a signal handler, nor anybody for longer than [`PATIENCE`].
    fn hold_soon(&self, now: u64, host: &impl Host) -> Option<Held<'_>> {
        let mut nap = BRIEF;
        loop {
            if let Some(held) = self.hold(host) {
                return Some(held);
            }
            let is_ours = self.lock.load(Ordering::Relaxed) == host.thread();
            if is_ours || host.now().saturating_sub(now) >= PATIENCE {
                return None;
            }
            host.sleep(nap);
            nap = (nap * 2).min(SHORT);
        }
    }

    /// Pays for a kernel in advance, if the lane is idle: several processes that wait until nothing is owed would go all at once.
    /// `waited`: this launch had to wait for its container's turn. Gives the GPU time, nanoseconds; `None`: another process was faster.
    pub(super) fn prepay(&self, now: u64, grant: &Grant<'_>, waited: bool) -> Option<u64> {
        let (mode, ppm) = grant.share();
        if mode != COMPUTE_CAP || self.is_at_work() {
            return Some(0);
        }
        let time = if self.average() == 0 { AHEAD } else { self.average() };
        if waited {
            self.waited.store(1, Ordering::Relaxed);
        }
        grant.account.prepay(now, time, ppm, self.credit(grant)).then_some(time)
    }

    /// Begins the time at work, if the lane is idle; `prepaid` of it is paid. `false`: it does not begin now.
    pub(super) fn start(
        &self,
        now: u64,
        grant: &Grant<'_>,
        stream: Stream,
        prepaid: u64,
        host: &impl Host,
        events: &impl Events,
    ) -> bool {
        if self.is_at_work() {
            return false;
        }
        let Some(held) = self.hold_soon(now, host) else { return false };
        let state = held.state();
        if self.is_at_work() {
            return false;
        }
        if state.start == 0 {
            let Some(event) = events.create() else { return false };
            state.start = event;
        }
        // In a stream that waits, the work begins when the stream comes to it; unless it waits for what another thread has launched.
        let waits = self.calling.load(Ordering::Acquire) <= 1 && !events.is_idle(stream);
        if !events.record(state.start, stream) {
            return false;
        }
        (state.pending, state.from, state.charged, state.ended) = (waits, now, 0, 0);
        (state.before, state.prepaid) = (grant.account.charged(), prepaid);
        self.at_work.store(1, Ordering::Release);
        self.tell(state, grant, now);
        true
    }

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
            || !found
            || since >= CLOSE * 4
            || (since >= CLOSE && self.is_due(since))
            || now.saturating_sub(self.marked_at.load(Ordering::Relaxed)) >= LONG;
        if due {
            self.mark_with(now, grant, (!found).then_some(stream), false, host, events);
        }
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
    pub(super) fn mark_late(&self, now: u64, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
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
        let mut left = false;
        let mut mark = |state: &mut State, stream: Stream| {
            if late && events.is_idle(stream) {
                return;
            }
            match state.record(launches, stream, events) {
                true => recorded = true,
                false => left = true,
            }
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
        if late && !recorded && !left && state.count == 0 && !state.pending {
            // All has ended, at a time that nobody saw.
            let guess = state.ended.saturating_add(unmarked.saturating_mul(self.average()));
            state.ended = guess.min(now.saturating_sub(state.from));
            self.retired.store(launches, Ordering::Release);
        }
        self.look(state, now, grant, events);
    }

    /// Charges what has been worked since the last look.
    pub fn settle(&self, now: u64, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        if !self.is_at_work() {
            return;
        }
        if let Some(held) = self.hold(host) {
            self.look(held.state(), now, grant, events);
        }
    }

    fn look(&self, state: &mut State, now: u64, grant: &Grant<'_>, events: &impl Events) {
        if !self.is_at_work() {
            // Nobody saw the beginning: whoever launched found the lane held by another thread.
            if state.count == 0 {
                self.retired.store(state.covered, Ordering::Release);
                return;
            }
            (state.pending, state.from, state.charged, state.ended) = (false, now, 0, 0);
            state.before = grant.account.charged();
            self.at_work.store(1, Ordering::Release);
        }
        if state.pending && state.start != 0 {
            if !events.is_done(state.start) {
                self.tell(state, grant, now);
                return;
            }
            (state.pending, state.from) = (false, now);
        }
        let length = now.saturating_sub(state.from);
        while state.count > 0 {
            let mark = state.marks[state.first % MARKS];
            if !events.is_done(mark.event) {
                break;
            }
            let ended = events.elapsed(state.start, mark.event).unwrap_or(length);
            self.retire(state, mark, ended.min(length));
        }
        // In this order: who leaves has counted what he launched.
        let all_marked = self.calling.load(Ordering::Acquire) == 0
            && self.launched.load(Ordering::Acquire) <= state.covered;
        let until = if state.count > 0 { length } else { state.ended };
        state.charge(until, grant, self.credit(grant));
        if state.count == 0 && all_marked {
            state.refund(grant);
            self.retired.fetch_max(state.covered, Ordering::AcqRel);
            self.at_work.store(0, Ordering::Release);
            if let Some(turn) = grant.turn {
                state.busy = turn.done(now, state.busy);
            }
        } else {
            self.tell(state, grant, now);
        }
    }

    fn retire(&self, state: &mut State, mark: Mark, ended: u64) {
        state.first = (state.first + 1) % MARKS;
        state.count -= 1;
        state.spare[state.spares % MARKS] = mark.event;
        state.spares += 1;
        let launches = mark.launches.saturating_sub(self.retired());
        if launches > 0 && !state.pending {
            let each = (ended.saturating_sub(state.ended) / launches).max(1);
            let average = self.average();
            let next = if average == 0 { each } else { (average * 3 + each) / 4 };
            self.average.store(next.max(1), Ordering::Relaxed);
            self.retired.store(mark.launches, Ordering::Release);
        }
        state.ended = state.ended.max(ended);
    }

    /// Tells the other containers how long this one most likely has work on the GPU.
    fn tell(&self, state: &mut State, grant: &Grant<'_>, now: u64) {
        if let Some(turn) = grant.turn {
            let left = self.under_way().saturating_mul(self.average()).saturating_add(SPARE);
            state.busy = now + left.min(BUSY);
            turn.busy(state.busy);
        }
    }

    /// Before a wait for the GPU: marks what this thread can mark.
    #[inline]
    pub fn before_wait(&self, grant: &Grant<'_>, host: &impl Host, events: &impl Events) {
        if self.is_unmarked(host) {
            self.mark_late(host.now(), grant, host, events);
            self.mark(host.now(), grant, host, events);
        }
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

    /// The context ends, and its events with it. What was under way is charged up to now. `false`: the state cannot be had,
    /// and still names those events.
    pub fn close(&self, now: u64, grant: &Grant<'_>, host: &impl Host) -> bool {
        let Some(held) = self.hold_soon(now, host) else { return false };
        let state = held.state();
        if self.is_at_work() && !state.pending {
            state.charge(now.saturating_sub(state.from), grant, self.credit(grant));
        }
        state.refund(grant);
        if let Some(turn) = grant.turn {
            turn.done(now, state.busy);
        }
        (state.start, state.count, state.spares, state.pending) = (0, 0, 0, false);
        state.covered = self.launched.load(Ordering::Acquire);
        for note in &self.notes {
            note.key.store(0, Ordering::Release);
        }
        self.marked.store(0, Ordering::Relaxed);
        self.retired.store(state.covered, Ordering::Release);
        self.at_work.store(0, Ordering::Release);
        true
    }
}

impl State {
    fn record(&mut self, launches: u64, stream: Stream, events: &impl Events) -> bool {
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

    /// Charges the time at work up to `until` after its beginning.
    fn charge(&mut self, until: u64, grant: &Grant<'_>, credit: u64) {
        let Some(length) = until.checked_sub(self.charged).filter(|&length| length > 0) else { return };
        let span = Span { from: self.from.saturating_add(self.charged), length, before: self.before };
        let ppm = grant.share().1;
        let time = grant.account.charge(span, ppm, credit, grant.ahead(), self.prepaid);
        self.prepaid = self.prepaid.saturating_sub(time);
        if let Some(turn) = grant.turn {
            turn.advance(time, ppm);
        }
        if let Some(part) = grant.part {
            part.add(span.from.saturating_add(length), time);
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
