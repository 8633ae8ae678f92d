//! Many that wait, with an order that is known.

use super::*;

#[test]
fn a_thousand_wait_and_each_is_served_or_dies() {
    let mut model = Model::new(inventory(8));
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    for _ in 0..8 {
        model.arrive(fraction(1_000_000));
    }
    for n in 0..1000 {
        // A few of them are large, and would starve if small ones went before them all the time.
        let ppm = if n % 50 == 0 { 1_000_000 } else { 100_000 * (1 + dice.below(6)) as u32 };
        model.arrive(fraction(ppm));
    }
    assert_eq!((model.queue.len(), model.grants), (1000, 8));
    let mut died = 0;
    for round in 0.. {
        if model.queue.is_empty() {
            break;
        }
        match dice.below(8) {
            0 => {
                model.die(dice.below(1 << 20) as usize);
                died += 1;
            }
            1 => model.end_silently(dice.below(1 << 20) as usize),
            _ => model.end(dice.below(1 << 20) as usize),
        }
        if round % 100 == 0 {
            model.check();
        }
    }
    assert!(died > 50, "{died}");
    let served = model.drain();
    assert_eq!(served.len(), 1008 - died);
}

#[test]
fn equal_requests_are_served_in_the_order_in_which_they_came() {
    let mut model = Model::new(inventory(2));
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for _ in 0..200 {
        model.arrive(fraction(250_000));
    }
    while !model.queue.is_empty() {
        match dice.below(3) {
            0 => model.die(dice.below(1 << 20) as usize),
            _ => model.end(dice.below(1 << 20) as usize),
        }
        model.barge(&fraction(250_000));
    }
    let served = model.drain();
    let waited: Vec<_> = served.into_iter().filter(|&number| number <= 200).collect();
    assert!(waited.is_sorted(), "{waited:?}");
}

/// Small ones keep coming, those that wait and those that do not, and as many end: whoever is first is served
/// all the same.
#[test]
fn a_large_request_does_not_starve_behind_small_ones() {
    let small = || [fraction(100_000), slice("1g.10gb"), slice("1g.20gb")];
    let large = [
        slice("7g.80gb"),
        slice("4g.40gb"),
        Request { count: 2, ..slice("3g.40gb") },
        Request { policy: Policy::Exclusive, ..slice("1g.10gb") },
        fraction(1_000_000),
        Request { isolation: Isolation::Quota, ..fraction(1_000_000) },
        Request { policy: Policy::Exclusive, isolation: Isolation::Quota, ..fraction(100_000) },
    ];
    for (at, large) in large.into_iter().enumerate() {
        let mut model = Model::new(mig_inventory(1, 1));
        let mut dice = Dice(0x2545_f491_4f6c_dd1d + at as u64);
        for n in 0..40 {
            model.arrive(small()[n % 3].clone());
        }
        let number = model.arrived + 1;
        model.arrive(large.clone());
        let mut ends = 0;
        while !model.served.contains(&number) {
            // The oldest, or any.
            let which = if dice.below(2) == 0 { 0 } else { dice.below(1 << 20) as usize };
            model.end(which);
            model.barge(&small()[dice.below(3) as usize]);
            model.arrive(small()[dice.below(3) as usize].clone());
            ends += 1;
            assert!(ends < 1000, "{} starves", large.text);
        }
    }
}

/// With nobody behind it there is nobody who finds it dead.
#[test]
fn one_that_died_alone_in_the_queue_is_in_nobodys_way() {
    let mut model = Model::new(inventory(2));
    model.arrive(Request { count: 2, ..fraction(500_000) });
    let second = Filter { any: vec!["1".to_owned()], not: vec![] };
    model.arrive(Request { cores_ppm: 900_000, device: second, ..fraction(250_000) });
    assert_eq!(model.queue.len(), 1);
    model.die(0);
    // For want of SM time, on both GPUs.
    model.arrive(Request { cores_ppm: 600_000, ..fraction(500_000) });
    model.barge(&fraction(250_000));
    model.check();
    // The one that waits could lose by it on the first GPU, and only the dead on the second.
    model.arrive(fraction(250_000));
    model.check();
    assert_eq!((model.queue.len(), model.leases.len()), (1, 3));
}
