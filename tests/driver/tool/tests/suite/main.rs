//! The simulated driver under the programs that real drivers are used by: Debian's nvidia-smi, nvidia-ml-py,
//! a C program on the driver API. The tests make device nodes, so they need root.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod cuda;
mod cudart;
mod fixture;
mod install;
mod libraries;
mod nvidia_smi;
mod nvml;
