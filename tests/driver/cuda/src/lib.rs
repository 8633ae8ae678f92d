//! `libcuda.so.1` of a node with simulated GPUs.
//!
//! Device memory is host memory that costs nothing until it is touched, counted against the GPU's size among
//! all processes of the node. Kernels compute nothing: they take time (see `launch`), for which the processes
//! of the node compete. Every other function of NVIDIA's library of the same version exists and answers "not
//! supported".
//!
//! Simplifications that a test may want to know: allocations are counted in units of 512 bytes; managed
//! memory counts in full at once; copies ignore what kernels would write.
//!
//! NVIDIA's runtime library (libcudart) starts on it: [`private`] has the tables that it asks for.
//!
//! The numbers and struct layouts are those of NVIDIA's public `cuda.h` (version 12.4).
#![no_std]

extern crate alloc;

mod abi;
mod array;
mod blocks;
mod calls;
mod context;
mod copy;
mod current;
mod device;
mod driver;
mod entry;
mod graph;
mod image;
mod launch;
mod memory;
mod module;
#[cfg(feature = "newer")]
#[path = "../newer/rows.rs"]
mod newer;
mod pool;
mod private;
mod share;
mod stream;
mod vmm;

sim_node::runtime!();

/// The functions that are not simulated, and the table of all that are exported.
mod exports {
    use crate::entry::Export;

    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

/// The answer of a function that is not simulated.
fn not_simulated(name: &str) -> u32 {
    calls::note(name, calls::Kind::Missing);
    abi::Failure::NOT_SUPPORTED.0
}
