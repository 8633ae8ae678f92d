//! The limiter of SM time: when a launch may go, and what it cost.
//!
//! docs/design/limiter.md has the life of one launch as a picture, the rules, and what a cap and a share
//! mean. In short:
//!
//! - **[measure]** A [`Lane`] is a context of this process on a GPU. Events of the driver around bursts of
//!   launches tell how long the lane was at work. That time is charged to the container's account.
//! - **[decide]** A launch goes if the container has paid (`cap`), if little enough is in flight, and if it
//!   is the container's turn on the GPU. Else it sleeps and asks again.
//! - **[shared]** The account is in the ledger, which all processes of the container map; the turn is in a
//!   file for each container on the GPU. Every word changes by itself, so a process can die anywhere.
//!
//! All numbers are in [constants]; the system and the driver are behind the traits in [environment].

mod constants;
mod decide;
mod environment;
mod lane;
mod lanes;
mod measure;
mod shared;
#[cfg(test)]
mod tests;

pub use constants::PATIENCE;
pub use environment::{Elapsed, Events, Host, Stream};
pub use lane::Lane;
pub use lanes::Lanes;
pub use shared::grant::Grant;
