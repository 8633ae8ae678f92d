//! Replays through fgpu's own placement: a public trace of a GPU cluster, and one node that fills and
//! empties.
//!
//! Test equipment: nothing here is installed. Sizes and rates are floating point, because nothing is granted
//! by them; every decision is [`fgpu_allocator::place`]'s.

#![forbid(unsafe_code)]

pub mod arrivals;
pub mod churn;
pub mod cluster;
pub mod fractions;
pub mod node;
pub mod slices;
pub mod trace;
