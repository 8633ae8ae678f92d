//! containerd and dockerd of the environment, run by `inside/daemons`.

use crate::command::{run, wait_until};
use crate::process;

/// Starts those that do not run, and waits until they answer.
#[track_caller]
pub fn start() {
    run(["/lab/daemons", "start"]).ok();
}

/// The process id of `containerd` or `dockerd`.
#[track_caller]
pub fn pid(name: &str) -> i32 {
    let status = run(["/lab/daemons", "status"]);
    let line = status.ok().lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().parse().unwrap_or_else(|_| panic!("{name} does not run: {}", status.stdout))
}

/// SIGKILLs daemons, all before waiting for any. They stay down until [`start`].
#[track_caller]
pub fn kill(names: &[&str]) {
    let pids: Vec<_> = names.iter().map(|name| pid(name)).collect();
    for pid in &pids {
        process::kill(*pid);
    }
    for pid in pids {
        wait_until("the end of a killed daemon", || !process::lives(pid));
    }
}
