//! What the container may use of a GPU, and what its processes share about it.

use fgpu_wire::ledger::{Busy, Compute, at_share};
use fgpu_wire::limits::{COMPUTE_CAP, COMPUTE_REST, Page, least_share};
use fgpu_wire::turns::{Stake, Turn};

use crate::limiter::constants::{CATCH_UP, MAX_DEBT, MAX_YIELD};

/// What this container may use of a GPU, and where it accounts for that.
#[derive(Clone, Copy)]
pub struct Grant<'a> {
    /// The limits.
    pub page: &'a Page,
    /// Number in the grant.
    pub gpu: usize,
    /// The container's account, which all its processes charge.
    pub account: &'a Compute,
    /// This process's part of it, for readers of the utilisation.
    pub part: Option<&'a Busy>,
    /// The container's place among the containers on this GPU, if it has one.
    pub turn: Option<Turn<'a>>,
}

impl Grant<'_> {
    /// The mode of `cores`, and the share (ppm). Without a booked share it is the least that the container's
    /// weight is worth.
    #[inline]
    pub fn share(&self) -> (u8, u32) {
        match self.page.compute(self.gpu) {
            (COMPUTE_REST, weight) => (COMPUTE_REST, least_share(weight)),
            share => share,
        }
    }

    /// The container's stake among those that want the GPU.
    pub(crate) fn stake(&self) -> Stake {
        match self.page.compute(self.gpu) {
            (COMPUTE_REST, weight) => Stake::Unbooked(weight),
            (_, ppm) => Stake::Booked(ppm),
        }
    }

    /// How long a container that has had less than its share yields to others, nanoseconds: as long as it can
    /// catch up on.
    pub(crate) fn max_yield(&self) -> u64 {
        at_share(CATCH_UP, self.share().1).min(MAX_YIELD)
    }

    /// How much the container can owe after a kernel of this length, nanoseconds on the clock. In `share`
    /// mode it is one kernel, which the others' turns pay for, and [`MAX_DEBT`].
    pub(crate) fn max_debt(&self, kernel: u64) -> u64 {
        match self.share() {
            (COMPUTE_CAP, _) => u64::MAX,
            (_, ppm) => at_share(kernel, ppm).saturating_add(MAX_DEBT),
        }
    }

    /// Reports `time` nanoseconds of work that ended at `end` to readers of the utilisation.
    pub(crate) fn report(&self, end: u64, time: u64) {
        self.account.report(end, time);
        if let Some(part) = self.part {
            part.add(end, time);
        }
    }
}
