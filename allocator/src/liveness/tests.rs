use std::fs;

use fgpu_spec::{Compute, Grant, Nonce, Tier};

use super::*;
use crate::{Key, State};

/// A made-up node: a folder that looks like procfs and cgroupfs.
struct Node {
    dir: tempfile::TempDir,
    host: Host,
}

const HOUR: u64 = 3_600_000_000_000;

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let host = Host { proc: dir.path().join("proc"), cgroup: dir.path().join("cgroup") };
        fs::create_dir(&host.cgroup).unwrap();
        fs::write(host.cgroup.join("cgroup.controllers"), "").unwrap();
        Self { dir, host }
    }

    fn process(&self, pid: i32, start: u64, state: char) -> Process {
        let folder = self.host.proc.join(pid.to_string());
        fs::create_dir_all(&folder).unwrap();
        let zeros = "0 ".repeat(16);
        fs::write(folder.join("stat"), format!("{pid} (x) {state} {zeros}1 0 {start} {zeros}{zeros}"))
            .unwrap();
        Process { pid, start }
    }

    fn pid_file(&self, text: impl AsRef<[u8]>) -> Option<std::path::PathBuf> {
        let path = self.dir.path().join("pid");
        fs::write(&path, text).unwrap();
        Some(path)
    }

    /// The grant's own pid file.
    fn own(&self) -> std::path::PathBuf {
        self.dir.path().join("init.pid")
    }

    fn cgroup(&self, populated: bool) -> Option<String> {
        let folder = self.host.cgroup.join("docker/x");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup.events"), format!("populated {}\n", u8::from(populated))).unwrap();
        Some("/docker/x".into())
    }

    fn judge(&self, lease: &Lease) -> Life {
        judge(&self.host, lease, &self.own()).unwrap()
    }
}

/// A lease that was made now, by a process that is gone.
fn lease() -> Lease {
    Lease {
        key: Key { namespace: "moby".into(), id: "x".into() },
        grant: Grant {
            nonce: Nonce([1; 16]),
            tier: Tier::Quota,
            compute: Compute::Cap,
            gpus: vec![],
            notes: vec![],
        },
        state: State::Reserving,
        owner: None,
        exclusive: false,
        bundle: "/nowhere".into(),
        maker: Process { pid: 10, start: 5 },
        pid_namespace: None,
        pid_file: None,
        init: None,
        cgroup: None,
        created: host::boottime(),
        wall: host::wall(),
        request: String::new(),
        trouble: None,
        kept: None,
        anchor: None,
        joined: Vec::new(),
    }
}

fn now() -> u64 {
    ticks(host::boottime())
}

#[test]
fn the_maker_keeps_it_until_the_init_is_known() {
    let node = Node::new();
    assert_eq!(node.judge(&lease()), Life::Dead);
    node.process(10, 5, 'S');
    assert_eq!(node.judge(&lease()), Life::Alive);
    node.process(10, 5, 'Z');
    assert_eq!(node.judge(&lease()), Life::Dead);
    node.process(10, 6, 'S');
    assert_eq!(node.judge(&lease()), Life::Dead, "another process has its pid");
}

#[test]
fn a_known_init_counts_and_its_maker_does_not() {
    let node = Node::new();
    node.process(10, 5, 'S');
    let init = node.process(20, 7, 'S');
    let lease = Lease { init: Some(init), ..lease() };
    assert_eq!(node.judge(&lease), Life::Alive);
    node.process(20, 7, 'Z');
    assert_eq!(node.judge(&lease), Life::Dead);
    node.process(20, 8, 'S');
    assert_eq!(node.judge(&lease), Life::Dead, "another process has its pid");
}

#[test]
fn processes_in_the_cgroup_outlive_the_init() {
    let node = Node::new();
    let mut lease = Lease { init: Some(Process { pid: 20, start: 7 }), ..lease() };
    lease.cgroup = node.cgroup(true);
    assert_eq!(node.judge(&lease), Life::Alive);
    lease.init = None;
    assert_eq!(node.judge(&lease), Life::Alive);
    node.cgroup(false);
    assert_eq!(node.judge(&lease), Life::Dead);
    // A path that names no container's cgroup keeps nothing for ever.
    lease.cgroup = Some("/".into());
    assert_eq!(node.judge(&lease), Life::Dead);
}

#[test]
fn the_init_is_learnt_from_a_pid_file() {
    let node = Node::new();
    let init = node.process(20, now() + 1, 'S');
    let lease = Lease { pid_file: node.pid_file("20"), ..lease() };
    assert_eq!(node.judge(&lease), Life::Init(init));
    node.pid_file("20\n");
    assert_eq!(node.judge(&lease), Life::Init(init));
    for nonsense in ["", "\n", "0", "-1", "20 30", "{", "{}", "99"] {
        node.pid_file(nonsense);
        assert_eq!(node.judge(&lease), Life::Dead, "{nonsense}");
    }
    let lease = Lease { pid_file: Some("/proc/self/fd".into()), ..lease };
    assert_eq!(node.judge(&lease), Life::Dead, "a folder is not a pid file");
}

#[test]
fn the_init_is_learnt_from_the_runtimes_state() {
    let node = Node::new();
    let init = node.process(20, 777, 'S');
    let lease = lease();
    let of = |text: String| node.judge(&Lease { pid_file: node.pid_file(text), ..lease.clone() });
    for (start, life) in [(777, Life::Init(init)), (778, Life::Dead)] {
        let runc =
            format!(r#"{{"id":"x","init_process_pid":20,"init_process_start":{start},"config":{{}}}}"#);
        assert_eq!(of(runc), life);
        assert_eq!(of(format!(r#"{{"init_process_pid":20,"init_process_start":"{start}"}}"#)), life);
        assert_eq!(of(format!(r#"{{"pid":20,"process-start-time":{start},"rootfs":"/"}}"#)), life);
    }
    assert_eq!(of(r#"{"pid":0,"process-start-time":0}"#.into()), Life::Dead);
}

#[test]
fn an_older_process_is_not_the_init() {
    let node = Node::new();
    let lease = Lease { pid_file: node.pid_file("20"), ..lease() };
    node.process(20, now() - 10, 'S');
    assert_eq!(node.judge(&lease), Life::Dead);
}

#[test]
fn a_process_that_started_after_the_pid_was_written_is_not_the_init() {
    let node = Node::new();
    let mut lease = Lease { pid_file: node.pid_file("20"), ..lease() };
    let later = node.process(20, now() + 10 * ticks_per_second(), 'S');
    assert_eq!(node.judge(&lease), Life::Dead);
    // After the clock was set, times of files prove nothing: it stays.
    for wall in [lease.wall - HOUR, lease.wall + HOUR] {
        lease.wall = wall;
        assert_eq!(node.judge(&lease), Life::Init(later));
    }
}

#[test]
fn unknown_liveness_is_an_error_and_not_a_death() {
    let node = Node::new();
    fs::create_dir_all(node.host.proc.join("10")).unwrap();
    fs::write(node.host.proc.join("10/stat"), "nonsense").unwrap();
    assert!(judge(&node.host, &lease(), &node.own()).is_err());
}

#[test]
fn the_grants_own_pid_file_counts_beside_the_one_that_is_named() {
    let node = Node::new();
    let (own, named) = (node.process(20, now() + 1, 'S'), node.process(30, now() + 1, 'S'));
    let pid_file = node.pid_file("30");
    let lease = Lease { pid_file, ..lease() };
    assert_eq!(node.judge(&lease), Life::Init(named));
    fs::write(node.own(), "20").unwrap();
    assert_eq!(node.judge(&lease), Life::Init(own));
    assert_eq!(node.judge(&Lease { pid_file: None, ..lease.clone() }), Life::Init(own));
    node.process(20, now() + 1, 'Z');
    assert_eq!(node.judge(&lease), Life::Init(named));
    node.process(30, now() + 1, 'Z');
    assert_eq!(node.judge(&lease), Life::Dead);
}

#[test]
fn an_init_that_is_somewhere_keeps_the_lease() {
    let node = Node::new();
    fs::write(node.own(), "unknown\n").unwrap();
    assert!(judge(&node.host, &lease(), &node.own()).is_err());
    let init = Some(node.process(20, 7, 'Z'));
    assert_eq!(node.judge(&Lease { init, ..lease() }), Life::Dead, "a person has told by now");
    fs::write(node.own(), "").unwrap();
    assert_eq!(node.judge(&lease()), Life::Dead, "the runtime was killed before it wrote");
}
