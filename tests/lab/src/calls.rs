//! The simulated driver's log of calls: what a program asked of libcuda.

use fgpu_quota_names::{Class, class_of};

use crate::command::run;

const LOG: [&str; 4] = ["/opt/fgpu-sim.dist/fgpu-sim", "calls", "--root", "/opt/fgpu-sim"];

/// Starts a new log for all that run from now on.
#[track_caller]
pub fn start() {
    run([&LOG[..], &["--start"]].concat()).ok();
}

/// Checks what was called since [`start`]: the simulated driver has all of it, each function has a class in
/// the table of what the quota libraries wrap, and whatever took memory is counted by them. Gives the lines
/// of the log, `KIND NAME CALLS CHARGES`.
#[track_caller]
pub fn assert_known() -> Vec<String> {
    let log: Vec<_> = run(LOG).ok().lines().map(str::to_owned).collect();
    for line in &log {
        let words: Vec<_> = line.split(' ').collect();
        let [kind, name, _, charges] = words[..] else { panic!("no line of a log: {line}") };
        assert_ne!(kind, "missing", "the simulated driver has not: {line}");
        // A private slot is TABLE:NUMBER, and a name that this driver is too old for NAME:VERSION.
        if kind != "call" || name.contains(':') {
            continue;
        }
        let class = class_of(name).unwrap_or_else(|| panic!("no class in quota/names: {line}"));
        assert!(
            charges == "0" || matches!(class, Class::Counted | Class::Launched),
            "it took memory, and nobody counts it: {line}"
        );
    }
    log
}
