//! `libfgpu-nvml.so`, the management library of a container with a share of a GPU: nvidia-smi, nvidia-ml-py
//! and frameworks see the grant.
//!
//! It takes NVML's place as `libfgpu-cuda.so` takes libcuda's: same SONAME, the real library by its absolute
//! path in `DT_NEEDED`, every name that is not in the [`table`] is the real one's. It only reads: it has no
//! slot in the ledger.
//!
//! - [`devices`]: the grant's GPUs only, numbered as in the limits;
//! - [`memory`]: total is the limit, used is what the container's processes use;
//! - [`processes`] and [`command`]: the container's own, with their own pids and names;
//! - [`activity`]: the container's own part of the GPU's time, and nothing of the others';
//! - [`accounting`]: the driver's accounts of processes cover the whole GPU, so they are off here;
//! - [`topology`]: a GPU's neighbours in the grant;
//! - [`private`]: the table of functions behind `nvmlInternalGetExportTable`, by which nvidia-smi finds
//!   devices and processes.

#![no_std]

mod abi;
mod accounting;
mod activity;
mod command;
mod devices;
mod exports;
mod memory;
mod private;
mod processes;
mod real;
mod table;
mod topology;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    fgpu_quota_core::sys::abort()
}
