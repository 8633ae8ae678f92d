//! Layout of the small files that a container and the host share, the paths at which the container
//! finds them, and the algorithms on them.
//!
//! - [`limits`]: the grant. The host writes it; it is read-only in the container.
//! - [`ledger`]: where a container's processes account for their device memory and GPU time. Shared,
//!   writable.
//! - [`turns`]: which container uses a GPU next. Each container writes its own place and reads those of
//!   others.
//!
//! All are plain memory once mapped: every field is an atomic, so the algorithms need no `unsafe` and run
//! in tests on a buffer. They need the operating system only through [`ledger::Kernel`].

#![no_std]
#![forbid(unsafe_code)]

pub mod ledger;
pub mod limits;
mod seal;
pub mod turns;
mod uuid;

pub use seal::{Seal, Unsealable};
pub use uuid::parse_uuid;

/// Where a container finds the folder with all files below: a separate mount, read-only.
pub const FOLDER_PATH: &str = "/run/fgpu";
/// Where a container finds its limits (read-only).
pub const LIMITS_PATH: &str = "/run/fgpu/limits";
/// Where a container finds its ledger (read-write).
pub const LEDGER_PATH: &str = "/run/fgpu/ledger";
/// Where a container finds the folder with the places of its GPUs (read-only except for its own places).
pub const TURNS_PATH: &str = "/run/fgpu/turns";

/// Whether what is mounted at this path holds no code.
pub fn is_data(path: &str) -> bool {
    let is_place = || path.strip_prefix(TURNS_PATH).is_some_and(|rest| rest.starts_with('/'));
    [FOLDER_PATH, LIMITS_PATH, LEDGER_PATH, TURNS_PATH].contains(&path) || is_place()
}

/// The most GPUs that one grant can name: the upper end of `fgpu/count`.
pub const MAX_GPUS: usize = 64;
