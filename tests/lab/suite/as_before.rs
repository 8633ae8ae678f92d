//! `fgpu-runtime` in the place of runc or crun makes no difference as long as no container asks for a share.
//!
//! Each case is played twice from the same start: with the real runtime, and with ours in its place. Of every
//! invocation the exit status, standard output, standard error and the log file are compared, but for what no
//! two calls of one program have in common: process ids, times and addresses ([`masked`]). What a container
//! prints is on its runtime's streams, and so compared, too.

mod cases;
mod specs;

use std::fs;
use std::path::Path;

use fgpu_lab::bundle::{bundle, runtimes};
use fgpu_lab::command::{run, shell};
use fgpu_lab::inside::Test;
use fgpu_lab::node;
use serde_json::{Value, json};

use cases::Case;

pub(crate) const TESTS: &[Test] = &[
    Test::once("as_before::a_container_without_a_request_runs_exactly_as_before", without_a_request),
    Test::once("as_before::a_broken_node_changes_nothing", a_broken_node),
];

/// Where all of it happens.
const WORK: &str = "/run/lab/as-before";
/// fgpu's state directory for the time being: nobody may make it.
const STATE: &str = "/run/lab/as-before-state";
const OURS: &str = "/usr/bin/fgpu-runtime";

/// What came of an invocation.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    status: i32,
    stdout: String,
    stderr: String,
    log: String,
}

/// Variables of the shell that runs a case: the runtime, the bundle, the container and the log file.
fn variables(program: &str) -> String {
    format!("R={program} W={WORK} B={WORK}/bundle I=as-before L={WORK}/log; cd {WORK}")
}

/// Plays a case from the start.
#[track_caller]
fn play(program: &str, case: &Case, good: &Value) -> Vec<Outcome> {
    shell(&format!("rm -rf {WORK} && mkdir -p {WORK}/bundle")).ok();
    write("good.json", good.to_string().as_bytes());
    if let Some(text) = (case.spec)(good) {
        write("bundle/config.json", &text);
    }
    let outcomes = case.steps.iter().map(|step| {
        // By exec: what a step leaves running in the background holds none of our own streams.
        let script = format!("{}\nrm -f out err\nexec >out 2>err </dev/null\n{step}", variables(program));
        // The caller of the tests may ignore signals, as nohup does: runc 1.3 stops that while it starts the
        // container, at a moment of its own.
        let status = run(["env", "--default-signal=HUP,INT,QUIT", "sh", "-c", &script]).status;
        let [stdout, stderr, log] = ["out", "err", "log"].map(|name| masked(&read(name)));
        Outcome { status, stdout, stderr, log }
    });
    outcomes.collect()
}

#[track_caller]
fn write(name: &str, text: &[u8]) {
    fs::write(Path::new(WORK).join(name), text).unwrap_or_else(|error| panic!("{WORK}/{name}: {error}"));
}

fn read(name: &str) -> String {
    let bytes = fs::read(Path::new(WORK).join(name)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A text without process ids, times and addresses.
fn masked(text: &str) -> String {
    let is_digit = |letter: char| letter.is_ascii_digit();
    let is_hex = |letter: char| letter.is_ascii_hexdigit();
    let in_quotes = |letter: char| letter != '"';
    let mut text = text.to_owned();
    for (before, is_masked) in [
        ("time=\"", in_quotes as fn(char) -> bool),
        ("\"time\":\"", in_quotes),
        ("\"time\": \"", in_quotes),
        ("\"created\": \"", in_quotes),
        ("\"created\":\"", in_quotes),
        ("\"pid\": ", is_digit),
        ("\"pid\":", is_digit),
        // Addresses of a Go program that panics.
        ("0xc0", is_hex),
    ] {
        let mut parts = text.split(before);
        let mut new = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            new.push_str(before);
            new.push('*');
            new.push_str(part.trim_start_matches(is_masked));
        }
        text = new;
    }
    text
}

/// The bundle of all cases: what its container prints, and how it ends, is seen.
fn good() -> Value {
    let mut spec = bundle("runc", "busybox").spec;
    spec["process"]["args"] = json!(["sh", "-c", "echo out $0 $*; echo err >&2; exit 3", "a", "b"]);
    spec["annotations"] = json!({"com.example/a": "b"});
    spec
}

/// The differences of a case, in words.
fn differences(runtime: &str, real: &str, case: &Case, good: &Value) -> Vec<String> {
    let [theirs, ours] = [real, OURS].map(|program| {
        let outcomes = play(program, case, good);
        // crun takes any name, and leaves what it cannot read.
        shell(&format!(
            "{real} list -q | while read -r id; do {real} delete --force \"$id\"; done; \
             rm -rf /run/runc/as-before /run/crun/as-before"
        ))
        .ok();
        outcomes
    });
    let pairs = case.steps.iter().zip(theirs.iter().zip(&ours)).filter(|(_, (theirs, ours))| theirs != ours);
    pairs
        .map(|(step, (theirs, ours))| {
            format!("{runtime}, {}: {step}\n  alone: {theirs:?}\n  fgpu:  {ours:?}", case.name)
        })
        .collect()
}

fn without_a_request() {
    let good = good();
    for runtime in runtimes() {
        let real = run(["sh", "-c", &format!("command -v {runtime}")]).ok().to_owned();
        let _configured = node::configure(&format!("runtimes = [{real:?}]\nstate-dir = {STATE:?}"));
        let cases = cases::all(runtime);
        let count: usize = cases.iter().map(|case| case.steps.len()).sum();
        assert!(count >= 100, "{count} invocations are few");
        let found: Vec<_> = cases.iter().flat_map(|case| differences(runtime, &real, case, &good)).collect();
        assert!(found.is_empty(), "{} of {count} invocations differ:\n{}", found.len(), found.join("\n"));
        assert!(!Path::new(STATE).exists(), "{runtime}: somebody made the state directory");
    }
    shell(&format!("rm -rf {WORK}")).ok();
}

/// Neither fgpu's configuration nor its state matters to what is not ours.
fn a_broken_node() {
    let good = good();
    for runtime in runtimes() {
        let real = run(["sh", "-c", &format!("command -v {runtime}")]).ok().to_owned();
        for (config, make) in [
            ("polisy = \"pack\"", "true"),
            ("", "echo broken >$S/allocations.json"),
            ("", "mkfifo $S/allocations.json"),
            ("", "mkdir $S/allocations.json"),
            ("", "mkdir -p $S/containers/0123456789abcdef0123456789abcdef"),
            ("", "rmdir $S && echo a file >$S"),
            // As long as the file is there.
            (
                "",
                "echo >$S/held; >$S/lock; flock $S/lock sh -c 'while test -e $0/held; do sleep 0.1; done' $S & \
                  while flock -n $S/lock true; do sleep 0.1; done",
            ),
        ] {
            let lines = format!("{config}\nruntimes = [{real:?}]\nstate-dir = {STATE:?}");
            let _configured = node::configure(&lines);
            let set_up = format!("S={STATE}; rm -rf $S; mkdir $S; {{ {make}; }} >/dev/null 2>&1");
            shell(&set_up).ok();
            let before = run(["ls", "-lAR", STATE]).stdout;
            let found: Vec<_> = cases::of_any_node()
                .iter()
                .flat_map(|case| differences(runtime, &real, case, &good))
                .collect();
            assert!(found.is_empty(), "{config}{make}:\n{}", found.join("\n"));
            assert_eq!(run(["ls", "-lAR", STATE]).stdout, before, "{config}{make}");
            shell(&format!("rm -rf {STATE}")).ok();
        }
    }
    shell(&format!("rm -rf {WORK}")).ok();
}
