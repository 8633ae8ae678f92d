//! `fgpu setup containerd`.

use crate::node::{CONTAINERD, Node, text};

#[test]
fn containerd_of_version_2_and_3() {
    for (version, plugin) in [(2, "io.containerd.grpc.v1.cri"), (3, "io.containerd.cri.v1.runtime")] {
        let before = format!(
            "# Ours since 2021.\nversion = {version}\n\n[plugins.\"{plugin}\".containerd.runtimes.runc]\n  \
             runtime_type = \"io.containerd.runc.v2\" # stock\n  base_runtime_spec = \"/etc/base.json\"\n  \
             pod_annotations = [\"a/*\"]\n  [plugins.\"{plugin}\".containerd.runtimes.runc.options]\n    \
             SystemdCgroup = true\n"
        );
        let node = Node::with(CONTAINERD, &before);
        node.there_and_back(&["containerd"]);
        node.there_and_back(&["containerd", "--runtime"]);
        node.good(&["containerd"]);
        let after = node.text(CONTAINERD);
        assert!(after.starts_with(&before), "{after}");
        let tree: toml::Table = after.parse().unwrap();
        let fgpu = &tree["plugins"][plugin]["containerd"]["runtimes"]["fgpu"];
        let expected: toml::Table = "runtime_type = \"io.containerd.runc.v2\"\n\
            runtime_path = \"/usr/bin/containerd-shim-fgpu-v2\"\nbase_runtime_spec = \"/etc/base.json\"\n\
            pod_annotations = [\"a/*\", \"fgpu/*\", \"*.fgpu/*\"]\ncontainer_annotations = [\"fgpu/*\", \"*.fgpu/*\"]\n\
            options.SystemdCgroup = true\n"
            .parse()
            .unwrap();
        assert_eq!(fgpu, &toml::Value::Table(expected));
    }
}

#[test]
fn containerd_through_the_runtime() {
    let before = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nSystemdCgroup = true\n";
    let node = Node::with(CONTAINERD, before);
    node.good(&["containerd", "--runtime"]);
    let tree: toml::Table = node.text(CONTAINERD).parse().unwrap();
    let fgpu = &tree["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["fgpu"];
    assert_eq!(fgpu["options"]["BinaryName"].as_str(), Some("/usr/bin/fgpu-runtime"));
    assert_eq!(fgpu["options"]["SystemdCgroup"].as_bool(), Some(true));
    assert!(fgpu.get("runtime_path").is_none());
    assert!(node.good(&["containerd"]).contains("already"), "it stays with the runtime");
}

#[test]
fn a_runc_that_fgpu_runtime_would_not_find_is_a_warning() {
    let before = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\nBinaryName = \"/opt/runc\"\n";
    let node = Node::with(CONTAINERD, before);
    let output = node.run(&["containerd", "--runtime"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).contains("`runtimes = [\"/opt/runc\"]`"), "{output:?}");
    node.good(&["containerd", "--undo"]);
    node.good(&["containerd"]);
    let tree: toml::Table = node.text(CONTAINERD).parse().unwrap();
    let fgpu = &tree["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["fgpu"];
    assert_eq!(fgpu["options"]["BinaryName"].as_str(), Some("/opt/runc"), "the shim hands it on");
}

#[test]
fn containerd_without_a_configuration() {
    let node = Node::new();
    let output = node.run(&["containerd"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).contains("SystemdCgroup"), "{output:?}");
    assert!(
        node.text(CONTAINERD)
            .starts_with("# Written by `fgpu setup containerd`.\nversion = 2\n\n# fgpu begin")
    );
    assert!(text(&node.run(&["containerd"]).stdout).contains("already"));
    node.good(&["containerd", "--undo"]);
    assert!(!node.path(CONTAINERD).exists());

    node.put("etc/containerd/conf.d/site.toml", "");
    node.run(&["containerd"]);
    assert!(node.text(CONTAINERD).contains("\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n"));
    node.good(&["containerd", "--undo"]);
    assert!(!node.path(CONTAINERD).exists());
}

#[test]
fn containerd_files_that_do_not_do_are_named_with_the_line() {
    for (before, line, word) in [
        ("version = 2\n[plugins\n", ":2", "unclosed"),
        ("version = 2\nversion = 3\n", ":2", "duplicate"),
        ("root = \"/x\"\n", "", "version 1"),
        ("# note\nversion = 1\n", ":2", "version 1"),
        // As Docker's own packages install it.
        ("#   Copyright\ndisabled_plugins = [\"cri\"]\n", ":2", "switched off"),
        ("version = 3\ndisabled_plugins = [\"io.containerd.cri.v1.runtime\"]\n", ":2", "switched off"),
        ("version = 2\n[plugins]\n\"io.containerd.grpc.v1.cri\" = {}\n", ":3", "inline"),
        (
            "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.fgpu]\nruntime_type = \"x\"\n",
            ":2",
            "by hand",
        ),
        ("version = 2\n# fgpu begin: x\n[a]\n", ":2", "# fgpu end"),
    ] {
        let node = Node::with(CONTAINERD, before);
        let error = node.refused(&["containerd"]);
        assert!(
            error.contains(&format!("{CONTAINERD}{line}: ")) && error.contains(word),
            "{before}: {error}"
        );
    }
}

#[test]
fn containerd_configured_by_hand_is_found_and_left_alone() {
    let before = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.fgpu]\n\
        runtime_type = \"io.containerd.runc.v2\"\nruntime_path = \"/usr/bin/containerd-shim-fgpu-v2\"\n\
        pod_annotations = [\"fgpu/*\", \"*.fgpu/*\"]\n";
    let node = Node::with(CONTAINERD, before);
    assert!(node.good(&["containerd"]).contains("already"));
    assert!(node.refused(&["containerd", "--undo"]).contains(":2: "));
}
