//! Makes what is shipped beside the programs, from the definitions that the programs themselves use: man
//! pages and completions from the command line of `fgpu`, the annotation reference from the parser's own list
//! of keys, the configuration reference from the file that is shipped.
//!
//! The metadata of the packages is in this crate's Cargo.toml, for cargo-deb and cargo-generate-rpm.

#![forbid(unsafe_code)]

pub mod annotations;
pub mod completions;
pub mod config;
pub mod man;
