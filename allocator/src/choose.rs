//! Which of the GPUs that fit a request serve it.
//!
//! Fitting comes first and links second: a set of GPUs that leaves more room for others is never given up for
//! one that is closer together. Among sets that are equally good in that respect (the usual case of whole
//! GPUs, which are all empty) these decide, in this order:
//!
//! 1. the most NVLinks within the set, then the shortest ways over PCIe within it;
//! 2. unless GPUs are spread, the fewest links between the set and the equally good GPUs that are left: a
//!    container with one GPU does not take it from a pair that the next one wants;
//! 3. the lowest indices.
//!
//! Of up to 16 GPUs every set is looked at ([`EXACT`]). Of more, sets are grown from each GPU and the best
//! one is improved by exchanging one GPU at a time, so that a decision takes well below a millisecond for 64
//! of them.

use fgpu_spec::{Link, Path, Topology};

/// Most sets that are all looked at: 8 of 16 GPUs.
const EXACT: u64 = 12_870;

/// A GPU that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Its place in the inventory.
    pub(crate) at: usize,
    /// NVML's index.
    pub(crate) index: u32,
    /// How little the policy likes it; the sum over a set decides.
    pub(crate) cost: u64,
}

/// What decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// The costs alone.
    Cost,
    /// The links within the set, or those that it leaves to others.
    Links,
    /// The indices, all else being equal or unknown.
    Index,
}

/// The GPUs that were chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// Places in the inventory, by NVML's index.
    pub(crate) places: Vec<usize>,
    /// What decided.
    pub(crate) by: By,
}

/// Chooses `count` of at least so many candidates. `keep_links`: whether the links of those that are left
/// count.
pub(crate) fn choose(
    mut candidates: Vec<Candidate>,
    count: usize,
    topology: &Topology,
    keep_links: bool,
) -> Chosen {
    candidates.sort_unstable_by_key(|candidate| (candidate.cost, candidate.index));
    // The least sum has all that cost less than the dearest one, and some of those that cost as much.
    let Some(dearest) = candidates.get(count.wrapping_sub(1)).map(|candidate| candidate.cost) else {
        return Chosen { places: Vec::new(), by: By::Cost };
    };
    let fixed = candidates.partition_point(|candidate| candidate.cost < dearest);
    let end = candidates.partition_point(|candidate| candidate.cost <= dearest);
    let (wanted, equal) = (count - fixed, &candidates[fixed..end]);
    let mut by = By::Cost;
    let mut chosen: Vec<Candidate> = candidates[..fixed].to_vec();
    if wanted == equal.len() {
        chosen.extend(equal);
    } else {
        let search = Search::new(&candidates[..fixed], equal, topology, keep_links);
        let (picked, decided) = search.best(wanted);
        by = if decided { By::Links } else { By::Index };
        chosen.extend(picked.iter().map(|&place| equal[place]));
    }
    chosen.sort_unstable_by_key(|candidate| candidate.index);
    Chosen { places: chosen.iter().map(|candidate| candidate.at).collect(), by }
}

/// How close two GPUs are, to be added up over the pairs of a set: NVLinks in the upper half, which outweigh
/// all ways over PCIe in the lower half.
pub(crate) fn closeness(link: Option<Link>) -> u64 {
    let Some(Link { nvlinks, path }) = link else { return 0 };
    let path = match path {
        Path::Board => 5,
        Path::Switch => 4,
        Path::Switches => 3,
        Path::HostBridge => 2,
        Path::Node => 1,
        Path::System => 0,
    };
    (u64::from(nvlinks) << 32) | path
}

/// A set by its worth: the closeness within it, then how little it takes from the others.
type Worth = (u64, std::cmp::Reverse<u64>);

/// The equally good candidates, by index, as a matrix of closeness.
struct Search {
    count: usize,
    /// Row by row.
    close: Vec<u64>,
    /// To the GPUs that are chosen in any case.
    to_fixed: Vec<u64>,
    /// To all other equally good ones; zero if that does not count.
    to_equal: Vec<u64>,
}

impl Search {
    fn new(fixed: &[Candidate], equal: &[Candidate], topology: &Topology, keep_links: bool) -> Self {
        let of = |one: &Candidate, other: &Candidate| closeness(topology.link(one.at, other.at));
        let sum = |one, others: &[Candidate]| others.iter().map(|other| of(one, other)).sum();
        Self {
            count: equal.len(),
            close: equal.iter().flat_map(|one| equal.iter().map(move |other| of(one, other))).collect(),
            to_fixed: equal.iter().map(|one| sum(one, fixed)).collect(),
            to_equal: equal.iter().map(|one| if keep_links { sum(one, equal) } else { 0 }).collect(),
        }
    }

    fn row(&self, one: usize) -> &[u64] {
        &self.close[one * self.count..][..self.count]
    }

    /// The best `wanted` of them, and whether links made the difference.
    fn best(&self, wanted: usize) -> (Vec<usize>, bool) {
        let first: Vec<usize> = (0..wanted).collect();
        if self.close.iter().chain(&self.to_fixed).all(|&close| close == 0) {
            return (first, false);
        }
        let best =
            if combinations(self.count, wanted) <= EXACT { self.exact(wanted) } else { self.grown(wanted) };
        let decided = self.worth(&best) > self.worth(&first);
        if decided { (best, true) } else { (first, false) }
    }

    fn worth(&self, set: &[usize]) -> Worth {
        let pairs =
            set.iter().enumerate().flat_map(|(n, &one)| set[..n].iter().map(move |&other| (one, other)));
        let among: u64 = pairs.map(|(one, other)| self.row(one)[other]).sum();
        let (fixed, equal) = set
            .iter()
            .fold((0, 0), |(fixed, equal), &one| (fixed + self.to_fixed[one], equal + self.to_equal[one]));
        self.worth_of(among, fixed, equal)
    }

    /// Of a set with so much closeness among its members, to the fixed ones and to all equally good ones.
    fn worth_of(&self, among: u64, fixed: u64, equal: u64) -> Worth {
        // What a member is close to is either in the set (counted from both ends) or left.
        (among + fixed, std::cmp::Reverse(equal.saturating_sub(2 * among)))
    }

    /// Looks at every set, in the order of their indices.
    fn exact(&self, wanted: usize) -> Vec<usize> {
        let mut best = (Worth::default(), Vec::new());
        let mut set = Vec::with_capacity(wanted);
        self.descend(wanted, 0, (0, 0, 0), &mut set, &mut best);
        best.1
    }

    fn descend(
        &self,
        wanted: usize,
        from: usize,
        (among, fixed, equal): (u64, u64, u64),
        set: &mut Vec<usize>,
        best: &mut (Worth, Vec<usize>),
    ) {
        if set.len() == wanted {
            let worth = self.worth_of(among, fixed, equal);
            if best.1.is_empty() || worth > best.0 {
                *best = (worth, set.clone());
            }
            return;
        }
        let missing = wanted - set.len();
        for one in from..=self.count - missing {
            let row = self.row(one);
            let sums = (
                among + set.iter().map(|&other| row[other]).sum::<u64>(),
                fixed + self.to_fixed[one],
                equal + self.to_equal[one],
            );
            set.push(one);
            self.descend(wanted, one + 1, sums, set, best);
            set.pop();
        }
    }

    /// Grows a set from each GPU by whatever is closest to it, and improves the best one.
    fn grown(&self, wanted: usize) -> Vec<usize> {
        let sets = (0..self.count).map(|seed| self.grow(seed, wanted));
        // The first of equal ones; `max_by_key` would take the last.
        let best = sets.rev().max_by_key(|set| self.worth(set)).unwrap_or_default();
        self.exchange(best)
    }

    fn grow(&self, seed: usize, wanted: usize) -> Vec<usize> {
        let mut set = vec![seed];
        let mut gain: Vec<u64> = self.row(seed).iter().zip(&self.to_fixed).map(|(a, b)| a + b).collect();
        let mut taken = vec![false; self.count];
        taken[seed] = true;
        while set.len() < wanted {
            let free = (0..self.count).filter(|&one| !taken[one]);
            // What it is close to beyond the set is taken from others.
            let key =
                |&one: &usize| (gain[one], std::cmp::Reverse(self.to_equal[one]), std::cmp::Reverse(one));
            let Some(next) = free.max_by_key(key) else { break };
            taken[next] = true;
            set.push(next);
            gain.iter_mut().zip(self.row(next)).for_each(|(gain, close)| *gain += close);
        }
        set.sort_unstable();
        set
    }

    /// Exchanges one GPU for another as long as that brings the set closer together, but not for ever: a few
    /// times are the rule.
    fn exchange(&self, mut set: Vec<usize>) -> Vec<usize> {
        for _ in 0..4 * self.count {
            // Closeness of each GPU to the whole set.
            let mut gain = self.to_fixed.clone();
            for &one in &set {
                gain.iter_mut().zip(self.row(one)).for_each(|(gain, close)| *gain += close);
            }
            let outside = |one: &usize| !set.contains(one);
            let swaps =
                (0..set.len()).flat_map(|n| (0..self.count).filter(outside).map(move |other| (n, other)));
            let better = swaps
                .map(|(n, other)| {
                    let (lost, won) = (gain[set[n]], gain[other] - self.row(set[n])[other]);
                    (i128::from(won) - i128::from(lost), n, other)
                })
                .max_by_key(|&(difference, n, other)| (difference, std::cmp::Reverse((n, other))));
            match better {
                Some((difference, n, other)) if difference > 0 => set[n] = other,
                _ => break,
            }
            set.sort_unstable();
        }
        set
    }
}

/// The number of ways to choose `few` of `many`, or [`EXACT`] + 1 if there are more.
fn combinations(many: usize, few: usize) -> u64 {
    let few = few.min(many - few);
    let mut ways = 1u64;
    for n in 0..few {
        ways = ways * (many - n) as u64 / (n + 1) as u64;
        if ways > EXACT {
            return EXACT + 1;
        }
    }
    ways
}

#[cfg(test)]
mod tests;
