//! The CDI devices: their file, and whether Docker reads it.

use std::collections::BTreeSet;

use fgpu_spec::{CDI_KIND, Inventory, cdi_names, escape_for_display};
use serde_json::Value;

use super::Diagnosis;
use super::node::Node;
use crate::setup::{Name, is_done};
use crate::version::{DOCKER_WITH_CDI, DOCKER_WITH_CDI_ON};

/// Where engines look, the later rank first.
const FOLDERS: [&str; 2] = ["/run/cdi", "/etc/cdi"];
const NAME: &str = "fgpu.json";
const DAEMON_JSON: &str = "/etc/docker/daemon.json";

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    others(node, diagnosis);
    let Some(folder) = FOLDERS.into_iter().find(|folder| node.has(&format!("{folder}/{NAME}"))) else {
        diagnosis.warn(
            "cdi-missing",
            format!("there is no CDI file of {CDI_KIND}, so no engine knows --device {CDI_KIND}=0.25"),
            &["systemctl enable --now fgpu-cdi.service", "or, without systemd: fgpu setup cdi"],
        );
        return;
    };
    let path = format!("{folder}/{NAME}");
    let text = node.text(&path).unwrap_or_default();
    let names = |file: &Value| -> BTreeSet<String> {
        let devices = file["devices"].as_array().into_iter().flatten();
        devices.filter_map(|device| Some(device["name"].as_str()?.to_owned())).collect()
    };
    let there = serde_json::from_str(&text).map(|file| names(&file)).unwrap_or_default();
    // That the inventory is missing or of another boot is found elsewhere.
    let inventory: Option<Inventory> = std::fs::read(node.state_dir().join(fgpu_driver::FILE))
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    let wanted: BTreeSet<_> = cdi_names(inventory.as_ref(), node.config.units_per_gpu).into_iter().collect();
    if inventory.is_some() && there != wanted {
        let write = if folder == FOLDERS[0] { "fgpu cdi --write" } else { "fgpu setup cdi" };
        diagnosis.warn(
            "cdi-stale",
            format!("{path} does not have the names that suit this node's GPUs"),
            &[write],
        );
    }
    docker(node, diagnosis, folder);
}

/// Whether Docker, where it knows CDI devices at all, reads the file in `folder`.
fn docker(node: &Node, diagnosis: &mut Diagnosis, folder: &str) {
    if node.system.docker_version().is_none_or(|version| version < DOCKER_WITH_CDI) {
        return;
    }
    // A Docker that nothing has set up is told of already, and an administrator may have decided.
    if !is_on(node)
        && settings(node)["features"]["cdi"].is_null()
        && matches!(is_done(&node.system, Name::Docker), Ok(true))
    {
        diagnosis.warn(
            "cdi-off",
            format!("Docker does not know --device {CDI_KIND}=0.25: CDI devices are off before Docker {DOCKER_WITH_CDI_ON}"),
            &["fgpu setup docker", "systemctl restart docker"],
        );
    }
    let folders = settings(node)["cdi-spec-dirs"].as_array().cloned();
    if folders.is_some_and(|folders| !folders.iter().any(|known| known == folder)) {
        let what = format!("{DAEMON_JSON} has Docker look for CDI devices elsewhere than in {folder}");
        diagnosis.warn("cdi-folder", what, &[&format!("add \"{folder}\" to cdi-spec-dirs in {DAEMON_JSON}")]);
    }
}

/// Files of others with devices of our kind. Of two devices of one name in one folder an engine takes
/// neither.
fn others(node: &Node, diagnosis: &mut Diagnosis) {
    for folder in FOLDERS {
        for name in node.names(folder) {
            let is_spec = name.ends_with(".json") || name.ends_with(".yaml");
            let path = format!("{folder}/{name}");
            if name != NAME && is_spec && node.text(&path).is_some_and(|text| has_our_kind(&text)) {
                let path = escape_for_display(&path);
                let what = format!(
                    "{path} has devices of {CDI_KIND}, too: an engine takes neither of two of one name"
                );
                diagnosis.warn("cdi-foreign", what, &[&format!("rm {path}")]);
            }
        }
    }
}

/// In JSON or YAML.
fn has_our_kind(text: &str) -> bool {
    let of_yaml = |line: &str| line.trim().replace(['"', '\'', ' '], "") == format!("kind:{CDI_KIND}");
    text.lines().any(of_yaml) || serde_json::from_str(text).is_ok_and(|file: Value| file["kind"] == CDI_KIND)
}

/// Whether this Docker gives containers our devices.
pub(super) fn serves_docker(node: &Node) -> bool {
    is_on(node) && FOLDERS.iter().any(|folder| node.has(&format!("{folder}/{NAME}")))
}

/// Whether this Docker knows CDI devices.
fn is_on(node: &Node) -> bool {
    let Some(version) = node.system.docker_version().filter(|version| *version >= DOCKER_WITH_CDI) else {
        return false;
    };
    settings(node)["features"]["cdi"].as_bool().unwrap_or(version >= DOCKER_WITH_CDI_ON)
}

fn settings(node: &Node) -> Value {
    node.text(DAEMON_JSON).and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}
