//! The ledger on plain memory, with a made-up operating system.

extern crate std;

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::vec;
use std::vec::Vec;

use super::*;

const GIB: u64 = 1 << 30;
const NAMESPACE: u64 = 4026531836;

/// A new ledger. A constant, for statics: on a test's stack it would be too big.
const fn empty() -> Ledger {
    #[expect(clippy::declare_interior_mutable_const, reason = "only ever copied into a new ledger")]
    const ZERO: AtomicU64 = AtomicU64::new(0);
    Ledger {
        magic: AtomicU64::new(MAGIC),
        version: AtomicU32::new(VERSION),
        high: AtomicU32::new(0),
        nonce: [ZERO; 2],
        lock: ZERO,
        reserved: [ZERO; 3],
        totals: [ZERO; MAX_GPUS],
        header_tail: [ZERO; 440],
        compute: [const { Compute::new() }; MAX_GPUS],
        slots: [const {
            Slot {
                generation: AtomicU32::new(0),
                state: AtomicU32::new(FREE),
                pid: AtomicU32::new(0),
                reserved: AtomicU32::new(0),
                namespace: ZERO,
                reserved2: [ZERO; 5],
                used: [ZERO; MAX_GPUS],
                busy: [const { Busy::new() }; MAX_GPUS],
                tail: [ZERO; 120],
            }
        }; MAX_SLOTS],
    }
}

/// Which bytes of the file are locked, which pids are gone, and what happens when a process waits.
struct World<'a> {
    locked: Vec<AtomicBool>,
    gone: Vec<u32>,
    blind: bool,
    waits: Cell<u32>,
    on_wait: &'a dyn Fn(u32, &World<'_>),
}

impl World<'_> {
    fn new() -> Self {
        World {
            locked: (0..16).map(|_| AtomicBool::new(false)).collect(),
            gone: vec![],
            blind: false,
            waits: Cell::new(0),
            on_wait: &|_, _| panic!("nobody should have to wait"),
        }
    }

    /// Locks the byte and registers, as a process does.
    fn join(&self, ledger: &Ledger, slot: usize) -> Owner {
        self.locked[slot].store(true, Relaxed);
        ledger.register(slot, 100 + slot as u32, self).expect("there is such a slot")
    }

    fn die(&self, owner: Owner) {
        self.locked[owner.slot].store(false, Relaxed);
    }
}

impl Kernel for World<'_> {
    fn locked(&self, slot: usize) -> Option<bool> {
        (!self.blind).then(|| self.locked[slot].load(Relaxed))
    }

    fn namespace(&self) -> u64 {
        NAMESPACE
    }

    fn gone(&self, pid: u32) -> bool {
        self.gone.contains(&pid)
    }

    fn pause(&self, round: u32) {
        self.waits.set(self.waits.get() + 1);
        (self.on_wait)(round, self);
    }
}

fn is_out_of_memory(ledger: &Ledger, owner: Owner, bytes: u64, limit: u64, world: &World) -> bool {
    ledger.reserve(owner, 0, bytes, bytes, limit, world).is_none()
}

#[test]
fn reserve_stops_at_the_limit_and_release_makes_room() {
    static LEDGER: Ledger = empty();
    let world = World::new();
    let owner = world.join(&LEDGER, 0);
    assert_eq!(LEDGER.reserve(owner, 3, GIB, GIB, 2 * GIB, &world), Some(GIB));
    assert_eq!(LEDGER.reserve(owner, 3, GIB, GIB, 2 * GIB, &world), Some(GIB));
    assert_eq!(LEDGER.reserve(owner, 3, 1, 1, 2 * GIB, &world), None);
    assert_eq!(LEDGER.total(3), 2 * GIB);
    assert_eq!(LEDGER.total(2), 0);
    LEDGER.release(owner, 3, 512, &world);
    assert_eq!(LEDGER.reserve(owner, 3, 512, 512, 2 * GIB, &world), Some(512));
}

#[test]
fn the_last_granule_fits_by_what_is_needed_and_counts_for_what_it_takes() {
    static LEDGER: Ledger = empty();
    let world = World::new();
    let owner = world.join(&LEDGER, 0);
    assert_eq!(LEDGER.reserve(owner, 0, 3, 8, 10, &world), Some(8));
    assert_eq!(LEDGER.reserve(owner, 0, 3, 8, 10, &world), None);
    assert_eq!(LEDGER.reserve(owner, 0, 2, 8, 10, &world), Some(8));
    assert_eq!(LEDGER.total(0), 16);
    // There is room again when what is above the limit was given back, and not before.
    LEDGER.release(owner, 0, 6, &world);
    assert!(is_out_of_memory(&LEDGER, owner, 1, 10, &world));
    LEDGER.release(owner, 0, 1, &world);
    assert_eq!(LEDGER.reserve(owner, 0, 1, 8, 10, &world), Some(8));
}

#[test]
fn sums_that_no_gpu_has_stay_at_the_most() {
    static LEDGER: Ledger = empty();
    let world = World::new();
    let owner = world.join(&LEDGER, 0);
    for _ in 0..3 {
        LEDGER.reserve(owner, 0, 0, u64::MAX - 5, u64::MAX, &world);
    }
    assert_eq!(LEDGER.total(0), u64::MAX);
    LEDGER.release(owner, 0, u64::MAX, &world);
    assert_eq!(LEDGER.total(0), 0);
}

#[test]
fn a_limit_shrunk_below_what_is_in_use_refuses() {
    static LEDGER: Ledger = empty();
    let world = World::new();
    let owner = world.join(&LEDGER, 0);
    assert_eq!(LEDGER.reserve(owner, 0, 100, 100, 100, &world), Some(100));
    assert!(is_out_of_memory(&LEDGER, owner, 1, 50, &world));
    assert!(is_out_of_memory(&LEDGER, owner, u64::MAX, u64::MAX - 1, &world));
    assert_eq!(LEDGER.total(0), 100);
}

#[test]
fn giving_back_more_than_one_has_takes_nothing_from_others() {
    static LEDGER: Ledger = empty();
    let world = World::new();
    let (one, other) = (world.join(&LEDGER, 0), world.join(&LEDGER, 1));
    LEDGER.reserve(one, 0, 10, 10, 100, &world).unwrap();
    LEDGER.reserve(other, 0, 20, 20, 100, &world).unwrap();
    LEDGER.release(one, 0, 1000, &world);
    assert_eq!(LEDGER.total(0), 20);
}

#[test]
fn out_of_memory_reaps_the_dead_first() {
    static LEDGER: Ledger = empty();
    let world = World::new();
    let (one, other) = (world.join(&LEDGER, 0), world.join(&LEDGER, 7));
    LEDGER.reserve(other, 0, 100, 100, 100, &world).unwrap();
    assert!(is_out_of_memory(&LEDGER, one, 1, 100, &world));
    world.die(other);
    assert_eq!(LEDGER.reserve(one, 0, 100, 100, 100, &world), Some(100));
}

#[test]
fn a_new_owner_of_a_slot_inherits_nothing() {
    static LEDGER: Ledger = empty();
    let world = World::new();
    let former = world.join(&LEDGER, 0);
    LEDGER.reserve(former, 5, 100, 100, 100, &world).unwrap();
    LEDGER.busy(0, 5).unwrap().add(1_000_000, 1_000_000);
    world.die(former);
    let owner = world.join(&LEDGER, 0);
    assert_ne!(owner, former);
    assert_eq!((LEDGER.total(5), LEDGER.busy(0, 5).unwrap().ppm(1_000_000)), (0, 0));
}

#[test]
fn a_process_taken_for_dead_notices() {
    static LEDGER: Ledger = empty();
    let (ledger, world) = (&LEDGER, World::new());
    let (one, two) = (world.join(ledger, 0), world.join(ledger, 1));
    assert!(ledger.is_registered(one) && ledger.is_registered(two));
    assert_eq!(ledger.reserve(one, 0, 10, 10, 100, &world), Some(10));
    world.die(one);
    assert!(ledger.is_registered(one), "nobody has looked yet");
    assert_eq!(ledger.reap(two, &world), 1);
    assert!(!ledger.is_registered(one) && ledger.is_registered(two));
    let again = world.join(ledger, 0);
    assert!(!ledger.is_registered(one) && ledger.is_registered(again));
    assert!(!ledger.is_registered(Owner { slot: MAX_SLOTS, generation: 0 }));
}

#[test]
fn the_lock_is_taken_over_from_a_dead_process_and_the_totals_are_repaired() {
    static LEDGER: Ledger = empty();
    let world = World::new();
    let (one, other) = (world.join(&LEDGER, 0), world.join(&LEDGER, 1));
    LEDGER.reserve(other, 0, 40, 40, 100, &world).unwrap();
    // Dies between the two stores of a reservation.
    core::mem::forget(LEDGER.lock(other, &world));
    LEDGER.slots[1].used[0].store(70, Relaxed);
    world.die(other);
    LEDGER.release(one, 0, 0, &world);
    assert_eq!(LEDGER.total(0), 70);
    assert_eq!(LEDGER.reserve(one, 0, 100, 100, 100, &world), Some(100));
    assert_eq!(LEDGER.lock.load(Relaxed), 0);
}

#[test]
fn the_lock_is_never_taken_over_from_a_living_process() {
    static LEDGER: Ledger = empty();
    let setup = World::new();
    let (one, other) = (setup.join(&LEDGER, 0), setup.join(&LEDGER, 1));
    core::mem::forget(LEDGER.lock(other, &setup));
    let world = World {
        on_wait: &|round, world| {
            assert_ne!(LEDGER.lock.load(Relaxed), 0, "still held");
            if round == 5000 {
                world.locked[1].store(false, Relaxed);
            }
        },
        ..setup
    };
    assert_eq!(LEDGER.reserve(one, 0, 1, 1, 1, &world), Some(1));
    assert_eq!(world.waits.get(), 5001);
}

#[test]
fn a_slot_taken_again_frees_the_lock_of_its_former_owner() {
    static LEDGER: Ledger = empty();
    let world = World::new();
    let former = world.join(&LEDGER, 0);
    LEDGER.reserve(former, 0, 10, 10, 10, &world).unwrap();
    core::mem::forget(LEDGER.lock(former, &world));
    // The byte is locked again at once, by the slot's next owner, which must not wait for itself.
    let owner = world.join(&LEDGER, 0);
    assert_eq!(LEDGER.reserve(owner, 0, 10, 10, 10, &world), Some(10));
}

#[test]
fn debris_in_the_lock_is_swept_aside() {
    static LEDGER: Ledger = empty();
    let world = World::new();
    let owner = world.join(&LEDGER, 0);
    for debris in [u64::MAX, 7 << 32, MAX_SLOTS as u64 + 1] {
        LEDGER.lock.store(debris, Relaxed);
        LEDGER.release(owner, 0, 0, &world);
        assert_eq!(LEDGER.lock.load(Relaxed), 0);
    }
}

#[test]
fn where_locks_cannot_be_asked_about_the_pid_decides_or_nobody_is_dead() {
    static LEDGER: Ledger = empty();
    let setup = World::new();
    let (one, other) = (setup.join(&LEDGER, 0), setup.join(&LEDGER, 1));
    LEDGER.reserve(other, 0, 10, 10, 10, &setup).unwrap();
    let blind = World { blind: true, ..setup };
    assert!(is_out_of_memory(&LEDGER, one, 10, 10, &blind));
    let world = World { gone: vec![101], ..blind };
    assert_eq!(LEDGER.reserve(one, 0, 10, 10, 10, &world), Some(10));
}

#[test]
fn a_pid_of_another_namespace_says_nothing() {
    static LEDGER: Ledger = empty();
    let setup = World::new();
    let (one, other) = (setup.join(&LEDGER, 0), setup.join(&LEDGER, 1));
    LEDGER.reserve(other, 0, 10, 10, 10, &setup).unwrap();
    LEDGER.slots[1].namespace.store(NAMESPACE + 1, Relaxed);
    let world = World { gone: vec![101], ..setup };
    assert!(is_out_of_memory(&LEDGER, one, 10, 10, &world));
}

#[test]
fn a_registering_process_is_not_judged_by_the_pid_before() {
    static LEDGER: Ledger = empty();
    let setup = World::new();
    let (one, other) = (setup.join(&LEDGER, 0), setup.join(&LEDGER, 1));
    LEDGER.reserve(other, 0, 10, 10, 10, &setup).unwrap();
    LEDGER.slots[1].pid.store(0, Relaxed);
    let world = World { gone: vec![0, 101], ..setup };
    assert!(is_out_of_memory(&LEDGER, one, 10, 10, &world));
}

#[test]
fn only_the_living_are_shown() {
    static LEDGER: Ledger = empty();
    let world = World::new();
    let (one, other) = (world.join(&LEDGER, 0), world.join(&LEDGER, 2));
    LEDGER.reserve(one, 1, 11, 11, 100, &world).unwrap();
    LEDGER.reserve(other, 1, 22, 22, 100, &world).unwrap();
    world.die(other);
    let mut seen = vec![];
    LEDGER.for_each_living(&world, |process| seen.push((process.slot, process.pid, process.used[1])));
    assert_eq!(seen, [(0, 100, 11)]);
}

#[test]
fn racing_owners_never_pass_the_limit_and_fill_it() {
    static LEDGER: Ledger = empty();
    static WORST: AtomicU64 = AtomicU64::new(0);
    const LIMIT: u64 = 1000;
    let owners: Vec<Owner> = {
        let world = World::new();
        (0..8).map(|slot| world.join(&LEDGER, slot)).collect()
    };
    std::thread::scope(|scope| {
        for owner in &owners {
            scope.spawn(move || {
                let world = World { on_wait: &|_, _| std::thread::yield_now(), ..World::new() };
                world.locked.iter().for_each(|byte| byte.store(true, Relaxed));
                let mut mine = 0;
                for round in 0..20_000u64 {
                    match LEDGER.reserve(*owner, 0, 1 + round % 7, 1 + round % 7, LIMIT, &world) {
                        Some(bytes) => mine += bytes,
                        None => {
                            LEDGER.release(*owner, 0, mine, &world);
                            mine = 0;
                        }
                    }
                    WORST.fetch_max(LEDGER.total(0), Relaxed);
                }
                assert_eq!(LEDGER.slots[owner.slot].used[0].load(Relaxed), mine);
            });
        }
    });
    assert!(WORST.load(Relaxed) <= LIMIT);
    assert!(WORST.load(Relaxed) >= LIMIT * 99 / 100);
    let sum: u64 = LEDGER.slots.iter().map(|slot| slot.used[0].load(Relaxed)).sum();
    assert_eq!(LEDGER.total(0), sum);
}

#[test]
fn the_host_reads_what_the_layout_says() {
    let mut bytes = vec![0; SIZE];
    bytes[..HEADER].copy_from_slice(&encode(&[9; 16]));
    assert_eq!(usage(&bytes).unwrap().processes().count(), 0);
    assert_eq!(usage(&bytes).unwrap().nonce(), [9; 16]);
    let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    put(12, 5); // high, and half of the nonce
    put(20480 + 4 * 2048, 1 | 1 << 32); // slot 4: generation 1, live
    put(20480 + 4 * 2048 + 8, 4242);
    put(20480 + 4 * 2048 + 16, NAMESPACE);
    put(20480 + 4 * 2048 + 64 + 2 * 8, 77); // of GPU 2
    // GPU 2: half of the window before number 3, then 100 of 200 ms.
    put(4096 + 2 * 256, 350_000_000);
    put(4096 + 2 * 256 + 24, 3 << 40 | 100_000 << 20 | 250_000);
    let read = usage(&bytes).unwrap();
    assert_eq!((read.total(2), read.total(0)), (77, 0));
    assert_eq!((read.compute(2), read.compute(0), read.compute(64)), (350_000_000, 0, 0));
    assert_eq!((read.busy(2, 1_700_000_000), read.busy(0, 7), read.busy(64, 7)), (500_000, 0, 0));
    assert_eq!(read.busy(2, 11_500_000_000), 0, "long ago");
    let process = read.processes().next().unwrap();
    assert_eq!((process.slot, process.pid, process.namespace, process.used[2]), (4, 4242, NAMESPACE, 77));
    assert!(usage(&bytes[1..]).is_none());
    // What was never used need not be read.
    let size = used_size(&bytes[..32]);
    assert!(size < SIZE / 50 && size > slot_at(0), "{size}");
    let short: Vec<Process> = usage(&bytes[..size]).unwrap().processes().collect();
    assert_eq!(short, usage(&bytes).unwrap().processes().collect::<Vec<_>>());
    assert!(usage(&bytes[..size - 1]).is_none() && usage(&bytes[..16]).is_none() && usage(&[]).is_none());
    assert_eq!(used_size(&[0xff; 16]), SIZE, "whatever it says");
    assert!(usage(&vec![0; SIZE]).is_none());
}
