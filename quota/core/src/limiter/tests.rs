//! The limiter on a simulated GPU, under a virtual clock: no test here knows how fast the machine is.

mod accuracy;
mod contention;
mod experiments;
mod faults;
mod gpu;
mod lanes;
mod rest;
mod tenant;
mod world;
