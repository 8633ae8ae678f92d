//! The common part of `libfgpu-cuda.so` and `libfgpu-nvml.so`.
//!
//! These libraries are bind-mounted over NVIDIA's in a container, so they are loaded into programs of any
//! age, with any libc, that do not know us. Therefore:
//!
//! - `no_std`, no heap, no thread-local storage, no libc but `dl_iterate_phdr` and the `mem*` functions that
//!   every libc has; system calls are made directly ([`sys`]);
//! - nothing happens at load: a program that never uses a GPU pays nothing and cannot break;
//! - no code panics on purpose; a panic ends the process, and no C frame is unwound;
//! - no descriptor stays open ([`process`] explains how a lock lives without one);
//! - **fail closed**: our libraries are mounted together with the limits and the ledger. If those are missing
//!   or damaged, every call that would take GPU memory fails with an out-of-memory error, with one line on
//!   the standard error ([`message`]). A broken container never gets an unlimited GPU.

#![cfg_attr(not(test), no_std)]

pub mod allocations;
pub mod clock;
pub mod elf;
pub mod files;
pub mod kernel;
pub mod limiter;
pub mod message;
pub mod mutex;
pub mod process;
pub mod size;
pub mod symbols;
pub mod sys;
pub mod turns;
