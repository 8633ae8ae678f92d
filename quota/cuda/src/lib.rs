//! `libfgpu-cuda.so`, the CUDA driver library of a container with a share of a GPU.
//!
//! It is bind-mounted over `libcuda.so.1` and has that SONAME. Its only `DT_NEEDED` is the real library's
//! absolute path, so the loader brings both, and every name that we do not define is the real one's. What we
//! do define is in one table, [`table`]; each line there leads to the module that does it:
//!
//! - [`memory`]: allocations by pointer, and their frees;
//! - [`pool`]: stream-ordered allocations and memory pools, by the driver's own [`meter`];
//! - [`graph`]: graphs that allocate, likewise;
//! - [`vmm`]: memory of handles, which lives as long as a handle, a mapping or a [binding](bind) does;
//! - [`mod@array`]: arrays and mipmapped arrays;
//! - [`context`]: what contexts take, and all that ends with one; [`limits`] of contexts, and [`green`] ones;
//! - [`code`]: modules, libraries and code that is loaded late, by [measuring](measure), at a [`launch`] too;
//! - [`report`]: how much memory there is;
//! - [`compute`]: SM time, which launches ask for first, and what comes after them in a stream tells of;
//! - [`resolve`]: `cuGetProcAddress`, through which cudart gets nearly everything;
//! - [`place`]: which GPU of the grant a call is about; [`reserve`]: the steps that all allocations take.
//!
//! An allocation goes: reserve in the ledger, call the driver, book what it gave or give back. A refusal is
//! `CUDA_ERROR_OUT_OF_MEMORY` from that call, and everything goes on. No lock is held across a driver call.
//!
//! # What is counted
//!
//! Every call that takes device memory, in each of its versions and for legacy and per-thread default streams:
//!
//! | what | counts | until |
//! |---|---|---|
//! | `cuMemAlloc`, pitched, managed (in full) | what was asked for, in the driver's pieces ([`size`]) | it is freed, or its context ends |
//! | `cuMemCreate` | likewise | neither a handle nor a mapping nor a binding is left |
//! | stream-ordered | what the pool holds, by the driver's word | the pool gives it back |
//! | graphs | what the driver holds for them, by its word; refused when a graph is made or first launched | it is trimmed |
//! | arrays | computed from their format and dimensions | destroyed, or the context ends |
//! | contexts | what the grant says, else their stacks; larger limits as they are set | destroyed |
//! | modules, libraries, late code | the difference that loading makes | unloaded, or the context ends |
//! | from another process | nothing: who allocated it counts it | |
//!
//! # What is not
//!
//! - Memory of a creator that has let go of it while another process holds it (`cuMemExportToShareableHandle`):
//!   nobody counts it until the other lets go too.
//! - Memory of Vulkan, OpenGL or the video engines, imported or not: other libraries allocate it.
//! - What a driver keeps for itself beyond what it reports: small allocations of a context share pieces of 2 MiB.
//! - What a driver gave back of its own accord in *another* process's pool counts there until that process
//!   synchronises, allocates or frees.
//! - SM time of copies and other work than kernels.
//! - What a runtime library of CUDA 11 loads when a program starts: code and its variables, by a private function of the driver
//!   (`cuGetExportTable`). Those of CUDA 12 and 13 load by the public ones.
//! - A launch is not refused for code that it turns out to load; the next allocation is.
//!
//! # What has to be measured on a GPU
//!
//! All this is tested over a simulated driver, which takes what NVIDIA's documentation says. A GPU has to tell:
//!
//! - what a context takes beyond its stacks, by model and driver, and whether it is the stacks that are computed;
//! - by how much a pool grows at a time: an allocation that makes it grow past the limit is undone, but the pool
//!   keeps the memory until the stream has come to the free;
//! - what arrays take compared with the tiles that are computed, and whether small ones share pieces;
//! - whether the driver's meters may be read, and free memory asked for, while a stream is captured;
//! - whether a graph's backing is all there after its first launch, as its meter says then;
//! - whether a multicast object keeps memory whose last handle is released, and takes any of its own;
//! - what a green context takes, and whether memory allocated in it outlives it;
//! - how far neighbours that allocate at the same time disturb what is measured for code.
//!
//! And of SM time (the [limiter] says what it does; time between kernels that are launched close together counts, and a kernel that
//! waits for something in the middle of others counts from its launch on):
//!
//! - what recording and asking events costs there, and so whether a capped launch stays below 200 ns more;
//! - how late a sleeping launch wakes, and how much of the GPU's time each change of turns takes;
//! - that events between our own are not disturbed: `cuEventElapsedTime` of the application, CUPTI, compute-sanitizer;
//! - what of the time at work is copies: a kernel that waits for a copy in its stream, after the first kernel, counts from when it
//!   was launched;
//! - whether an event of the current context can be recorded in a stream of a green one; if not, such launches are not measured;
//! - whether device-side launches and kernels of graphs that launch themselves are within the events around them.
//!
//! [`size`]: fgpu_quota_core::size
//! [limiter]: fgpu_quota_core::limiter

#![no_std]

mod array;
mod bind;
mod block;
mod code;
mod compute;
mod context;
mod driver;
mod exports;
mod graph;
mod green;
mod launch;
mod limits;
mod measure;
mod memory;
mod meter;
mod place;
mod pool;
mod primary;
mod real;
mod report;
mod reserve;
mod resolve;
mod table;
mod vmm;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    fgpu_quota_core::sys::abort()
}
