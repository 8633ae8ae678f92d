//! One container at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fgpu_wire::limits::{COMPUTE_CAP, COMPUTE_SHARE};

use super::tenant::{MS, Node, Process, S, SHAPES, Shape, start};

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

/// A kernel is not interrupted, so of long ones a second may hold one too many: what that is at most is in the limiter's
/// documentation. The average holds.
#[test]
fn a_cap_holds_on_average_however_long_the_kernels() {
    for length in [20, 40, 60, 90] {
        for percent in [10, 25, 50, 75, 90] {
            let time = 20 * S;
            let (node, _) =
                alone_for(time, Shape::Of(length * MS), COMPUTE_CAP, percent as u32 * 10_000, true);
            let got = node.time(0, 0, time);
            let most = node.world.lock().gpu.most(0, S, S, S + time);
            let share = S / 100 * percent;
            let bound = share + length * MS / 100 * (100 - percent) + 10 * MS;
            assert!(most <= bound, "{length} ms {percent}%: {most} ns in a second");
            assert!(got >= time / 100 * percent / 100 * 95, "{length} ms {percent}%: {got}");
            assert!(got <= time / 100 * percent + length * MS, "{length} ms {percent}%: {got}");
        }
    }
}
