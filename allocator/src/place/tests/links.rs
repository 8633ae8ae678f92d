//! Links between GPUs.

use super::*;

/// GPUs 0 and 2 and GPUs 1 and 3 have NVLinks.
fn crosswise(one: usize, other: usize) -> fgpu_spec::Link {
    fgpu_spec::Link { nvlinks: if one - other == 2 { 4 } else { 0 }, path: fgpu_spec::Path::System }
}

#[test]
fn several_gpus_are_those_most_closely_linked_among_equally_good_ones() {
    let mut table = Table::new(&[80 * GIB; 4]);
    table.inventory.topology = fgpu_spec::Topology::new(4, crosswise);
    let two = |ppm| Request { count: 2, ..fraction(ppm) };
    let placement = table.decide(&two(1_000_000)).outcome.unwrap();
    assert_eq!(
        placement.why,
        "of 4 GPUs that fit they are left with the least; of equal ones they are the most closely linked (at least \
         NV4+SYS between any two)"
    );
    assert_eq!(table.put(&two(1_000_000)).unwrap(), [0, 2]);
    assert_eq!(table.put(&two(1_000_000)).unwrap(), [1, 3]);
    for policy in [Policy::Spread, Policy::Exclusive] {
        let mut table = Table::new(&[80 * GIB; 4]);
        table.inventory.topology = fgpu_spec::Topology::new(4, crosswise);
        assert_eq!(table.put(&Request { policy, ..two(100_000) }).unwrap(), [0, 2], "{policy:?}");
    }
}

#[test]
fn links_do_not_outweigh_a_better_fit() {
    let mut table = Table::new(&[80 * GIB; 4]);
    table.inventory.topology = fgpu_spec::Topology::new(4, crosswise);
    for device in ["0", "1"] {
        table.put(&Request { device: only(device), ..fraction(500_000) }).unwrap();
    }
    assert_eq!(table.put(&Request { count: 2, ..fraction(500_000) }).unwrap(), [0, 1]);
    assert_eq!(table.put(&Request { count: 2, ..fraction(500_000) }).unwrap(), [2, 3]);
}

#[test]
fn one_gpu_does_not_break_a_pair() {
    let mut table = Table::new(&[80 * GIB; 4]);
    table.inventory.topology = fgpu_spec::Topology::new(4, crosswise);
    assert_eq!(table.put(&fraction(1_000_000)).unwrap(), [0]);
    assert_eq!(table.put(&fraction(1_000_000)).unwrap(), [2], "it has lost its peer already");
    assert_eq!(table.put(&Request { count: 2, ..fraction(1_000_000) }).unwrap(), [1, 3]);
}

#[test]
fn every_choice_says_why() {
    let mut table = Table::new(&[80 * GIB, 80 * GIB, 40 * GIB]);
    let why = |table: &Table, request: Request| table.decide(&request).outcome.unwrap().why;
    let small = |policy| Request { policy, memory: MemoryAsk::Bytes(GIB), ..fraction(100_000) };
    assert_eq!(
        why(&table, fraction(100_000)),
        "of 3 GPUs that fit it is left with the least; of equal ones the first"
    );
    assert_eq!(why(&table, small(Policy::Pack)), "of 3 GPUs that fit it is left with the least");
    assert_eq!(
        why(&table, small(Policy::Spread)),
        "it is the emptiest of 3 GPUs that fit; of equal ones the first"
    );
    assert_eq!(why(&table, small(Policy::Exclusive)), "it is the smallest of 3 empty GPUs");
    assert_eq!(why(&table, Request { device: only("1"), ..fraction(1_000) }), "no other GPU fits");
    table.put(&Request { device: only("1"), ..fraction(900_000) }).unwrap();
    assert_eq!(why(&table, Request { count: 2, ..fraction(500_000) }), "no other GPUs fit");
}
