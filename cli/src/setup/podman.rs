//! Podman: hooks.d, and with `--runtime` a name for `fgpu-runtime`.

use ::toml::Value;

use super::hooks::{DropIns, Engine};

/// Our drop-in.
pub(super) const OWN: &str = "/etc/containers/containers.conf.d/50-fgpu.conf";

/// Podman, as containers.conf(5) describes its files.
pub(super) const ENGINE: Engine = Engine {
    name: "podman",
    files: &["/usr/share/containers/containers.conf", "/etc/containers/containers.conf"],
    drop_ins: DropIns::In("/etc/containers/containers.conf.d", ".conf"),
    own: OWN,
    table: &["engine"],
    runtime: |_, program, _| Ok(format!("[engine.runtimes]\nfgpu = [{}]\n", Value::from(program))),
    other: super::crio::OWN,
    next: &["podman run --rm --annotation fgpu/fraction=0.25 IMAGE nvidia-smi    # nothing to restart"],
};
