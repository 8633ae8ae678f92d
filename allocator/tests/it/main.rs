//! The store as its callers see it: on a made-up node where processes live and die on command, and on the
//! real one with real kills. Needs root, as fgpu does (one test mounts a tmpfs in a mount namespace of its
//! own).

#![allow(clippy::cloned_ref_to_slice_refs, reason = "[x.clone()] reads better in an assertion")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod claims;
mod elsewhere;
mod faults;
mod hammer;
mod jobs;
mod model;
mod node;
mod operations;
mod queue;
mod queue_mig;
mod queue_model;
mod recovery;
