//! `libfgpu-cuda.so`, the CUDA driver library of a container with a share of a GPU.
//!
//! It is bind-mounted over `libcuda.so.1` and has that SONAME. Its only `DT_NEEDED` is the real library's
//! absolute path, so the loader brings both, and every name that we do not define is the real one's. What we
//! define is in one [`table`]. It is read twice: [`real`] has the calls of the real driver, [`exports`] our
//! functions. Each row leads to one of these:
//!
//! - [`memory`]: allocations by pointer, and their frees;
//! - [`pool`]: stream-ordered allocations and memory pools, counted by the driver's own [`meter`];
//! - [`graph`]: graphs that allocate, counted in the same way;
//! - [`vmm`]: memory of handles, which lives in a [`block`] as long as a handle, a mapping or a
//!   [binding](bind) does;
//! - [`mod@array`]: arrays and mipmapped arrays;
//! - [`context`]: what contexts take, and what ends with them; [`primary`] and [`green`] ones, and their
//!   [`limits`];
//! - [`code`]: modules, libraries and code that is loaded late, by [measuring](measure), also at a
//!   [`launch`];
//! - [`report`]: how much memory there is;
//! - [`compute`]: SM time;
//! - [`resolve`]: `cuGetProcAddress`, through which cudart gets nearly everything;
//! - [`place`]: the GPU of the grant that a call is about; [`reserve`]: the steps that all allocations take.
//!
//! An allocation reserves in the ledger, calls the driver, and books what the driver gave or gives it back. A
//! refusal is `CUDA_ERROR_OUT_OF_MEMORY` from that call, and everything goes on. No lock is held across a
//! driver call.
//!
//! # What is counted
//!
//! Every call that takes device memory, in each of its versions, for legacy and for per-thread default
//! streams:
//!
//! | what | counts | until |
//! |---|---|---|
//! | `cuMemAlloc`, pitched, managed (in full) | the requested size, in the driver's pieces ([`size`]) | it is freed, or its context ends |
//! | `cuMemCreate` | the requested size, in the driver's pieces | neither a handle nor a mapping nor a binding is left |
//! | stream-ordered | what the pool holds, as the driver reports it | the pool gives it back |
//! | graphs | what the driver holds for them, as it reports it; refused when a graph is made or first launched | it is trimmed |
//! | arrays | computed from their format and dimensions | destroyed, or the context ends |
//! | contexts | what the grant says, else their stacks; larger limits when they are set | destroyed |
//! | modules, libraries, late code | the difference that loading makes | unloaded, or the context ends |
//! | memory of another process | nothing: the process that allocated it counts it | |
//!
//! # What is not counted
//!
//! - Memory that its creator has released while another process holds it (`cuMemExportToShareableHandle`),
//!   until that process releases it too.
//! - Memory of Vulkan, OpenGL or the video engines, imported or not: other libraries allocate it.
//! - What a driver keeps for itself beyond what it reports: small allocations of a context share pieces of 2
//!   MiB.
//! - SM time of copies and of other work than kernels.
//! - What a runtime library of CUDA 11 loads when a program starts: code and its variables, by a private
//!   function of the driver (`cuGetExportTable`). Those of CUDA 12 and 13 load by the public ones.
//!
//! Memory that the driver gave back of its own accord in *another* process's pool counts there until that
//! process synchronises, allocates or frees. A launch is not refused for code that it turns out to load; the
//! next allocation is.
//!
//! # What has to be measured on a GPU
//!
//! The tests run over a simulated driver, which takes what NVIDIA's documentation says. Only a GPU can
//! answer:
//!
//! - what a context takes beyond its stacks, by model and driver, and whether it takes the stacks that are
//!   computed;
//! - by how much a pool grows at a time: an allocation that makes it grow past the limit is undone, but the
//!   pool keeps the memory until the stream has come to the free;
//! - what arrays take compared with the computed tiles, and whether small ones share pieces;
//! - whether the driver's meters can be read, and free memory asked for, while a stream is captured;
//! - whether a graph has all its memory after its first launch, as its meter says then;
//! - whether a multicast object keeps memory whose last handle is released, and takes memory of its own;
//! - what a green context takes, and whether memory allocated in it outlives it;
//! - how far neighbours that allocate at the same time disturb what is measured for code.
//!
//! And about SM time (docs/design/limiter.md says what the limiter does):
//!
//! - what it costs to record and query events, and so whether a capped launch costs less than 200 ns more;
//! - how late a sleeping launch wakes, and how much of the GPU's time each change of turns takes;
//! - that our events do not disturb others: `cuEventElapsedTime` of the application, CUPTI,
//!   compute-sanitizer;
//! - how much of the time at work is copies: a kernel that waits for a copy in its stream, after the first
//!   kernel, counts from its launch on;
//! - whether an event of the current context can be recorded in a stream of a green one; if not, such
//!   launches are not measured;
//! - whether device-side launches, and kernels of graphs that launch themselves, lie within the events around
//!   them.
//!
//! [`size`]: fgpu_quota_core::size

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
