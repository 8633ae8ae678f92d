//! What the lab's tests stand on; see README.md.
//!
//! One program, two places. *Outside*, on the machine itself, it is a test runner: [`outside`] enters the
//! environments and asks a copy of itself there to run one test after another. *Inside*, [`inside`] serves
//! those requests, and everything else here drives Docker, containerd and the node.
//!
//! What drives the node panics when the node does not do as it should, with the command and its output: its
//! only callers are tests.

#![forbid(unsafe_code)]

pub mod bundle;
pub mod calls;
mod capture;
mod cdi;
pub mod command;
pub mod cri;
pub mod ctr;
pub mod daemons;
pub mod docker;
pub mod hooks;
pub mod inside;
pub mod markdown;
pub mod node;
pub mod outside;
pub mod package;
pub mod panels;
pub mod podman;
pub mod process;
pub mod shuffle;
pub mod slurm;
pub mod suite;
pub mod systemd;
