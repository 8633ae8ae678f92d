//! `fgpu-hook createRuntime` and its siblings against containers made by hand. They need root, as the hook
//! does, and touch nothing outside their folder: each test has a mount namespace of its own.

#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but only sees test functions")]

mod claims;
mod container;
mod entry;
mod hostile;
mod life;
mod node;
mod pods;
mod race;
mod witness;
