//! When a container is above its share. No I/O.

use std::collections::BTreeMap;

use fgpu_spec::Nonce;

/// Samples in a row after which it is said.
const SAMPLES: u32 = 3;
/// What a container may have above its grant and its contexts: what the driver keeps of what was freed,
/// rounds up, and loads by itself.
const MARGIN: u64 = 256 << 20;
/// What a context may take where it was not measured.
const CONTEXT: u64 = 1 << 30;

/// What a lease may use of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) lease: Nonce,
    pub(super) gpu: String,
    /// Bytes.
    pub(super) granted: u64,
    /// What a context takes of this GPU, if it was measured.
    pub(super) context: Option<u64>,
}

/// What a process of a lease uses of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) lease: Nonce,
    pub(super) gpu: String,
    pub(super) pid: u32,
    /// Bytes.
    pub(super) bytes: u64,
}

/// Counts samples.
#[derive(Debug, Default)]
pub(super) struct Judge {
    rows: BTreeMap<Nonce, u32>,
    /// What a lease is held to on each GPU: its grant, or what that was before `fgpu resize` made it less
    /// than is in use.
    held_to: BTreeMap<(Nonce, String), u64>,
}

/// What a sample says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Leases that are above their share now, and were before.
    pub(super) above: Vec<Nonce>,
    /// Those of them of which it was not known.
    pub(super) new: Vec<Nonce>,
}

impl Judge {
    /// Takes a sample. A lease of which nothing is heard begins anew.
    pub(super) fn sample(&mut self, limits: &[Limit], uses: &[Use]) -> Verdict {
        let mut held_to = BTreeMap::new();
        let mut above = Vec::new();
        for limit in limits {
            let place = (limit.lease, limit.gpu.clone());
            let before = self.held_to.get(&place).copied().unwrap_or(limit.granted);
            // A share below what is in use ends no process; it counts once less is in use.
            let granted =
                if is_above(limit, limit.granted, uses) { before.max(limit.granted) } else { limit.granted };
            if is_above(limit, granted, uses) {
                above.push(limit.lease);
            }
            held_to.insert(place, granted);
        }
        self.held_to = held_to;
        above.sort_unstable();
        above.dedup();
        self.rows.retain(|lease, _| above.contains(lease));
        let mut verdict = Verdict::default();
        for lease in above {
            let row = self.rows.entry(lease).or_insert(0);
            *row = row.saturating_add(1);
            if *row >= SAMPLES {
                verdict.above.push(lease);
            }
            if *row == SAMPLES {
                verdict.new.push(lease);
            }
        }
        verdict
    }
}

/// Whether the processes of a lease use more of a GPU than they may with so much granted. What a context
/// takes is part of a share where it was measured, and is allowed once more for each process: it is no fault
/// of the container's where a driver takes more.
fn is_above(limit: &Limit, granted: u64, uses: &[Use]) -> bool {
    let mine = || uses.iter().filter(|one| one.lease == limit.lease && one.gpu == limit.gpu);
    let contexts = (mine().count() as u64).saturating_mul(limit.context.unwrap_or(CONTEXT));
    let used = mine().fold(0, |sum: u64, one| sum.saturating_add(one.bytes));
    used > granted.saturating_add(contexts).saturating_add(MARGIN)
}

#[cfg(test)]
mod tests;
