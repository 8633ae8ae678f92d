//! `fgpu setup docker`.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::node::{DOCKER, Node};

#[test]
fn docker_without_a_configuration() {
    let node = Node::new();
    node.good(&["docker"]);
    assert_eq!(
        node.text(DOCKER),
        "\
{
  \"runtimes\": {
    \"fgpu\": { \"runtimeType\": \"io.containerd.fgpu.v2\" }
  }
}
"
    );
    assert_eq!(fs::metadata(node.path(DOCKER)).unwrap().mode() & 0o7777, 0o644);
    Node::new().there_and_back(&["docker"]);
    Node::new().there_and_back(&["docker", "--runtime"]);
}

#[test]
fn docker_with_a_configuration_keeps_all_of_it() {
    for (before, after) in [
        (
            "{\n    \"log-driver\": \"journald\",\n    \"x\": 1e999\n}",
            "{\n    \"log-driver\": \"journald\",\n    \"x\": 1e999,\n    \"runtimes\": {\n        \"fgpu\": { F }\n    }\n}",
        ),
        (
            "{\n\t\"runtimes\": {\n\t\t\"nvidia\": { \"path\": \"nvidia-container-runtime\", \"runtimeArgs\": [] }\n\t},\n\t\"z\": 1\n}\n",
            "{\n\t\"runtimes\": {\n\t\t\"nvidia\": { \"path\": \"nvidia-container-runtime\", \"runtimeArgs\": [] },\n\t\t\"fgpu\": { F }\n\t},\n\t\"z\": 1\n}\n",
        ),
        (
            "{\"a\":1,\"runtimes\":{\"b\":{\"path\":\"/b\"}}}",
            "{\"a\":1,\"runtimes\":{\"b\":{\"path\":\"/b\"}, \"fgpu\": { F }}}",
        ),
    ] {
        let node = Node::with(DOCKER, before);
        node.there_and_back(&["docker"]);
        node.good(&["docker"]);
        assert_eq!(node.text(DOCKER), after.replace('F', "\"runtimeType\": \"io.containerd.fgpu.v2\""));
    }
}

#[test]
fn docker_with_an_empty_file_or_object() {
    for before in ["", "\n", "{}", "{ }\n", "{\"runtimes\": {}}", "{\"runtimes\": null}\n"] {
        let node = Node::with(DOCKER, before);
        node.good(&["docker"]);
        let value: serde_json::Value = serde_json::from_str(&node.text(DOCKER)).unwrap();
        let expected = serde_json::json!({"runtimes": {"fgpu": {"runtimeType": "io.containerd.fgpu.v2"}}});
        assert_eq!(value, expected, "{before:?}");
        assert!(node.good(&["docker"]).contains("already"), "{before:?}");
    }
}

#[test]
fn an_undo_leaves_an_object_that_was_there() {
    for before in ["{}", "{}\n"] {
        Node::with(DOCKER, before).there_and_back(&["docker"]);
    }
    // What an administrator adds to a file of ours stays; once it is empty, it goes.
    let node = Node::new();
    node.good(&["docker"]);
    let more = node.text(DOCKER).replacen('{', "{ \"debug\": true,", 1);
    node.put(DOCKER, &more);
    node.good(&["docker", "--undo"]);
    let value: serde_json::Value = serde_json::from_str(&node.text(DOCKER)).unwrap();
    assert_eq!(value, serde_json::json!({"debug": true}));
    // Without the record nothing is taken for ours.
    let node = Node::new();
    node.good(&["docker"]);
    fs::remove_file(node.path("etc/fgpu/setup.made")).unwrap();
    node.good(&["docker", "--undo"]);
    assert_eq!(node.text(DOCKER), "{}\n");
}

#[test]
fn cdi_devices_are_turned_on_where_docker_has_them_off() {
    for (version, needed) in [("24.0.9", false), ("26.1.5+dfsg1", true), ("28.1.1", true), ("28.2.0", false)]
    {
        for before in [None, Some("{}"), Some("{\n  \"features\": { \"buildkit\": true }\n}\n")] {
            let node = Node::new();
            node.docker(version);
            if let Some(before) = before {
                node.put(DOCKER, before);
            }
            node.there_and_back(&["docker"]);
            let told = node.good(&["docker"]);
            let value: serde_json::Value = serde_json::from_str(&node.text(DOCKER)).unwrap();
            assert_eq!(value["features"]["cdi"].as_bool(), needed.then_some(true), "{version}: {before:?}");
            let how = if needed { "systemctl restart docker" } else { "systemctl reload docker" };
            assert!(told.contains(how), "{told}");
        }
    }
    // An administrator's own decision stays, also after an undo, and another engine's undo forgets nothing.
    for decided in ["true", "false"] {
        let node = Node::with(DOCKER, &format!("{{ \"features\": {{ \"cdi\": {decided} }} }}"));
        node.docker("26.1.5");
        node.there_and_back(&["docker"]);
    }
    let node = Node::with(DOCKER, "{}");
    node.docker("26.1.5");
    node.good(&["docker"]);
    node.good(&["podman"]);
    node.good(&["podman", "--undo"]);
    node.good(&["docker", "--undo"]);
    assert_eq!(node.text(DOCKER), "{}");
}

#[test]
fn docker_changes_from_the_shim_to_the_runtime_and_keeps_it() {
    let node = Node::new();
    node.good(&["docker"]);
    node.good(&["docker", "--runtime"]);
    assert!(node.text(DOCKER).contains("\"fgpu\": { \"path\": \"/usr/bin/fgpu-runtime\" }"));
    assert!(node.good(&["docker"]).contains("already"));
    node.good(&["docker", "--undo"]);
    assert!(!node.path(DOCKER).exists());
}

#[test]
fn docker_files_that_are_wrong_are_named_with_the_line() {
    for (before, line, word) in [
        ("{\n  \"a\": 1,\n}\n", 3, "trailing comma"),
        ("// note\n{}\n", 1, "no JSON"),
        ("{\n  \"runtimes\": []\n}", 2, "no object"),
        ("[]", 1, "no object"),
        ("{\"a\": 1,\n\"runtimes\": {},\n\"runtimes\": {}}", 3, "twice"),
        ("{\n\"runtimes\": {\n\"fgpu\": {\"path\": \"/opt/other\"}}}", 3, "by hand"),
    ] {
        let node = Node::with(DOCKER, before);
        for arguments in [&["docker"][..], &["docker", "--undo"], &["docker", "--dry-run"]] {
            let error = node.refused(arguments);
            assert!(
                error.contains(&format!("{DOCKER}:{line}: ")) && error.contains(word),
                "{before}: {error}"
            );
        }
    }
    let node = Node::new();
    fs::create_dir_all(node.path("etc/docker")).unwrap();
    fs::write(node.path(DOCKER), b"{\n \"a\": \"\xff\"}").unwrap();
    assert!(node.refused(&["docker"]).contains(":2: it is not UTF-8"));
    fs::remove_file(node.path(DOCKER)).unwrap();
    fs::create_dir(node.path(DOCKER)).unwrap();
    assert!(node.refused(&["docker"]).contains("it is no regular file"));
}

#[test]
fn a_runtime_of_ours_with_more_settings_is_left_alone() {
    let node = Node::with(
        DOCKER,
        "{\"runtimes\": {\"fgpu\": {\"runtimeType\": \"io.containerd.fgpu.v2\", \"options\": {}}}}",
    );
    assert!(node.good(&["docker"]).contains("already"));
    assert!(node.refused(&["docker", "--runtime"]).contains("by hand"));
    assert!(node.refused(&["docker", "--undo"]).contains("by hand"));
}
