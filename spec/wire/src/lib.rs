//! Layout of the two small files that a container and the host share, the paths at which the container
//! finds them, and the algorithms on them.
//!
//! - [`limits`]: what the grant is. Written by the host, read-only in the container.
//! - [`ledger`]: where a container's processes account for their device memory. Shared, writable.
//!
//! Both are plain memory once mapped: every field is an atomic, so the algorithms need no `unsafe` and run
//! in tests on a buffer. What they need of the operating system comes in through [`ledger::Kernel`].

#![no_std]
#![forbid(unsafe_code)]

pub mod ledger;
pub mod limits;
mod uuid;

pub use uuid::parse_uuid;

/// Where a container finds its limits (read-only).
pub const LIMITS_PATH: &str = "/run/fgpu/limits";
/// Where a container finds its ledger (read-write).
pub const LEDGER_PATH: &str = "/run/fgpu/ledger";
/// Where a container finds the real CUDA driver library: the quota library's absolute `DT_NEEDED`.
pub const REAL_CUDA: &str = "/run/fgpu/driver/libcuda.so.1";
/// Where a container finds the real NVML: the quota library's absolute `DT_NEEDED`.
pub const REAL_NVML: &str = "/run/fgpu/driver/libnvidia-ml.so.1";

/// The most GPUs that one grant can name: the upper end of `fgpu/count`.
pub const MAX_GPUS: usize = 64;
