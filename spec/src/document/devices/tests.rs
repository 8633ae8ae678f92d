use serde_json::{Value, json};

use crate::{DeviceNode, Document, Majors, Plan};

fn node(path: &str, major: u32, minor: u32) -> DeviceNode {
    DeviceNode { path: path.into(), host: path.into(), major, minor, mode: 0o666, uid: 0, gid: 0 }
}

fn plan() -> Plan {
    Plan {
        nodes: vec![
            node("/dev/nvidiactl", 195, 255),
            node("/dev/nvidia0", 195, 0),
            node("/dev/nvidia-uvm", 511, 0),
            node("/dev/nvidia-caps/nvidia-cap30", 234, 30),
        ],
        majors: Majors::new([195], [234], [1, 4, 10, 195, 234, 511]),
        ..Plan::default()
    }
}

/// As Docker and Podman begin every list.
fn docker(rules: &[Value]) -> Value {
    let mut all = vec![
        json!({"allow": false, "access": "rwm"}),
        json!({"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rwm"}),
        json!({"allow": true, "type": "c", "access": "m"}),
    ];
    all.extend_from_slice(rules);
    json!({"linux": {"resources": {"devices": all}}})
}

fn applied(spec: &Value) -> Value {
    let mut document = Document::parse(&spec.to_string()).unwrap();
    document.apply(&plan()).unwrap();
    let once = document.to_string();
    let mut again = Document::parse(&once).unwrap();
    assert_eq!(again.ungranted_rule(&plan()).unwrap(), None);
    again.apply(&plan()).unwrap();
    assert_eq!(again.to_string(), once, "twice is once");
    serde_json::from_str(&once).unwrap()
}

fn ungranted(spec: &Value) -> Option<String> {
    Document::parse(&spec.to_string()).unwrap().ungranted_rule(&plan()).unwrap()
}

/// Whether a list allows an access, as crun has it: the last rule that fits decides.
fn allows(spec: &Value, kind: &str, major: i64, minor: i64, access: &str) -> bool {
    let rules = spec["linux"]["resources"]["devices"].as_array().unwrap();
    let fits = |rule: &&Value| {
        let number = |key: &str, number: i64| rule[key].as_i64().is_none_or(|has| has < 0 || has == number);
        let kind = matches!(rule["type"].as_str(), None | Some("" | "a")) || rule["type"] == kind;
        let has = rule["access"].as_str().unwrap_or("rwm");
        kind && number("major", major)
            && number("minor", minor)
            && access.chars().all(|one| has.contains(one))
    };
    rules.iter().rev().find(fits).is_some_and(|rule| rule["allow"] == true)
}

fn rule(kind: &str, major: Option<i64>, minor: Option<i64>, access: &str) -> Value {
    let mut rule = json!({"allow": true, "type": kind, "access": access});
    for (key, number) in [("major", major), ("minor", minor)] {
        if let Some(number) = number {
            rule[key] = number.into();
        }
    }
    rule
}

/// Rules as `--device`, `--device-cgroup-rule` and hand-written specs have them.
fn beyond() -> Vec<Value> {
    vec![
        rule("c", Some(195), None, "rwm"),
        rule("c", Some(195), Some(-1), "rw"),
        rule("c", Some(195), Some(1), "rwm"),
        rule("c", Some(195), Some(1), "r"),
        rule("c", Some(195), Some(253), "w"),
        rule("u", Some(195), Some(2), "rwm"),
        rule("c", None, None, "rwm"),
        rule("c", Some(-1), Some(-1), "rw"),
        rule("c", None, Some(1), "rwm"),
        rule("a", None, None, "rwm"),
        rule("a", Some(-1), Some(-1), "rwm"),
        rule("a", Some(195), None, "rw"),
        rule("", None, None, "rw"),
        json!({"allow": true}),
        rule("c", Some(234), None, "rwm"),
        rule("c", Some(234), Some(31), "r"),
    ]
}

#[test]
fn no_rule_leads_to_another_gpu() {
    for extra in beyond() {
        for spec in [
            docker(std::slice::from_ref(&extra)),
            docker(&[extra.clone(), rule("c", Some(10), Some(229), "rwm"), extra.clone()]),
        ] {
            assert!(ungranted(&spec).is_some(), "{extra}");
            let result = applied(&spec);
            for (major, minor) in [(195, 1), (195, 2), (195, 253), (234, 31), (234, 0)] {
                for access in ["r", "w", "rw"] {
                    assert!(!allows(&result, "c", major, minor, access), "{extra}: {major}:{minor} {access}");
                }
            }
            for (major, minor) in [(195, 255), (195, 0), (511, 0), (234, 30)] {
                assert!(allows(&result, "c", major, minor, "rw"), "{extra}: {major}:{minor}");
            }
            // All else is as it was.
            for (kind, major, minor, access) in [
                ("c", 1, 3, "rwm"),
                ("c", 10, 229, "rw"),
                ("c", 10, 200, "rw"),
                ("c", 511, 1, "rw"),
                ("c", 195, 254, "r"),
                ("c", 4, 1, "w"),
                ("b", 8, 0, "rw"),
                ("b", 195, 1, "r"),
                ("c", 195, 1, "m"),
            ] {
                let was = allows(&spec, kind, major, minor, access);
                assert_eq!(
                    allows(&result, kind, major, minor, access),
                    was,
                    "{extra}: {kind} {major}:{minor}"
                );
            }
        }
    }
}

#[test]
fn nodes_of_no_other_gpu_are_left_alone() {
    for extra in [
        rule("c", Some(195), Some(255), "rwm"),
        rule("c", Some(195), Some(0), "rwm"),
        rule("c", Some(195), Some(254), "rwm"),
        rule("c", Some(511), None, "rwm"),
        rule("c", Some(10), None, "rwm"),
        rule("c", Some(195), None, "m"),
        rule("b", None, None, "rwm"),
        rule("b", Some(195), Some(1), "rwm"),
        rule("p", Some(195), Some(1), "rwm"),
        json!({"allow": false, "type": "c", "major": 195, "minor": 1, "access": "rwm"}),
    ] {
        let spec = docker(std::slice::from_ref(&extra));
        assert_eq!(ungranted(&spec), None, "{extra}");
        let rules = applied(&spec)["linux"]["resources"]["devices"].clone();
        assert_eq!(rules[3], extra);
    }
}

#[test]
fn a_privileged_container_keeps_its_rule() {
    for first in [json!({"allow": true, "access": "rwm"}), rule("a", None, None, "rwm")] {
        let spec = json!({"linux": {"resources": {"devices": [first, rule("c", Some(195), None, "rw")]}}});
        assert_eq!(ungranted(&spec), None);
        let result = applied(&spec);
        assert_eq!(result["linux"]["resources"]["devices"][0], first);
        assert!(allows(&result, "c", 195, 1, "rw"));
    }
}

/// `--device /dev/nvidia1:/dev/nvidia0` and what else takes a granted node's name or hides a GPU behind
/// another.
#[test]
fn a_device_under_anothers_name_goes_with_its_rule() {
    for (path, kind, major, minor) in [
        ("/dev/nvidia0", "c", 195, 1),
        ("/dev/nvidiactl", "c", 195, 1),
        ("/dev/nvidia-uvm", "c", 195, 1),
        ("/dev/nvidia-caps/nvidia-cap30", "c", 195, 1),
        ("/dev/nvidia1", "c", 195, 1),
        ("/dev/fuse", "c", 195, 1),
        ("/dev/fuse", "u", 195, 1),
        ("/dev/cap", "c", 234, 31),
        // Of a major that nobody registered.
        ("/dev/nvidia0", "c", 240, 1),
        ("/dev/nvidia7", "c", 240, 7),
    ] {
        let mut spec = docker(&[rule("c", Some(major), Some(minor), "rwm")]);
        spec["linux"]["devices"] = json!([{"path": path, "type": kind, "major": major, "minor": minor}]);
        let result = applied(&spec);
        assert!(!allows(&result, "c", major, minor, "r"), "{path} {major}:{minor}");
        let devices = result["linux"]["devices"].as_array().unwrap();
        assert!(!devices.iter().any(|device| device["major"] == major && device["minor"] == minor));
        assert_eq!(devices.len(), 4);
    }
    // uvm leads to no GPU by itself.
    let mut spec = docker(&[rule("c", Some(511), Some(0), "rwm")]);
    spec["linux"]["devices"] = json!([{"path": "/dev/renamed", "type": "c", "major": 511, "minor": 0}]);
    assert_eq!(applied(&spec)["linux"]["devices"].as_array().unwrap().len(), 5);
}

#[test]
fn a_list_that_forbids_nothing_first_does_so_then() {
    let spec = json!({"linux": {"resources": {"devices": [rule("c", Some(195), None, "rw")]}}});
    let rules = applied(&spec)["linux"]["resources"]["devices"].clone();
    assert_eq!(rules[0], json!({"allow": false, "access": "rwm"}));
    assert!(!allows(&applied(&json!({})), "c", 195, 1, "rw"));
}
