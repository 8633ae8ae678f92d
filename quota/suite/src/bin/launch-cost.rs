//! Prints what cuLaunchKernel costs, without us, with us and no limit of SM time, and with one: over the stand-in driver, whose
//! launches cost nothing, and over the simulated one. `cargo run --release -p fgpu-quota-suite --bin launch-cost`

use fgpu_quota_suite::{Container, gpu, run};
use fgpu_wire::limits::{COMPUTE_CAP, COMPUTE_OFF, COMPUTE_SHARE, GpuLimit};

fn main() {
    type Make = fn(&[GpuLimit]) -> Container;
    let drivers: [(&str, Make, u32); 2] = [
        ("stand-in", Container::new, 5_000),
        ("simulated", |gpus| Container::simulated(gpus, 40 << 20), 500),
    ];
    for (driver, make, rounds) in drivers {
        let measure = |compute: u8, library: &str| {
            let container = make(&[GpuLimit { compute, cores_ppm: 1_000_000, ..gpu(0, 200) }]);
            let program = container.program("launch", &["libcuda.so.1"], &[]);
            let mut command = container.command(&program);
            run(command.arg(rounds.to_string()).env("LD_LIBRARY_PATH", container.path(library)))
        };
        println!(
            "{driver}, ns of a launch in a row, with a wait, with an event recorded after it, and of a question:"
        );
        for (what, compute, library) in [
            ("without", COMPUTE_OFF, "fgpu/driver"),
            ("off", COMPUTE_OFF, "lib"),
            ("cap", COMPUTE_CAP, "lib"),
            ("share", COMPUTE_SHARE, "lib"),
        ] {
            print!("  {what:8} {}", measure(compute, library));
        }
    }
}
