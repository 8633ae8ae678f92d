//! The cluster's tests: `cargo test -p fgpu-cluster -- [FILTER]…`. See README.md.

use std::process::ExitCode;

use fgpu_lab::outside::{Engine, Environment, Fgpu, INSIDE};
use fgpu_lab::suite;

mod annotations;
mod bench;
mod claims;
mod deploy;
mod dra;
mod hostile;
mod kills;
mod nodes;
mod offers;
mod pods;

fn main() -> ExitCode {
    let environments = [Engine::Containerd, Engine::Crio].map(|engine| Environment {
        suite: "forky",
        cgroup: "v1",
        fgpu: Fgpu::Cluster(engine),
    });
    // Measurements run when they are asked for.
    let mut words = std::env::args();
    let is_asked = words.any(|word| word == INSIDE || word.contains("bench::"));
    let bench = if is_asked { bench::TESTS } else { &[] };
    suite::main(
        &[
            pods::TESTS,
            annotations::TESTS,
            claims::TESTS,
            dra::TESTS,
            offers::TESTS,
            deploy::TESTS,
            hostile::TESTS,
            kills::TESTS,
            nodes::TESTS,
            bench,
        ]
        .concat(),
        &environments,
    )
}
