//! Processes of the environment, by what they run.

use std::fs;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

/// A running process.
#[derive(Debug, Clone)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// Its arguments.
    pub args: Vec<String>,
}

/// Every process whose program is `program` (an absolute path) and of whose arguments one contains
/// `argument`.
pub fn running(program: &str, argument: &str) -> Vec<Process> {
    naming(argument)
        .into_iter()
        .filter(|process| {
            let program_of = fs::read_link(format!("/proc/{}/exe", process.pid));
            program_of.is_ok_and(|program_of| program_of.as_os_str() == program)
        })
        .collect()
}

/// Every process that names a container by its id and is none of the container's own.
pub fn serving(id: &str) -> Vec<Process> {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let own = namespace("self");
    // crun's half in the container looks like the other until it is started.
    naming(id).into_iter().filter(|process| namespace(&process.pid.to_string()) == own).collect()
}

/// Every process of whose arguments one contains `argument`.
fn naming(argument: &str) -> Vec<Process> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| {
            let args = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let args: Vec<_> =
                args.split(|byte| *byte == 0).map(|arg| String::from_utf8_lossy(arg).into_owned()).collect();
            args.iter().any(|arg| arg.contains(argument)).then_some(Process { pid, args })
        })
        .collect()
}

/// Whether a process lives; one that is dead and not yet waited for does not. One whose main thread alone has
/// ended does: a killed program of many threads shows so for a moment, and is taken for alive by fgpu, too.
pub fn lives(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The state stands behind the name, which ends at the last bracket; the number of threads 17 fields
    // later.
    let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
    let mut fields = rest.split(' ');
    match fields.next() {
        Some("Z") => fields.nth(16).is_some_and(|threads| threads != "1" && threads != "0"),
        Some("X") | None => false,
        Some(_) => true,
    }
}

/// Whether a process has a handler for a signal (`SigCgt`, proc_pid_status(5)). Without one the first process
/// of a PID namespace does not hear it.
pub fn handles(pid: i32, signal: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    caught >> (signal - 1) & 1 == 1
}

/// The process that started it, if it is there.
pub fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which ends at the last bracket: the state, then the parent.
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Sends SIGKILL. Whether the process was there to get it is the answer.
pub fn kill(pid: i32) -> bool {
    assert!(pid > 1, "no process of a test has the id {pid}");
    signal::kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok()
}
