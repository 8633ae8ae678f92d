//! CDI: a file of ours in /etc/cdi, for nodes without the unit that writes /run/cdi/fgpu.json at each boot.

use fgpu_engine::config::Config;
use fgpu_spec::{CDI_KIND, Error};
use serde_json::Value;

use super::change::Change;
use super::file::System;
use super::{Plan, Wish};
use crate::cdi;

/// Docker, Podman, containerd and CRI-O read this folder.
const PATH: &str = "/etc/cdi/fgpu.json";

/// What the file shall be.
///
/// # Errors
/// `internal` if there is a file of that name that is not ours.
pub(super) fn plan(system: &System, wish: Wish) -> Result<Plan, Error> {
    let before = system.read(PATH)?;
    if let Some(text) = &before
        && !is_ours(text)
    {
        return Err(system.wrong(PATH, 0, &format!("it is not a CDI file of {CDI_KIND}")));
    }
    let config = Config::load().unwrap_or_default();
    // The GPUs of another node are not known here.
    let inventory = system.is_this_node().then(|| cdi::known(&config)).flatten();
    let after = match wish {
        Wish::Do { .. } => Some(cdi::text(&config, inventory.as_ref(), &system.program("fgpu-hook"))),
        Wish::Undo => None,
    };
    Ok(Plan {
        changes: vec![Change { path: PATH.into(), before, after, ..Change::default() }],
        warnings: if wish == Wish::Undo { Vec::new() } else { super::missing(system, &["fgpu-hook"]) },
        next: vec![format!(
            "docker run --rm --device {CDI_KIND}=0.25 IMAGE nvidia-smi    # Docker 28.2 or newer, nothing to restart"
        )],
    })
}

fn is_ours(text: &str) -> bool {
    serde_json::from_str(text).is_ok_and(|file: Value| file["kind"] == CDI_KIND)
}
