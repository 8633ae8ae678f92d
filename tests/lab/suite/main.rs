//! The lab's tests: `cargo test -p fgpu-lab -- [FILTER]…`. See README.md.

use std::process::ExitCode;
use std::sync::Arc;

use fgpu_lab::inside::{Test, serve};
use fgpu_lab::outside::{Environment, Fgpu, INSIDE, Room, make};
use libtest_mimic::{Arguments, Trial};

mod as_before;
mod baseline;
mod capacity;
mod cdi;
mod compute;
mod containerd;
mod crowd;
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
mod mig;
mod packages;
mod podman;
mod queue;
mod resize;
mod roads;
mod run;
mod runtime;
mod same;
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
        roads::TESTS,
        capacity::TESTS,
        malformed::TESTS,
        mig::TESTS,
        cdi::TESTS,
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
        packages::TESTS,
        docs::TESTS,
    ]
    .concat()
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(INSIDE) {
        return match serve(&tests()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("lab: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let mut arguments = Arguments::from_args();
    // An environment runs one test at a time, so that tests can count leases; two environments run side by side.
    arguments.test_threads.get_or_insert(2);
    let trials = trials(&arguments);
    // Once and first: where there is no room or no network for it, hundreds of tests would each try and fail.
    let asked = |suite: &str| trials.iter().any(|trial| trial.name().starts_with(suite));
    if !arguments.list
        && let Err(error) = make(["trixie", "forky"].into_iter().filter(|suite| asked(suite)))
    {
        eprintln!("lab: no test was run: {error}");
        return ExitCode::FAILURE;
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Each test in each environment, but only those that the arguments select: the last one of an environment
/// takes its room with it.
fn trials(arguments: &Arguments) -> Vec<Trial> {
    let names = |packaged| -> Vec<String> {
        let tests = tests().into_iter().filter(|test| test.packaged == packaged);
        tests.flat_map(|test| test.cases()).map(|(name, _)| name).collect()
    };
    let mut trials = Vec::new();
    // Alternating between two environments keeps both threads at work.
    for pair in Environment::ALL.chunks(2) {
        let rooms: Vec<_> =
            pair.iter().map(|environment| (environment, Arc::new(Room::new(*environment)))).collect();
        for name in &names(pair[0].fgpu == Fgpu::Packages) {
            for (environment, room) in &rooms {
                let (name, room) = (name.clone(), Arc::clone(room));
                let full = format!("{environment}::{name}");
                if selected(&full, arguments) {
                    trials.push(Trial::test(full, move || Ok(room.run(&name)?)));
                }
            }
        }
    }
    trials
}

fn selected(name: &str, arguments: &Arguments) -> bool {
    let matches = |word: &String| if arguments.exact { name == word } else { name.contains(word.as_str()) };
    arguments.filter.as_ref().is_none_or(matches) && !arguments.skip.iter().any(matches)
}
