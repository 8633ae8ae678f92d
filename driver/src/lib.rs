//! The NVIDIA driver on the host, as fgpu sees it: which GPUs there are and which user-space files belong to
//! the running driver (the [inventory](fgpu_spec::Inventory)), and which device nodes lead to a GPU.
//!
//! Creating a container must not wait for NVML, whose initialisation takes tens of milliseconds and can hang
//! with a broken GPU. So the inventory is a file: [`load`] reads it and checks that it is still true, and
//! only when it is not, the `probe` is run, in a process of its own. What can change while the driver stays
//! loaded, the device nodes and their numbers, is not in the file: [`nodes()`] looks at them every time.
//!
//! Every path of the driver is looked up under a *driver root*: `/`, or the root file system of a container
//! that brings the driver along.

#![deny(unsafe_code)]

mod cache;
mod capabilities;
#[cfg(feature = "nvml")]
pub mod context;
pub mod health;
mod nodes;
mod procfs;
mod rooted;

#[cfg(feature = "nvml")]
mod files;
pub mod ldcache;
#[cfg(feature = "nvml")]
pub mod limits;
#[cfg(feature = "nvml")]
pub mod nvml;
#[cfg(feature = "nvml")]
mod soname;
#[cfg(feature = "nvml")]
pub mod uvm;

pub use cache::{FILE, FORMAT, cached, load, store};
pub use capabilities::Capability;
pub use nodes::{majors, nodes};
#[cfg(feature = "nvml")]
pub use nvml::{refresh, refresh_and};
pub use procfs::{CharacterDevices, boot_id, parse_version, running_version};
pub use rooted::resolve;

#[cfg(test)]
mod fake;
