//! How many launches may be in flight. A launch cannot be taken back, and the length of its kernel is only
//! known from the kernels before it.

use core::sync::atomic::Ordering;

use fgpu_wire::limits::COMPUTE_CAP;

use crate::limiter::constants::{
    EXCESS, IN_FLIGHT, IN_FLIGHT_MOST, IN_FLIGHT_UNMEASURED, SLEEP_AND_LOOK, SURPRISE, WHOLE,
};
use crate::limiter::lane::Lane;
use crate::limiter::shared::grant::Grant;

impl Lane {
    /// How many launches may be in flight.
    pub(crate) fn window(&self, grant: &Grant<'_>) -> u64 {
        match self.average() {
            0 => IN_FLIGHT_UNMEASURED,
            average if average > IN_FLIGHT / 2 => 1,
            average => (IN_FLIGHT / average).min(self.most(grant, average)),
        }
    }

    /// How many, if each may be as long as the longest recent one. With `u` of them in flight a second holds
    /// `u (1 - share)` too much, because the share comes on top for the rest of the second.
    fn most(&self, grant: &Grant<'_>, average: u64) -> u64 {
        let (mode, ppm) = grant.share();
        if mode != COMPUTE_CAP || ppm >= WHOLE {
            return IN_FLIGHT_MOST;
        }
        let whole = u64::from(WHOLE);
        let longest = self.longest.load(Ordering::Relaxed).max(SURPRISE);
        let long = EXCESS * whole / u64::from(WHOLE - ppm).saturating_mul(longest);
        // Where long kernels are rare, fewer would take the short ones' share.
        let short = SLEEP_AND_LOOK * u64::from(ppm) / (whole * average);
        long.max(short).clamp(1, IN_FLIGHT_MOST)
    }
}
