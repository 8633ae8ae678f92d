//! A node with simulated GPUs, as its two libraries and the `fgpu-sim` tool see it.
//!
//! There is no kernel driver behind a simulated GPU. What a real one knows is in two files below
//! `<root>/run/nvidia-sim/`:
//!
//! - `config` ([`config`]): what the GPUs are. Compiled from a TOML file by `fgpu-sim install`, read-only.
//! - `state` ([`state`]): what goes on on them: memory per process, kernels, injected faults. Mapped shared
//!   by every process on the node, in whatever container it is.
//!
//! Everything here works without the standard library, because it is linked into libraries that must load in
//! images older than the machine they were built on.
#![no_std]

extern crate alloc;

pub mod account;
pub mod calls;
pub mod config;
pub mod devices;
pub mod fault;
pub mod instances;
pub mod locate;
pub mod lock;
pub mod lz4;
pub mod md2;
pub mod mig;
pub mod observe;
pub mod partition;
pub mod runtime;
pub mod sm;
pub mod state;
pub mod sys;
