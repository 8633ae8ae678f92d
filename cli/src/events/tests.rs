//! What is shown of a record.

use fgpu_spec::Gpu;

use super::*;
use crate::status::tests::{assert_kept, inventory};

/// What has happened on a node.
const RECORD: &str = r#"
{"schema":1,"time":"2025-12-31T08:00:00.000001Z","event":"granted","program":"containerd-shim-fgpu-v2","pid":71,"namespace":"moby","container":"3f1c0a9b2d110000000000000000000000000000000000000000000000000000","grant":"07070707070707070707070707070707","owner":"assistants","request":"fgpu/fraction=0.5","tier":"quota","gpus":[{"uuid":"GPU-a","memory":42949672960,"cores_ppm":500000}]}
{"schema":1,"time":"2026-11-19T10:11:12.5Z","event":"granted","program":"fgpu-hook","pid":72,"namespace":"/var/lib/containers/storage/overlay-containers/feed/userdata","container":"feed","grant":"08","request":"fgpu/fraction=1/3 fgpu/count=2","tier":"quota","gpus":[{"uuid":"GPU-a","memory":28633464832,"cores_ppm":333333},{"uuid":"GPU-gone","memory":28633464832,"cores_ppm":333333}]}
{"schema":1,"time":"2026-11-20T00:00:00.000000Z","event":"resized","program":"fgpu","pid":73,"namespace":"moby","container":"3f1c0a9b2d110000000000000000000000000000000000000000000000000000","grant":"07","owner":"assistants","request":"fgpu/fraction=0.5 fgpu/cores=30%","tier":"quota","gpus":[{"uuid":"GPU-a","memory":42949672960,"cores_ppm":300000}],"before":[{"uuid":"GPU-a","memory":42949672960,"cores_ppm":500000}]}
{"cut short by a full di
{"schema":1,"time":"2026-11-21T09:00:00.000000Z","event":"refused","program":"fgpu-runtime","pid":74,"namespace":"moby","container":"训练\u001b[2J","code":"no-capacity","message":"fgpu/fraction=0.5 asks 40504 MiB and 50% of the SMs; GPU 0 has 12152 MiB"}
{"schema":2,"time":"2026-11-21T09:30:00.000000Z","event":"moved","namespace":"moby","container":"abc","news":[1,2]}
{"schema":1,"time":"2026-11-21T10:00:00.000000Z","event":"released","program":"containerd-shim-fgpu-v2","pid":71,"namespace":"moby","container":"3f1c0a9b2d110000000000000000000000000000000000000000000000000000","grant":"07","owner":"assistants","request":"fgpu/fraction=0.5 fgpu/cores=30%","tier":"quota","gpus":[{"uuid":"GPU-a","memory":42949672960,"cores_ppm":300000}],"held_ms":266400000}
{"schema":1,"time":"2026-11-21T10:01:00.000000Z","event":"reconciled","program":"fgpu","pid":75,"namespace":"/var/lib/containers/storage/overlay-containers/feed/userdata","container":"feed","grant":"08","request":"fgpu/fraction=1/3 fgpu/count=2","tier":"quota","gpus":[{"uuid":"GPU-a","memory":28633464832,"cores_ppm":333333},{"uuid":"GPU-gone","memory":28633464832,"cores_ppm":333333}],"held_ms":1500}
{"schema":1,"time":"2026-11-21T10:02:00.000000Z","event":"lost","program":"fgpu","pid":76,"grant":"09090909090909090909090909090909"}
"#;

fn everything() -> Filter {
    Filter { since: None, container: None, called: Vec::new(), gpu: None, kinds: Vec::new() }
}

/// The record as a reader finds it.
fn events(filter: Filter, last: Option<usize>) -> (tempfile::TempDir, Reader) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(FILE), RECORD).unwrap();
    let lines = Lines::open(folder.path()).unwrap();
    (folder, Reader { lines, filter, last, newer: None })
}

fn shown(filter: Filter, last: Option<usize>, look: &Look) -> String {
    let (_folder, mut reader) = events(filter, last);
    let gpu = |index| Gpu {
        uuid: ["GPU-a", "GPU-b"][index as usize].into(),
        ..crate::status::tests::gpu(index, "A100", 80)
    };
    let inventory = Some(inventory(vec![gpu(0), gpu(1)]));
    let mut shown = Shown { inventory, year: "2026".into(), json: None, table: table() };
    reader.read(|line, event| shown.add(line, event)).unwrap();
    shown.text(look)
}

/// When, what and of whom.
fn taken(filter: Filter) -> Vec<String> {
    let (_folder, mut reader) = events(filter, None);
    let mut taken = Vec::new();
    reader.read(|_, event| taken.push(format!("{} {}", event.event, who(event)))).unwrap();
    taken
}

#[test]
fn the_table_at_every_width() {
    for width in [40, 80, 120, 200] {
        let text = shown(everything(), None, &Look { width: Some(width), ..Look::PLAIN });
        assert!(text.chars().all(|char| char == '\n' || !char.is_control()), "{text:?}");
        assert_kept(&snapshot(&format!("{width}-columns.txt")), &text);
    }
    assert_kept(&snapshot("piped.txt"), &shown(everything(), None, &Look::PLAIN));
}

fn snapshot(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/events/snapshots").join(name)
}

#[test]
fn keys_that_are_not_asked_for_are_left_out() {
    let all = taken(everything());
    assert_eq!(all.len(), 8, "{all:?}");
    let time = |text| Some(since(text).unwrap());
    assert_eq!(taken(Filter { since: time("2026-11-21 10:01:00"), ..everything() }), all[6..]);
    assert_eq!(taken(Filter { since: time("2026-11-20"), ..everything() }), all[2..]);
    assert_eq!(taken(Filter { gpu: Some("GPU-g".into()), ..everything() }), [all[1].clone(), all[6].clone()]);
    let container = |what: &str| taken(Filter { container: Some(what.into()), ..everything() });
    assert_eq!(
        container("3f1c"),
        ["granted", "resized", "released"].map(|event| format!("{event} moby/3f1c0a9b2d11"))
    );
    assert_eq!(container("moby/a"), ["moved moby/abc"]);
    assert!(container("x").is_empty());
    let called = vec![Key { namespace: "moby".into(), id: "abc".into() }];
    assert_eq!(taken(Filter { container: Some("web".into()), called, ..everything() }), ["moved moby/abc"]);
    let kinds = vec!["lost".to_owned(), "refused".to_owned()];
    assert_eq!(taken(Filter { kinds, ..everything() }), [all[3].clone(), "lost grant 09090909".into()]);
    assert_eq!(shown(everything(), Some(1), &Look::PLAIN).lines().count(), 2);
    let nothing = Filter { gpu: Some("GPU-b".into()), ..everything() };
    assert_eq!(shown(nothing, None, &Look::PLAIN), "Nothing like that is recorded.\n");
}

#[test]
fn times_are_read_as_people_write_them() {
    let (ago, now) = (since("2h").unwrap(), SystemTime::now());
    assert!(now.duration_since(ago).unwrap() >= Duration::from_secs(7200));
    assert_eq!(since("2026-11-21"), since("2026-11-21T00:00:00Z"));
    assert_eq!(since("2026-11-21 19:00:00"), since("2026-11-21T19:00:00.000Z"));
    for wrong in ["", "yesterday", "19:00", "5"] {
        assert!(since(wrong).is_err(), "{wrong}");
    }
}

/// What each release wrote, one record of each kind.
const RELEASES: [(&str, &str); 1] = [("0.1.0", include_str!("../../testdata/0.1.0/events.jsonl"))];

#[test]
fn records_of_every_release_are_read() {
    for (release, text) in RELEASES {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), text).unwrap();
        let lines = Lines::open(folder.path()).unwrap();
        let mut reader = Reader { lines, filter: everything(), last: None, newer: None };
        let mut kinds = Vec::new();
        reader.read(|_, event| kinds.push(event.event.clone())).unwrap();
        assert_eq!(kinds, ["granted", "resized", "released", "reconciled", "lost", "refused"], "{release}");
        assert_eq!(reader.newer(), None);
    }
}

#[test]
fn records_that_only_a_newer_release_can_read_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let newer = [
        r#"{"schema":2,"time":"2027-01-01T00:00:00Z","event":"granted","gpus":{"GPU-a":1}}"#,
        r#"{"schema":3,"when":1,"event":"granted"}"#,
        r#"{"schema":1,"cut short by a full di"#,
        r#"{"schema":1,"time":"2027-01-01T00:00:00Z","event":"granted","gpus":[{"uuid":"GPU-a","memory":1,"cores_ppm":1,"new":[]}],"new":{}}"#,
    ];
    std::fs::write(folder.path().join(FILE), newer.join("\n") + "\n").unwrap();
    let lines = Lines::open(folder.path()).unwrap();
    let mut reader = Reader { lines, filter: everything(), last: None, newer: None };
    let mut read = 0;
    reader.read(|_, _| read += 1).unwrap();
    assert_eq!(read, 1, "unknown fields of our schema are read past");
    let said = reader.newer().unwrap();
    assert!(said.starts_with("2 record(s) are left out: they have schema 3, and fgpu "), "{said}");
    assert!(said.contains(" knows 1; "), "{said}");
}
