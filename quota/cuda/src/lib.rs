//! `libfgpu-cuda.so`, the CUDA driver library of a container with a share of a GPU.
//!
//! It is bind-mounted over `libcuda.so.1` and has that SONAME. Its only `DT_NEEDED` is the real library's
//! absolute path, so the loader brings both, and every name that we do not define is the real one's. What we
//! do define is in one table, [`wrapped`]; each line there leads to the module that does it:
//!
//! - [`memory`]: allocations, and their frees by pointer;
//! - [`vmm`]: the virtual memory management, whose memory lives as long as a handle or a mapping does;
//! - [`report`]: how much memory there is;
//! - [`resolve`]: `cuGetProcAddress`, through which cudart gets nearly everything;
//! - [`place`]: which GPU of the grant a call is about.
//!
//! An allocation goes: reserve in the ledger, call the driver, book the pointer or give back. A refusal is
//! `CUDA_ERROR_OUT_OF_MEMORY` from that call, and everything goes on.
//!
//! The SM share (`cores`) is in the limits but not enforced yet.

#![no_std]

mod driver;
mod memory;
mod place;
mod report;
mod resolve;
mod vmm;
mod wrapped;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    fgpu_quota_core::sys::abort()
}
