//! The words of fgpu: a [`Request`] is what a container's annotations ask for, a [`Grant`] is what the
//! allocator gave, an [`Inventory`] is what the node has, and a [`Plan`] is the list of edits to the OCI
//! spec that turns a grant into devices, mounts and a hook. Nothing in this crate does I/O.

#![forbid(unsafe_code)]

mod device;
mod document;
mod error;
mod grant;
mod health;
mod inventory;
mod json;
mod mig;
mod plan;
mod pod;
mod request;
mod show;
mod topology;

pub use device::{Access, DeviceKind, DeviceNode, DeviceRule, Majors, is_granted_only_path};
pub use document::{Document, ForeignDriver, is_driver_file};
pub use error::{Cause, Code, Error, UnknownCode, chain};
pub use grant::{Compute, Grant, GrantedGpu, Nonce, Tier};
pub use health::{Health, Outsider, Seen};
pub use inventory::{DriverFile, FileKind, Gpu, Inventory};
pub use mig::{MigInstance, MigPlace, MigPlacement, MigProfile, MigSlice, MigStage};
pub use plan::{Hook, Mount, Plan};
pub use pod::PodOf;
pub use request::{
    ALIAS_MARKS, CDI_KIND, CLAIM_KIND, Defaults, Filter, Isolation, KeyReference, MemoryAsk, Policy, Request,
    Vocabulary, annotations_from_env, cdi_names, container_name, is_pod_wide, is_sandbox, key_reference,
    opts_out, parse_memory, parse_wait,
};
pub use show::escape_for_display;
pub use topology::{Link, Path, Topology};

/// The annotation that carries a grant's [`Nonce`]. Ours alone: a request that contains it is read as if it
/// did not.
pub const GRANT_ANNOTATION: &str = "fgpu/grant";
