//! What `libfgpu-cuda.so` and `libfgpu-nvml.so` share.
//!
//! These libraries are bind-mounted over NVIDIA's in a container, so they are loaded into programs that know
//! nothing of us, of any age, with any libc. Hence:
//!
//! - `no_std`, no heap, no thread-local storage, no libc but `dl_iterate_phdr` and the `mem*` functions that
//!   every libc has; system calls are made directly ([`sys`]);
//! - nothing is done at load: a program that never uses a GPU pays for nothing and cannot be broken;
//! - nothing panics on purpose; if something does, the process ends there and no C frame is unwound;
//! - no descriptor stays open ([`process`] says how a lock can live without one);
//! - **fail closed**: our libraries are mounted together with the limits and the ledger. If those are missing
//!   or damaged, what would take GPU memory fails as out of memory, with one line on the standard error
//!   ([`message`]). An unlimited GPU is never the answer to a broken container.

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
