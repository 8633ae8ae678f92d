//! `fgpu cdi`: the file by which engines know our CDI devices (Container Device Interface, SPEC.md).
//!
//! A device is two hooks. `createRuntime` has the device's name in its arguments and gives the container its
//! share; `poststop` gives it back. The file has no amount but in those names, no grant and no path of a
//! state.

use fgpu_engine::config::Config;
use fgpu_spec::{CDI_KIND, Error, Inventory, cdi_names};
use serde_json::{Value, json};

use crate::node::Node;
use crate::output::Output;
use crate::setup::System;

/// Where this boot's file is. Engines read it anew for each container that asks for a device. One in /etc/cdi
/// has the lower rank.
pub(crate) const PATH: &str = "/run/cdi/fgpu.json";
/// The first version in which a name may begin with a digit.
const VERSION: &str = "0.5.0";
/// The program that the devices name, beside this one.
const HOOK: &str = "fgpu-hook";
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
    let system = System::new(None)?;
    let text = text(&config, known(&config).as_ref(), &system.program(HOOK));
    let warnings = warning.into_iter().collect();
    if write {
        system.write(PATH, &text)?;
        return Ok(Output { warnings, ..Output::default() });
    }
    Ok(Output { text, warnings, ..Output::default() })
}

/// Writes this boot's file anew if it is there and has our hook: the GPUs are others now. The file of another
/// build of fgpu stays as it is.
///
/// # Errors
/// As [`run`].
pub(crate) fn update(system: &System, config: &Config, inventory: &Inventory) -> Result<(), Error> {
    let hook = system.program(HOOK);
    let Some(before) = system.read(PATH)?.filter(|before| is_of(before, &hook)) else { return Ok(()) };
    let text = text(config, Some(inventory), &hook);
    if before == text { Ok(()) } else { system.write(PATH, &text) }
}

/// Whether each hook of this file is `program`.
fn is_of(file: &str, program: &str) -> bool {
    let file: Value = serde_json::from_str(file).unwrap_or_default();
    let devices = file["devices"].as_array().into_iter().flatten();
    let mut hooks =
        devices.flat_map(|device| device["containerEdits"]["hooks"].as_array().into_iter().flatten());
    hooks.all(|hook| hook["path"] == program)
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

#[cfg(test)]
mod tests;
