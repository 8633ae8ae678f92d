//! Several containers at a time.

use std::sync::Arc;

use fgpu_wire::limits::{COMPUTE_CAP, COMPUTE_SHARE};

use super::tenant::{MS, Node, Process, S, SHAPES, Shape, start};

const LONG: u64 = 2 * S;

/// Runs a container of each shape, with its share, from and to these times; each with so many processes.
pub(super) fn together(tenants: &[(u8, u32, Shape, u64, u64)], processes: usize) -> Arc<Node> {
    let shares: Vec<_> = tenants.iter().map(|&(compute, ppm, ..)| (compute, ppm)).collect();
    let node = Arc::new(Node::new(&shares));
    let mut threads = Vec::new();
    for (container, &(_, _, shape, from, to)) in tenants.iter().enumerate() {
        for _ in 0..processes {
            threads.extend(start(&Process::new(&node, container, true), shape, from, to));
        }
    }
    node.world.run(threads.into_iter().map(|(_, thread)| thread).collect());
    node
}

/// Percent of the GPU's time that a container got.
pub(super) fn percent(node: &Node, container: usize, from: u64, to: u64) -> f64 {
    node.time(container, from, to) as f64 * 100.0 / (to - from) as f64
}

#[test]
fn thirty_and_seventy_get_thirty_and_seventy() {
    for mode in [COMPUTE_CAP, COMPUTE_SHARE] {
        for first in SHAPES {
            for second in SHAPES {
                let node = together(&[(mode, 300_000, first, 0, LONG), (mode, 700_000, second, 0, LONG)], 1);
                let (one, two) = (percent(&node, 0, 0, LONG), percent(&node, 1, 0, LONG));
                let part = one / (one + two) * 100.0;
                assert!((25.0..=35.0).contains(&part), "{mode} {first:?} {second:?}: {one:.1} {two:.1}");
                assert!(one + two >= 93.0, "{mode} {first:?} {second:?}: {one:.1} {two:.1}");
            }
        }
    }
}

#[test]
fn who_comes_back_has_his_share_within_a_tenth_of_a_second() {
    for first in SHAPES {
        for second in SHAPES {
            let back = S;
            let node = together(
                &[(COMPUTE_SHARE, 300_000, first, 0, LONG), (COMPUTE_SHARE, 700_000, second, back, LONG)],
                1,
            );
            let alone = percent(&node, 0, 0, back);
            let (one, two) =
                (percent(&node, 0, back + 100 * MS, LONG), percent(&node, 1, back + 100 * MS, LONG));
            let soon = percent(&node, 1, back + 100 * MS, back + 400 * MS);
            assert!(alone >= 97.0, "{first:?} {second:?}: {alone:.1}");
            assert!(
                (65.0..=75.0).contains(&(two / (one + two) * 100.0)),
                "{first:?} {second:?}: {one:.1} {two:.1}"
            );
            assert!(soon >= 60.0, "{first:?} {second:?}: {soon:.1}");
        }
    }
}
