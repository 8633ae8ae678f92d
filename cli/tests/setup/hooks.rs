//! `fgpu setup podman` and `fgpu setup crio`: hooks.d, and what names its directory.

use std::fs;
use std::path::Path;

use crate::node::{CRIO, Node, PODMAN};

#[test]
fn hooks_of_the_package_are_enough() {
    for engine in ["podman", "crio"] {
        let node = Node::with("usr/share/containers/oci/hooks.d/fgpu.json", "{}");
        assert!(node.good(&[engine]).contains("already"), "{engine}");
        node.there_and_back(&[engine, "--runtime"]);
    }
}

#[test]
fn hooks_are_installed_where_there_is_no_package() {
    for (engine, own, table) in [("podman", PODMAN, "engine"), ("crio", CRIO, "crio.runtime")] {
        let node = Node::new();
        node.there_and_back(&[engine]);
        node.there_and_back(&[engine, "--runtime"]);
        node.good(&[engine]);
        let expected = format!(
            "# Written by `fgpu setup {engine}`, removed by `fgpu setup {engine} --undo`.\n\n\
             # What was read before, and the directory of fgpu.json.\n[{table}]\n\
             hooks_dir = [\"/usr/share/containers/oci/hooks.d\", \"/etc/containers/oci/hooks.d\"]\n"
        );
        assert_eq!(node.text(own), expected);
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/hooks.d");
        for file in ["fgpu.json", "fgpu-poststop.json"] {
            let installed = node.text(&format!("etc/containers/oci/hooks.d/{file}"));
            assert_eq!(installed, fs::read_to_string(packaging.join(file)).unwrap());
        }
    }
}

#[test]
fn a_list_of_directories_that_somebody_set_is_kept() {
    for (engine, own, main, table) in [
        ("podman", PODMAN, "etc/containers/containers.conf", "engine"),
        ("crio", CRIO, "etc/crio/crio.conf", "crio.runtime"),
    ] {
        let node = Node::with(main, &format!("[{table}]\nhooks_dir = [\"/site/hooks\"]\n"));
        // The package's files are not read there, so its directory does not help.
        node.put("usr/share/containers/oci/hooks.d/fgpu.json", "{}");
        node.there_and_back(&[engine]);
        node.good(&[engine]);
        let list = "hooks_dir = [\"/site/hooks\", \"/etc/containers/oci/hooks.d\"]\n";
        assert!(node.text(own).contains(list), "{}", node.text(own));

        // One that has the directory already needs no drop-in.
        let node = Node::with(main, &format!("[{table}]\nhooks_dir = [\"/etc/containers/oci/hooks.d\"]\n"));
        node.there_and_back(&[engine]);
        node.good(&[engine]);
        assert!(!node.path(own).exists());

        // One that comes after ours would win.
        let later = own.replace("50-fgpu", "99-site");
        let node = Node::with(&later, &format!("# site\n[{table}]\nhooks_dir = [\"/site/hooks\"]\n"));
        assert!(node.refused(&[engine]).contains(&format!("{later}:3: hooks_dir is set here, after")));
    }
}

#[test]
fn podmans_appended_lists_are_understood() {
    let main = "etc/containers/containers.conf";
    let node = Node::with(main, "[engine]\nhooks_dir = [\"/site\", {append = true}]\n");
    node.put("usr/share/containers/oci/hooks.d/fgpu.json", "{}");
    assert!(node.good(&["podman"]).contains("already"), "the default directory is still read");
    let node = Node::with(main, "[engine]\nhooks_dir = [\"/site\", 1]\n");
    assert!(node.refused(&["podman"]).contains(&format!("{main}:2: hooks_dir is no list of strings")));
    let node = Node::with(main, "[engine\n");
    assert!(node.refused(&["podman"]).contains(&format!("{main}:1: ")));
}

#[test]
fn the_runtimes_of_podman_and_cri_o() {
    let node = Node::with("usr/share/containers/oci/hooks.d/fgpu.json", "{}");
    for (engine, own, lines) in [
        ("podman", PODMAN, "[engine.runtimes]\nfgpu = [\"/usr/bin/fgpu-runtime\"]\n"),
        (
            "crio",
            CRIO,
            "[crio.runtime.runtimes.fgpu]\nruntime_path = \"/usr/bin/fgpu-runtime\"\nruntime_root = \"/run/fgpu-runtime\"\n",
        ),
    ] {
        node.good(&[engine, "--runtime"]);
        let text = node.text(own);
        assert!(text.ends_with(lines) && text.parse::<toml::Table>().is_ok(), "{text}");
        assert!(!text.contains("allowed_annotations"), "CRI-O does not start with one that it does not know");
        assert!(node.good(&[engine]).contains("already"), "it stays");
    }
}

#[test]
fn a_drop_in_of_somebody_else_is_not_touched() {
    for (engine, own) in [("podman", PODMAN), ("crio", CRIO)] {
        let node = Node::with(own, "# mine\n");
        for arguments in [&[engine][..], &[engine, "--undo"]] {
            assert!(node.refused(arguments).contains(&format!("{own}:1: it was not written by")));
        }
    }
}

#[test]
fn an_engine_keeps_the_hooks_that_the_other_one_needs() {
    let node = Node::new();
    node.good(&["podman"]);
    node.good(&["crio"]);
    node.good(&["podman", "--undo"]);
    assert!(node.path("etc/containers/oci/hooks.d/fgpu.json").exists());
    assert!(node.good(&["crio"]).contains("already"));
    node.good(&["crio", "--undo"]);
    assert!(!node.path("etc/containers/oci").exists());
}

#[test]
fn other_systems_annotations_call_the_hook_where_the_configuration_opts_in() {
    for (engine, own) in [("podman", PODMAN), ("crio", CRIO)] {
        let node = Node::with("usr/share/containers/oci/hooks.d/fgpu.json", "{}");
        node.put("etc/fgpu/config.toml", "aliases = [\"hami\", \"kai\"]\n");
        node.there_and_back(&[engine]);
        node.good(&[engine]);
        assert!(
            node.text(own).contains("\"/usr/share/containers/oci/hooks.d\", \"/etc/containers/oci/hooks.d\"")
        );
        assert!(!node.path("etc/containers/oci/hooks.d/fgpu.json").exists(), "the package's is read");
        for (file, stage) in
            [("fgpu-aliases.json", "createRuntime"), ("fgpu-aliases-poststop.json", "poststop")]
        {
            let hook: serde_json::Value =
                serde_json::from_str(&node.text(&format!("etc/containers/oci/hooks.d/{file}"))).unwrap();
            assert_eq!(hook["stages"][0], stage);
            let patterns: Vec<_> = hook["when"]["annotations"].as_object().unwrap().keys().collect();
            let [pattern] = patterns[..] else { panic!("{patterns:?}") };
            let pattern = regex::Regex::new(pattern).unwrap();
            for (key, expected) in [
                ("gpu-fraction", true),
                ("gpu-fraction-num-devices", true),
                ("nvidia.com/gpumem", true),
                ("nvidia.com/gpu", true),
                ("hami.io/gpu-scheduler-policy", true),
                ("fgpu/fraction", false),
                ("volcano.sh/vgpu-memory", false),
                ("cuda.shares", false),
                ("nvidia_com/gpu", false),
                ("nvidia.com/gpu.memory", false),
                ("nvidia.com/container.web.gpu-memory.limit", true),
                ("x/gpu-fraction", false),
            ] {
                assert_eq!(pattern.is_match(key), expected, "{key} {pattern}");
            }
        }
        // Opted out again, they go.
        node.put("etc/fgpu/config.toml", "");
        node.good(&[engine]);
        assert!(!node.path("etc/containers/oci").exists() && !node.path(own).exists());
        node.put("etc/fgpu/config.toml", "aliases = [\"slurm\"]\n");
        assert!(node.refused(&[engine]).contains("slurm is no vocabulary"));
    }
}
