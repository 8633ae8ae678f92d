use fgpu_allocator::{Lease, Process, State};
use fgpu_spec::{Code, Compute, Grant, GrantedGpu, Nonce, Tier};
use serde_json::{Value, json};

use super::*;

fn lease(id: &str) -> Lease {
    let share = |memory| GrantedGpu { uuid: "GPU-1".into(), memory, cores_ppm: 250_000, mig: None };
    Lease {
        key: Key { namespace: "moby".into(), id: id.into() },
        grant: Grant {
            nonce: Nonce([7; 16]),
            tier: Tier::Quota,
            compute: Compute::Cap,
            gpus: vec![share(20 << 30)],
            notes: Vec::new(),
        },
        state: State::Active,
        owner: Some("team-a".into()),
        exclusive: false,
        bundle: "/bundle".into(),
        maker: Process { pid: 1, start: 1 },
        pid_namespace: None,
        pid_file: None,
        init: None,
        cgroup: None,
        created: 0,
        wall: 0,
        request: "fgpu/fraction=0.25".into(),
        trouble: None,
        kept: None,
        anchor: None,
        joined: Vec::new(),
    }
}

/// What five things leave in the file, without what differs from run to run.
#[test]
fn the_lines_are_those_of_the_documented_schema() {
    let folder = tempfile::tempdir().unwrap();
    let events = Events::at(folder.path(), Path::new("/nonexistent"), Path::new("/nonexistent"));
    let (before, mut after) = (lease("web"), lease("web"));
    after.grant.gpus[0].memory = 10 << 30;
    after.owner = None;
    events.observe(Change::Granted(&before));
    events.observe(Change::Resized { before: &before, after: &after });
    events.observe(Change::Released(&after));
    events.observe(Change::Reconciled(&after));
    events.observe(Change::Lost(Nonce([9; 16])));
    events.exceeded(&before, &[30 << 30], true);
    events.refused(Some(&before.key), &Error::new(Code::NoCapacity, "full"));
    events.refused(None, &Error::new(Code::Internal, "broken"));

    let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
    let lines = text.lines().map(|line| {
        let mut value: Value = serde_json::from_str(line).unwrap();
        let fields = value.as_object_mut().unwrap();
        assert_eq!(fields.remove("schema"), Some(1.into()));
        let time = fields.remove("time").unwrap();
        assert!(humantime::parse_rfc3339(time.as_str().unwrap()).is_ok(), "{time}");
        assert_eq!(fields.remove("pid"), Some(std::process::id().into()));
        assert!(fields.remove("program").unwrap().as_str().unwrap().starts_with("fgpu_engine"));
        if let Some(held) = fields.get_mut("held_ms") {
            assert!(held.as_u64().unwrap() > 0);
            *held = 5.into();
        }
        value
    });
    let share = |memory: u64| json!([{"uuid": "GPU-1", "memory": memory, "cores_ppm": 250_000}]);
    let nonce = "07".repeat(16);
    let ended = |event| {
        json!({"event": event, "namespace": "moby", "container": "web", "grant": nonce,
               "request": "fgpu/fraction=0.25", "tier": "quota", "gpus": share(10 << 30), "held_ms": 5})
    };
    let expected = [
        json!({"event": "granted", "namespace": "moby", "container": "web", "grant": nonce, "owner": "team-a",
               "request": "fgpu/fraction=0.25", "tier": "quota", "gpus": share(20 << 30)}),
        json!({"event": "resized", "namespace": "moby", "container": "web", "grant": nonce,
               "request": "fgpu/fraction=0.25", "tier": "quota", "gpus": share(10 << 30),
               "before": share(20 << 30)}),
        ended("released"),
        ended("reconciled"),
        json!({"event": "lost", "grant": "09".repeat(16)}),
        json!({"event": "exceeded", "namespace": "moby", "container": "web", "grant": nonce, "owner": "team-a",
               "request": "fgpu/fraction=0.25", "tier": "quota", "gpus": share(20 << 30),
               "used_memory": [30_u64 << 30], "stopped": true}),
        json!({"event": "refused", "namespace": "moby", "container": "web", "code": "no-capacity",
               "message": "full"}),
        json!({"event": "refused", "code": "internal", "message": "broken"}),
    ];
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}

#[test]
fn a_line_stays_short_whatever_a_container_is_called() {
    let folder = tempfile::tempdir().unwrap();
    let events = Events::at(folder.path(), Path::new("/nonexistent"), Path::new("/nonexistent"));
    let mut long = lease(&"ä\n\u{1b}".repeat(100_000));
    long.request = "\"".repeat(100_000);
    events.observe(Change::Granted(&long));
    events.refused(Some(&long.key), &Error::new(Code::Internal, "x".repeat(100_000)));
    let text = std::fs::read_to_string(folder.path().join(FILE)).unwrap();
    assert_eq!(text.lines().count(), 2);
    for line in text.lines() {
        assert!(line.len() < 8192, "{}", line.len());
        let value: Value = serde_json::from_str(line).unwrap();
        assert!(value["container"].as_str().unwrap().starts_with("ä\n\u{1b}"));
    }
}

#[test]
fn a_failed_write_of_the_record_fails_no_container() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for directory in [&file, &file.join("below"), &folder.path().join("no/parent")] {
        Events::at(directory, directory, directory).observe(Change::Granted(&lease("web")));
    }
    // Nor is it written to where a link leads, and a pipe without a reader is not waited for.
    let target = folder.path().join("target");
    std::os::unix::fs::symlink(&target, folder.path().join(FILE)).unwrap();
    Events::at(folder.path(), &file, &file).observe(Change::Granted(&lease("web")));
    assert!(!target.exists());
    std::fs::remove_file(folder.path().join(FILE)).unwrap();
    nix::unistd::mkfifo(&folder.path().join(FILE), nix::sys::stat::Mode::S_IRWXU).unwrap();
    Events::at(folder.path(), &file, &file).observe(Change::Granted(&lease("web")));
    assert_eq!(std::fs::read(&file).unwrap(), b"");
}
