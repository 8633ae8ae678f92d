//! The plan of edits to an OCI spec; [`Document::apply`](crate::Document::apply) carries it out.

use std::path::PathBuf;

pub use oci_spec::runtime::Hook;

use crate::{DeviceNode, Majors};

/// A bind mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Absolute path on the host. Never taken from an image.
    pub source: PathBuf,
    /// Absolute path in the container; the runtime resolves it inside the root file system.
    pub destination: String,
    /// Whether the container may write to it.
    pub writable: bool,
    /// Whether the mount that the source lies on has the flags that this one is to have: a bind mount takes
    /// them over (mount(2), `MS_BIND`), so it need not be mounted a second time to get them.
    pub inherits: bool,
}

/// Everything that is to change in a container's `config.json`.
///
/// A hook is a program of ours that the runtime starts. It limits its own time and has no `timeout`: with one,
/// crun (1.21, 1.28) waits for a signal that two children which end together raise once, and misses the end
/// of the hook.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Annotations to set, for example `fgpu/grant`.
    pub annotations: Vec<(String, String)>,
    /// Device nodes to create and allow.
    pub nodes: Vec<DeviceNode>,
    /// The majors by which other GPUs' nodes are known.
    pub majors: Majors,
    /// Bind mounts, in order, after the container's own.
    pub mounts: Vec<Mount>,
    /// What there is to do when the container has its cgroup, and before anything of it runs.
    pub create_runtime: Option<Hook>,
    /// The release hook, for when the front end could not.
    pub poststop: Option<Hook>,
}
