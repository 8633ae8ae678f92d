//! A bound on what an image can make us do.

use std::cell::Cell;
use std::rc::Rc;

/// How often a folder of a layer may still be looked into. Whoever made the image decides how long the ways
/// in it are, and the time is root's, in no container's cgroup.
#[derive(Debug, Clone)]
pub(super) struct Budget(Rc<Cell<u32>>);

/// An image of a hundred layers takes some ten thousand.
pub(crate) const MOST_LOOKS: u32 = 1 << 18;

impl Budget {
    /// Whether it lasts for a look into so many layers.
    pub(super) fn spend(&self, layers: usize) -> bool {
        let looks = u32::try_from(layers + 1).unwrap_or(u32::MAX);
        self.0.set(self.0.get().saturating_sub(looks));
        self.0.get() > 0
    }

    /// How much of it is spent.
    #[cfg(test)]
    pub(super) fn spent(&self) -> u32 {
        MOST_LOOKS - self.0.get()
    }

    /// Whether nothing is left of it.
    pub(super) fn is_spent(&self) -> bool {
        self.0.get() == 0
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self(Rc::new(Cell::new(MOST_LOOKS)))
    }
}
