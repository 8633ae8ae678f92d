//! A test program of the lab: what `main` of one does, outside and inside.

use std::process::ExitCode;
use std::sync::Arc;

use libtest_mimic::{Arguments, Trial};

use crate::inside::{Test, serve};
use crate::outside::{Environment, Fgpu, INSIDE, Room, make};

/// Runs the tests that the arguments select in each of these environments, or, inside of one, those that it
/// is asked for. Two neighbours of the environments run side by side.
pub fn main(tests: &[Test], environments: &[Environment]) -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(INSIDE) {
        return match serve(tests) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("lab: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let mut arguments = Arguments::from_args();
    // An environment runs one test at a time, so that tests can count leases; two environments run side by
    // side.
    arguments.test_threads.get_or_insert(2);
    let trials = trials(tests, environments, &arguments);
    // Once and first: where there is no room or no network for it, hundreds of tests would each try and fail.
    let asked = |environment: &&Environment| {
        trials.iter().any(|trial| trial.name().starts_with(&format!("{environment}::")))
    };
    if !arguments.list
        && let Err(error) = make(environments.iter().filter(asked))
    {
        eprintln!("lab: no test was run: {error}");
        return ExitCode::FAILURE;
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Each test in each environment, but only those that the arguments select: the last one of an environment
/// takes its room with it.
fn trials(tests: &[Test], environments: &[Environment], arguments: &Arguments) -> Vec<Trial> {
    let names = |packaged| -> Vec<String> {
        let tests = tests.iter().filter(|test| test.packaged == packaged);
        tests.flat_map(|test| test.cases()).map(|(name, _)| name).collect()
    };
    let mut trials = Vec::new();
    // Alternating between two environments keeps both threads at work.
    for pair in environments.chunks(2) {
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
