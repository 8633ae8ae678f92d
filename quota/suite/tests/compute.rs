//! SM time over the simulated driver: real processes, on the real clock. A busy machine delays everything, so
//! the tests assert only what no delay can change: that time is charged in full, and that it passes.

use std::process::{Child, Stdio};

use fgpu_quota_suite::{Container, gpu};
use fgpu_wire::limits::{COMPUTE_CAP, COMPUTE_OFF, COMPUTE_SHARE, GpuLimit};
use fgpu_wire::turns;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
/// Nanoseconds of kernels.
const ALL: u64 = 400 * MS;
const SHAPES: [(&str, u64); 6] = [
    ("wait", 10 * MS),
    ("stream", MS / 10),
    ("streams", MS / 5),
    ("graph", MS / 4),
    ("threads", 2 * MS),
    ("events", 4 * MS),
];

fn share(compute: u8, cores_ppm: u32) -> GpuLimit {
    GpuLimit { compute, cores_ppm, ..gpu(0, 200) }
}

fn limited(compute: u8, cores_ppm: u32) -> Container {
    Container::simulated(&[share(compute, cores_ppm)], 40 * MIB)
}

fn start(container: &Container, shape: &str, all: u64, kernel: u64) -> Child {
    let program = container.program("spin", &["libcuda.so.1"], &[]);
    let mut command = container.command(&program);
    command.args([shape, &all.to_string(), &kernel.to_string()]).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().expect("starts")
}

/// The nanoseconds of a program's kernels, and those that passed.
fn ended(child: Child) -> (u64, u64) {
    let output = child.wait_with_output().expect("ours");
    assert!(output.status.success(), "{}", output.status);
    let out = String::from_utf8(output.stdout).expect("text");
    let mut numbers =
        out.lines().last().expect("said").split(' ').map(|number| number.parse().expect("a number"));
    (numbers.next().expect("kernels"), numbers.next().expect("passed"))
}

/// Runs a shape; returns the nanoseconds of its kernels, those that passed, and those that were charged.
fn run(container: &Container, shape: &str, all: u64, kernel: u64) -> (u64, u64, u64) {
    let before = container.with_usage(|usage| usage.compute(0));
    let (all, passed) = ended(start(container, shape, all, kernel));
    (all, passed, container.with_usage(|usage| usage.compute(0)) - before)
}

#[test]
fn a_cap_of_a_quarter_takes_four_times_as_long() {
    for (shape, kernel) in SHAPES {
        let container = limited(COMPUTE_CAP, 250_000);
        let (all, passed, charged) = run(&container, shape, ALL, kernel);
        assert!(all >= ALL - 4 * kernel && charged >= all / 100 * 95, "{shape}: {charged} of {all}");
        // The advance at the beginning, and the debt at the end; each of four threads can be a kernel ahead.
        let kernels = if shape == "threads" { 6 } else { 2 };
        let least = all * 4 - 4 * (5 * MS + kernels * kernel) - 20 * MS;
        assert!(passed >= least, "{shape}: {all} ns of kernels in {passed}");
    }
}

#[test]
fn unlimited_sm_time_is_not_measured() {
    let container = limited(COMPUTE_OFF, 250_000);
    assert_eq!(run(&container, "stream", 50 * MS, MS).2, 0);
}

#[test]
fn captures_are_not_disturbed_and_cost_nothing() {
    let container = limited(COMPUTE_CAP, 900_000);
    let (all, _, charged) = run(&container, "capture", 400 * MS, MS / 2);
    assert!(charged >= all / 100 * 90, "{charged} of {all}");
}

/// A record in the legacy stream breaks a capture, and so does a query whether that stream is idle.
#[test]
fn a_capture_may_begin_after_the_limiter_asked_for_captures() {
    let container = Container::new(&[share(COMPUTE_CAP, 900_000)]);
    let program = container.program("meanwhile", &["libcuda.so.1"], &[]);
    assert_eq!(container.run(&program, &[]), "meanwhile ok\n");
}

/// Each call takes time, and more on a GPU.
#[test]
fn a_launch_that_is_waited_for_takes_few_calls_of_the_driver() {
    let container = Container::new(&[share(COMPUTE_CAP, 900_000)]);
    let program = container.program("few", &["libcuda.so.1"], &[]);
    assert_eq!(container.run(&program, &[]), "few ok\n");
}

/// The first launch of a burst is marked at once, the others before the call that tells the program of their
/// end. Launches without a mark are charged as long as kernels are on average, and the first ones are short.
#[test]
fn kernels_before_what_tells_of_their_end_are_charged_in_full() {
    for shape in ["copies", "asks", "tells", "records"] {
        let container = limited(COMPUTE_CAP, 900_000);
        let (all, _, charged) = run(&container, shape, 160 * MS, 2 * MS);
        assert!(charged >= all / 100 * 95, "{shape}: {charged} of {all}");
    }
}

/// It is idle most of the time, and the limiter does not look at it.
#[test]
fn a_context_that_ends_is_not_charged_for_its_age() {
    let container = limited(COMPUTE_CAP, 900_000);
    let (all, passed, charged) = run(&container, "leave", 12 * MS, 2 * MS);
    assert!(charged >= all / 100 * 95 && charged <= passed / 2, "{charged} of {all} in {passed}");
}

#[test]
fn more_contexts_at_once_than_a_block_has_are_all_charged() {
    let container = limited(COMPUTE_CAP, 900_000);
    let (all, _, charged) = run(&container, "greens", 288 * MS, MS);
    assert!(charged >= all / 100 * 95, "{charged} of {all}");
}

/// Each context has a lane while it lives.
#[test]
fn contexts_that_ended_leave_room_for_others() {
    let container = limited(COMPUTE_CAP, 900_000);
    let (all, _, charged) = run(&container, "green", 200 * MS, MS);
    assert!(charged >= all / 100 * 95, "{charged} of {all}");
}

#[test]
fn each_process_is_told_what_it_used_itself() {
    let container = limited(COMPUTE_CAP, 500_000);
    let (mut busy, mut idle) = (start(&container, "stream", 0, MS), start(&container, "idle", 0, MS));
    let usage = container.program("usage", &["libnvidia-ml.so.1"], &[]);
    let pids = [busy.id().to_string(), idle.id().to_string()];
    assert_eq!(container.run(&usage, &[&pids[0], &pids[1]]), "usage ok\n");
    for child in [&mut busy, &mut idle] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn two_containers_wait_for_each_other_and_each_for_its_own_share() {
    let first = limited(COMPUTE_CAP, 300_000);
    let second = first.neighbour([0x77; 16], &[share(COMPUTE_CAP, 700_000)]);
    for (one, two) in [("wait", "stream"), ("graph", "threads"), ("streams", "wait")] {
        let kernel = 2 * MS;
        let tenants = [(&first, one, 120 * MS, 300), (&second, two, 280 * MS, 700)];
        let running = tenants.map(|(container, shape, all, _)| {
            (container.with_usage(|usage| usage.compute(0)), start(container, shape, all, kernel))
        });
        for ((before, child), (container, shape, _, share)) in running.into_iter().zip(tenants) {
            let (all, passed) = ended(child);
            let charged = container.with_usage(|usage| usage.compute(0)) - before;
            assert!(charged >= all / 100 * 95, "{shape}: {charged} of {all}");
            let least = all * 1000 / share - 80 * MS;
            assert!(passed >= least, "{shape}: {all} ns of kernels in {passed}");
        }
    }
}

#[test]
fn a_container_killed_during_its_turn_does_not_delay_others() {
    let first = limited(COMPUTE_SHARE, 500_000);
    let second = first.neighbour([0x77; 16], &[share(COMPUTE_SHARE, 500_000)]);
    for (shape, kernel) in SHAPES.into_iter().filter(|(shape, _)| *shape != "threads") {
        let mut victim = start(&first, shape, 0, kernel);
        // The moment is random; what follows is not.
        std::thread::sleep(std::time::Duration::from_millis(60));
        victim.kill().expect("ours");
        let (all, _, charged) = run(&second, "stream", 40 * MS, MS);
        victim.wait().expect("ours");
        assert!(charged >= all / 100 * 95, "{shape}: {charged} of {all}");
    }
}

/// A container can truncate its own place. Its neighbours read that place; they must neither crash nor wait.
#[test]
fn a_neighbour_that_truncates_its_place_kills_no_container() {
    let container = limited(COMPUTE_CAP, 500_000);
    let neighbour = container.neighbour([0x33; 16], &[share(COMPUTE_CAP, 500_000)]);
    let file = std::fs::OpenOptions::new().write(true).open(neighbour.place(0, 1)).expect("its own");
    let own = container.place(0, 0);
    let mut child = start(&container, "stream", 300 * MS, MS);
    while std::fs::read(&own).expect("ours").iter().all(|&byte| byte == 0) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let mut cuts = 0;
    while child.try_wait().expect("ours").is_none() {
        file.set_len(0).expect("its own");
        std::thread::sleep(std::time::Duration::from_millis(1));
        file.set_len(turns::SIZE as u64).expect("its own");
        cuts += 1;
    }
    assert!(cuts > 0, "it ended before");
    let (all, passed) = ended(child);
    assert!(passed >= all * 2 - 40 * MS, "{all} ns of kernels in {passed}");
}
