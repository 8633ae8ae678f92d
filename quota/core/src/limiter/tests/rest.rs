//! Containers that booked no SM time, among themselves and beside others that did.

use std::sync::Arc;

use fgpu_wire::limits::{COMPUTE_CAP, COMPUTE_REST, COMPUTE_SHARE};
use fgpu_wire::turns::{Board, Statement};

use super::contention::{percent, together};
use super::tenant::{MS, Node, Process, S, SHAPES, Shape, US, start};

const LONG: u64 = 2 * S;

#[test]
fn booked_shares_stay_what_they_are() {
    for mode in [COMPUTE_CAP, COMPUTE_SHARE] {
        for (number, first) in SHAPES.into_iter().enumerate() {
            for second in [first, SHAPES[(number + 1) % SHAPES.len()]] {
                let other = SHAPES[(number + 2) % SHAPES.len()];
                let tenants = [
                    (mode, 300_000, first, 0, LONG),
                    (mode, 700_000, second, 0, LONG),
                    (COMPUTE_REST, 250_000, other, 0, LONG),
                    (COMPUTE_REST, 500_000, first, 0, LONG),
                ];
                let node = together(&tenants, 1);
                let got = [0, 1, 2, 3].map(|container| percent(&node, container, 0, LONG));
                let story = format!("{mode} {first:?} {second:?}, {other:?} {first:?}: {got:.1?}");
                assert!((25.0..=35.0).contains(&got[0]) && (63.0..=75.0).contains(&got[1]), "{story}");
                assert!(got[2] > 0.1 && got[3] > 0.1, "nobody starves: {story}");
            }
        }
    }
}

#[test]
fn unbooked_containers_divide_by_weight_what_a_booked_share_leaves() {
    for mode in [COMPUTE_CAP, COMPUTE_SHARE] {
        for (number, first) in SHAPES.into_iter().enumerate() {
            let (second, third) = (SHAPES[(number + 1) % SHAPES.len()], SHAPES[(number + 3) % SHAPES.len()]);
            let tenants = [
                (mode, 400_000, first, 0, 2 * LONG),
                (COMPUTE_REST, 100_000, second, 0, 2 * LONG),
                (COMPUTE_REST, 200_000, third, 0, 2 * LONG),
            ];
            let node = together(&tenants, 1);
            let got = [0, 1, 2].map(|container| percent(&node, container, 0, 2 * LONG));
            let story = format!("{mode} {first:?} {second:?} {third:?}: {got:.1?}");
            assert!((35.0..=45.0).contains(&got[0]), "{story}");
            assert!((15.0..=25.0).contains(&got[1]) && (35.0..=45.0).contains(&got[2]), "{story}");
        }
    }
}

#[test]
fn unbooked_containers_alone_divide_the_gpu_by_weight() {
    for (number, first) in SHAPES.into_iter().enumerate() {
        let node = together(&[(COMPUTE_REST, 1, first, 0, LONG)], 1);
        assert!(percent(&node, 0, 0, LONG) >= 94.0, "{first:?}: {:.1}", percent(&node, 0, 0, LONG));
        // However small the weights are.
        for (ahead, one) in [300_000, 30_000, 3].into_iter().enumerate() {
            let second = SHAPES[(number + ahead) % SHAPES.len()];
            let two = one / 3 * 7;
            let node =
                together(&[(COMPUTE_REST, one, first, 0, LONG), (COMPUTE_REST, two, second, 0, LONG)], 1);
            let got = [0, 1].map(|container| percent(&node, container, 0, LONG));
            let part = got[0] / (got[0] + got[1]) * 100.0;
            let story = format!("{first:?} {second:?} {one}: {got:.1?}");
            assert!((25.0..=35.0).contains(&part) && got[0] + got[1] >= 93.0, "{story}");
        }
    }
}

/// As many containers as can have memory: none starves, and all together take nothing from booked shares.
#[test]
fn a_crowd_takes_no_booked_share() {
    for shape in [Shape::LargeAndWait, Shape::Small, Shape::Of(20 * MS)] {
        let mut tenants = vec![(COMPUTE_SHARE, 1_000_000, Shape::Small, 0, 6 * S)];
        tenants.extend([(COMPUTE_REST, 62_500, shape, 0, 6 * S); 16]);
        let node = together(&tenants, 1);
        // The first kernels, whose length is unknown, come on top.
        let got: Vec<_> = (0..17).map(|container| percent(&node, container, S, 6 * S)).collect();
        assert!(got[0] >= 95.0, "{shape:?}: {got:.1?}");
        assert!((1..17).all(|container| node.time(container, 0, 6 * S) > 0), "{shape:?}: {got:.2?}");
    }
}

/// The others' words may say what they like.
#[test]
fn garbage_in_the_shared_file_starves_no_container() {
    for (kind, shape) in SHAPES.into_iter().enumerate() {
        let node = Arc::new(Node::new(&[(COMPUTE_REST, 640_000), (COMPUTE_CAP, 100_000)]));
        let mut threads: Vec<_> = start(&Process::new(&node, 0, true), shape, 0, 4 * S)
            .into_iter()
            .map(|(_, thread)| thread)
            .collect();
        let hostile = node.clone();
        let (_, thread) = node.world.actor(S, move |actor| {
            while hostile.world.now() < 5 * S {
                let now = hostile.world.now();
                let stake = [0, u64::MAX, 1_000_000, u64::MAX << 32, 4_000_000_000][kind];
                let said = Statement { virtual_time: 0, wants: now + 900 * MS, busy: now + 900 * MS, stake };
                hostile.shelf.publish(1, &said);
                hostile.world.sleep(actor, 300 * US);
            }
        });
        threads.push(thread);
        node.world.run(threads);
        let got = percent(&node, 0, 0, 4 * S);
        assert!(got >= 0.5, "{shape:?}: {got:.2}");
    }
}
