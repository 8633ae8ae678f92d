//! The words of fgpu: a [`Request`] is what a container's annotations ask for, a [`Grant`] is what the
//! allocator gave, an [`Inventory`] is what the node has, and a [`Plan`] is the list of edits to the OCI
//! spec that turns a grant into devices, mounts and a hook. Nothing in this crate does I/O.

#![forbid(unsafe_code)]

mod error;
mod grant;
mod inventory;
mod plan;
mod request;

pub use error::{Code, Error};
pub use grant::{Compute, Grant, GrantedGpu, Nonce, Tier};
pub use inventory::{DriverFile, FileKind, Gpu, Inventory};
pub use plan::{Document, Mount, Node, Plan, Poststop};
pub use request::{Defaults, Filter, Isolation, MemoryAsk, Policy, Request, is_sandbox};
