//! `fgpu cdi`: the file by which engines know our CDI devices (Container Device Interface, SPEC.md).
//!
//! A device is two hooks. `createRuntime` has the device's name in its arguments and gives the container its
//! share; `poststop` gives it back. The file has no amount but in those names, no grant and no path of a
//! state.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fgpu_engine::config::Config;
use fgpu_spec::{CDI_KIND, Error, Inventory, cdi_names};
use serde_json::json;

use crate::node::Node;
use crate::output::Output;

/// Where this boot's file is. Engines read it anew for each container that asks for a device. One in /etc/cdi
/// has the lower rank.
pub(crate) const PATH: &str = "/run/cdi/fgpu.json";
/// The first version in which a name may begin with a digit.
const VERSION: &str = "0.5.0";
/// The whole environment of the hooks, as in hooks.d.
const ENVIRONMENT: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Prints the file, or writes it to [`PATH`].
///
/// There is one on each node, also where the configuration is wrong or no driver is loaded: without it an
/// engine refuses the device before the hook can say why there is none.
///
/// # Errors
/// `internal` if it cannot be written.
pub(crate) fn run(node: Result<Node, Error>, write: bool) -> Result<Output, Error> {
    let (config, warning) = match node {
        Ok(node) => (node.config, None),
        Err(error) => (Config::default(), Some(error.to_string())),
    };
    let text = text(&config, known(&config).as_ref(), &program()?);
    let warnings = warning.into_iter().collect();
    if write {
        store(Path::new(PATH), &text)?;
        return Ok(Output { warnings, ..Output::default() });
    }
    Ok(Output { text, warnings, ..Output::default() })
}

/// Writes this boot's file anew if there is one: the GPUs are others now.
///
/// # Errors
/// As [`run`].
pub(crate) fn update(config: &Config, inventory: &Inventory) -> Result<(), Error> {
    let path = Path::new(PATH);
    let Ok(before) = fs::read_to_string(path) else { return Ok(()) };
    let text = text(config, Some(inventory), &program()?);
    if before == text { Ok(()) } else { store(path, &text) }
}

/// The file of a node whose `fgpu-hook` is `program`.
pub(crate) fn text(config: &Config, inventory: Option<&Inventory>, program: &str) -> String {
    let hook = |stage: &str, args: &[&str]| {
        let args: Vec<&str> = ["fgpu-hook", stage].iter().chain(args).copied().collect();
        json!({"hookName": stage, "path": program, "args": args, "env": [ENVIRONMENT]})
    };
    let device = |name: &String| {
        let hooks = [hook("createRuntime", &["--device", name]), hook("poststop", &[])];
        json!({"name": name, "containerEdits": {"hooks": hooks}})
    };
    let devices: Vec<_> = cdi_names(inventory, config.units_per_gpu).iter().map(device).collect();
    let file = json!({"cdiVersion": VERSION, "kind": CDI_KIND, "devices": devices});
    format!("{file:#}\n")
}

/// The GPUs as they are known; the driver is not asked.
pub(crate) fn known(config: &Config) -> Option<Inventory> {
    fgpu_driver::cached(&config.driver_root, &config.state_dir).ok().flatten()
}

/// The hook, beside this program.
fn program() -> Result<String, Error> {
    let own = Path::new("/proc/self/exe");
    let path = fs::read_link(own).map_err(|error| Error::io("read", own, &error))?;
    Ok(path.with_file_name("fgpu-hook").display().to_string())
}

/// Writes the file, which is whole at every instant.
fn store(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::io("write", path, &error);
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    // Engines read what ends with .json or .yaml.
    let temporary = PathBuf::from(format!("{}.{}", path.display(), std::process::id()));
    let mut options = OpenOptions::new();
    let written = options
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(failed)
}

#[cfg(test)]
mod tests;
