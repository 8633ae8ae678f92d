use std::collections::BTreeSet;
use std::path::PathBuf;

use oci_spec::runtime::Spec;
use serde_json::{Value, json};

use super::*;
use crate::{Code, DeviceNode, Hook, Mount};

mod mounts;

const DOCKER: &str = include_str!("../../testdata/config-docker.json");
const PRIVILEGED: &str = include_str!("../../testdata/config-docker-privileged.json");
const CRI: &str = include_str!("../../testdata/config-containerd-cri.json");
const PODMAN: &str = include_str!("../../testdata/config-podman.json");
const RUNC: &str = include_str!("../../testdata/config-runc-spec.json");
const ALL: [&str; 5] = [DOCKER, PRIVILEGED, CRI, PODMAN, RUNC];

const NONCE: &str = "00112233445566778899aabbccddeeff";

fn node(path: &str, major: u32, minor: u32) -> DeviceNode {
    DeviceNode { path: path.to_owned(), host: path.into(), major, minor, mode: 0o20666, uid: 0, gid: 0 }
}

fn mount(source: &str, destination: &str, writable: bool) -> Mount {
    Mount { source: PathBuf::from(source), destination: destination.to_owned(), writable, inherits: false }
}

/// What a container with GPU 1 of the host gets.
fn plan() -> Plan {
    let state = format!("/run/fgpu/containers/{NONCE}");
    Plan {
        annotations: vec![(GRANT_ANNOTATION.to_owned(), NONCE.to_owned())],
        nodes: vec![
            node("/dev/nvidiactl", 195, 255),
            node("/dev/nvidia-uvm", 234, 0),
            node("/dev/nvidia-uvm-tools", 234, 1),
            node("/dev/nvidia1", 195, 1),
        ],
        mounts: vec![
            mount(&state, "/run/fgpu", false),
            mount("/usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01", "/run/fgpu/driver-00/cuda", false),
            mount("/usr/lib/fgpu/libfgpu-cuda.so", "/usr/lib64/libcuda.so.1", false),
            mount(&format!("{state}/ledger"), "/run/fgpu/ledger", true),
            mount(&format!("{state}/own/turns"), "/run/fgpu/turns", false),
            mount("/run/fgpu/board/0/0-3", "/run/fgpu/turns/0-3", true),
            mount("/run/nvidia-persistenced", "/run/nvidia-persistenced", true),
        ],
        majors: crate::Majors::default(),
        create_runtime: None,
        poststop: Some(hook("poststop")),
    }
}

fn hook(word: &str) -> Hook {
    let mut hook = Hook::default();
    hook.set_path(PathBuf::from("/usr/bin/fgpu-hook"));
    hook.set_args(Some(vec!["fgpu-hook".to_owned(), word.to_owned()]));
    hook.set_env(Some(vec!["PATH=/usr/bin:/bin".to_owned()]));
    hook
}

fn applied(text: &str, plan: &Plan) -> String {
    let mut document = Document::parse(text).unwrap();
    document.apply(plan).unwrap();
    document.to_string()
}

fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Takes out what a plan may change, so that the rest can be compared.
fn rest(text: &str) -> Value {
    let mut value = value(text);
    let top = value.as_object_mut().unwrap();
    for key in ["annotations", "mounts", "hooks"] {
        top.remove(key);
    }
    if let Some(linux) = top.get_mut("linux").and_then(Value::as_object_mut) {
        linux.remove("devices");
        if let Some(resources) = linux.get_mut("resources").and_then(Value::as_object_mut) {
            resources.remove("devices");
        }
    }
    value
}

#[test]
fn nothing_edited_means_the_same_bytes() {
    for text in ALL.iter().chain(&["{}", " { \"a\" : 1e999 }\n"]) {
        assert_eq!(Document::parse(text).unwrap().to_string(), *text);
        assert_eq!(applied(text, &Plan::default()), *text);
    }
}

#[test]
fn readers() {
    let docker = Document::parse(DOCKER).unwrap();
    assert_eq!(docker.annotations()["fgpu/fraction"], "0.25");
    assert_eq!(docker.annotations()["org.opencontainers.image.title"], "a <title> & more");
    assert!(docker.env().contains(&"CUDA_VERSION=12.4.1".to_owned()));
    assert!(docker.env().contains(&"GREETING=grüße \"quoted\"".to_owned()));
    assert_eq!(docker.root_path().as_deref(), Some("/var/lib/docker/overlay2/9d3b/merged"));
    assert_eq!(docker.grant(), None);
    let cri = Document::parse(CRI).unwrap();
    assert_eq!(cri.root_path().as_deref(), Some("rootfs"));
    assert_eq!(crate::container_name(&cri.annotations()).as_deref(), Some("trainer"));

    let empty =
        Document::parse(r#"{"process":null,"root":{},"linux":{"namespaces":null},"mounts":null}"#).unwrap();
    assert!(empty.annotations().is_empty() && empty.env().is_empty());
    assert_eq!((empty.root_path(), empty.grant()), (None, None));
}

#[test]
fn readers_see_the_edit() {
    let mut document = Document::parse(RUNC).unwrap();
    document.apply(&plan()).unwrap();
    assert_eq!(document.grant().unwrap().to_string(), NONCE);
}

#[test]
fn the_result_is_a_valid_spec_with_what_was_planned() {
    let plan = plan();
    for text in ALL {
        let result = applied(text, &plan);
        assert_eq!(rest(&result), rest(text));
        let spec: Spec = serde_json::from_str(&result).unwrap();
        assert_eq!(spec.annotations().as_ref().unwrap()[GRANT_ANNOTATION], NONCE);

        let linux = spec.linux().as_ref().unwrap();
        let devices = linux.devices().as_ref().unwrap();
        let rules = linux.resources().as_ref().unwrap().devices().as_ref().unwrap();
        for node in &plan.nodes {
            let found: Vec<_> =
                devices.iter().filter(|device| device.path() == &PathBuf::from(&node.path)).collect();
            let [device] = found[..] else { panic!("{} is there {} times", node.path, found.len()) };
            assert_eq!((device.major(), device.minor()), (node.major.into(), node.minor.into()));
            assert_eq!((device.file_mode(), device.uid(), device.gid()), (Some(0o666), Some(0), Some(0)));
            let allows = rules.iter().filter(|rule| {
                rule.allow()
                    && (rule.major(), rule.minor()) == (Some(node.major.into()), Some(node.minor.into()))
                    && rule.access().as_deref() == Some("rw")
            });
            assert_eq!(allows.count(), 1, "{}", node.path);
        }

        let mounts = spec.mounts().as_ref().unwrap();
        let ours = &mounts[mounts.len() - plan.mounts.len()..];
        for (mount, planned) in ours.iter().zip(&plan.mounts) {
            assert_eq!(mount.destination(), &PathBuf::from(&planned.destination));
            assert_eq!(mount.source().as_ref(), Some(&planned.source));
            assert_eq!(mount.typ().as_deref(), Some("bind"));
            let options: BTreeSet<&str> =
                mount.options().as_ref().unwrap().iter().map(String::as_str).collect();
            assert!(options.is_superset(&BTreeSet::from(["nosuid", "nodev"])));
            assert!(options.contains("bind") || options.is_superset(&BTreeSet::from(["rbind", "rprivate"])));
            assert_eq!(options.contains("rw"), planned.writable);
            assert_eq!(options.contains("ro"), !planned.writable);
            let data = ["/run/fgpu", "/run/fgpu/ledger", "/run/fgpu/turns", "/run/fgpu/turns/0-3"]
                .contains(&&*planned.destination);
            assert_eq!(options.contains("noexec"), data);
        }

        let hooks = spec.hooks().as_ref().unwrap().poststop().as_ref().unwrap();
        assert_eq!(hooks.len(), 1);
        assert_eq!(hooks[0].path(), &PathBuf::from("/usr/bin/fgpu-hook"));
        assert_eq!(hooks[0].timeout(), None);
    }
}

#[test]
fn twice_is_once() {
    for text in ALL.iter().chain(&["{}", r#"{"linux":null,"hooks":null,"mounts":null,"annotations":null}"#]) {
        let once = applied(text, &plan());
        assert_ne!(once, *text);
        assert_eq!(applied(&once, &plan()), once);
        let mut document = Document::parse(text).unwrap();
        document.apply(&plan()).unwrap();
        document.apply(&plan()).unwrap();
        assert_eq!(document.to_string(), once);
    }
}

#[test]
fn unedited_parts_keep_their_bytes() {
    let text = r#"{"ociVersion":"9.9","vendor":{"big":123456789012345678901234567890,"f":1.10e+5, "s" : "\u003c\/"},
        "linux":{"z":[ 1 ,2],"resources":{"cpu":{"shares":1e2},"devices":[]},"seccomp":{ "x":-0.0 }},"\u0061x":{}}"#;
    let result = applied(text, &plan());
    for kept in [
        r#""vendor":{"big":123456789012345678901234567890,"f":1.10e+5, "s" : "\u003c\/"}"#,
        r#""z":[ 1 ,2]"#,
        r#""cpu":{"shares":1e2}"#,
        r#""seccomp":{ "x":-0.0 }"#,
        r#""\u0061x":{}"#,
    ] {
        assert!(result.contains(kept), "{kept} in {result}");
    }
    // The order stays, what is new comes last.
    let keys: Vec<String> = value(&result).as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys, ["ociVersion", "vendor", "linux", "ax", "annotations", "mounts", "hooks"]);
}

#[test]
fn only_granted_gpus_stay() {
    let text = applied(PRIVILEGED, &plan());
    let paths: Vec<String> = value(&text)["linux"]["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["path"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(
        paths,
        [
            "/dev/null",
            "/dev/zero",
            "/dev/sda",
            "/dev/fuse",
            "/dev/nvidia1",
            "/dev/nvidiactl",
            "/dev/nvidia-modeset",
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools",
        ]
    );
    let mig = Plan { nodes: vec![node("/dev/nvidia-caps/nvidia-cap30", 237, 30)], ..Plan::default() };
    let text = applied(PRIVILEGED, &mig);
    assert!(text.contains("/dev/nvidia-caps/nvidia-cap30"));
    for gone in ["nvidia-cap1\"", "nvidia-cap2\"", "nvidia-cap31\"", "/dev/nvidia0\"", "/dev/nvidia1\""] {
        assert!(!text.contains(gone), "{gone}");
    }
}

#[test]
fn a_gpu_given_by_hand_is_taken_away_with_its_rule() {
    let text = json!({"linux": {
        "devices": [
            {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0},
            {"path": "/dev/renamed", "type": "c", "major": 195, "minor": 2},
            {"path": "/dev/alias", "type": "c", "major": 195, "minor": 1},
            {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 9},
            {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1},
            {"path": "/dev/block195", "type": "b", "major": 195, "minor": 0},
        ],
        "resources": {"devices": [
            {"allow": false, "access": "rwm"},
            {"allow": true, "type": "c", "major": 195, "minor": 0, "access": "rwm"},
            {"allow": true, "type": "c", "major": 195, "minor": 1, "access": "rwm"},
            {"allow": true, "type": "c", "major": 195, "minor": 2, "access": "rwm"},
            {"allow": true, "type": "c", "minor": 0, "access": "m"},
            {"allow": true, "type": "b", "major": 195, "minor": 0, "access": "rw"},
        ]},
    }});
    let plan = Plan { nodes: vec![node("/dev/nvidia1", 195, 1)], ..Plan::default() };
    let result = applied(&text.to_string(), &plan);
    assert_eq!(
        value(&result),
        json!({"linux": {
            "devices": [
                {"path": "/dev/nvidia1", "type": "c", "major": 195, "minor": 1, "fileMode": 438, "uid": 0, "gid": 0},
                {"path": "/dev/block195", "type": "b", "major": 195, "minor": 0},
            ],
            "resources": {"devices": [
                {"allow": false, "access": "rwm"},
                {"allow": true, "type": "c", "major": 195, "minor": 1, "access": "rwm"},
                {"allow": true, "type": "c", "minor": 0, "access": "m"},
                {"allow": true, "type": "b", "major": 195, "minor": 0, "access": "rw"},
            ]},
        }})
    );
    assert_eq!(applied(&result, &plan), result);
}

#[test]
fn a_rule_that_is_taken_back_later_does_not_count() {
    let text = r#"{"linux":{"resources":{"devices":[{"allow":true,"type":"c","major":195,"minor":1,"access":"rw"},{"allow":false}]}}}"#;
    let plan = Plan { nodes: vec![node("/dev/nvidia1", 195, 1)], ..Plan::default() };
    let result = value(&applied(text, &plan));
    let rules = result["linux"]["resources"]["devices"].as_array().unwrap();
    assert_eq!(rules.len(), 3);
    assert_eq!(rules[2], json!({"allow": true, "type": "c", "major": 195, "minor": 1, "access": "rw"}));
}

#[test]
fn a_later_grant_replaces_the_former() {
    let mut later = plan();
    later.annotations[0].1 = "ff".repeat(16);
    later.nodes[3] = node("/dev/nvidia0", 195, 0);
    for mount in &mut later.mounts {
        let source = mount.source.to_str().unwrap().replace(NONCE, &"ff".repeat(16));
        mount.source = PathBuf::from(source);
    }
    later.poststop = Some(hook("later"));
    // A node that the container had before keeps its place in the list, others go last.
    let unordered = |text: &str| {
        let mut value = value(text);
        let devices = value["linux"]["devices"].as_array_mut().unwrap();
        devices.sort_by_key(|device| device["path"].to_string());
        value
    };
    for text in ALL {
        let result = applied(&applied(text, &plan()), &later);
        assert!(unordered(&result) == unordered(&applied(text, &later)), "{result}");
        assert!(!result.contains(NONCE));
    }
}

#[test]
fn hooks_of_others_stay() {
    let other = r#"{"path":"/usr/bin/other", "args":["other"]}"#;
    let text = format!(
        r#"{{"hooks":{{"prestart":[{other}],"poststop":[{other},{{"path":"/usr/bin/fgpu-hook"}},{{"path":"/usr/bin/fgpu-hook"}}]}}}}"#
    );
    let result = applied(&text, &plan());
    assert!(result.contains(&format!(r#""prestart":[{other}]"#)));
    assert!(result.contains(&format!(r#""poststop":[{other},{{"path":"/usr/bin/fgpu-hook","args""#)));
    assert_eq!(result.matches("/usr/bin/fgpu-hook").count(), 1);
}

#[test]
fn a_part_of_a_plan_touches_only_its_part() {
    let annotations = Plan { annotations: plan().annotations, ..Plan::default() };
    assert_eq!(applied("{}", &annotations), format!(r#"{{"annotations":{{"fgpu/grant":"{NONCE}"}}}}"#));
    let mounts = Plan { mounts: plan().mounts, ..Plan::default() };
    assert_eq!(value(&applied("{}", &mounts)).as_object().unwrap().len(), 1);
    let nodes = Plan { nodes: vec![node("/dev/nvidia0", 195, 0)], ..Plan::default() };
    assert_eq!(
        applied("{}", &nodes),
        r#"{"linux":{"devices":[{"path":"/dev/nvidia0","type":"c","major":195,"minor":0,"fileMode":438,"uid":0,"gid":0}],"resources":{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":195,"minor":0,"access":"rw"}]}}}"#
    );
}

#[test]
fn a_text_that_is_no_config_is_refused() {
    for text in [
        "",
        "null",
        "[]",
        "{",
        "{}x",
        r#"{"linux":[]}"#,
        r#"{"linux":{"resources":1}}"#,
        r#"{"linux":{},"linux":{}}"#,
        r#"{"annotations":{"a":1}}"#,
        r#"{"annotations":[]}"#,
        r#"{"process":{"env":"PATH"}}"#,
        r#"{"process":7}"#,
        r#"{"root":{"path":[]}}"#,
        "{\"hooks\":\"\u{1b}[2J\"}",
        "{\"root\":\"\u{202e}\"}",
    ] {
        let error = Document::parse(text).unwrap_err();
        assert_eq!(error.code, Code::Internal, "{text}");
        assert!(error.message.contains("config.json"), "{error}");
        assert!(error.message.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{error}");
    }
}

#[test]
fn a_failed_edit_leaves_the_document_alone() {
    for text in [
        r#"{"linux":{"devices":[{"path":1}]}}"#,
        r#"{"linux":{"devices":{}}}"#,
        r#"{"linux":{"resources":{"devices":[1]}}}"#,
        r#"{"mounts":[{}]}"#,
        r#"{"mounts":{}}"#,
        r#"{"mounts":[{"destination":"/","options":1}]}"#,
        r#"{"hooks":{"poststop":[{}]}}"#,
    ] {
        let mut document = Document::parse(text).unwrap();
        assert_eq!(document.apply(&plan()).unwrap_err().code, Code::Internal, "{text}");
        assert_eq!(document.to_string(), text);
    }
}

#[test]
fn a_hook_is_added_to_each_stage_that_has_one() {
    let mut plan = plan();
    plan.create_runtime = Some(hook("limit"));
    let text = applied(r#"{"hooks":{"createRuntime":[{"path":"/bin/a"}]}}"#, &plan);
    let hooks = &value(&text)["hooks"];
    assert_eq!(hooks["createRuntime"][0]["path"], "/bin/a");
    assert_eq!(hooks["createRuntime"][1]["args"][1], "limit");
    assert_eq!(
        (hooks["poststop"].as_array().unwrap().len(), &hooks["poststop"][0]["args"][1]),
        (1, &"poststop".into())
    );
    assert_eq!(applied(&text, &plan), text);
    plan.create_runtime.as_mut().unwrap().set_env(None);
    assert!(Document::parse(&text).unwrap().apply(&plan).is_err());
}

#[test]
fn a_wrong_plan_is_refused() {
    use std::os::unix::ffi::OsStringExt;

    let wrong: [fn(&mut Plan); 8] = [
        |plan| plan.nodes[0].path = "/etc/nvidia0".to_owned(),
        |plan| plan.nodes[0].host = PathBuf::from("dev/nvidia0"),
        |plan| plan.mounts[0].destination = "usr/lib".to_owned(),
        |plan| plan.mounts[0].source = PathBuf::from("lib"),
        |plan| plan.mounts[0].source = std::ffi::OsString::from_vec(b"/\xff".to_vec()).into(),
        |plan| _ = plan.poststop.as_mut().unwrap().set_path(PathBuf::from("fgpu-hook")),
        |plan| _ = plan.poststop.as_mut().unwrap().set_env(None),
        |plan| _ = plan.poststop.as_mut().unwrap().set_args(Some(Vec::new())),
    ];
    for break_it in wrong {
        let mut plan = plan();
        break_it(&mut plan);
        let mut document = Document::parse(DOCKER).unwrap();
        assert_eq!(document.apply(&plan).unwrap_err().code, Code::Internal);
        assert_eq!(document.to_string(), DOCKER);
    }
}

mod properties;
