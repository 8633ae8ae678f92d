//! The turns: in which order the containers of a node use a GPU.
//!
//! Each GPU has a board: files of 4 KiB on a small file system of its own, named after the minor number of
//! the GPU's device node.
//!
//! ```text
//! <minor>-index     0  magic    8  "fgputurn"
//!                   8  version  4  2
//!                  16  64 × 16     the grant that has each place; zeros: free
//! <minor>-<place>   0  virtual  8  nanoseconds of GPU time used, divided by the share; comparable among the active
//!                   8  wants    8  CLOCK_MONOTONIC nanoseconds until which the container wants the GPU
//!                  16  busy     8  CLOCK_MONOTONIC nanoseconds until which it has work on the GPU or is about to
//!                  24  stake    8  what it divides its time by ([`Stake`])
//! ```
//!
//! The host writes the index. Each container writes its own place, and no other container can. It reads the
//! other places through an overlay of its own, so it can neither cut, lock, lease nor change the mode of a
//! file that another container uses. What a place says is *advice*: a reader waits because of it only for a
//! bounded time, and never while it has had less than its share (docs/design/limiter.md). So a container that
//! lies about itself can disturb the order, but it can neither stop another one nor take its share. Each
//! container keeps its words in its own ledger ([`Own`]) and copies them here.
//!
//! Each word expires ([`VALID`]), so a container that was killed does not hold the others up for long.
//!
//! The order is start-time fair queueing. The container that has used least, in proportion to its share, is
//! next. It starts when the one before has no work on the GPU any more, and goes on until it is [`SLACK`]
//! ahead of the next one. A container that was idle joins at the level of the active ones: unused time is not
//! saved up. So one container at a time is on the GPU while several want it, and the time between its first
//! kernel and its last is its own.
//!
//! A container that booked no SM time has a weight instead of a share. It divides its time by its part of
//! what the booked shares leave:
//!
//! ```text
//! rate = weight × (1 − active booked shares) ÷ active weights, and at least weight ÷ 64
//! ```
//!
//! A container is active while it wants the GPU or has work on it. So the rates of all active containers make
//! up the whole GPU, and a booked share stays what it is. The minimum keeps a container without a booked
//! share from starving: all weights of a GPU sum to at most 1, so it costs booked shares 1.6 points of the
//! GPU in total. It is also what the weight is worth where the words of other containers are not trusted.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::ledger::at_share;
use crate::limits::least_share;

/// Containers on one GPU that can have a place.
pub const PLACES: usize = 64;
/// Size of each file, bytes.
pub const SIZE: usize = 4096;
/// Length of the used part of an index, bytes.
pub const INDEX: usize = HEADER + PLACES * 16;
/// How far ahead of the next container one goes before the turn changes, nanoseconds of time divided by the
/// share.
pub const SLACK: u64 = 10_000_000;
/// How long a container that has nothing to do keeps its turn: it may be about to launch the next kernel.
pub const GRACE: u64 = 400_000;

const HEADER: usize = 16;
const MAGIC: [u8; 8] = *b"fgputurn";
const VERSION: u32 = 2;
/// The whole GPU, ppm.
const WHOLE: u32 = 1_000_000;
/// How long a word is valid that says that a container wants the GPU or has work on it, nanoseconds.
const VALID: u64 = 1_000_000_000;
/// The most that a container is ahead of the others when it becomes active, apart from one of its kernels,
/// nanoseconds. What it used while they were idle is no debt.
const LEAD: u64 = 100_000_000;
/// How long a container that asks is said to want the GPU, nanoseconds; it asks again sooner.
const WANTS: u64 = 3_000_000;
/// How long a container that has the turn goes on without reading the others, and how old its published words
/// may be, nanoseconds. Each access to the files is some system calls.
const STEP: u64 = 250_000;
/// When a container asks again, nanoseconds: the next one, and the others.
const RETRY_NEXT: u64 = 100_000;
const RETRY_OTHERS: u64 = 200_000;

/// An index without grants.
pub fn new_index() -> [u8; INDEX] {
    let mut index = [0; INDEX];
    index[..8].copy_from_slice(&MAGIC);
    index[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    index
}

/// The grants, by place; zeros: the place is free. `None`: it is no index of this version.
pub fn grants(index: &[u8; INDEX]) -> Option<impl Iterator<Item = &[u8; 16]>> {
    let is_ours = index[..8] == MAGIC && index[8..12] == VERSION.to_ne_bytes();
    is_ours.then(|| index[HEADER..].as_chunks().0.iter())
}

/// Where the grant of a place is in an index, bytes.
pub const fn grant_at(place: usize) -> usize {
    HEADER + place * 16
}

/// What a container publishes about itself for the others on a GPU.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statement {
    /// Nanoseconds of GPU time used, divided by the share.
    pub virtual_time: u64,
    /// CLOCK_MONOTONIC nanoseconds until which it wants the GPU.
    pub wants: u64,
    /// CLOCK_MONOTONIC nanoseconds until which it has work on the GPU.
    pub busy: u64,
    /// What its time is divided by, as [`Stake::encode`] makes it.
    pub stake: u64,
}

/// A container's part of the SM time of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stake {
    /// A share, ppm.
    Booked(u32),
    /// No share, but a weight among those that have none: its part of the GPU's memory, ppm.
    Unbooked(u32),
}

impl Stake {
    /// As a word of the file: a share in the lower half, or a weight in the upper one. Never 0.
    pub fn encode(self) -> u64 {
        match self {
            Self::Booked(ppm) => u64::from(ppm.max(1)),
            Self::Unbooked(weight) => u64::from(weight.max(1)) << 32,
        }
    }

    /// A published word. A word without a value may mean any share, so the whole GPU is assumed.
    fn decode(word: u64) -> Self {
        match (word as u32, (word >> 32) as u32) {
            (0, 0) => Self::Booked(WHOLE),
            (0, weight) => Self::Unbooked(weight),
            (ppm, _) => Self::Booked(ppm),
        }
    }
}

/// The board of a GPU, as far as a container's turn needs it. Places that cannot be read are all zeros. What
/// cannot be written is dropped: the others do not wait for it then.
pub trait Board {
    /// Writes the statement of a place, and reads the other places of its GPU. `now`: CLOCK_MONOTONIC,
    /// nanoseconds.
    fn exchange(&self, now: u64, place: usize, statement: &Statement, places: &mut [Statement; PLACES]);
    /// Writes the statement of a place.
    fn publish(&self, place: usize, statement: &Statement);
}

/// The container's own words, in its ledger. All its processes change them, and no others do.
#[repr(C)]
#[derive(Debug)]
pub struct Own {
    virtual_time: AtomicU64,
    wants: AtomicU64,
    busy: AtomicU64,
    /// 1: it has the turn.
    turn: AtomicU64,
    /// Until when it goes on without asking again.
    goes: AtomicU64,
    /// 1: others were active when it last asked.
    others: AtomicU64,
    /// `busy` as it was published.
    published: AtomicU64,
    /// Until when a new launch continues its work, as after an idle time it would not.
    back: AtomicU64,
    /// Its stake, encoded.
    stake: AtomicU64,
    /// What it last divided its time by, ppm; 0: it has not asked yet.
    rate: AtomicU64,
}

/// What a container that wants to launch does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It launches.
    Go,
    /// It asks again after so many nanoseconds.
    Wait(u64),
}

impl Own {
    /// All zeros: a container that has not used the GPU.
    pub(crate) const fn new() -> Self {
        Self {
            virtual_time: AtomicU64::new(0),
            wants: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            goes: AtomicU64::new(0),
            others: AtomicU64::new(0),
            published: AtomicU64::new(0),
            back: AtomicU64::new(0),
            stake: AtomicU64::new(0),
            rate: AtomicU64::new(0),
        }
    }

    fn is_alone(&self) -> bool {
        self.others.load(Ordering::Acquire) == 0
    }

    fn statement(&self) -> Statement {
        Statement {
            virtual_time: self.virtual_time.load(Ordering::Acquire),
            wants: self.wants.load(Ordering::Acquire),
            busy: self.busy.load(Ordering::Acquire),
            stake: self.stake.load(Ordering::Acquire),
        }
    }

    /// What its time is divided by, ppm.
    fn rate(&self, stake: Stake) -> u32 {
        match (stake, self.rate.load(Ordering::Acquire)) {
            (Stake::Booked(ppm), _) => ppm,
            (Stake::Unbooked(weight), 0) => weight,
            (Stake::Unbooked(_), rate) => rate as u32,
        }
    }
}

/// The part of a GPU that a weight is worth beside active shares of `booked` ppm and other active weights of
/// `others` ppm.
fn rate(weight: u32, booked: u64, others: u64) -> u32 {
    let weight = weight.clamp(1, WHOLE);
    let left = u64::from(WHOLE).saturating_sub(booked);
    let part = u64::from(weight) * left / u64::from(weight).saturating_add(others);
    (part as u32).max(least_share(weight))
}

impl Statement {
    fn is_active(&self, now: u64) -> bool {
        is_valid(self.wants, now) || is_valid(self.busy, now)
    }
}

/// Whether a time is in the future, and not too far.
fn is_valid(until: u64, now: u64) -> bool {
    until > now && until - now <= VALID
}

/// A container's place on a GPU. `now` is always CLOCK_MONOTONIC, nanoseconds.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    place: usize,
    own: &'a Own,
    board: &'a dyn Board,
}

impl<'a> Turn<'a> {
    /// The turn of the container that has a place.
    pub fn new(place: usize, own: &'a Own, board: &'a dyn Board) -> Self {
        Self { place, own, board }
    }

    #[cold]
    fn publish(&self) {
        let said = self.own.statement();
        self.own.published.store(said.busy, Ordering::Release);
        self.board.publish(self.place, &said);
    }

    /// It goes, without asking again for a while.
    fn go(&self, now: u64) -> Answer {
        self.own.turn.store(1, Ordering::Release);
        self.own.goes.store(now + STEP, Ordering::Release);
        Answer::Go
    }

    /// Whether it is the turn of this container. Its kernels take `kernel` nanoseconds.
    #[inline]
    pub fn ask(&self, now: u64, stake: Stake, kernel: u64) -> Answer {
        let own = self.own;
        own.stake.store(stake.encode(), Ordering::Release);
        let was_active = own.statement().is_active(now) || is_valid(own.back.load(Ordering::Acquire), now);
        own.wants.store(now + WANTS, Ordering::Release);
        if was_active && now < own.goes.load(Ordering::Acquire) {
            return Answer::Go;
        }
        self.ask_others(now, stake, kernel, was_active)
    }

    #[cold]
    fn ask_others(&self, now: u64, stake: Stake, kernel: u64, was_active: bool) -> Answer {
        let own = self.own;
        let mut places = [Statement::default(); PLACES];
        let said = own.statement();
        own.published.store(said.busy, Ordering::Release);
        self.board.exchange(now, self.place, &said, &mut places);
        let mut least: Option<(u64, usize)> = None;
        let mut busy = false;
        let (mut booked, mut weights) = (0u64, 0u64);
        for (number, said) in places.iter().enumerate() {
            if number != self.place && said.is_active(now) {
                let level = (said.virtual_time, number);
                least = Some(least.map_or(level, |least| least.min(level)));
                busy |= is_valid(said.busy, now);
                match Stake::decode(said.stake) {
                    Stake::Booked(ppm) => booked += u64::from(ppm),
                    Stake::Unbooked(weight) => weights += u64::from(weight),
                }
            }
        }
        if let Stake::Unbooked(weight) = stake {
            own.rate.store(rate(weight, booked, weights).into(), Ordering::Release);
        }
        own.others.store(least.is_some().into(), Ordering::Release);
        let Some(least) = least else { return self.go(now) };
        let mut mine = own.virtual_time.load(Ordering::Acquire);
        if !was_active {
            let kernel = at_share(kernel, own.rate(stake));
            mine = mine.clamp(least.0, least.0.saturating_add(LEAD).saturating_add(kernel));
            own.virtual_time.store(mine, Ordering::Release);
            self.publish();
        }
        let has_turn = own.turn.load(Ordering::Acquire) == 1 && was_active;
        if has_turn && mine < least.0.saturating_add(SLACK) {
            return self.go(now);
        }
        if (mine, self.place) > least {
            own.turn.store(0, Ordering::Release);
            own.goes.store(0, Ordering::Release);
            return Answer::Wait(RETRY_OTHERS);
        }
        if busy {
            return Answer::Wait(RETRY_NEXT);
        }
        self.go(now)
    }

    /// Counts `time` of the GPU for the container. It is published with the next statement.
    pub fn advance(&self, time: u64, stake: Stake) {
        self.own.virtual_time.fetch_add(at_share(time, self.own.rate(stake)), Ordering::AcqRel);
    }

    /// The container has work on the GPU, most likely until `until`.
    pub fn busy(&self, until: u64) {
        self.own.busy.store(until, Ordering::Release);
        let behind = if self.own.is_alone() { 4 * STEP } else { STEP };
        if self.own.published.load(Ordering::Acquire).saturating_add(behind) < until {
            self.publish();
        }
    }

    /// The work is done of a process that last said that it was [`busy`](Self::busy) until `said`. It may be
    /// about to launch more. Returns until when the container is busy: another process may have said so
    /// meanwhile.
    pub fn done(&self, now: u64, said: u64) -> u64 {
        let own = self.own;
        own.back.store(now + GRACE, Ordering::Release);
        let next = if own.turn.load(Ordering::Acquire) == 1 { now + GRACE } else { 0 };
        let busy = match own.busy.compare_exchange(said, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => next,
            Err(other) => other,
        };
        // While the container is alone, no other container waits for it; one that comes waits a little
        // longer, once.
        let ahead = if own.is_alone() { 16 * STEP } else { STEP };
        if own.published.load(Ordering::Acquire) > busy.max(now).saturating_add(ahead) {
            self.publish();
        }
        busy
    }

    /// It does not want the GPU for a while. Work that another process of the container has on it goes on.
    pub fn leave(&self, now: u64) {
        let own = self.own;
        for word in [&own.turn, &own.wants, &own.goes, &own.back] {
            word.store(0, Ordering::Release);
        }
        let busy = own.busy.load(Ordering::Acquire);
        if busy <= now + GRACE {
            let _ = own.busy.compare_exchange(busy, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
        self.publish();
    }
}
