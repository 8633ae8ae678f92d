//! A request that more than one tier could serve: the first that has room does, the strongest being asked
//! first. Its policy orders the GPUs within a tier, and never moves a request to a weaker one.

use fgpu_spec::{Inventory, Request, Tier};

use crate::capacity::Sums;
use crate::decision::{Decision, Refusal, Verdict};
use crate::place::place;
use crate::{Rules, mig};

/// Decides a request for the first of `tiers` that can serve it. If none can, how each GPU stands to it is
/// told for the tier that it could serve: a GPU in MIG mode for `mig`, any other for the last one.
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
        let mut decision = one(tier);
        if let Ok(placement) = &mut decision.outcome {
            if tiers.len() > 1 {
                placement.why = format!("{}; {}", why(refused.as_ref()), placement.why);
            }
            return merged(refused, tier, decision);
        }
        refused = Some(merged(refused, tier, decision));
    }
    refused.unwrap_or_else(|| (Tier::Quota, one(Tier::Quota)))
}

/// Why it is this one of several tiers, as half a sentence. The first of several is always `mig`.
fn why(refused: Option<&(Tier, Decision)>) -> &'static str {
    match refused.map(|(_, decision)| &decision.outcome) {
        None | Some(Ok(_)) => "a MIG slice comes before a share of a GPU",
        Some(Err(Refusal::NoMigGpu)) => "no GPU in MIG mode matches",
        Some(Err(Refusal::NoMigProfile)) => "no MIG slice is like that",
        Some(Err(Refusal::TooManySlices { .. })) => "there are too few MIG slices like that",
        Some(Err(Refusal::OwnerCap { .. })) => "a MIG slice would be above the owner's cap",
        Some(Err(_)) => "no MIG slice like that is free",
    }
}

/// What two tiers say of a node, the second one being asked because the first refused.
fn merged(first: Option<(Tier, Decision)>, tier: Tier, mut second: Decision) -> (Tier, Decision) {
    let Some((first_tier, first)) = first else { return (tier, second) };
    for (of_second, of_first) in second.gpus.iter_mut().zip(&first.gpus) {
        if of_second.verdict == Verdict::Mig {
            *of_second = *of_first;
        }
    }
    // Where no GPU is of the second tier's kind, or only the first tier could ever serve it, what the first
    // said is the answer.
    let no_gpu = second.outcome == Err(Refusal::NoGpu) && first.outcome != Err(Refusal::NoMigGpu);
    let passes = |outcome: &Result<_, Refusal>| outcome.as_ref().is_err_and(Refusal::is_passing);
    let never = second.outcome.is_err() && !passes(&second.outcome);
    if no_gpu || never && passes(&first.outcome) {
        second.outcome = first.outcome;
        return (first_tier, second);
    }
    (tier, second)
}
