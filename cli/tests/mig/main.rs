//! MIG on a simulated node: real processes of `fgpu`, the real NVML calls, the simulated driver's own rules.
//! Needs root (device nodes).

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod foreign;
mod geometry;
mod kill;
mod life;
mod lost;
mod node;
#[path = "../simulated/build.rs"]
mod simulated;
