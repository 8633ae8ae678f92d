//! The holder of the allocator's lock.

use std::time::Duration;

use fgpu_allocator::proc::parse_cgroups;
use fgpu_allocator::{Holding, Host, holder};
use fgpu_spec::escape_for_display;

use super::Diagnosis;
use super::node::Node;

/// A change takes less than a millisecond; one that is seen twice with this in between is stuck.
const MOMENT: Duration = Duration::from_secs(1);

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    let host = Host { proc: node.place("/proc"), ..Host::default() };
    let look = || holder(&host, &node.state_dir().join("lock"));
    let Some(first) = look() else { return };
    std::thread::sleep(MOMENT);
    let same = |other: &Holding| (other.pid, other.start) == (first.pid, first.start);
    let Some(Holding { pid, name, state, .. }) = look().filter(same) else { return };
    let lock = node.config.state_dir.join("lock").display().to_string();
    if pid <= 0 {
        let what = format!("{lock} is held by a process of another PID namespace: no container gets a share");
        diagnosis.error("lock-held", what, &[&format!("on the node itself: fuser -v {lock}")]);
        return;
    }
    let stopped = matches!(state, Some('T' | 't'));
    let cgroup = node.text(&format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let cgroup = parse_cgroups(cgroup.as_bytes()).pop().map(|line| escape_for_display(&line.path));
    let what = format!(
        "{lock} is held by process {pid} ({name}, in the cgroup {}){}: no container gets a share",
        cgroup.unwrap_or_else(|| "?".into()),
        if stopped { ", which is stopped" } else { "" }
    );
    let end = format!("kill -KILL {pid}   # what it was about to change stays whole");
    let go_on = format!("kill -CONT {pid}");
    match stopped {
        true => diagnosis.error("lock-held", what, &[&go_on, &format!("or: {end}")]),
        false => diagnosis.error("lock-held", what, &[&end]),
    }
}
