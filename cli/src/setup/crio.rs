//! CRI-O: hooks.d, and with `--runtime` a runtime handler.
//!
//! Nothing has to be done for annotations: CRI-O matches hooks against those of the pod and the container, and puts
//! them into the spec. `allowed_annotations` is for CRI-O's own; it does not start with one of somebody else's in it.

use ::toml::Value;

use super::hooks::Engine;

/// Our drop-in.
pub(super) const OWN: &str = "/etc/crio/crio.conf.d/50-fgpu.conf";

/// CRI-O, as crio.conf(5) and crio.conf.d(5) describe its files. It reads every file of its drop-in directory.
pub(super) const ENGINE: Engine = Engine {
    name: "crio",
    files: &["/etc/crio/crio.conf"],
    drop_ins: ("/etc/crio/crio.conf.d", ""),
    own: OWN,
    table: &["crio", "runtime"],
    runtime: |program| {
        format!(
            "[crio.runtime.runtimes.fgpu]\nruntime_path = {}\nruntime_root = \"/run/fgpu-runtime\"\n",
            Value::from(program)
        )
    },
    other: super::podman::OWN,
    next: &[
        "systemctl restart crio         # containers go on running",
        "then a pod with the annotation `fgpu/fraction: \"0.25\"`",
    ],
};
