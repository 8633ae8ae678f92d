//! The lab's tests: `cargo test -p fgpu-lab -- [FILTER]…`. See README.md.

use std::process::ExitCode;

use fgpu_lab::inside::Test;
use fgpu_lab::outside::Environment;
use fgpu_lab::suite;

mod as_before;
mod baseline;
mod capacity;
mod cdi;
mod cdi_lives;
mod cdi_tools;
mod compute;
mod containerd;
mod crowd;
mod cudart;
mod devices;
mod docs;
mod doctor;
mod driver_tier;
mod ends;
mod events;
mod exceeded;
mod foreign;
mod health;
mod hook;
mod hook_chains;
mod hook_crio;
mod hook_faults;
mod hook_podman;
mod hook_systemd;
mod hook_user;
mod hook_wait;
mod limit;
mod malformed;
mod mends;
mod metrics;
mod mig;
mod notify;
mod nvidia_ctk;
mod packages;
mod podman;
mod queue;
mod resize;
mod roads;
mod run;
mod runtime;
mod same;
mod slurm;
mod state;
mod status;
mod tenants;
mod updates;
mod view;
mod volumes;
mod words;

/// The tests, in the order in which they run.
fn tests() -> Vec<Test> {
    [
        baseline::TESTS,
        updates::TESTS,
        view::TESTS,
        volumes::TESTS,
        compute::TESTS,
        limit::TESTS,
        cudart::TESTS,
        roads::TESTS,
        capacity::TESTS,
        malformed::TESTS,
        mends::TESTS,
        metrics::TESTS,
        slurm::TESTS,
        mig::TESTS,
        nvidia_ctk::TESTS,
        cdi::TESTS,
        cdi_lives::TESTS,
        cdi_tools::TESTS,
        same::TESTS,
        as_before::TESTS,
        words::TESTS,
        ends::TESTS,
        runtime::TESTS,
        events::TESTS,
        doctor::TESTS,
        health::TESTS,
        status::TESTS,
        containerd::TESTS,
        podman::TESTS,
        hook::TESTS,
        hook_crio::TESTS,
        hook_podman::TESTS,
        hook_faults::TESTS,
        hook_chains::TESTS,
        hook_systemd::TESTS,
        hook_user::TESTS,
        foreign::TESTS,
        devices::TESTS,
        exceeded::TESTS,
        hook_wait::TESTS,
        resize::TESTS,
        driver_tier::TESTS,
        queue::TESTS,
        run::TESTS,
        state::TESTS,
        tenants::TESTS,
        crowd::TESTS,
        notify::TESTS,
        packages::TESTS,
        docs::TESTS,
    ]
    .concat()
}

fn main() -> ExitCode {
    suite::main(&tests(), &Environment::ALL)
}
