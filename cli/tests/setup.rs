//! `fgpu setup` below a root directory that stands for a node: what it makes of the configurations it may find.

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml's allow-unwrap-in-tests does not reach the helpers of a test"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const DOCKER: &str = "etc/docker/daemon.json";
const CONTAINERD: &str = "etc/containerd/config.toml";
const PODMAN: &str = "etc/containers/containers.conf.d/50-fgpu.conf";
const CRIO: &str = "etc/crio/crio.conf.d/50-fgpu.conf";
const PROGRAMS: [&str; 3] = ["fgpu-hook", "fgpu-runtime", "containerd-shim-fgpu-v2"];

/// A node with our programs installed and nothing configured.
struct Node {
    root: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Self { root: tempfile::tempdir().unwrap() };
        fs::set_permissions(node.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for program in PROGRAMS {
            node.put(&format!("usr/bin/{program}"), "");
        }
        node
    }

    fn with(path: &str, text: &str) -> Self {
        let node = Self::new();
        node.put(path, text);
        node
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.arg("setup").args(arguments).arg("--root").arg(self.root.path());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(Path::new(env!("CARGO_BIN_EXE_fgpu")), arguments).output().unwrap()
    }

    /// Runs with one folder read-only, in a mount namespace of its own.
    fn run_with_read_only(&self, folder: &str, arguments: &[&str]) -> Output {
        let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(self.path(folder));
        command
            .arg(env!("CARGO_BIN_EXE_fgpu"))
            .arg("setup")
            .args(arguments)
            .arg("--root")
            .arg(self.root.path());
        command.output().unwrap()
    }

    /// Runs what must succeed without a warning; its stdout.
    #[track_caller]
    fn good(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{arguments:?}");
        text(&output.stdout)
    }

    /// Runs what must be refused and leave every file as it is; its stderr.
    #[track_caller]
    fn refused(&self, arguments: &[&str]) -> String {
        let before = self.everything();
        let output = self.run(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert_eq!(self.everything(), before, "{arguments:?}");
        assert!(stderr.starts_with("fgpu: internal: ") && stderr.lines().count() == 1, "{stderr}");
        stderr
    }

    /// Every file and directory with its content, mode and inode.
    fn everything(&self) -> BTreeMap<PathBuf, (Vec<u8>, u32, u64)> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.root.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let metadata = fs::symlink_metadata(&path).unwrap();
                let content = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
                if metadata.is_dir() {
                    folders.push(path.clone());
                }
                found.insert(path, (content, metadata.mode(), metadata.ino()));
            }
        }
        found
    }

    /// The same without inodes, which a rename changes.
    fn listing(&self) -> BTreeMap<PathBuf, (Vec<u8>, u32)> {
        self.everything().into_iter().map(|(path, (content, mode, _))| (path, (content, mode))).collect()
    }

    /// Sets up, which must change something; again, which must not; and undoes, which must give what was.
    #[track_caller]
    fn there_and_back(&self, arguments: &[&str]) {
        let before = self.listing();
        let shown = self.good(&[arguments, &["--dry-run"]].concat());
        assert!(
            shown.starts_with("--- ") && shown.ends_with("Nothing was changed (--dry-run).\n"),
            "{shown}"
        );
        assert_eq!(self.listing(), before, "a dry run changes nothing");

        let done = self.good(arguments);
        let diff = |text: &str| text.split("\n\n").next().unwrap().to_owned();
        assert_eq!(diff(&done), diff(&shown), "what was shown is done");
        assert!(done.contains("\nwrote ") && done.contains("\nNext:\n"), "{done}");

        let between = self.everything();
        assert_eq!(self.good(arguments), "It is set up already; nothing was changed.\n");
        assert_eq!(self.everything(), between, "a second run touches nothing");

        let undone = self.good(&[arguments[0], "--undo"]);
        assert!(undone.starts_with("--- "), "{undone}");
        let mut after = self.listing();
        // Directories that an engine's package brings are left.
        for folder in ["etc", "etc/docker", "etc/containerd", "etc/containers", "etc/crio"] {
            if !before.contains_key(&self.path(folder)) {
                after.remove(&self.path(folder));
            }
        }
        assert_eq!(after, before);
        assert_eq!(self.good(&[arguments[0], "--undo"]), "Nothing of ours is there; nothing was changed.\n");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

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

#[test]
fn mode_owner_and_links_stay() {
    let node = Node::with("srv/daemon.json", "{}\n");
    let real = node.path("srv/daemon.json");
    fs::set_permissions(&real, fs::Permissions::from_mode(0o440)).unwrap();
    if is_root() {
        std::os::unix::fs::chown(&real, Some(1234), Some(4321)).unwrap();
    }
    let before = fs::metadata(&real).unwrap();
    fs::create_dir_all(node.path("etc/docker")).unwrap();
    symlink("../../srv/daemon.json", node.path(DOCKER)).unwrap();
    node.good(&["docker"]);
    assert!(node.path(DOCKER).is_symlink());
    let after = fs::metadata(&real).unwrap();
    assert_eq!((after.mode(), after.uid(), after.gid()), (before.mode(), before.uid(), before.gid()));
    assert!(node.text("srv/daemon.json").contains("fgpu.v2"));
    assert_eq!(fs::read_dir(node.path("srv")).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_link_that_leads_nowhere_or_out_of_the_root_is_refused() {
    let node = Node::new();
    fs::create_dir_all(node.path("etc/docker")).unwrap();
    symlink("nowhere", node.path(DOCKER)).unwrap();
    assert!(node.refused(&["docker"]).contains("a link to nothing"));

    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("daemon.json");
    fs::write(&target, "{}").unwrap();
    fs::remove_file(node.path(DOCKER)).unwrap();
    symlink(&target, node.path(DOCKER)).unwrap();
    let output = node.run(&["docker"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("outside of"), "{output:?}");
    assert_eq!(fs::read_to_string(target).unwrap(), "{}");
}

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

#[test]
fn programs_that_are_not_there_are_a_warning() {
    let node = Node::new();
    fs::remove_file(node.path("usr/bin/fgpu-hook")).unwrap();
    let output = node.run(&["crio"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).ends_with("usr/bin/fgpu-hook is not there\n"), "{output:?}");
}

#[test]
fn a_user_may_look_and_not_write() {
    if !is_root() {
        return; // only root can become somebody else
    }
    let node = Node::with(DOCKER, "{}");
    let program = node.path("fgpu");
    // Copied by another process: a file that this one has open for writing while another test forks cannot be
    // executed (ETXTBSY).
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_fgpu")).arg(&program).status().unwrap().success());
    let before = node.everything();
    for (engine, path) in [("docker", DOCKER), ("crio", "etc/containers")] {
        let nobody =
            |arguments: &[&str]| node.command(&program, arguments).uid(65534).gid(65534).output().unwrap();
        assert_eq!(nobody(&[engine, "--dry-run"]).status.code(), Some(0));
        let output = nobody(&[engine]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains("fgpu: internal: cannot ") && stderr.contains("Permission denied"),
            "{stderr}"
        );
        assert!(stderr.contains(path), "{stderr}");
    }
    assert_eq!(node.everything(), before);
}

#[test]
fn a_read_only_file_system_is_an_error_that_names_the_file() {
    if !is_root() {
        return; // only root can mount
    }
    let node = Node::with(DOCKER, "{}");
    let output = node.run_with_read_only("etc", &["docker"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(DOCKER) && stderr.contains("Read-only file system"), "{stderr}");
    assert!(!text(&output.stdout).contains("wrote"), "{output:?}");
    assert_eq!(node.text(DOCKER), "{}");
    assert_eq!(fs::read_dir(node.path("etc/docker")).unwrap().count(), 1);
}

#[test]
fn what_was_written_before_a_failure_is_named_and_the_next_run_goes_on() {
    if !is_root() {
        return; // only root can mount
    }
    let written = |stdout: &str| stdout.lines().filter(|line| line.starts_with("wrote ")).count();
    let node = Node::new();
    fs::create_dir_all(node.path("etc/containers/containers.conf.d")).unwrap();
    // The hooks come before the drop-in that names their directory.
    let output = node.run_with_read_only("etc/containers/containers.conf.d", &["podman"]);
    assert_eq!((output.status.code(), written(&text(&output.stdout))), (Some(1), 2), "{output:?}");
    assert!(text(&output.stderr).contains(PODMAN), "{output:?}");
    assert_eq!(written(&node.good(&["podman"])), 1);
}

#[test]
fn wrong_usage() {
    let node = Node::new();
    for arguments in [&[][..], &["lxc"], &["docker", "--undo", "--runtime"]] {
        assert_eq!(node.run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let output =
        Command::new(env!("CARGO_BIN_EXE_fgpu")).args(["setup", "docker", "--root", "/nonexistent"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nonexistent"));
    let help = node.run(&["--help"]);
    assert!(text(&help.stdout).contains("setup docker --dry-run"));
}
