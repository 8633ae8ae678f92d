//! The store as its callers see it: on a made-up node where processes live and die on command, and on the real
//! one with real kills.

mod faults;
mod hammer;
mod model;
mod node;
mod operations;
mod recovery;
