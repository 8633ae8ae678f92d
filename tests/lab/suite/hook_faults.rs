//! Whatever fails or is killed around the hook, at most one reconcile later nothing of a grant is left.
//!
//! No step is hit by luck: `strace` kills or stops the hook at a system call that is named by its number,
//! after a run that shows which there are.

use std::collections::HashMap;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use fgpu_lab::bundle::{Bundle, HOOK, bundle, root, runtimes};
use fgpu_lab::command::{run, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::{node, process, shuffle};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::hook::{assert_nothing_is_left, number};

pub(crate) const TESTS: &[Test] = &[
    Test::once("hook_faults::hook_killed_at_every_step", hook_killed_at_every_step),
    Test::once("hook_faults::runtime_killed_at_steps_of_the_hook", runtime_killed_at_steps_of_the_hook),
    Test::once("hook_faults::runtime_killed_at_any_moment", runtime_killed_at_any_moment),
    Test::once("hook_faults::poststop_killed_at_every_step", poststop_killed_at_every_step),
    Test::once("hook_faults::steps_that_fail_are_undone", steps_that_fail_are_undone),
];

const TRACE: &str = "/run/lab/trace";
/// What a hook below `strace` prints: it is no child of the runtime then.
const SAID: &str = "/run/lab/hook.err";

/// System calls that change something outside of the process, and its end. Between two of them it makes no
/// difference at which instruction it is killed.
const CHANGES: [&str; 21] = [
    "mkdir",
    "mkdirat",
    "mknodat",
    "write",
    "writev",
    "fchmod",
    "ftruncate",
    "renameat2",
    "unlinkat",
    "flock",
    "open_tree",
    "mount_setattr",
    "setns",
    "openat2",
    "move_mount",
    "umount2",
    "chroot",
    "bpf",
    "sendto",
    "sendmsg",
    "exit_group",
];

/// A system call of a run: its name, and which of that name it is.
type Step = (String, usize);

/// The steps of the run that `strace` wrote down.
fn steps() -> Vec<Step> {
    let trace = fs::read_to_string(TRACE).unwrap_or_else(|error| panic!("{TRACE}: {error}"));
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let names = trace.lines().filter_map(|line| line.split_once('(').map(|(name, _)| name));
    let steps = names.filter(|name| CHANGES.contains(name)).map(|name| {
        let count = seen.entry(name).or_default();
        *count += 1;
        (name.to_owned(), *count)
    });
    steps.collect()
}

/// The steps of a hook that makes a container. The first container of a node makes folders that are there for
/// all others, so the steps are those of the second.
fn steps_of_a_create(runtime: &str) -> Vec<Step> {
    let first = half(runtime).fgpu("createRuntime");
    first.create().ok();
    assert_cleared(&first, "the first container of a node");
    let whole = with(half(runtime), "createRuntime", &traced("createRuntime"));
    whole.create().ok();
    let steps = steps();
    assert_cleared(&whole, "a run that nothing happened to");
    steps
}

/// Every step, but of many of one kind in a row (a plan has a dozen mounts, all made alike) each fourth.
fn sampled(steps: &[Step]) -> Vec<Step> {
    let plenty = |name: &str| steps.iter().filter(|step| step.0 == name).count() > 8;
    steps.iter().filter(|(name, nth)| !plenty(name) || *nth <= 2 || nth % 4 == 0).cloned().collect()
}

/// The words that run the hook and do something to it at a step.
fn at(step: &Step, what: &str, stage: &str) -> Vec<String> {
    let (name, nth) = step;
    let inject = format!("inject={name}:{what}:when={nth}");
    let script = format!(r#"exec "$@" 2>{SAID}"#);
    let words =
        ["/bin/sh", "-c", &script, "sh", "/usr/bin/strace", "-qq", "-o", TRACE, "-e", &inject, HOOK, stage];
    words.map(str::to_owned).to_vec()
}

pub(crate) fn half(runtime: &str) -> Bundle {
    // The inventory is fresh: the hook runs no program of its own.
    node::gpus();
    // A root of its own, so that each run makes the same places for its mounts.
    let bundle = bundle(runtime, "busybox").annotation("fgpu/fraction", "0.5");
    let own = bundle.path.join("rootfs");
    run(["cp".as_ref(), "-a".as_ref(), root("busybox").as_os_str(), own.as_os_str()]).ok();
    bundle.edit(|spec| spec["root"]["path"] = own.to_string_lossy().into())
}

fn with(bundle: Bundle, stage: &str, words: &[String]) -> Bundle {
    bundle.hook(stage, &words.iter().map(String::as_str).collect::<Vec<_>>())
}

fn traced(stage: &str) -> Vec<String> {
    ["/usr/bin/strace", "-qq", "-o", TRACE, HOOK, stage].map(str::to_owned).to_vec()
}

/// What an engine does with a container that could not be made, then one reconcile; then nothing is left.
#[track_caller]
pub(crate) fn assert_cleared(container: &Bundle, what: &str) {
    container.runtime(&["delete", "--force"]);
    // What is left of a container whose runtime was killed ends when it sees that; as long as it lives it
    // holds. A process that is ending has left its cgroup already.
    let inits = node::inits();
    wait_until(&format!("the end of what is left: {what}"), || {
        processes(&container.id).is_empty() && !inits.iter().any(|init| process::lives(*init))
    });
    run(["fgpu", "gc"]).ok();
    assert_eq!(node::leases(), [], "{what}");
    assert_nothing_is_left();
    // A killed runtime may leave the cgroup, with what it and we allowed there; who uses it next decides
    // anew.
    let name = format!("*{}*", container.id);
    let left = run(["find", "/sys/fs/cgroup", "-type", "d", "-name", &name]);
    if !left.stdout.trim().is_empty() {
        let first = number("/dev/nvidia0");
        let mut next = bundle("runc", "debian13");
        next.id.clone_from(&container.id);
        let opened = next.run(&["nodes", "-m", &first]);
        assert_eq!(opened.ok(), format!("{first} EPERM"), "{what}");
    }
}

/// Those in cgroups of a container.
fn processes(id: &str) -> String {
    let name = format!("*{id}*/cgroup.procs");
    run(["find", "/sys/fs/cgroup", "-path", &name, "-exec", "cat", "{}", "+"]).stdout.trim().to_owned()
}

fn hook_killed_at_every_step() {
    let (mut round, mut held) = (0, 0);
    for runtime in runtimes() {
        let steps = steps_of_a_create(runtime);
        assert!(steps.len() > 60 && steps.last().is_some_and(|step| step.0 == "exit_group"), "{steps:?}");
        for step in sampled(&steps) {
            round += 1;
            // Half of the steps with either runtime.
            if (round % 2 == 0) != (*runtime == "runc") {
                continue;
            }
            let killed = with(half(runtime), "createRuntime", &at(&step, "signal=KILL", "createRuntime"));
            killed.create().refused();
            held += node::leases().len();
            assert_cleared(&killed, &format!("{runtime}, hook killed at {step:?}"));
        }
    }
    assert!(held > 10, "many were killed while they held a lease: {held}");
}

fn spawn(words: &[String]) -> Child {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap_or_else(|error| panic!("{words:?}: {error}"))
}

/// Waits until the hook was stopped at its step, and returns its process id.
#[track_caller]
fn stopped(stage: &str) -> i32 {
    wait_until("a hook that is stopped", || {
        fs::read_to_string(TRACE).is_ok_and(|trace| trace.contains("stopped by SIGSTOP"))
    });
    let hooks = process::running(HOOK, stage);
    assert_eq!(hooks.len(), 1, "{hooks:?}");
    hooks[0].pid
}

/// Lets a stopped hook go on, and waits for its end.
#[track_caller]
fn go_on(hook: i32) {
    signal::kill(Pid::from_raw(hook), Signal::SIGCONT).expect("the hook is there");
    wait_until("the end of a hook", || !process::lives(hook));
}

/// The runtime is killed before the hook has begun, at one of each kind of its steps, and when it has ended.
fn runtime_killed_at_steps_of_the_hook() {
    for runtime in runtimes() {
        let steps = steps_of_a_create(runtime);
        let last_of_kind = |name: &str| steps.iter().rfind(|step| step.0 == name).cloned();
        // A process that is in exit_group(2) cannot be stopped; the chains below are for what comes after it.
        for step in CHANGES.into_iter().filter(|name| *name != "exit_group").filter_map(last_of_kind) {
            let _ = fs::remove_file(TRACE);
            let stops = with(half(runtime), "createRuntime", &at(&step, "signal=STOP", "createRuntime"));
            let mut child = spawn(&stops.create_line());
            let hook = stopped("createRuntime");
            child.kill().expect("the runtime waits for its hook");
            child.wait().expect("it was killed");
            go_on(hook);
            assert_cleared(&stops, &format!("{runtime} killed, hook at {step:?}"));
        }
        for before in [true, false] {
            let kill = ["/bin/sh", "-c", "kill -9 $PPID; sleep 0.1"];
            let ours = [HOOK, "createRuntime"];
            let chain = if before { [&kill[..], &ours] } else { [&ours[..], &kill] };
            let killed = half(runtime).hook("createRuntime", chain[0]).hook("createRuntime", chain[1]);
            killed.create().refused();
            wait_until("the end of hooks", || process::running(HOOK, "createRuntime").is_empty());
            assert_cleared(&killed, &format!("{runtime} killed by a hook before ours: {before}"));
        }
    }
}

/// What no step of the hook stands for: the runtime's own work before it and after it.
fn runtime_killed_at_any_moment() {
    let mut random = shuffle::Random::new(4);
    let mut held = 0;
    for runtime in runtimes() {
        for round in 0..18 {
            let container = half(runtime).fgpu("createRuntime");
            let mut child = if round % 3 == 2 {
                container.create().ok();
                spawn(&[runtime, "delete", "--force", &container.id].map(str::to_owned))
            } else {
                spawn(&container.create_line())
            };
            thread::sleep(Duration::from_micros(random.below(60_000)));
            // It may have ended; then there is nothing to kill.
            let _ = child.kill();
            child.wait().expect("it was started");
            // One that was about to become a hook when the runtime was killed still looks like the runtime.
            wait_until("the end of the runtime", || process::serving(&container.id).is_empty());
            wait_until("the end of hooks", || process::running(HOOK, "").is_empty());
            held += node::leases().len();
            end_orphans(&container);
            assert_cleared(&container, &format!("{runtime} killed in round {round}"));
        }
    }
    assert!(held > 0, "some were killed while there was a lease");
}

/// Ends what a killed runtime left for good. crun 1.21 that is killed before it has written down its
/// container leaves an init that waits for ever and of which its `delete` knows nothing: eight of a thousand
/// creates that are killed, without us as well. Until somebody ends it, it has what it was given.
fn end_orphans(container: &Bundle) {
    container.runtime(&["delete", "--force"]);
    let orphans = processes(&container.id);
    if !orphans.is_empty() && !node::leases().is_empty() {
        run(["fgpu", "gc"]).ok();
        assert!(
            !node::leases().is_empty() || processes(&container.id).is_empty(),
            "{orphans} lost their share"
        );
    }
    for pid in orphans.lines() {
        // It may have ended by itself.
        process::kill(pid.parse().expect("a process id"));
    }
}

fn poststop_killed_at_every_step() {
    for (index, runtime) in runtimes().iter().enumerate() {
        let run_once = |words: &[String]| {
            let container =
                with(half(runtime).hook("createRuntime", &[HOOK, "createRuntime"]), "poststop", words);
            container.create().ok();
            node::only_lease();
            container.runtime(&["delete", "--force"]);
            container
        };
        let whole = run_once(&traced("poststop"));
        assert_nothing_is_left();
        let steps = steps();
        assert!(steps.len() > 8, "{steps:?}");
        for step in steps.iter().skip(index).step_by(runtimes().len()) {
            let killed = run_once(&at(step, "signal=KILL", "poststop"));
            assert_cleared(&killed, &format!("{runtime}, poststop killed at {step:?}"));
        }
        // The runtime is killed, and poststop goes on alone.
        for name in ["flock", "renameat2"] {
            let step = (name.to_owned(), 1);
            let _ = fs::remove_file(TRACE);
            let container = half(runtime).hook("createRuntime", &[HOOK, "createRuntime"]);
            let container = with(container, "poststop", &at(&step, "signal=STOP", "poststop"));
            container.create().ok();
            let words = [runtime, "delete", "--force", &container.id].map(str::to_owned);
            let mut child = spawn(&words);
            let hook = stopped("poststop");
            child.kill().expect("the runtime waits for its hook");
            child.wait().expect("it was killed");
            go_on(hook);
            // It needs no reconcile.
            assert_nothing_is_left();
            container.runtime(&["delete", "--force"]);
        }
        drop(whole);
    }
}

/// A system call of the hook that fails: the container is refused and nothing is left, without a reconcile.
fn steps_that_fail_are_undone() {
    for runtime in runtimes() {
        for (name, errno, nth) in [
            ("open_tree", "ENOMEM", 3),
            ("mount_setattr", "EINVAL", 5),
            ("setns", "EPERM", 1),
            ("move_mount", "EINVAL", 1),
            ("move_mount", "ENOSPC", 7),
            ("renameat2", "ENOSPC", 1),
            ("renameat2", "EIO", 2),
            ("writev", "ENOSPC", 2),
            ("flock", "EIO", 1),
            ("mkdir", "EROFS", 2),
        ] {
            let step = (name.to_owned(), nth);
            let failing =
                with(half(runtime), "createRuntime", &at(&step, &format!("error={errno}"), "createRuntime"));
            let said = failing.create();
            said.refused();
            let told = fs::read_to_string(SAID).unwrap_or_default();
            assert!(told.starts_with("fgpu: "), "{runtime}, {name} {nth} fails: {told}{}", said.story());
            assert_nothing_is_left();
        }
    }
}
