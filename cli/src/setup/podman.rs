//! Podman: hooks.d, and with `--runtime` a name for `fgpu-runtime`.

use ::toml::Value;

use super::hooks::{CRIO_DROP_IN, DropIns, Engine, PODMAN_DROP_IN};

/// Podman, as containers.conf(5) describes its files.
pub(super) const ENGINE: Engine = Engine {
    name: "podman",
    files: &["/usr/share/containers/containers.conf", "/etc/containers/containers.conf"],
    drop_ins: DropIns::In("/etc/containers/containers.conf.d", ".conf"),
    own: PODMAN_DROP_IN,
    table: &["engine"],
    runtime: |_, program, _| Ok(format!("[engine.runtimes]\nfgpu = [{}]\n", Value::from(program))),
    other: CRIO_DROP_IN,
    next: &["podman run --rm --annotation fgpu/fraction=0.25 IMAGE nvidia-smi    # nothing to restart"],
};
