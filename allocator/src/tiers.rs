//! A request that more than one tier could serve: the first that has room does, the strongest being asked first.

use fgpu_spec::{Inventory, Request, Tier};

use crate::capacity::Sums;
use crate::place::{Decision, Refusal, Verdict, place};
use crate::{Rules, mig};

/// Decides a request for the first of `tiers` that can serve it. If none can, how each GPU stands to it is told for the
/// tier that it could serve: a GPU in MIG mode for `mig`, any other for the last one.
pub(crate) fn decide(
    tiers: &[Tier],
    inventory: &Inventory,
    rules: &Rules,
    request: &Request,
    sums: &Sums,
    owner_ppm: u64,
) -> (Tier, Decision) {
    let one = |tier: Tier| match tier {
        Tier::Mig => mig::place(inventory, rules, request, &sums.held, &sums.slots, owner_ppm),
        _ => place(inventory, rules, request, &sums.held, owner_ppm),
    };
    let mut refused: Option<(Tier, Decision)> = None;
    for &tier in tiers {
        let decision = one(tier);
        if decision.outcome.is_ok() {
            return (tier, merged(refused, decision));
        }
        refused = Some((tier, merged(refused, decision)));
    }
    refused.unwrap_or_else(|| (Tier::Quota, one(Tier::Quota)))
}

/// What two tiers say of a node, the second one being asked because the first refused.
fn merged(first: Option<(Tier, Decision)>, mut second: Decision) -> Decision {
    let Some((_, first)) = first else { return second };
    for (of_second, of_first) in second.gpus.iter_mut().zip(&first.gpus) {
        if of_second.verdict == Verdict::Mig {
            *of_second = *of_first;
        }
    }
    // Where no GPU is of the second tier's kind, what the first said is the answer.
    if second.outcome == Err(Refusal::NoGpu) && first.outcome != Err(Refusal::NoMigGpu) {
        second.outcome = first.outcome;
    }
    second
}
