//! `fgpu setup crio --runtime`: a handler with the settings of the node's default handler.

use std::fs;
use std::os::unix::fs::symlink;

use toml::Table;

use crate::node::{CRIO, Node, text};

/// As CRI-O's own packages write it.
const PACKAGED: &str = r#"[crio.runtime]
default_runtime = "crun"

[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon"
monitor_cgroup = "system.slice"
monitor_env = ["PATH=/usr/libexec/crio:/usr/bin"]
container_min_memory = "12MiB"
allowed_annotations = ["io.kubernetes.cri-o.userns-mode", "io.containers.trace-syscall"]
platform_runtime_paths = {"linux/arm64" = "/usr/bin/crun-arm"}
default_annotations = {"run.oci.systemd.subgroup" = ""}

[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
monitor_path = "/usr/libexec/crio/other"
"#;

/// A node whose CRI-O is from its package, with these further files below /etc/crio.
fn node(files: &[(&str, &str)]) -> Node {
    let node = Node::with("usr/share/containers/oci/hooks.d/fgpu.json", "{}");
    node.put("etc/crio/crio.conf.d/10-crio.conf", PACKAGED);
    node.put("usr/libexec/crio/crun", "");
    for (path, text) in files {
        node.put(&format!("etc/crio/{path}"), text);
    }
    node
}

/// The handler that is written, and the warnings.
fn handler(node: &Node) -> (Table, String) {
    let output = node.run(&["crio", "--runtime"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let written: Table = node.text(CRIO).parse().unwrap();
    let handler = written["crio"]["runtime"]["runtimes"]["fgpu"].as_table().unwrap().clone();
    (handler, text(&output.stderr))
}

#[test]
fn the_handler_has_the_settings_of_the_default_handler() {
    let node = node(&[]);
    node.there_and_back(&["crio", "--runtime"]);
    let (handler, warnings) = handler(&node);
    let expected: Table = r#"
        runtime_path = "/usr/bin/fgpu-runtime"
        runtime_root = "/run/fgpu-runtime"
        monitor_path = "/usr/libexec/crio/conmon"
        monitor_cgroup = "system.slice"
        monitor_env = ["PATH=/usr/libexec/crio:/usr/bin"]
        container_min_memory = "12MiB"
        allowed_annotations = ["io.kubernetes.cri-o.userns-mode", "io.containers.trace-syscall"]
        default_annotations = {"run.oci.systemd.subgroup" = ""}
    "#
    .parse()
    .unwrap();
    assert_eq!((handler, warnings.as_str()), (expected, ""), "crun is found where the package has it");
    assert!(node.good(&["crio"]).contains("already"), "it stays");
    // What the administrator changes later is taken over by another run.
    node.put("etc/crio/crio.conf.d/10-crio.conf", &PACKAGED.replace("12MiB", "14MiB"));
    node.good(&["crio"]);
    assert!(node.text(CRIO).contains("14MiB"));
}

#[test]
fn files_count_as_cri_o_reads_them() {
    let monitor = |path: &str| {
        format!(
            "[crio.runtime.runtimes.crun]\nmonitor_path = \"{path}\"\nruntime_path = \"/usr/libexec/crio/crun\"\n"
        )
    };
    let path = |files: &[(&str, &str)]| handler(&node(files)).0;
    // A handler's table takes the place of an earlier one's, and is not added to it.
    let replaced = path(&[("crio.conf.d/20-site", &monitor("/b"))]);
    assert_eq!(replaced["monitor_path"].as_str(), Some("/b"));
    assert!(!replaced.contains_key("allowed_annotations"));
    // Folders below, in the order of a walk: `20-site/z` comes before `20-site.conf`.
    let below = [("crio.conf.d/20-site.conf", &*monitor("/c")), ("crio.conf.d/20-site/z", &*monitor("/b"))];
    assert_eq!(path(&below)["monitor_path"].as_str(), Some("/c"));
    assert_eq!(path(&below[1..])["monitor_path"].as_str(), Some("/b"));
    // Files after ours count, too; the main file comes first.
    assert_eq!(path(&[("crio.conf.d/99-x/y", &monitor("/d"))])["monitor_path"].as_str(), Some("/d"));
    assert_eq!(
        path(&[("crio.conf", &monitor("/e"))])["monitor_path"].as_str(),
        Some("/usr/libexec/crio/conmon")
    );
    // Another default handler.
    let runc = handler(&node(&[("crio.conf.d/30", "[crio.runtime]\ndefault_runtime = \"runc\"\n")]));
    assert_eq!(runc.0["monitor_path"].as_str(), Some("/usr/libexec/crio/other"));
    assert!(
        runc.1
            .contains("default runtime is /usr/libexec/crio/runc, fgpu-runtime uses /usr/libexec/crio/crun"),
        "{}",
        runc.1
    );
    // A link to a folder is not walked, as CRI-O does not.
    let node = node(&[("elsewhere/f", &monitor("/f"))]);
    symlink("../elsewhere", node.path("etc/crio/crio.conf.d/40")).unwrap();
    assert_eq!(handler(&node).0["monitor_path"].as_str(), Some("/usr/libexec/crio/conmon"));
}

#[test]
fn a_handler_of_another_kind_and_one_of_somebody_else() {
    let vm = "[crio.runtime]\ndefault_runtime = \"kata\"\n[crio.runtime.runtimes.kata]\nruntime_type = \"vm\"\n\
              runtime_path = \"/usr/bin/containerd-shim-kata-v2\"\nprivileged_without_host_devices = true\n";
    let (kata, warnings) = handler(&node(&[("crio.conf.d/30", vm)]));
    assert_eq!(kata.len(), 2, "{kata:?}");
    assert!(warnings.contains("default handler kata is of the type vm"), "{warnings}");

    let theirs = "# site\n[crio.runtime.runtimes.fgpu]\nruntime_path = \"/site/fgpu\"\n";
    let node = node(&[("crio.conf.d/sub/30", theirs)]);
    let said = node.refused(&["crio", "--runtime"]);
    assert!(said.contains("crio.conf.d/sub/30:2: there is a handler fgpu here"), "{said}");
    assert!(node.good(&["crio"]).contains("already"), "the hook needs no handler");
}

#[test]
fn hooks_dir_in_a_folder_below_counts() {
    let list = "[crio.runtime]\nhooks_dir = [\"/site/hooks\"]\n";
    node(&[("crio.conf.d/20/site", list)]).there_and_back(&["crio"]);
    let late = node(&[("crio.conf.d/60/site", list)]);
    assert!(late.refused(&["crio"]).contains("60/site:2: hooks_dir is set here, after"));
}

#[test]
fn folders_that_were_there_stay_and_those_that_were_made_go() {
    for folder in ["etc/crio", "etc/crio/crio.conf.d", "etc/containers/oci/hooks.d", "etc/fgpu"] {
        for engine in ["crio", "podman"] {
            let node = Node::new();
            fs::create_dir_all(node.path(folder)).unwrap();
            node.there_and_back(&[engine, "--runtime"]);
        }
    }
    // The second engine's undo takes what both had made.
    let node = Node::new();
    node.good(&["podman"]);
    node.good(&["docker"]);
    node.good(&["crio", "--runtime"]);
    for engine in ["docker", "crio", "podman"] {
        node.good(&[engine, "--undo"]);
    }
    assert_eq!(fs::read_dir(node.path("etc")).unwrap().count(), 0);
}
