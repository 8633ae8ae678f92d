//! Prints what is in BENCHMARKS.md: `cargo test --release -p fgpu-quota-core experiments -- --ignored
//! --nocapture`.

use std::sync::Arc;

use fgpu_wire::limits::{COMPUTE_CAP, COMPUTE_SHARE};

use super::contention::percent;
use super::tenant::{MS, Node, Process, S, SHAPES, Shape, start};

const LONG: u64 = 5 * S;

/// Two at 30 and 70 %: the least and the most that the first one got of what both got, over all pairs of
/// shapes, and the least that both got, percent.
fn two(mode: u8, turns: bool) -> (f64, f64, f64) {
    let mut found = (100.0f64, 0.0f64, 100.0f64);
    for first in SHAPES {
        for second in SHAPES {
            let mut node = Node::new(&[(mode, 300_000), (mode, 700_000)]);
            if !turns {
                node.forget_turns();
            }
            let node = Arc::new(node);
            let mut threads = start(&Process::new(&node, 0, true), first, 0, LONG);
            threads.extend(start(&Process::new(&node, 1, true), second, 0, LONG));
            node.world.run(threads.into_iter().map(|(_, thread)| thread).collect());
            let (one, two) = (percent(&node, 0, 0, LONG), percent(&node, 1, 0, LONG));
            let part = one / (one + two) * 100.0;
            found = (found.0.min(part), found.1.max(part), found.2.min(one + two));
        }
    }
    found
}

/// What a container alone got of the GPU, the most that a second held until some time and after it, and what
/// was charged, percent.
fn alone(shape: Shape, percent: u64, time: u64, known: u64) -> [f64; 4] {
    let node = Arc::new(Node::new(&[(COMPUTE_CAP, percent as u32 * 10_000)]));
    let threads = start(&Process::new(&node, 0, true), shape, 0, time);
    node.world.run(threads.into_iter().map(|(_, thread)| thread).collect());
    let most = |from, to| node.world.lock().gpu.most(0, S, S + from, S + to) as f64 * 100.0 / S as f64;
    let of = |part: u64| part as f64 * 100.0 / time as f64;
    [of(node.time(0, 0, time)), most(0, known), most(known, time), of(node.charged(0))]
}

#[test]
#[ignore = "prints a table"]
fn experiments() {
    println!("| shape | cap | got | most in a second | charged |\n|---|---|---|---|---|");
    for shape in SHAPES {
        for percent in [10, 25, 33, 50, 75, 90] {
            let [got, _, most, charged] = alone(shape, percent, LONG, 0);
            println!("| {shape:?} | {percent} % | {got:.2} % | {most:.2} % | {charged:.2} % |");
        }
    }
    println!("| kernels | cap | got | most in a second |\n|---|---|---|---|");
    for length in [20, 40, 60, 100, 250] {
        for percent in [10, 25, 50, 75, 90] {
            let [got, _, most, _] = alone(Shape::Of(length * MS), percent, LONG, 0);
            println!("| {length} ms | {percent} % | {got:.2} % | {most:.2} % |");
        }
    }
    for (small, large) in [(100, 10), (1000, 100), (1000, 10), (5000, 50)] {
        for percent in [10, 25, 50, 75, 90] {
            let [got, first, most, _] = alone(Shape::Mixed(small, large), percent, 16 * S, 7 * S);
            println!(
                "| {small} of 20 µs, {large} of 5 ms | {percent} % | {got:.2} % | {most:.2} %, at first {first:.2} % |"
            );
        }
    }
    for (name, mode) in [("cap", COMPUTE_CAP), ("share", COMPUTE_SHARE)] {
        for turns in [true, false] {
            let (least, most, both) = two(mode, turns);
            println!(
                "30/70 {name}, turns {turns}: the first gets {least:.1} to {most:.1} % of both, both at least {both:.1} %"
            );
        }
    }
}
