//! The turns file: in which order the containers of a node use their GPUs.
//!
//! One file for the node, writable for every container that has a limit. What is in it is *advice*: who reads it waits
//! because of it for a bounded time only, and never while he has had less than his share (the quota libraries' limiter),
//! so whoever writes rubbish into it can disturb the order, and can neither hang anybody nor take his share.
//!
//! ```text
//!     0  header, 4 KiB
//!          0  magic    8  "fgputurn"
//!          8  version  4  1
//!         16  used     64 × 4  per GPU, how many places were ever taken: nobody looks past them
//!  4096  per GPU, by the minor number of its device node: 64 × 64 places of 64 bytes
//!          0  nonce    16  the grant's whose container has the place
//!         16  virtual   8  nanoseconds of GPU time used, divided by the share; comparable among those that are at it
//!         24  wants     8  CLOCK_MONOTONIC nanoseconds until which the container would use the GPU
//!         32  busy      8  likewise, until which it has work on the GPU or is about to
//!         40  turn      8  1: it has the turn
//!         48  reserved
//! ```
//!
//! A container's processes hold a *shared* record lock on the byte of the file that has the place's number, so the kernel
//! says whether a place's container lives. A place is taken under an exclusive lock on that byte.
//!
//! The order is start-time fair queueing: who has used least, in proportion to his share, is next; he starts when the one
//! before has no work on the GPU any more, and goes on until he is [`SLACK`] ahead of the next one. Who comes back from
//! doing nothing joins at the level of those who are at it: time that was not used is not saved up. So there is one
//! container at a time on the GPU while several want it, and the time between its first kernel and its last is its own.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::ledger::at_share;

/// Size of the file, bytes. All but the header is zeros at first: make it a sparse file.
pub const SIZE: usize = PLACES_AT + GPUS * PLACES * PLACE;
/// Length of what [`encode`] gives.
pub const HEADER: usize = 16;
/// Containers on one GPU that can have a place.
pub const PLACES: usize = 64;
/// Byte of the file that is locked while a place is sought, so that a container's processes take one and not two.
pub const SEEKING: usize = GPUS * PLACES;
/// How far ahead of the next one a container goes before it is the other's turn, nanoseconds of time divided by share.
pub const SLACK: u64 = 10_000_000;
/// How long a container that has nothing to do keeps its turn: it may be about to launch the next kernel.
pub const GRACE: u64 = 400_000;

const GPUS: usize = 64;
const PLACES_AT: usize = 4096;
/// Size of a place in the file, bytes.
pub const PLACE: usize = 64;
const MAGIC: u64 = u64::from_ne_bytes(*b"fgputurn");
const VERSION: u32 = 1;
/// How long a word is believed that says that somebody wants the GPU, or has work on it.
const BELIEVED: u64 = 1_000_000_000;
/// The most that a container which comes back is ahead of the others: what it used while they did nothing is no debt.
const LEAD: u64 = 100_000_000;
/// For how long who asks says that he wants the GPU; he asks again sooner.
const ASKED: u64 = 3_000_000;
/// Until he asks again: who is next, and who is not.
const SOON: u64 = 100_000;
const LATER: u64 = 200_000;

/// The first bytes of a new file; the rest, up to [`SIZE`], is zeros.
pub fn encode() -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    header[8..12].copy_from_slice(&VERSION.to_ne_bytes());
    header
}

/// The numbers of the places of the GPU with this minor number.
pub const fn places(minor: u32) -> core::ops::Range<usize> {
    let first = (minor as usize % GPUS) * PLACES;
    first..first + PLACES
}

/// Where place number `place` is in the file.
pub const fn place_at(place: usize) -> usize {
    PLACES_AT + place * PLACE
}

/// The file as mapped memory.
#[repr(C)]
pub struct Turns {
    magic: AtomicU64,
    version: AtomicU32,
    reserved: AtomicU32,
    used: [AtomicU32; GPUS],
    header_tail: [AtomicU64; 478],
    places: [Place; GPUS * PLACES],
}

#[repr(C)]
struct Place {
    nonce: [AtomicU64; 2],
    virtual_time: AtomicU64,
    wants: AtomicU64,
    busy: AtomicU64,
    turn: AtomicU64,
    reserved: [AtomicU64; 2],
}

const _: () = assert!(size_of::<Turns>() == SIZE && size_of::<Place>() == PLACE);
const _: () = assert!(core::mem::offset_of!(Turns, places) == PLACES_AT);

/// What a container that wants to launch does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It launches.
    Go,
    /// It asks again after so many nanoseconds.
    Wait(u64),
}

impl Turns {
    /// Whether this is a file that this code understands.
    pub fn is_valid(&self) -> bool {
        self.magic.load(Ordering::Relaxed) == MAGIC && self.version.load(Ordering::Relaxed) == VERSION
    }

    /// Whether place number `place` was taken by the grant `nonce`.
    pub fn is(&self, place: usize, nonce: &[u8; 16]) -> bool {
        self.places.get(place).is_some_and(|place| place.is(nonce))
    }

    /// Takes place number `number` for the grant `nonce`. Under an exclusive lock on its byte only.
    pub fn take(&self, number: usize, nonce: &[u8; 16]) {
        let Some(place) = self.places.get(number) else { return };
        for word in [&place.virtual_time, &place.wants, &place.busy, &place.turn] {
            word.store(0, Ordering::Relaxed);
        }
        let (first, last) = nonce.split_at(8);
        for (word, half) in place.nonce.iter().zip([first, last]) {
            word.store(half.try_into().map_or(0, u64::from_ne_bytes), Ordering::Release);
        }
        self.used[number / PLACES].fetch_max((number % PLACES) as u32 + 1, Ordering::AcqRel);
    }

    /// The place of a container.
    pub fn at(&self, place: usize) -> Option<Turn<'_>> {
        (place < self.places.len()).then_some(Turn { turns: self, place })
    }
}

impl Place {
    fn is(&self, nonce: &[u8; 16]) -> bool {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.nonce[0].load(Ordering::Acquire).to_ne_bytes());
        bytes[8..].copy_from_slice(&self.nonce[1].load(Ordering::Acquire).to_ne_bytes());
        bytes == *nonce
    }

    fn is_at_it(&self, now: u64) -> bool {
        [&self.wants, &self.busy].into_iter().any(|word| believed(word, now).is_some())
    }
}

/// Until when, if that is in the future and not beyond belief.
fn believed(word: &AtomicU64, now: u64) -> Option<u64> {
    let until = word.load(Ordering::Acquire);
    (until > now && until - now <= BELIEVED).then_some(until)
}

/// A container's place on a GPU. `now` is always CLOCK_MONOTONIC, nanoseconds.
#[derive(Clone, Copy)]
pub struct Turn<'a> {
    turns: &'a Turns,
    place: usize,
}

impl<'a> Turn<'a> {
    /// The file.
    pub fn file(&self) -> &'a Turns {
        self.turns
    }

    fn own(&self) -> &Place {
        &self.turns.places[self.place]
    }

    fn others(&self) -> impl Iterator<Item = (usize, &Place)> {
        let (gpu, first) = (self.place / PLACES, self.place / PLACES * PLACES);
        let used = (self.turns.used[gpu].load(Ordering::Acquire) as usize).min(PLACES);
        let all = self.turns.places[first..first + used].iter().enumerate();
        all.map(move |(index, place)| (first + index, place)).filter(|(index, _)| *index != self.place)
    }

    /// The number of the place.
    pub fn place(&self) -> usize {
        self.place
    }

    /// Whether it is this container's turn. `lives` says whether a place's container does.
    pub fn ask(&self, now: u64, lives: impl Fn(usize) -> bool) -> Answer {
        let own = self.own();
        let was_at_it = own.is_at_it(now);
        own.wants.store(now + ASKED, Ordering::Release);
        let mut least: Option<(u64, usize)> = None;
        let mut busy = false;
        for (index, place) in self.others() {
            if place.is_at_it(now) && lives(index) {
                let level = (place.virtual_time.load(Ordering::Acquire), index);
                least = Some(least.map_or(level, |least| least.min(level)));
                busy |= believed(&place.busy, now).is_some();
            }
        }
        let Some(least) = least else {
            own.turn.store(1, Ordering::Release);
            return Answer::Go;
        };
        let mut mine = own.virtual_time.load(Ordering::Acquire);
        if !was_at_it {
            mine = mine.clamp(least.0, least.0.saturating_add(LEAD));
            own.virtual_time.store(mine, Ordering::Release);
        }
        let has_turn = own.turn.load(Ordering::Acquire) == 1 && was_at_it;
        if has_turn && mine < least.0.saturating_add(SLACK) {
            return Answer::Go;
        }
        if (mine, self.place) > least {
            own.turn.store(0, Ordering::Release);
            return Answer::Wait(LATER);
        }
        if busy {
            return Answer::Wait(SOON);
        }
        own.turn.store(1, Ordering::Release);
        Answer::Go
    }

    /// Counts `time` of the GPU for a container with a share of `ppm`.
    pub fn advance(&self, time: u64, ppm: u32) {
        self.own().virtual_time.fetch_add(at_share(time, ppm), Ordering::AcqRel);
    }

    /// The container has work on the GPU, most likely until `until`.
    pub fn busy(&self, until: u64) {
        self.own().busy.store(until, Ordering::Release);
    }

    /// The work of a process that last said [`busy`](Self::busy) until `said` is done. It may be about to launch more.
    /// Gives until when the place says that it is busy, if nobody else said so meanwhile.
    pub fn done(&self, now: u64, said: u64) -> u64 {
        let own = self.own();
        let next = if own.turn.load(Ordering::Acquire) == 1 { now + GRACE } else { 0 };
        match own.busy.compare_exchange(said, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => next,
            Err(other) => other,
        }
    }

    /// It does not want the GPU for a while. Work that another process of the container has on it goes on.
    pub fn leave(&self, now: u64) {
        let own = self.own();
        own.turn.store(0, Ordering::Release);
        own.wants.store(0, Ordering::Release);
        let busy = own.busy.load(Ordering::Acquire);
        if busy <= now + GRACE {
            let _ = own.busy.compare_exchange(busy, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::boxed::Box;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A new file in which these places are taken.
    fn turns(taken: &[usize]) -> Box<Turns> {
        let zero = || AtomicU64::new(0);
        let mut places = std::vec::Vec::with_capacity(GPUS * PLACES);
        places.resize_with(GPUS * PLACES, || Place {
            nonce: [zero(), zero()],
            virtual_time: zero(),
            wants: zero(),
            busy: zero(),
            turn: zero(),
            reserved: [zero(), zero()],
        });
        let Ok(places) = <Box<[Place; GPUS * PLACES]>>::try_from(places.into_boxed_slice()) else {
            unreachable!("of that length")
        };
        let turns = Box::new(Turns {
            magic: AtomicU64::new(MAGIC),
            version: AtomicU32::new(VERSION),
            reserved: AtomicU32::new(0),
            used: [const { AtomicU32::new(0) }; GPUS],
            header_tail: [const { AtomicU64::new(0) }; 478],
            places: *places,
        });
        taken.iter().for_each(|&place| turns.take(place, &[place as u8 + 1; 16]));
        turns
    }

    fn go(turns: &Turns, place: usize, now: u64) -> bool {
        turns.at(place).unwrap().ask(now, |_| true) == Answer::Go
    }

    #[test]
    fn alone_it_is_always_ones_turn() {
        let turns = turns(&[0, 1]);
        for step in 0..100 {
            assert!(go(&turns, 0, step * 100 * MS));
            turns.at(0).unwrap().advance(100 * MS, 1);
        }
    }

    #[test]
    fn one_at_a_time_and_the_next_when_the_first_is_done() {
        let turns = turns(&[0, 1]);
        let first = turns.at(0).unwrap();
        assert!(go(&turns, 0, 10 * MS));
        first.busy(20 * MS);
        assert!(!go(&turns, 1, 11 * MS));
        // It goes on until it is ahead.
        first.advance(3 * MS, 500_000);
        assert!(go(&turns, 0, 12 * MS));
        first.advance(3 * MS, 500_000);
        assert!(!go(&turns, 0, 13 * MS));
        // Next, but not before the first one's work has ended.
        assert!(!go(&turns, 1, 13 * MS));
        assert_eq!(first.done(13 * MS, 20 * MS), 0);
        assert!(go(&turns, 1, 13 * MS));
    }

    #[test]
    fn who_has_used_less_in_proportion_is_next() {
        let turns = turns(&[0, 1, 2]);
        for place in 0..3 {
            go(&turns, place, MS);
        }
        turns.at(0).unwrap().advance(30 * MS, 300_000);
        turns.at(1).unwrap().advance(30 * MS, 500_000);
        turns.at(2).unwrap().advance(15 * MS, 200_000);
        assert_eq!([0, 1, 2].map(|place| go(&turns, place, 2 * MS)), [false, true, false]);
    }

    #[test]
    fn who_comes_back_is_neither_far_behind_nor_far_ahead() {
        let turns = turns(&[0, 1]);
        // The first one worked an hour long for itself.
        assert!(go(&turns, 0, MS));
        turns.at(0).unwrap().advance(3_600_000 * MS, 500_000);
        assert!(go(&turns, 0, 100 * MS));
        turns.at(0).unwrap().busy(102 * MS);
        assert!(!go(&turns, 1, 101 * MS), "the first one has its turn to the end");
        turns.at(0).unwrap().advance(6 * MS, 500_000);
        assert!(!go(&turns, 0, 101 * MS));
        assert!(!go(&turns, 1, 101 * MS), "it is next, and waits for the work of the first");
        assert!(go(&turns, 1, 102 * MS));
        turns.at(1).unwrap().advance(6 * MS, 500_000);
        assert!(go(&turns, 0, 104 * MS), "it is not made to wait for an hour");
        // And the other way round: it comes back from a pause an hour ahead.
        turns.at(0).unwrap().advance(3_600_000 * MS, 500_000);
        turns.at(1).unwrap().busy(300 * MS);
        assert!(!go(&turns, 0, 200 * MS));
        turns.at(1).unwrap().advance(60 * MS, 500_000);
        turns.at(1).unwrap().done(210 * MS, 300 * MS);
        turns.at(1).unwrap().leave(210 * MS);
        assert!(go(&turns, 0, 211 * MS));
    }

    #[test]
    fn the_dead_and_those_on_other_gpus_are_not_waited_for() {
        let other = places(1).start;
        let turns = turns(&[0, 1, other]);
        for place in [1, other] {
            turns.at(place).unwrap().busy(900 * MS);
        }
        assert!(!go(&turns, 0, 100 * MS));
        assert_eq!(turns.at(0).unwrap().ask(100 * MS, |place| place != 1), Answer::Go);
    }

    #[test]
    fn nobody_is_believed_for_long() {
        let turns = turns(&[0, 1]);
        for until in [u64::MAX, 100_000 * MS] {
            turns.at(1).unwrap().busy(until);
            assert!(go(&turns, 0, MS));
        }
    }

    #[test]
    fn what_is_encoded_is_a_file_of_turns() {
        let header = encode();
        assert_eq!((&header[..8], header[8]), (&b"fgputurn"[..], 1));
        assert!(turns(&[]).is_valid());
        assert_eq!((places(0), places(65)), (0..64, 64..128));
        assert_eq!(place_at(1) - place_at(0), PLACE);
    }
}
