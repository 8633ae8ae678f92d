//! Who holds the allocator's lock.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use fgpu_spec::shown;
use nix::sys::stat::{major, minor};

use super::Diagnosis;
use super::node::Node;

/// A change takes less than a millisecond; one that is seen twice with this in between is stuck.
const MOMENT: Duration = Duration::from_secs(1);

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    let Some(first) = holder(node) else { return };
    std::thread::sleep(MOMENT);
    if holder(node).as_ref() != Some(&first) {
        return;
    }
    let lock = node.config.state_dir.join("lock").display().to_string();
    let Holder { pid, .. } = first;
    if pid <= 0 {
        let what = format!("{lock} is held by a process of another PID namespace: no container gets a share");
        diagnosis.error("lock-held", what, &[&format!("on the node itself: fuser -v {lock}")]);
        return;
    }
    let text = |name: &str| node.text(&format!("/proc/{pid}/{name}")).unwrap_or_default();
    let stopped = text("stat").rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']));
    let cgroup = text("cgroup").lines().last().and_then(|line| line.splitn(3, ':').nth(2)).map(shown);
    let what = format!(
        "{lock} is held by process {pid} ({}, in the cgroup {}){}: no container gets a share",
        shown(text("comm").trim_end()),
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

/// A process, and when it started, as the kernel says it.
#[derive(Debug, PartialEq, Eq)]
struct Holder {
    pid: i32,
    start: Option<String>,
}

/// Who holds the lock (proc_locks(5)). `1: FLOCK ADVISORY WRITE 4711 00:1a:567 0 EOF`; who waits has `->`
/// after the number.
fn holder(node: &Node) -> Option<Holder> {
    let lock = fs::metadata(node.state_dir().join("lock")).ok()?;
    let file = format!("{:02x}:{:02x}:{}", major(lock.dev()), minor(lock.dev()), lock.ino());
    let locks = node.text("/proc/locks")?;
    let pid = locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, of, ..] = fields[..] else { return None };
        (of == file).then(|| pid.parse().ok())?
    })?;
    let stat = node.text(&format!("/proc/{pid}/stat"));
    let start = stat.and_then(|stat| Some(stat.rsplit_once(") ")?.1.split(' ').nth(19)?.to_owned()));
    Some(Holder { pid, start })
}
