use std::boxed::Box;
use std::cell::Cell;

use fgpu_wire::ledger::{self, CREDIT, Kernel, Ledger, Span};
use fgpu_wire::limits::{self, Page};
use fgpu_wire::turns::{Board, PLACES, Stake, Statement, Turn};

struct Random(Cell<u64>);

impl Random {
    /// Mostly words with a meaning: zero, all ones, a small number, a time; sometimes any word.
    fn word(&self) -> u64 {
        let mut word = self.0.get();
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        self.0.set(word);
        match word >> 60 {
            0..4 => 0,
            4..7 => u64::MAX,
            7..10 => word & 0xff,
            10..13 => word & 0xff_ffff_ffff,
            _ => word.rotate_left(29),
        }
    }

    /// A file's content, as what it is mapped as.
    fn fill<T>(&self, size: usize) -> Box<T> {
        assert_eq!((size, align_of::<T>()), (size_of::<T>(), 8));
        let words: Box<[u64]> = (0..size / 8).map(|_| self.word()).collect();
        // SAFETY: of this size and alignment; made of atomics, for which every content is a value.
        unsafe { Box::from_raw(Box::into_raw(words).cast()) }
    }
}

impl Kernel for Random {
    /// Every process is dead; else the test would wait for a lock that a random word names.
    fn locked(&self, _: usize) -> Option<bool> {
        Some(false)
    }

    fn namespace(&self) -> u64 {
        self.word()
    }

    fn gone(&self, _: u32) -> bool {
        self.word() & 1 == 0
    }

    fn pause(&self, _: u32) {}
}

impl Board for Random {
    fn exchange(&self, _: u64, _: usize, _: &Statement, places: &mut [Statement; PLACES]) {
        for said in places {
            let [virtual_time, wants, busy, stake] = std::array::from_fn(|_| self.word());
            *said = Statement { virtual_time, wants, busy, stake };
        }
    }

    fn publish(&self, _: usize, _: &Statement) {}
}

#[test]
fn no_content_of_the_files_kills_a_process() {
    let random = Random(Cell::new(0x9E37_79B9_7F4A_7C15));
    for round in 0..130 {
        let ledger: Box<Ledger> = random.fill(ledger::SIZE);
        let page: Box<Page> = random.fill(limits::SIZE);
        let gpu = round % 65;
        let (memory, (_, ppm), now) = (page.memory(gpu), page.compute(gpu), random.word() >> 1);
        let _ = (page.is_valid(), page.read(gpu), page.find(&page.nonce()), page.context(gpu));
        let owner = ledger.register(random.word() as usize % 1025, 7, &random);
        let Some(owner) = owner else { continue };
        for _ in 0..20 {
            let (least, most) = crate::size::of(random.word());
            if let Some(bytes) = ledger.reserve(owner, gpu, least, most, memory, &random) {
                assert!(bytes >= least);
            }
            ledger.release(owner, gpu, random.word(), &random);
            ledger.for_each_living(&random, |process| {
                let _ = ledger.busy(process.slot, gpu).map(|busy| busy.ppm(now));
            });
        }
        let _ = (ledger.reap(owner, &random), ledger.is_registered(owner), ledger.is_valid(&page.nonce()));
        let Some(account) = ledger.compute(gpu) else { continue };
        let span = Span { from: now, length: random.word(), before: random.word() };
        account.charge(span, ppm, CREDIT, random.word(), random.word());
        account.prepay(now, random.word(), ppm, CREDIT);
        account.refund(random.word(), ppm);
        account.report(random.word(), random.word());
        assert!(account.busy(now) <= 1_000_000);
        account.owed(now, ppm);
        let turn = Turn::new(random.word() as usize % 64, account.own(), &random);
        for _ in 0..20 {
            let number = random.word() as u32;
            let stake = if number & 1 == 0 { Stake::Booked(ppm) } else { Stake::Unbooked(number) };
            turn.ask(now, stake, random.word());
            turn.advance(random.word(), stake);
            turn.busy(now + 1000);
            turn.done(now, random.word());
            turn.leave(now);
        }
    }
}
