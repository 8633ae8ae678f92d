//! Against a peer that plays systemd; the lab has the real one.

use super::super::dbus::tests::{Canned, LONG, Peer};
use super::super::tests::machine::node;
use super::*;

const CGROUP: &str = "/machine.slice/x.scope";
/// As before version 249.
const NO_PINS: Canned = Canned::Error("org.freedesktop.DBus.Error.UnknownProperty");
const UNIT: Canned = Canned::Path("/org/freedesktop/systemd1/unit/x_2escope");

fn systemd(peer: &Peer) -> Systemd<'_> {
    Systemd { private: &peer.path, bus: Path::new("/nonexistent"), patience: LONG }
}

fn members(calls: &[Vec<u8>]) -> Vec<&'static str> {
    let has = |call: &[u8], word: &str| call.windows(word.len()).any(|window| window == word.as_bytes());
    let words = ["SetUnitProperties", "ControlGroup", "DevicePolicy", "DeviceAllow", "BPFProgram", "GetUnit"];
    calls.iter().map(|call| *words.iter().find(|word| has(call, word)).unwrap()).collect()
}

#[test]
fn devices_are_added_to_a_scope_that_limits_them() {
    let peer = Peer::new(vec![
        UNIT,
        Canned::Text(CGROUP),
        NO_PINS,
        Canned::Pairs(vec![("/dev/null", "rwm"), ("/dev/char/240:7", "rw")]),
        Canned::Nothing,
        Canned::Pairs(vec![("/dev/char/240:8", "rw"), ("/dev/null", "rwm"), ("/dev/char/240:7", "rw")]),
    ]);
    let added =
        systemd(&peer).allow("x.scope", CGROUP, &[node(240, 7), node(240, 8)]).unwrap().added.unwrap();
    assert_eq!(added.rules, [("/dev/char/240:8".to_owned(), "rw".to_owned())], "the other is there");
    let calls = peer.calls();
    assert_eq!(
        members(&calls),
        ["GetUnit", "ControlGroup", "BPFProgram", "DeviceAllow", "SetUnitProperties", "DeviceAllow"]
    );

    let peer = Peer::new(vec![
        UNIT,
        Canned::Pairs(vec![("/dev/char/240:8", "rw"), ("/dev/null", "rwm")]),
        Canned::Nothing,
        Canned::Pairs(vec![("/dev/null", "rwm")]),
    ]);
    systemd(&peer).undo(&added).unwrap();
    assert_eq!(members(&peer.calls()), ["GetUnit", "DeviceAllow", "SetUnitProperties", "DeviceAllow"]);
}

#[test]
fn a_cgroup_of_others_or_without_limits_is_left_alone() {
    let strict = || Canned::Pairs(vec![("/dev/null", "rwm"), ("/dev/char/240:7", "rwm")]);
    for answers in [
        vec![Canned::Error("org.freedesktop.systemd1.NoSuchUnit")],
        vec![UNIT, Canned::Text("/system.slice/x.scope")],
        vec![UNIT, Canned::Text(CGROUP), NO_PINS, Canned::Pairs(vec![]), Canned::Text("auto")],
        vec![UNIT, Canned::Text(CGROUP), NO_PINS, strict()],
    ] {
        let peer = Peer::new(answers.clone());
        let added = systemd(&peer).allow("x.scope", CGROUP, &[node(240, 7)]).unwrap().added;
        assert!(added.is_none(), "{answers:?}");
        assert_eq!(peer.calls().len(), answers.len());
    }
    let nobody =
        Systemd { private: Path::new("/nonexistent"), bus: Path::new("/nonexistent"), patience: LONG };
    assert!(nobody.allow("x.scope", CGROUP, &[node(240, 7)]).unwrap().added.is_none());
}

#[test]
fn a_list_that_is_empty_forbids_when_the_policy_says_so() {
    let after = Canned::Pairs(vec![("/dev/char/240:7", "rw")]);
    let peer = Peer::new(vec![
        UNIT,
        Canned::Text(CGROUP),
        NO_PINS,
        Canned::Pairs(vec![]),
        Canned::Text("strict"),
        Canned::Nothing,
        after,
    ]);
    assert!(systemd(&peer).allow("x.scope", CGROUP, &[node(240, 7)]).unwrap().added.is_some());
}

#[test]
fn a_refusal_is_told_with_the_unit() {
    for last in [
        vec![Canned::Error("org.freedesktop.DBus.Error.AccessDenied")],
        vec![Canned::Nothing, Canned::Pairs(vec![])],
    ] {
        let mut answers =
            vec![UNIT, Canned::Text(CGROUP), NO_PINS, Canned::Pairs(vec![("/dev/null", "rwm")])];
        answers.extend(last);
        let peer = Peer::new(answers);
        let error = systemd(&peer).allow("x.scope", CGROUP, &[node(240, 7)]).unwrap_err();
        assert!(error.message.contains("the systemd unit x.scope"), "{error}");
    }
}

#[test]
fn the_files_of_a_units_device_programs_are_told() {
    let programs = vec![("device", "/bpf/crun/x_scope"), ("ingress", "/bpf/other"), ("device", "relative")];
    let peer = Peer::new(vec![
        UNIT,
        Canned::Text(CGROUP),
        Canned::Pairs(programs),
        Canned::Pairs(vec![]),
        Canned::Text("auto"),
    ]);
    let unit = systemd(&peer).allow("x.scope", CGROUP, &[node(240, 7)]).unwrap();
    assert_eq!(format!("{:?}", unit.pins), r#"[Pin { path: "/bpf/crun/x_scope" }]"#);
    assert!(unit.added.is_none());
}

#[test]
fn a_connection_that_is_lost_is_made_again() {
    let peer = Peer::lost_at_first(vec![Canned::Error("org.freedesktop.systemd1.NoSuchUnit")]);
    assert!(systemd(&peer).allow("x.scope", CGROUP, &[node(240, 7)]).unwrap().added.is_none());
    assert_eq!(members(&peer.calls()), ["GetUnit"]);
}

#[test]
fn the_bus_is_asked_when_systemd_has_no_socket_of_its_own() {
    let peer = Peer::new(vec![Canned::Nothing, Canned::Error("org.freedesktop.systemd1.NoSuchUnit")]);
    let systemd = Systemd { private: Path::new("/nonexistent"), bus: &peer.path, patience: LONG };
    assert!(systemd.allow("x.scope", CGROUP, &[node(240, 7)]).unwrap().added.is_none());
    let calls = peer.calls();
    assert!(calls[0].windows(5).any(|window| window == b"Hello"));
    assert_eq!(members(&calls[1..]), ["GetUnit"]);
}

#[test]
fn a_rule_that_was_removed_since_is_not_undone() {
    let rule = |path: &str, access: &str| (path.to_owned(), access.to_owned());
    let added = Added {
        unit: "x.scope".into(),
        rules: vec![rule("/dev/char/240:7", "rw")],
        before: vec![rule("/dev/char/240:7", "r")],
    };
    let peer = Peer::new(vec![UNIT, Canned::Pairs(vec![("/dev/null", "rwm")])]);
    systemd(&peer).undo(&added).unwrap();
    assert_eq!(members(&peer.calls()), ["GetUnit", "DeviceAllow"]);
    let peer = Peer::new(vec![Canned::Error("org.freedesktop.systemd1.NoSuchUnit")]);
    systemd(&peer).undo(&added).unwrap();
}

/// Without `/dev/char/M:m`, which systemd before 240 looks up, the node's own path goes along if it is that
/// device.
#[test]
fn a_node_is_named_by_its_path_only_where_its_number_is_not_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    let number = nix::sys::stat::makedev(240, 7);
    let character = nix::sys::stat::SFlag::S_IFCHR;
    nix::sys::stat::mknod(&path, character, nix::sys::stat::Mode::from_bits_truncate(0o600), number).unwrap();
    let path = path.to_str().unwrap().to_owned();
    let by_number = "/dev/char/240:7".to_owned();
    assert!(!Path::new(&by_number).exists(), "240 is for local use");
    let paths = |node: &DeviceNode| rules(node).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
    assert_eq!(paths(&DeviceNode { path: path.clone(), ..node(240, 7) }), [by_number.clone(), path.clone()]);
    assert_eq!(paths(&DeviceNode { path, ..node(240, 8) }), ["/dev/char/240:8"], "another device is there");
    assert_eq!(paths(&node(240, 7)), [by_number], "no file is there");
}
