//! Claims of Kubernetes: does the node's engine take the CDI devices by which containers get them?

use toml::Table;

use super::Diagnosis;
use super::node::Node;
use crate::version::Version;

/// The folder of fgpu-dra's socket: it serves claims here, or has.
const PLUGIN: &str = "/var/lib/kubelet/plugins/gpu.fgpu.dev";
/// Where fgpu-dra puts the CDI devices of claims. `/var/run` is a link to `/run`.
const FOLDERS: [&str; 2] = ["/run/cdi", "/var/run/cdi"];
const CONTAINERD: &str = "/etc/containerd/config.toml";
/// The CRI plugin's section with its settings for CDI, up to containerd 1.7 and since 2.0.
const SECTIONS: [&str; 2] = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];
/// The first containerd that knows CDI devices without being told to (containerd 2.0, release notes), and the first
/// that knows them at all.
const CDI_ON: Version = Version(2, 0, 0);
const CDI_KNOWN: Version = Version(1, 7, 0);
/// The first Kubernetes with resource.k8s.io/v1, and the first in which claims can have parts of a device without a
/// feature gate.
const WITH_CLAIMS: Version = Version(1, 34, 0);
const WITH_SHARES: Version = Version(1, 36, 0);

/// Whether claims are served on this node: then an engine needs no wiring of its own.
pub(super) fn serves_claims(node: &Node) -> bool {
    node.has(PLUGIN)
}

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    if !serves_claims(node) {
        return;
    }
    kubelet(node, diagnosis);
    // A containerd beside CRI-O is Docker's.
    if node.version_line("crio").is_some() {
        crio(node, diagnosis);
    } else if let Some(line) = node.version_line("containerd") {
        containerd(node, diagnosis, Version::find(&line));
    }
}

fn kubelet(node: &Node, diagnosis: &mut Diagnosis) {
    let Some(version) = node.version_line("kubelet").and_then(|line| Version::find(&line)) else { return };
    if version < WITH_CLAIMS {
        let what = format!("Kubernetes {version} has no resource.k8s.io/v1: fgpu-dra needs {WITH_CLAIMS}");
        diagnosis.error("kubelet-too-old", what, &["use annotations: docs/quickstart.md"]);
    } else if version < WITH_SHARES {
        let what = format!(
            "Kubernetes {version} gives out parts of a GPU only with the feature gates DRAConsumableCapacity and \
             DRAPartitionableDevices, which are on since {WITH_SHARES}"
        );
        diagnosis.warn(
            "kubelet-gates",
            what,
            &["turn them on in all components, or use annotations: docs/quickstart.md"],
        );
    }
}

fn containerd(node: &Node, diagnosis: &mut Diagnosis, version: Option<Version>) {
    let Some(version) = version else { return };
    if version < CDI_KNOWN {
        let what = format!("containerd {version} knows no CDI devices: pods with claims do not start");
        diagnosis.error("kubelet-cdi", what, &["apt-get install containerd"]);
        return;
    }
    let section = SECTIONS[usize::from(version >= CDI_ON)];
    let config = node.text(CONTAINERD).and_then(|text| text.parse::<Table>().ok()).unwrap_or_default();
    let settings = config.get("plugins").and_then(|plugins| plugins.get(section));
    let is_on = settings.and_then(|settings| settings.get("enable_cdi")).and_then(toml::Value::as_bool);
    if !is_on.unwrap_or(version >= CDI_ON) {
        let mend = format!("set enable_cdi = true below [plugins.\"{section}\"] in {CONTAINERD}");
        diagnosis.error(
            "kubelet-cdi",
            format!("containerd {version} has CDI devices off: pods with claims do not start"),
            &[&mend, "systemctl restart containerd"],
        );
    }
    let folders = settings.and_then(|settings| settings.get("cdi_spec_dirs"));
    folder(diagnosis, "containerd", folders, &format!("cdi_spec_dirs in {CONTAINERD}"));
}

fn crio(node: &Node, diagnosis: &mut Diagnosis) {
    let drop_ins = "/etc/crio/crio.conf.d";
    let names = node.names(drop_ins).into_iter().map(|name| format!("{drop_ins}/{name}"));
    // A later file goes before an earlier one.
    let files = ["/etc/crio/crio.conf".to_owned()].into_iter().chain(names);
    let set = files.filter_map(|path| {
        let table = node.text(&path)?.parse::<Table>().ok()?;
        Some((table.get("crio")?.get("runtime")?.get("cdi_spec_dirs")?.clone(), path))
    });
    if let Some((folders, path)) = set.last() {
        folder(diagnosis, "crio", Some(&folders), &format!("cdi_spec_dirs in {path}"));
    }
}

/// Whether an engine that is told where to look looks where claims' devices are.
fn folder(diagnosis: &mut Diagnosis, engine: &str, folders: Option<&toml::Value>, setting: &str) {
    let Some(folders) = folders.and_then(toml::Value::as_array) else { return };
    if folders.iter().any(|known| known.as_str().is_some_and(|known| FOLDERS.contains(&known))) {
        return;
    }
    diagnosis.error(
        "kubelet-cdi-folder",
        format!(
            "{engine} looks for CDI devices elsewhere than in {}: pods with claims do not start",
            FOLDERS[0]
        ),
        &[&format!("add \"{}\" to {setting}", FOLDERS[0]), &format!("systemctl restart {engine}")],
    );
}
