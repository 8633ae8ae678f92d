//! SM time over the simulated driver: real processes, on the real clock. A busy machine makes everything longer, so what is
//! asserted is what no delay can change: that time is charged in full, and that it passes.

use fgpu_quota_suite::{Container, gpu};
use fgpu_wire::limits::{COMPUTE_CAP, GpuLimit};

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

fn limited(compute: u8, cores_ppm: u32) -> Container {
    Container::simulated(&[GpuLimit { compute, cores_ppm, ..gpu(0, 200) }], 40 * MIB)
}

/// Runs a shape; gives the nanoseconds of its kernels, those that passed, and those that were charged.
fn run(container: &Container, shape: &str, all: u64, kernel: u64) -> (u64, u64, u64) {
    let program = container.program("spin", &["libcuda.so.1"], &[]);
    let before = container.with_usage(|usage| usage.compute(0));
    let out = container.run(&program, &[shape, &all.to_string(), &kernel.to_string()]);
    let charged = container.with_usage(|usage| usage.compute(0)) - before;
    let mut numbers =
        out.lines().last().expect("said").split(' ').map(|number| number.parse().expect("a number"));
    (numbers.next().expect("kernels"), numbers.next().expect("passed"), charged)
}

#[test]
fn a_cap_of_a_quarter_takes_four_times_as_long() {
    for (shape, kernel) in SHAPES {
        let container = limited(COMPUTE_CAP, 250_000);
        let (all, passed, charged) = run(&container, shape, ALL, kernel);
        assert!(all >= ALL - 4 * kernel && charged >= all / 100 * 95, "{shape}: {charged} of {all}");
        // What is in advance at the beginning, and what is still to be paid at the end.
        let least = all * 4 - 4 * (5 * MS + 2 * kernel) - 20 * MS;
        assert!(passed >= least, "{shape}: {all} ns of kernels in {passed}");
    }
}
