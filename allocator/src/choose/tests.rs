use proptest::prelude::*;

use super::*;

/// Links by closeness: the first field counts NVLinks, the second is NODE (true) or SYS.
fn topology(count: usize, between: impl Fn(usize, usize) -> (u8, bool)) -> Topology {
    Topology::new(count, |one, other| {
        let (nvlinks, near) = between(one, other);
        Link { nvlinks, path: if near { Path::Node } else { Path::System } }
    })
}

fn equal(count: usize) -> Vec<Candidate> {
    (0..count).map(|at| Candidate { at, index: at as u32, cost: 0 }).collect()
}

fn places(candidates: Vec<Candidate>, count: usize, topology: &Topology, keep_links: bool) -> Vec<usize> {
    choose(candidates, count, topology, keep_links).places
}

#[test]
fn a_linked_pair_is_taken_before_the_lowest_indices() {
    // 0-3, 1-2 and 4-5 have NVLinks; 0-1, 2-3 and 4-5 are NUMA nodes.
    let pairs = [(3, 0), (2, 1), (5, 4)];
    let topology =
        topology(6, |one, other| (u8::from(pairs.contains(&(one, other))) * 4, one / 2 == other / 2));
    let chosen = choose(equal(6), 2, &topology, true);
    assert_eq!((chosen.places, chosen.by), (vec![4, 5], By::Links), "4-5 is within a NUMA node, too");
    let without_five: Vec<_> = equal(6).into_iter().filter(|candidate| candidate.at != 5).collect();
    assert_eq!(places(without_five, 2, &topology, true), [0, 3]);
    assert_eq!(places(equal(6), 4, &topology, true), [0, 1, 2, 3]);
}

#[test]
fn without_nvlinks_one_numa_node_is_kept() {
    let topology = topology(8, |one, other| (0, one % 2 == other % 2));
    assert_eq!(places(equal(8), 3, &topology, true), [0, 2, 4]);
    let odd: Vec<_> = equal(8).into_iter().filter(|candidate| candidate.at != 0).collect();
    assert_eq!(places(odd, 4, &topology, true), [1, 3, 5, 7]);
}

#[test]
fn a_single_gpu_leaves_pairs_to_others() {
    let pairs = topology(5, |one, other| {
        (if (one, other) == (1, 0) || (one, other) == (4, 3) { 2 } else { 0 }, true)
    });
    let chosen = choose(equal(5), 1, &pairs, true);
    assert_eq!((chosen.places, chosen.by), (vec![2], By::Links));
    // Of a broken pair the other half is next.
    let taken: Vec<_> = equal(5).into_iter().filter(|candidate| ![0, 2].contains(&candidate.at)).collect();
    assert_eq!(places(taken, 1, &pairs, true), [1]);
    assert_eq!(places(equal(5), 1, &pairs, false), [0], "who spreads does not care");
}

#[test]
fn costs_come_before_links() {
    let pairs = topology(4, |one, other| (if (one, other) == (3, 2) { 18 } else { 0 }, true));
    let mut candidates = equal(4);
    candidates[0].cost = 1;
    candidates[2].cost = 1;
    candidates[3].cost = 2;
    let chosen = choose(candidates.clone(), 3, &pairs, true);
    assert_eq!((chosen.places, chosen.by), (vec![0, 1, 2], By::Cost));
    // 1 is the cheapest; of 0 and 2 the one that is linked to nobody's rest.
    assert_eq!(places(candidates, 2, &pairs, true), [0, 1]);
    assert_eq!(places(equal(4), 2, &pairs, true), [2, 3]);
}

#[test]
fn the_gpu_that_is_closest_to_the_fixed_ones_is_added() {
    let star = topology(5, |one, other| (if (one, other) == (4, 0) { 1 } else { 0 }, true));
    let mut candidates = equal(5);
    candidates.iter_mut().skip(1).for_each(|candidate| candidate.cost = 7);
    assert_eq!(places(candidates, 2, &star, true), [0, 4]);
}

#[test]
fn nothing_known_means_the_lowest_indices() {
    let chosen = choose(equal(8), 3, &Topology::default(), true);
    assert_eq!((chosen.places, chosen.by), (vec![0, 1, 2], By::Index));
    let mut reversed = equal(8);
    reversed.iter_mut().for_each(|candidate| candidate.index = 7 - candidate.index);
    assert_eq!(places(reversed, 2, &Topology::default(), true), [7, 6], "indices, not places in the list");
    // All alike, as behind NVSwitches.
    let chosen = choose(equal(8), 4, &topology(8, |_, _| (18, true)), true);
    assert_eq!((chosen.places, chosen.by), (vec![0, 1, 2, 3], By::Index));
    assert_eq!(places(Vec::new(), 1, &Topology::default(), true), [0; 0]);
}

#[test]
fn combinations_are_counted_up_to_the_limit() {
    for (many, few, ways) in
        [(16, 8, 12_870), (64, 2, 2016), (64, 62, 2016), (5, 0, 1), (5, 5, 1), (9, 4, 126)]
    {
        assert_eq!(combinations(many, few), ways, "{many} {few}");
    }
    assert_eq!(combinations(64, 32), EXACT + 1);
    assert_eq!(combinations(17, 8), EXACT + 1);
}

/// The definition, spelled out: every set, one after the other.
fn by_hand(count: usize, wanted: usize, topology: &Topology, keep_links: bool) -> Vec<usize> {
    let close = |one, other| closeness(topology.link(one, other));
    let mut best: Option<(Worth, Vec<usize>)> = None;
    for bits in 0u32..1 << count {
        let set: Vec<usize> = (0..count).filter(|at| bits >> at & 1 == 1).collect();
        if set.len() != wanted {
            continue;
        }
        let (mut within, mut lost) = (0, 0);
        for one in 0..count {
            for other in 0..one {
                match (set.contains(&one), set.contains(&other)) {
                    (true, true) => within += close(one, other),
                    (false, false) => {}
                    _ if keep_links => lost += close(one, other),
                    _ => {}
                }
            }
        }
        let worth = (within, std::cmp::Reverse(lost));
        let better =
            best.as_ref().is_none_or(|(old, earlier)| worth > *old || worth == *old && set < *earlier);
        if better {
            best = Some((worth, set));
        }
    }
    best.unwrap().1
}

/// Random links: up to 3 NVLinks, any way over PCIe.
fn links(count: usize) -> impl Strategy<Value = Topology> {
    let pair = (0u8..4, 0usize..6);
    proptest::collection::vec(pair, count * count).prop_map(move |pairs| {
        let paths = [Path::Board, Path::Switch, Path::Switches, Path::HostBridge, Path::Node, Path::System];
        Topology::new(count, |one, other| {
            let (nvlinks, path) = pairs[one * count + other];
            Link { nvlinks, path: paths[path] }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn of_eight_gpus_the_best_set_is_found(topology in links(8), wanted in 1usize..=8, keep in any::<bool>()) {
        prop_assert_eq!(places(equal(8), wanted, &topology, keep), by_hand(8, wanted, &topology, keep));
    }

    #[test]
    fn no_exchange_of_one_gpu_makes_a_grown_set_closer(topology in links(12), wanted in 1usize..=11) {
        let candidates = equal(12);
        let search = Search::new(&[], &candidates, &topology, true);
        let grown = search.grown(wanted);
        prop_assert_eq!(grown.len(), wanted);
        prop_assert!(grown.windows(2).all(|two| two[0] < two[1]), "{:?}", grown);
        for (n, other) in (0..wanted).flat_map(|n| (0..12).map(move |other| (n, other))) {
            if !grown.contains(&other) {
                let mut exchanged = grown.clone();
                exchanged[n] = other;
                prop_assert!(search.worth(&exchanged).0 <= search.worth(&grown).0, "{:?} {:?}", grown, exchanged);
            }
        }
    }

    /// In groups (boards, NUMA nodes, NVLink islands) growing finds the best, however many GPUs there are.
    #[test]
    fn of_64_gpus_in_groups_the_set_is_within_one(size in 2usize..=16, wanted in 3usize..=16, busy in any::<u64>()) {
        let wanted = wanted.min(size);
        let groups = topology(64, |one, other| (if one / size == other / size { 4 } else { 0 }, false));
        let free: Vec<_> = equal(64).into_iter().filter(|candidate| busy >> candidate.at & 1 == 0).collect();
        let room = |group: usize| free.iter().filter(|candidate| candidate.at / size == group).count();
        prop_assume!((0..64usize.div_ceil(size)).any(|group| room(group) >= wanted));
        let chosen = places(free, wanted, &groups, true);
        prop_assert!(chosen.iter().all(|at| at / size == chosen[0] / size), "{:?}", chosen);
    }
}
