//! A waiting request as the allocator file has it.

use fgpu_spec::{Nonce, Request, Tier};
use serde::{Deserialize, Serialize};

use crate::{Key, Process};

/// A request that waits, as it stands in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Names its place in the queue.
    #[serde(rename = "waiter")]
    pub ticket: Nonce,
    /// The process that waits; the place lasts as long as it lives.
    pub process: Process,
    /// Since when it waits: CLOCK_BOOTTIME in ns. It decides nothing.
    pub since: u64,
    /// How often a request behind it was given room on a GPU that it could use itself.
    pub passed: u32,
    /// The container.
    pub key: Key,
    /// The tiers that it may get, the strongest first.
    pub tiers: Vec<Tier>,
    /// What it asks for.
    pub request: Request,
    /// The PID namespace in which the process has its pid, as in [`crate::Lease::pid_namespace`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<u64>,
}
