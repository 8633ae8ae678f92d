//! The streams whose launches have no mark yet.

use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::limiter::constants::{MARK_APART, MARK_EVERY, STREAMS};
use crate::limiter::environment::{Host, Stream};

/// The key of a thread's default stream has this bit. No address has it.
const THREAD: usize = 1 << 63;

/// What a stream is known by: its handle, or the thread whose default stream it is. Never 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(usize);

impl Key {
    pub(crate) fn of(stream: Stream, host: &impl Host) -> Self {
        match stream {
            Stream::Shared(handle) => Self(handle.max(2)),
            Stream::OwnThread => Self::of_thread(host),
        }
    }

    pub(crate) fn of_thread(host: &impl Host) -> Self {
        Self(host.thread() | THREAD)
    }

    fn is_thread(self) -> bool {
        self.0 & THREAD != 0
    }

    /// The places in which a stream can be.
    #[inline]
    fn places(self) -> impl Iterator<Item = usize> {
        let hash = (self.0 >> 4).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 59;
        (0..4).map(move |probe| (hash + probe) % STREAMS)
    }
}

/// What became of a launch that was added.
pub(crate) struct Added {
    /// There was a place for its stream.
    pub(crate) has_place: bool,
    /// It is a thread's default stream, and has to be marked now.
    pub(crate) is_due: bool,
}

/// The streams with launches that have no mark yet. All zeros: none.
pub(crate) struct Unmarked {
    /// A bit for each place with a key: set after the key, cleared before it.
    used: AtomicU32,
    /// 0: no stream.
    keys: [AtomicUsize; STREAMS],
    of_threads: [OfThread; STREAMS],
}

/// For a thread's default stream: the launches since its last mark, and when the last launch was.
struct OfThread {
    launches: AtomicU64,
    at: AtomicU64,
}

impl Unmarked {
    #[inline]
    pub(crate) fn has(&self, key: Key) -> bool {
        key.places().any(|place| self.keys[place].load(Ordering::Acquire) == key.0)
    }

    /// How many streams there are.
    pub(crate) fn count(&self) -> u32 {
        self.used.load(Ordering::Relaxed).count_ones()
    }

    /// Adds a launch into a stream.
    #[inline]
    pub(crate) fn add(&self, key: Key, now: u64) -> Added {
        for place in key.places() {
            let cell = &self.keys[place];
            let is = cell.load(Ordering::Relaxed);
            let is_ours = is == key.0
                || (is == 0
                    && match cell.compare_exchange(0, key.0, Ordering::AcqRel, Ordering::Relaxed) {
                        Ok(_) => {
                            self.used.fetch_or(1 << place, Ordering::AcqRel);
                            true
                        }
                        Err(now) => now == key.0,
                    });
            if !is_ours {
                continue;
            }
            if !key.is_thread() {
                return Added { has_place: true, is_due: false };
            }
            let OfThread { launches, at } = &self.of_threads[place];
            let is_apart = now.saturating_sub(at.swap(now, Ordering::Relaxed)) >= MARK_APART;
            let is_many = launches.fetch_add(1, Ordering::Relaxed) + 1 >= MARK_EVERY;
            return Added { has_place: true, is_due: is_apart || is_many };
        }
        Added { has_place: false, is_due: false }
    }

    /// Takes out every stream that the calling thread can name, and calls `each` for it. `own` is the
    /// thread's default stream. Each is taken out first: a launch into it meanwhile comes before the record
    /// that follows.
    pub(crate) fn drain(&self, own: Key, mut each: impl FnMut(Stream)) {
        let mut used = self.used.load(Ordering::Acquire);
        while used != 0 {
            let place = used.trailing_zeros() as usize % STREAMS;
            used &= used - 1;
            let key = Key(self.keys[place].load(Ordering::Acquire));
            if key.is_thread() && key != own {
                continue;
            }
            self.remove(place);
            each(if key == own { Stream::OwnThread } else { Stream::Shared(key.0) });
        }
    }

    fn remove(&self, place: usize) {
        self.used.fetch_and(!(1 << place), Ordering::AcqRel);
        self.of_threads[place].launches.store(0, Ordering::Relaxed);
        self.keys[place].store(0, Ordering::Release);
    }

    /// Takes out all of them.
    pub(crate) fn clear(&self) {
        (0..STREAMS).for_each(|place| self.remove(place));
    }
}
