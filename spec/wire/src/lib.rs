//! Layout of the two small files that a container and the host share, and the paths at which the
//! container finds them.

#![no_std]
#![forbid(unsafe_code)]

/// Where a container finds its limits (read-only).
pub const LIMITS_PATH: &str = "/run/fgpu/limits";
/// Where a container finds its ledger (read-write).
pub const LEDGER_PATH: &str = "/run/fgpu/ledger";
/// Where a container finds the real CUDA driver library: the quota library's absolute `DT_NEEDED`.
pub const REAL_CUDA: &str = "/run/fgpu/driver/libcuda.so.1";
/// Where a container finds the real NVML: the quota library's absolute `DT_NEEDED`.
pub const REAL_NVML: &str = "/run/fgpu/driver/libnvidia-ml.so.1";
