//! The engine behind every front end: [`prepare()`] turns the annotations of a bundle into a lease and an
//! edited `config.json`, [`activate`] records the container's init in the lease, [`release`] gives the share
//! back.
//!
//! Nothing here is async, nothing starts a thread and nothing initialises NVML: a front end is in the way of
//! every container that starts on the node.

#![deny(unsafe_code, clippy::print_stderr)]

mod board;
pub mod bundle;
pub mod child;
pub mod claims;
pub mod config;
pub mod container_files;
pub mod devices;
pub mod diagnostics;
pub mod driver_step;
pub mod edit;
pub mod ending;
pub mod events;
pub mod foreign;
pub mod grant;
pub mod inherited;
mod joint;
pub mod layers;
mod layout;
mod lifecycle;
pub mod lock;
pub mod mention;
pub mod openat2;
mod own;
mod places;
mod plan;
mod podman;
mod pods;
pub mod prepare;
mod programs;
mod reopen;
mod resize;
pub mod runtime;
mod sealed;
pub mod signals;
mod stderr;
mod wait;
pub mod watch;

pub use child::Ended;
pub use edit::{Container, RootfsMount, prepare_bundle};
pub use grant::tiers;
pub use joint::TASKS;
pub use lifecycle::{
    activate, cgroup_is_empty, cgroup_of, cgroups_in, ended, give_back, give_back_anchored, holds, limit,
    release, release_container, release_deleted, store,
};
pub use own::cannot_show;
pub use prepare::{Given, prepare};
pub use programs::sibling;
pub use reopen::{Reopened, reopen, reopen_container};
pub use resize::{enforce, resize, set as set_share};
pub use stderr::say;

/// The namespace of the leases of plain processes (`fgpu run`).
pub const RUN_NAMESPACE: &str = "run";
