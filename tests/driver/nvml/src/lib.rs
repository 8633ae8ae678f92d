//! `libnvidia-ml.so.1` of a node with simulated GPUs.
//!
//! It answers what Debian's nvidia-smi and nvidia-ml-py ask about GPUs that cannot do anything but count: who
//! they are, how much memory they have and who uses it, how busy they are. Sensors show plausible constants.
//! Every other function of NVIDIA's library of the same version exists and answers "not supported".
//!
//! The numbers and struct layouts are those of NVIDIA's public `nvml.h` (driver 550).
#![no_std]

extern crate alloc;

mod abi;
mod activity;
mod identity;
mod instances;
mod memory;
mod mig;
mod node;
mod nvlink;
mod partition;
mod private;
mod session;
mod telemetry;
mod topology;

sim_node::runtime!();

/// The functions that are not simulated.
mod exports {
    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

/// The answer of a function that is not simulated.
fn not_simulated(name: &str) -> u32 {
    if cfg!(feature = "trace") {
        use core::fmt::Write;
        let _ = writeln!(sim_node::sys::Stderr, "sim-nvml: {name} is not simulated");
    }
    abi::Failure::NOT_SUPPORTED.0
}
