//! Placement against the driver's own rules, on every geometry that the simulated driver has.

use fgpu_allocator::{Board, Slot, SlotHolder};
use fgpu_spec::{MigPlacement, MigProfile};
use proptest::prelude::*;

use crate::node::Node;

/// What is done to a GPU: a profile to place, or the place among those that exist of one to destroy.
#[derive(Debug, Clone)]
enum Step {
    Create(prop::sample::Index),
    Destroy(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => any::<prop::sample::Index>().prop_map(Step::Create),
        2 => any::<prop::sample::Index>().prop_map(Step::Destroy),
    ];
    prop::collection::vec(step, 1..40)
}

fn lease(profile: &MigProfile, placement: MigPlacement) -> Slot {
    Slot { placement, profile: profile.id, holder: SlotHolder::Lease }
}

/// No placement that the driver refuses, and no refusal where one was free.
#[test]
fn the_driver_agrees_with_every_placement_and_every_refusal() {
    for preset in ["a100-40", "a100-80", "a30", "h100-80", "h100-94", "h200", "b200"] {
        let node = Node::new(preset, 1, "");
        let profiles = node.inventory.gpus[0].mig_profiles.clone();
        assert!(profiles.len() >= 4, "{preset}: {profiles:?}");
        node.with_gpu(0, |gpu| {
            let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(30));
            let result = runner.run(&steps(), |steps| {
                let mut board = Board::new(&profiles, Vec::new());
                for step in steps {
                    match step {
                        Step::Create(index) => {
                            let profile = index.get(&profiles);
                            match board.best(profile, |_| true) {
                                Some((placement, _)) => {
                                    let made = gpu.create(profile.id, placement);
                                    let made =
                                        made.map_err(|refused| TestCaseError::fail(refused.to_string()))?;
                                    prop_assert_eq!(made.placement, placement);
                                    board.put(lease(profile, placement));
                                }
                                None => {
                                    for &placement in &profile.placements {
                                        let made = gpu.create(profile.id, placement);
                                        prop_assert!(
                                            made.is_err(),
                                            "{} was free at {placement:?}",
                                            profile.name
                                        );
                                    }
                                }
                            }
                        }
                        Step::Destroy(index) if !board.slots().is_empty() => {
                            let slot = index.get(board.slots()).clone();
                            let there = gpu.instances().unwrap();
                            let instance = there.iter().find(|one| one.placement == slot.placement).unwrap();
                            gpu.destroy(instance).unwrap();
                            board.take(slot.placement);
                        }
                        Step::Destroy(_) => {}
                    }
                    prop_assert_eq!(gpu.instances().unwrap().len(), board.slots().len());
                }
                for instance in gpu.instances().unwrap() {
                    gpu.destroy(&instance).unwrap();
                }
                Ok(())
            });
            result.unwrap_or_else(|error| panic!("{preset}: {error}"));
        });
    }
}

/// What tests without a driver take an H100 for.
#[test]
fn an_h100_is_cut_as_the_test_data_says() {
    let said = include_str!("../../../spec/testdata/mig-h100-80gb.json");
    let said: Vec<MigProfile> = serde_json::from_str(said).unwrap();
    assert_eq!(Node::new("h100-80", 1, "").inventory.gpus[0].mig_profiles, said);
}
