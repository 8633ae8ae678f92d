//! Prints what cuLaunchKernel costs, without us, with us and no limit of SM time, and with one: over the
//! stand-in driver, whose launches cost nothing, and over the simulated one. The ways are measured in turns,
//! so many times:
//!
//!     cargo run --release -p fgpu-quota-suite --bin launch-cost -- 9 [OTHER/libfgpu_cuda.so]
//!
//! With another build of the library its capped launches are measured beside those of this one.

use std::fs;

use fgpu_quota_suite::{Container, gpu, run};
use fgpu_wire::limits::{COMPUTE_CAP, COMPUTE_OFF, COMPUTE_SHARE, GpuLimit};

/// What `launch.c` measures.
const WHAT: [&str; 4] = ["in a row", "with a wait", "with an event", "a question"];
const WHOLE: u32 = 1_000_000;

fn main() {
    type Make = fn(&[GpuLimit]) -> Container;
    let mut arguments = std::env::args().skip(1);
    let times = arguments.next().map_or(5, |times| times.parse().expect("a number of times"));
    let other = arguments.next();
    // Over the simulated driver as much time passes between two events as between their records: a quarter
    // would be waited for.
    let drivers: [(&str, Make, u32, u32); 2] = [
        ("stand-in", Container::new, 5_000, WHOLE / 4),
        ("simulated", |gpus| Container::simulated(gpus, 40 << 20), 500, WHOLE),
    ];
    for (driver, make, rounds, share) in drivers {
        let mut ways = vec![
            ("without", COMPUTE_OFF, "fgpu/driver", None),
            ("not limited", COMPUTE_OFF, "lib", None),
            ("cap", COMPUTE_CAP, "lib", None),
            ("share", COMPUTE_SHARE, "lib", None),
        ];
        if let Some(other) = &other {
            ways.push(("cap, the other", COMPUTE_CAP, "lib", Some(other)));
        }
        let mut costs = vec![[const { Vec::new() }; WHAT.len()]; ways.len()];
        for _ in 0..times {
            for (&(_, compute, library, build), costs) in ways.iter().zip(&mut costs) {
                let container = make(&[GpuLimit { compute, cores_ppm: share, ..gpu(0, 200) }]);
                if let Some(build) = build {
                    fs::copy(build, container.path("lib/libcuda.so.1"))
                        .expect("another build of the library");
                }
                let program = container.program("launch", &["libcuda.so.1"], &[]);
                let mut command = container.command(&program);
                let command = command.arg(rounds.to_string()).env("LD_LIBRARY_PATH", container.path(library));
                for (cost, costs) in run(command).split_whitespace().zip(costs) {
                    costs.push(cost.parse::<f64>().expect("nanoseconds"));
                }
            }
        }
        println!("{driver}, ns: median (all)");
        for (number, what) in WHAT.iter().enumerate() {
            for (&(way, ..), costs) in ways.iter().zip(&costs) {
                let mut sorted = costs[number].clone();
                sorted.sort_by(f64::total_cmp);
                println!("  {what}, {way}: {:.1} ({:?})", sorted[sorted.len() / 2], costs[number]);
            }
        }
    }
}
