//! One container at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fgpu_wire::limits::{COMPUTE_CAP, COMPUTE_SHARE};

use super::tenant::{MS, Node, Process, S, SHAPES, Shape, Thread, start};
use crate::limiter::{Host, PATIENCE, Stream};

const LONG: u64 = 3 * S;

/// Kernels that a process launches in that time, with the limiter or without.
fn alone(shape: Shape, compute: u8, ppm: u32, limited: bool) -> (Arc<Node>, u64) {
    alone_for(LONG, shape, compute, ppm, limited)
}

fn alone_for(time: u64, shape: Shape, compute: u8, ppm: u32, limited: bool) -> (Arc<Node>, u64) {
    let node = Arc::new(Node::new(&[(compute, ppm)]));
    let process = Process::new(&node, 0, limited);
    let threads = start(&process, shape, 0, time);
    node.world.run(threads.into_iter().map(|(_, thread)| thread).collect());
    let launches = process.launches.load(Ordering::Relaxed);
    (node, launches)
}

#[test]
fn a_cap_is_kept_and_used() {
    for shape in SHAPES {
        let (native, _) = alone(shape, COMPUTE_CAP, 1_000_000, false);
        let whole = native.time(0, 0, LONG);
        for percent in [10, 25, 50, 75, 90] {
            let (node, _) = alone(shape, COMPUTE_CAP, percent as u32 * 10_000, true);
            let got = node.time(0, 0, LONG);
            let most = node.world.lock().gpu.most(0, S, S, S + LONG);
            let charged = node.charged(0);
            assert!(most <= S / 100 * (percent + 3), "{shape:?} {percent}%: {most} ns in a second");
            assert!(got >= whole / 100 * percent / 100 * 95, "{shape:?} {percent}%: {got} of {whole}");
            assert!(
                charged >= got / 100 * 97 - 20 * MS && charged <= got / 100 * 110 + 20 * MS,
                "{shape:?} {percent}%: {charged} for {got}"
            );
        }
    }
}

#[test]
fn a_share_alone_has_the_whole_gpu() {
    for shape in SHAPES {
        let (native, _) = alone(shape, COMPUTE_SHARE, 100_000, false);
        let (node, _) = alone(shape, COMPUTE_SHARE, 100_000, true);
        let (whole, got) = (native.time(0, 0, LONG), node.time(0, 0, LONG));
        assert!(got >= whole / 100 * 97, "{shape:?}: {got} of {whole}");
    }
}

/// A kernel is not interrupted, so of long ones a second may hold more than the share: how much, the
/// limiter's documentation says, and it is neither more nor less than that. The average holds.
#[test]
fn a_second_holds_the_computed_excess_of_long_kernels_and_the_average_holds() {
    for length in [20, 40, 60, 90, 100, 111, 250] {
        for percent in [10, 25, 50, 75, 90] {
            let (time, kernel, share) = (20 * S, length * MS, S / 100 * percent);
            let (node, _) = alone_for(time, Shape::Of(kernel), COMPUTE_CAP, percent as u32 * 10_000, true);
            let got = node.time(0, 0, time);
            // Of a first kernel that goes on beyond the limiter's patience the next one may be what it waits
            // for.
            let begin = if kernel > PATIENCE { 5 * S } else { 0 };
            let most = node.world.lock().gpu.most(0, S, S + begin, S + time);
            let period = kernel * 100 / percent;
            let (whole, rest) = (S / period, S % period);
            let exact = whole * kernel + rest.min(kernel);
            assert!(exact <= share + kernel / 100 * (100 - percent) + MS, "the bound that is written down");
            assert!(
                most.abs_diff(exact) <= 2 * MS,
                "{length} ms {percent}%: {most} ns in a second, not {exact}"
            );
            assert!(got >= time / 100 * percent / 100 * 95, "{length} ms {percent}%: {got}");
            assert!(got <= time / 100 * percent + 2 * kernel, "{length} ms {percent}%: {got}");
        }
    }
}

/// Short kernels go many at a time, and long ones may be among them. The limiter knows how many there were
/// recently, so a second holds no more of them than of other kernels; the first time, a bounded number.
#[test]
fn long_kernels_behind_short_ones_stay_within_three_points() {
    for (small, large) in [(100, 10), (1000, 10), (1000, 100), (5000, 50)] {
        for percent in [10, 25, 50, 75, 90] {
            let (time, share) = (16 * S, S / 100 * percent);
            let shape = Shape::Mixed(small, large);
            let (node, _) = alone_for(time, shape, COMPUTE_CAP, percent as u32 * 10_000, true);
            let got = node.time(0, 0, time);
            // By then each of them has run once.
            let most = node.world.lock().gpu.most(0, S, 7 * S, S + time);
            let first = node.world.lock().gpu.most(0, S, S, 7 * S);
            assert!(most <= share + 30 * MS, "{shape:?} {percent}%: {most} ns in a second");
            assert!(first <= share + 230 * MS, "{shape:?} {percent}%: {first} ns in a first second");
            assert!(got >= time / 100 * percent / 100 * 95, "{shape:?} {percent}%: {got}");
        }
    }
}

/// An idle tenant saves nothing up.
#[test]
fn pauses_are_not_saved_up_for_long_kernels() {
    for length in [20, 40, 60] {
        for (percent, pause) in [10, 25, 50].into_iter().flat_map(|percent| [(percent, 15), (percent, 700)]) {
            let node = Arc::new(Node::new(&[(COMPUTE_CAP, percent as u32 * 10_000)]));
            let process = Process::new(&node, 0, true);
            let (_, thread) = node.world.actor(S, move |actor| {
                let thread = Thread::new(&process, actor);
                while thread.now() < 11 * S {
                    for _ in 0..4 {
                        thread.launch(Stream::Shared(0), length * MS);
                        thread.wait();
                    }
                    thread.compute(pause * MS);
                }
            });
            node.world.run(vec![thread]);
            let most = node.world.lock().gpu.most(0, S, S, 11 * S);
            let bound = S / 100 * percent + length * MS / 100 * (100 - percent) + MS;
            assert!(most <= bound, "{length} ms {percent}% {pause}: {most} ns in a second");
        }
    }
}
