//! A bound on what an image can make us do.

use std::cell::Cell;
use std::rc::Rc;

use nix::errno::Errno;

/// How often a folder of a layer may still be looked into, and whether one could not be. The author of the
/// image decides how long the ways in it are, and the time is root's, in no container's cgroup.
#[derive(Debug, Clone)]
pub(super) struct Budget(Rc<State>);

#[derive(Debug)]
struct State {
    left: Cell<u32>,
    failed: Cell<Option<Errno>>,
}

/// An image of a hundred layers takes some ten thousand.
pub(crate) const MOST_LOOKS: u32 = 1 << 18;

impl Budget {
    /// Whether it lasts for a look into so many layers.
    pub(super) fn spend(&self, layers: usize) -> bool {
        let looks = u32::try_from(layers + 1).unwrap_or(u32::MAX);
        self.0.left.set(self.0.left.get().saturating_sub(looks));
        self.0.left.get() > 0
    }

    /// Nothing is left of it, since a folder could not be looked into.
    pub(super) fn fail(&self, errno: Errno) {
        self.0.failed.set(self.0.failed.get().or(Some(errno)));
        self.0.left.set(0);
    }

    /// How much of it is spent.
    #[cfg(test)]
    pub(super) fn spent(&self) -> u32 {
        MOST_LOOKS - self.0.left.get()
    }

    /// Why nothing is left of it, if so.
    pub(super) fn end(&self) -> Option<String> {
        match (self.0.failed.get(), self.0.left.get()) {
            (Some(errno), _) => Some(format!("a folder of the image cannot be looked into: {errno}")),
            (None, 0) => Some("it is longer than is looked into".to_owned()),
            (None, _) => None,
        }
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self(Rc::new(State { left: Cell::new(MOST_LOOKS), failed: Cell::new(None) }))
    }
}
