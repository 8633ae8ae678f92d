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
mod skew;

fn main() -> ExitCode {
    let asks = |what: &str| std::env::args().any(|word| word == INSIDE || word.contains(what));
    let cluster = |engine| Environment { suite: "forky", cgroup: "v1", fgpu: Fgpu::Cluster(engine) };
    let machine = Environment { suite: "forky", cgroup: "v2", fgpu: Fgpu::Machine };
    let mut environments = vec![cluster(Engine::Containerd), cluster(Engine::Crio)];
    // A machine of its own is many times slower, so it is entered when its name is asked for.
    if asks(&machine.to_string()) {
        environments.push(machine);
    }
    // Measurements run when they are asked for, too, and so does what needs another commit's programs.
    let bench = if asks("bench::") { bench::TESTS } else { &[] };
    let skew = if asks("skew::") { skew::TESTS } else { &[] };
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
            skew,
        ]
        .concat(),
        &environments,
    )
}
