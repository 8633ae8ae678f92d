//! Programs that people run on GPUs, as they come from their makers, under a share: `make frameworks`. They
//! run over the simulated driver, which computes nothing: what is looked at is what they see, what they may
//! allocate, which error they get, and that they run on after it.

use std::process::ExitCode;

use fgpu_lab::outside::{Environment, Fgpu};
use fgpu_lab::suite;

mod pytorch;
mod tools;

fn main() -> ExitCode {
    let tests = [pytorch::TESTS, tools::TESTS].concat();
    suite::main(&tests, &[Environment { suite: "trixie", cgroup: "v2", fgpu: Fgpu::Frameworks }])
}
