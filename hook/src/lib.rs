//! The engine behind every front end: [`prepare()`] turns the annotations of a bundle into a lease and an edited
//! `config.json`, [`activate`] records the container's init in the lease, [`release`] gives the share back.
//!
//! Nothing here is async, nothing starts a thread and nothing initialises NVML: a front end is in the way of
//! every container that starts on the node.

#![deny(unsafe_code, clippy::print_stderr)]

mod board;
mod bundle;
mod child;
pub mod config;
mod container_files;
mod devices;
pub mod driver_step;
mod ending;
pub mod events;
mod foreign;
mod grant;
mod held;
pub mod inherited;
mod layers;
mod layout;
mod lifecycle;
pub mod live;
pub mod mention;
mod openat2;
mod own;
mod places;
mod plan;
mod prepare;
mod programs;
mod reopen;
mod resize;
mod run;
pub mod runtime;
mod sealed;
mod stderr;
mod wait;
mod watch;

pub use child::Ended;
pub use grant::tiers;
pub use lifecycle::{
    activate, cgroup_is_empty, cgroup_of, give_back, holds, release, release_container, store,
};
pub use own::cannot_show;
pub use prepare::{Container, Given, RootfsMount, prepare};
pub use reopen::{Reopened, reopen, reopen_container};
pub use resize::{enforce, resize};
pub use run::{clear_leftovers, run};
pub use stderr::say;
