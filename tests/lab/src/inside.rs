//! Serving tests inside an environment.
//!
//! A request is a line with a test's name, an answer a line of JSON: `{"failure":null}` or
//! `{"failure":"why"}`. The first line, `{"ready":true}`, says that the environment is up.

use std::io::{self, BufRead, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::{fs, mem};

use serde_json::json;

use crate::node::FrontEnd;
use crate::{bundle, cri, ctr, daemons, docker, node, podman};

/// What a test runs.
#[derive(Debug, Clone, Copy)]
pub enum Body {
    /// Once.
    Plain(fn()),
    /// Once for each front end; the front end's name ends the test's.
    Both(fn(FrontEnd)),
    /// As `Both`, and once with a CDI device: tests with `docker run`.
    Docker(fn(FrontEnd)),
}

/// A test.
#[derive(Debug, Clone, Copy)]
pub struct Test {
    /// `file::function`.
    pub name: &'static str,
    /// What it runs.
    pub body: Body,
    /// Whether it needs nothing of fgpu: then it proves the lab itself.
    pub baseline: bool,
    /// Whether it is for the environments that have only packages.
    pub packaged: bool,
}

impl Test {
    /// A test of the lab itself.
    pub const fn baseline(name: &'static str, run: fn()) -> Self {
        Self { name, body: Body::Plain(run), baseline: true, packaged: false }
    }

    /// A test of the packages: it runs where fgpu is not installed, and leaves it so.
    pub const fn packaged(name: &'static str, run: fn()) -> Self {
        Self { name, body: Body::Plain(run), baseline: false, packaged: true }
    }

    /// A test that runs once.
    pub const fn once(name: &'static str, run: fn()) -> Self {
        Self { name, body: Body::Plain(run), baseline: false, packaged: false }
    }

    /// A test that runs for each front end.
    pub const fn both(name: &'static str, run: fn(FrontEnd)) -> Self {
        Self { name, body: Body::Both(run), baseline: false, packaged: false }
    }

    /// A test with `docker run` that runs for each way to a share.
    pub const fn docker(name: &'static str, run: fn(FrontEnd)) -> Self {
        Self { name, body: Body::Docker(run), baseline: false, packaged: false }
    }

    /// The full names of the tests that this one stands for, with what each runs.
    pub fn cases(&self) -> Vec<(String, Option<FrontEnd>)> {
        let ways = [("shim", FrontEnd::Shim), ("runtime", FrontEnd::Runtime), ("cdi", FrontEnd::Cdi)];
        let ways = match self.body {
            Body::Plain(_) => return vec![(self.name.to_owned(), None)],
            Body::Both(_) => &ways[..2],
            Body::Docker(_) => &ways,
        };
        ways.iter().map(|(name, front_end)| (format!("{}::{name}", self.name), Some(*front_end))).collect()
    }
}

/// What the panics of the running test said, in order.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Runs the tests that standard input names until it ends.
///
/// # Errors
///
/// When the one who asks is gone.
pub fn serve(tests: &[Test]) -> io::Result<()> {
    panic::set_hook(Box::new(|info| {
        let text = info.payload_as_str().unwrap_or("panic");
        let place =
            info.location().map(|place| format!(" ({}:{})", place.file(), place.line())).unwrap_or_default();
        panics().push(format!("{text}{place}"));
    }));
    daemons::start();
    answer(&json!({"ready": true}))?;
    for name in io::stdin().lock().lines() {
        let (failure, tidy) = run(tests, &name?);
        answer(&json!({"failure": failure, "tidy": tidy}))?;
    }
    Ok(())
}

fn answer(line: &serde_json::Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

fn panics() -> std::sync::MutexGuard<'static, Vec<String>> {
    PANICS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Runs a test and what must hold after every test. Says what failed, and whether the next test finds nothing
/// of it.
fn run(tests: &[Test], name: &str) -> (Option<String>, bool) {
    let case = |test: &Test| {
        test.cases().into_iter().find(|(full, _)| full == name).map(|(_, front_end)| (*test, front_end))
    };
    let Some((test, front_end)) = tests.iter().find_map(case) else {
        return (Some(format!("there is no test {name}")), true);
    };
    if !test.baseline && !test.packaged && fs::metadata("/usr/bin/fgpu").is_err() {
        let why = "fgpu is not installed in the environment: see FGPU_INSTALL in tests/lab/README.md";
        return (Some(why.to_owned()), true);
    }
    panics().clear();
    let body = || match (test.body, front_end) {
        (Body::Plain(run), _) => run(),
        (Body::Both(run) | Body::Docker(run), front_end) => {
            run(front_end.expect("a case of several front ends has one"))
        }
    };
    let passed = panic::catch_unwind(AssertUnwindSafe(body)).is_ok();
    // Clean up in any case, so that one failure stays one; what cannot be cleaned up is a failure by itself.
    let tidy = panic::catch_unwind(AssertUnwindSafe(|| tidy(passed))).is_ok();
    let failure = (!passed || !tidy).then(|| mem::take(&mut *panics()).join("\n"));
    (failure, tidy)
}

/// Leaves nothing for the next test. After a test that passed, a lease that outlives every container is a
/// leak.
fn tidy(passed: bool) {
    daemons::start();
    docker::remove_all();
    ctr::remove_all();
    cri::remove_all();
    podman::remove_all();
    bundle::remove_all();
    if passed {
        node::wait_until_free();
    } else if !node::leases().is_empty() {
        crate::command::run(["fgpu", "gc"]);
        node::wait_until_free();
    }
}
