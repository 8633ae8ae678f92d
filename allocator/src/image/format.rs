//! The fixed parts of the allocator file.

/// The version of the format.
pub(crate) const VERSION: u64 = 1;
pub(super) const HEAD: &[u8] = br#"{"version":1,"check":""#;
pub(super) const BOOT: &[u8] = br#"","boot":""#;
pub(super) const OPEN: &[u8] = b"\",\"leases\":[\n";
/// Stands between the leases and the waiting requests, on a line of its own.
pub(super) const QUEUE: &[u8] = br#"],"queue":["#;
pub(super) const CLOSE: &[u8] = b"]}\n";
pub(super) const NONCE: &[u8] = br#"{"nonce":""#;
pub(super) const WAITER: &[u8] = br#"{"waiter":""#;
pub(super) const SEAL: &[u8] = br#","seal":""#;
/// Digits of a checksum.
pub(super) const DIGITS: usize = 16;

/// Why a file is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    /// It fails its check.
    Torn,
    /// It is of another version.
    Version(u64),
    /// It passes its check, and holds what this version cannot read.
    Unknown,
}
