//! What the cluster's tests stand on; see README.md.
//!
//! A test runs inside an environment of the lab, as the lab's own do, and begins with [`Cluster::start`]. It
//! is the cluster's administrator. When it ends, the objects that it made are deleted.
//!
//! What drives the cluster panics when the cluster does not do as it should: its only callers are tests.

#![forbid(unsafe_code)]

pub mod account;
pub mod cluster;
pub mod component;
mod report;

pub use cluster::Cluster;
