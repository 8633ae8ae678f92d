//! `fgpu run`: a plain process with a share.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fgpu_lab::command::{Output, run, wait_for, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::node::FrontEnd;
use fgpu_lab::{docker, node, process};

pub(crate) const TESTS: &[Test] = &[
    Test::once("run::command_gets_its_share", command_gets_its_share),
    Test::once("run::other_gpus_do_not_open", other_gpus_do_not_open),
    Test::once("run::it_ends_as_the_command_does", it_ends_as_the_command_does),
    Test::once("run::it_ends_so_even_if_the_share_stays", it_ends_so_even_if_the_share_stays),
    Test::once("run::leftover_processes_are_ended", leftover_processes_are_ended),
    Test::once("run::processes_that_joined_the_cgroup_are_ended", processes_that_joined_the_cgroup_are_ended),
    Test::once("run::a_killed_run_leaves_the_command_its_share", a_killed_run_leaves_the_command_its_share),
    Test::once("run::gc_takes_no_mount_of_a_container", gc_takes_no_mount_of_a_container),
    Test::once("run::the_host_stays_as_it_was", the_host_stays_as_it_was),
];

/// The simulated driver's nodes and its state are in a folder of their own; a real driver has them in /dev
/// and /run, and so it is for what is run by this.
pub(crate) const WITH_NODES: &str = "mkdir -p /run/nvidia-sim && \
    mount -t overlay -o lowerdir=/opt/fgpu-sim/dev:/dev overlay /dev && exec \"$@\"";

fn words<'a>(ask: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    // The programs of the images run on the host of the lab as well.
    if !Path::new("/opt/programs/alloc").exists() {
        run(["tar", "-C", "/", "-xf", "/opt/images/debian13.tar", "./opt/programs"]).ok();
    }
    [&["unshare", "-m", "sh", "-c", WITH_NODES, "sh", "fgpu", "run"], ask, &["--"], command].concat()
}

pub(crate) fn fgpu_run(ask: &[&str], command: &[&str]) -> Output {
    run(words(ask, command))
}

/// A run that lasts until its standard input ends, to be spawned.
fn started(command: &[&str]) -> Command {
    let words = words(&["-p", "0.5"], command);
    let mut child = Command::new(words[0]);
    child.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::null());
    child
}

fn start(command: &[&str]) -> Child {
    started(command).spawn().expect("unshare is there")
}

/// The pid of `fgpu run`, after its command has begun: before, its child looks like itself.
fn the_run() -> i32 {
    let [run] = &process::running("/usr/bin/fgpu", "run")[..] else { panic!("there should be one run") };
    run.pid
}

fn command_gets_its_share() {
    let granted = node::gpus()[0].share(250_000);
    let query =
        "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits; env -i /opt/programs/alloc fill";
    let output = fgpu_run(&["-p", "0.25", "-a", "device=0"], &["sh", "-c", query]);
    let lines: Vec<_> = output.ok().lines().collect();
    assert_eq!(lines[0], (granted >> 20).to_string());
    crate::limit::assert_filled(lines[1], granted);
    node::wait_until_free();
}

fn other_gpus_do_not_open() {
    let [one, two] = [0, 1].map(|index| format!("/dev/nvidia{}", node::gpus()[index].minor));
    let output = fgpu_run(&["-p", "0.25", "-a", "device=1"], &["/opt/programs/nodes", &one, &two]);
    assert_eq!(output.ok(), format!("{one} EACCES\n{two} ENXIO"));
}

fn it_ends_as_the_command_does() {
    assert_eq!(fgpu_run(&["-m", "1Gi"], &["sh", "-c", "exit 7"]).status, 7);
    for (command, status) in
        [("nosuch", 127), ("/etc/passwd/nosuch", 127), ("/etc/passwd", 126), ("/tmp", 126)]
    {
        let output = fgpu_run(&["-m", "1Gi"], &[command]);
        assert_eq!(output.status, status, "{}", output.story());
        assert!(
            output.stderr.starts_with(&format!("fgpu: invalid-request: cannot run {command}: ")),
            "{}",
            output.story()
        );
        node::wait_until_free();
    }
    let killed = start(&["sh", "-c", "kill -TERM $$"]).wait().expect("it is a child");
    assert_eq!(killed.signal(), Some(15), "{killed}");
    for (ask, code) in [
        (&["-p", "2"][..], "invalid-request"),
        (&["-n", "64"], "too-large"),
        (&["-p", "0.5", "-a", "isolation=none"], "denied"),
    ] {
        let output = fgpu_run(ask, &["touch", "/tmp/has-run"]);
        assert!(output.refused().starts_with(&format!("fgpu: {code}: ")), "{}", output.story());
    }
    assert!(!Path::new("/tmp/has-run").exists());
    assert_eq!(node::leases(), []);

    // A signal to the run is one to the command.
    let command = "trap 'exit 3' TERM; touch /tmp/runs; while :; do sleep 0.01; done";
    let mut child = start(&["sh", "-c", command]);
    wait_until("its command", || Path::new("/tmp/runs").exists());
    run(["kill", "-TERM", &the_run().to_string()]).ok();
    assert_eq!(child.wait().expect("it is a child").code(), Some(3));
    assert_eq!(node::leases(), []);
}

/// The share is back with the next reconcile; the command's end would be lost for ever.
fn it_ends_so_even_if_the_share_stays() {
    let [file, whole] = ["/run/fgpu/allocations.json", "/tmp/whole"];
    let mut child =
        started(&["sh", "-c", "cat; exit 7"]).stderr(Stdio::piped()).spawn().expect("unshare is there");
    wait_until("its lease", || node::leases().len() == 1);
    // From here to its end the run does not write to the file.
    node::wait_until_recorded();
    run(["cp", file, whole]).ok();
    std::fs::write(file, "damaged").expect("root may write it");
    drop(child.stdin.take());
    let output = child.wait_with_output().expect("it is a child");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    assert!(stderr.contains("the share is not given back until fgpu gc"), "{stderr}");
    run(["cp", whole, file]).ok();
    run(["fgpu", "gc"]).ok();
    assert_eq!(node::leases(), []);
}

fn leftover_processes_are_ended() {
    let output = fgpu_run(&["-p", "0.5"], &["sh", "-c", "setsid sleep 4711 >/dev/null 2>&1 & exit 0"]);
    output.ok();
    assert!(process::running("/usr/bin/sleep", "4711").is_empty());
    assert_eq!(node::leases(), []);
}

/// A run in a PID namespace has no pid for a process that came into its cgroup from outside.
fn processes_that_joined_the_cgroup_are_ended() {
    if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        return; // v1 kills by pid only
    }
    let words = words(&["-p", "0.5"], &["cat"]);
    let mut child = Command::new("unshare");
    child.args(["--pid", "--fork", "--mount-proc"]).args(&words).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = child.spawn().expect("unshare is there");
    let cat = wait_for("its command", || process::running("/usr/bin/cat", "cat").pop());
    let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", cat.pid)).expect("cat runs");
    let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::")).expect("there is v2");
    let mut guest = Command::new("sleep").arg("4714").spawn().expect("sleep is there");
    let members = format!("/sys/fs/cgroup{cgroup}/cgroup.procs");
    std::fs::write(&members, guest.id().to_string()).expect("root may move it");
    drop(child.stdin.take());
    assert!(child.wait().expect("it is a child").success());
    // It has left its cgroup a moment before it has ended.
    let ended = wait_for("the end of who has the share no more", || guest.try_wait().expect("it is a child"));
    assert_eq!(ended.signal(), Some(9), "{ended}");
    assert!(!Path::new(&members).exists());
}

/// How many folders of places for the real libraries there are on the host.
fn drivers() -> usize {
    let names =
        std::fs::read_dir("/run/fgpu").expect("is there").map(|entry| entry.expect("is there").file_name());
    names.filter(|name| name.to_string_lossy().starts_with("driver-")).count()
}

fn a_killed_run_leaves_the_command_its_share() {
    let mut child = start(&["sh", "-c", "sleep 4712 & cat"]);
    let sleep = wait_for("its command", || process::running("/usr/bin/sleep", "4712").pop());
    let cat = wait_for("the rest of it", || process::running("/usr/bin/cat", "cat").pop());
    let shell = process::parent(cat.pid).expect("it waits for cat");
    let lease = node::only_lease();
    assert!(process::kill(the_run()));
    child.wait().expect("it is a child");
    run(["fgpu", "gc"]).ok();
    assert_eq!(node::only_lease(), lease, "cat and sleep still use it");
    // The command's own end is not the last one's.
    drop(child.stdin.take());
    wait_until("the end of cat", || !process::lives(cat.pid) && !process::lives(shell));
    run(["fgpu", "gc"]).ok();
    assert_eq!(node::only_lease(), lease, "sleep still uses it");
    assert!(process::kill(sleep.pid));
    wait_until("the end of sleep", || !process::lives(sleep.pid));
    let left = || {
        let cgroups = run(["find", "/sys/fs/cgroup", "-name", "fgpu-run-*"]);
        (cgroups.ok().lines().count(), drivers() > 0)
    };
    assert_eq!(left(), (1, true), "nobody was left to remove them");
    run(["fgpu", "gc"]).ok();
    assert_eq!(node::leases(), []);
    assert_eq!(left(), (0, false));
}

/// The files that a container's mounts lie over are the host's if it has the host's /run; one that is removed
/// takes the mount along.
fn gc_takes_no_mount_of_a_container() {
    let quarter = docker::container("debian13").under(FrontEnd::Shim).annotation("fgpu/fraction", "0.25");
    let container = quarter.options(["-v", "/run:/run"]).command(["sleep", "1000"]).start();
    run(["fgpu", "gc"]).ok();
    assert!(container.exec(["nvidia-smi", "-L"]).ok().starts_with("GPU 0:"));
    container.remove();
    run(["fgpu", "gc"]).ok();
    let left = ["limits", "ledger", "turns"].map(|name| Path::new("/run/fgpu").join(name).exists());
    assert_eq!((left, drivers()), ([false; 3], 0));
}

fn the_host_stays_as_it_was() {
    let look = || {
        let listed =
            run(["ls", "-laR", "/usr/lib/x86_64-linux-gnu", "/usr/bin", "/opt/fgpu-sim/dev"]).ok().to_owned();
        (listed, std::fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted"))
    };
    fgpu_run(&["-p", "0.5"], &["true"]).ok();
    let before = look();
    fgpu_run(&["-p", "0.5"], &["nvidia-smi"]).ok();
    assert!(look() == before);
}
