//! How long kernels were recently.

use crate::limiter::constants::{EVIDENCE, REMEMBER};

/// The longest kernels that were measured recently, each by itself or several on average. All zeros: unknown.
pub(crate) struct Lengths {
    /// The longest since `from`, and in the period before that.
    longest: [u64; 2],
    from: u64,
    last: u64,
}

impl Lengths {
    /// Adds so many launches that had ended `at` and took `each`. Returns the longest recent length.
    pub(crate) fn add(&mut self, launches: u64, each: u64, at: u64) -> u64 {
        let age = at.saturating_sub(self.from);
        if age >= REMEMBER {
            let before = if age < 2 * REMEMBER { self.longest[0] } else { 0 };
            (self.longest, self.from) = ([0, before], at);
        }
        let length = if launches >= EVIDENCE { each } else { each.min(self.last) };
        self.last = each;
        self.longest[0] = self.longest[0].max(length);
        self.longest[0].max(self.longest[1])
    }
}
