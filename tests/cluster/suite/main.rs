//! The cluster's tests: `cargo test -p fgpu-cluster -- [FILTER]…`. See README.md.

use std::process::ExitCode;

use fgpu_lab::outside::{Engine, Environment, Fgpu};
use fgpu_lab::suite;

mod annotations;
mod claims;
mod deploy;
mod dra;
mod hostile;
mod kills;
mod offers;
mod pods;

fn main() -> ExitCode {
    let environments = [Engine::Containerd, Engine::Crio].map(|engine| Environment {
        suite: "forky",
        cgroup: "v1",
        fgpu: Fgpu::Cluster(engine),
    });
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
        ]
        .concat(),
        &environments,
    )
}
