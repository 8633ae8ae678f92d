//! Two hundred containers by sixteen clients at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use fgpu_lab::docker;
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};

pub(crate) const TESTS: &[Test] =
    &[Test::once("crowd::two_hundred_containers_by_sixteen_clients", two_hundred)];

const CONTAINERS: usize = 200;
const CLIENTS: usize = 16;

/// There is room for eight at a time. A quarter is never fragmented, so the only error can be no-capacity.
fn two_hundred() {
    docker::load("busybox");
    let gpus = node::gpus();
    let next = AtomicUsize::new(0);
    let refused = AtomicUsize::new(0);
    let most = AtomicUsize::new(0);
    let in_vain = AtomicUsize::new(0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let leases = node::leases();
                node::assert_not_overcommitted(&gpus, &leases);
                most.fetch_max(leases.len(), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(2));
            }
        });
        let client = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= CONTAINERS {
                    break;
                }
                let front_end = [FrontEnd::Shim, FrontEnd::Runtime, FrontEnd::Cdi][at % 3];
                // However slow the machine is: as long as some get room, there is room.
                while !run_one(front_end, &refused) {
                    let in_vain = in_vain.fetch_add(1, Ordering::Relaxed);
                    assert!(in_vain < CONTAINERS * CLIENTS, "nobody got room in {in_vain} attempts");
                }
                in_vain.store(0, Ordering::Relaxed);
            }
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let results: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        let watched = watcher.join();
        assert!(watched.is_ok() && results.iter().all(Result::is_ok), "see the panics above");
    });
    let (refused, most) = (refused.into_inner(), most.into_inner());
    assert!(most <= 8, "{most} at a time");
    assert!(refused > 0, "sixteen clients never met on eight places: this tested nothing");
    node::wait_until_free();
}

/// What a stock shim says when a loaded machine is too slow for it, with runc alone as well: containerd
/// issues 4068 and 11033. Such a container counts as not run, and its lease must go like any other.
const TOO_SLOW: &str = "failed to start io pipe copy";

/// Runs a container to its end, if there is room.
fn run_one(front_end: FrontEnd, refused: &AtomicUsize) -> bool {
    let run = docker::container("busybox").under(front_end).annotation("fgpu/fraction", "0.25");
    let output = run.command(["sleep", "0.2"]).run_plainly();
    if output.status != 0 && !output.stderr.contains(TOO_SLOW) {
        assert!(output.stderr.contains("fgpu: no-capacity: "), "{}", output.story());
        refused.fetch_add(1, Ordering::Relaxed);
    }
    output.status == 0
}
