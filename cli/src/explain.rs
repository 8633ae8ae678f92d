//! `fgpu explain`: what a request would get now, or why nothing.

mod container;

use fgpu_allocator::{Explanation, GpuReport, Holder, Placement, Store, Verdict};
use fgpu_spec::{Code, Compute, Error, Inventory, Request, Tier};
use serde::Serialize;

use crate::node::Node;
use crate::output::{Output, json, word};
use crate::quantity::{bytes, percent};
use crate::screen::Look;
use crate::share;
use crate::table::{Column, Table};

pub(crate) use container::container;

/// Answers what a container with these annotations would get.
///
/// # Errors
/// What is wrong with the annotations themselves or with the node; a refusal is no error but
/// [`Output::failure`], beside the table that explains it.
pub(crate) fn run(node: &Node, annotations: &[(String, String)], as_json: bool) -> Result<Output, Error> {
    let request = request(node, annotations)?;
    let inventory = node.inventory()?;
    let tiers = fgpu_engine::tiers(&request, &inventory)?;
    let store = Store::open(&node.config.state_dir)?;
    let explanation = store.explain(&inventory, &node.config.rules(), &request, &tiers)?;
    let answer = answer(&request, explanation.tier, &inventory, &explanation);
    let text = if as_json { json(&answer)? } else { text(&answer, &Look::of_stdout()) };
    Ok(Output { text, failure: explanation.error, ..Output::default() })
}

/// What these annotations ask for.
///
/// # Errors
/// What is wrong with them; `invalid-request` if they ask for nothing.
pub(crate) fn request(node: &Node, annotations: &[(String, String)]) -> Result<Request, Error> {
    let given = share::once(annotations.iter().map(|(key, value)| (named(node, key), value.clone())))?;
    Request::parse(&given, None, &node.config.defaults())?.ok_or_else(|| {
        Error::new(
            Code::InvalidRequest,
            "these annotations ask for no GPU, such a container runs as without fgpu; try fraction=0.25",
        )
    })
}

/// The annotation of this name: other systems' have no prefix of ours, where they are understood.
fn named(node: &Node, key: &str) -> String {
    let bare = key.strip_prefix("fgpu/").unwrap_or(key);
    let alias = node.config.aliases.iter().any(|vocabulary| vocabulary.keys().contains(&bare));
    if alias { bare.to_owned() } else { key.to_owned() }
}

/// The answer of `fgpu explain --json`. Memory is in bytes, cores in ppm of a GPU.
#[derive(Debug, Serialize)]
struct Answer {
    granted: bool,
    request: String,
    tier: Tier,
    compute: Compute,
    error: Option<Refused>,
    /// Why these GPUs and not others; none if it would not be granted.
    why: Option<String>,
    /// What would be rounded, in words.
    notes: Vec<String>,
    /// What no other container could use as long as it runs, in words.
    wasted: Vec<String>,
    gpus: Vec<GpuAnswer>,
}

#[derive(Debug, Serialize)]
struct Refused {
    code: &'static str,
    message: String,
}

#[derive(Debug, Serialize)]
struct GpuAnswer {
    index: u32,
    uuid: String,
    model: String,
    /// Serves no fractions.
    mig_enabled: bool,
    /// Whether the share would be on this GPU.
    granted: bool,
    /// Why it could not be; none if it could.
    reason: Option<&'static str>,
    usable_memory: u64,
    free_memory: u64,
    /// What processes outside of all leases hold, which is not free.
    foreign_memory: u64,
    free_cores_ppm: u32,
    asked_memory: u64,
    asked_cores_ppm: u32,
    /// What would be left of a GPU that it would be on.
    left_memory: Option<u64>,
    left_cores_ppm: Option<u32>,
}

fn answer(request: &Request, tier: Tier, inventory: &Inventory, explanation: &Explanation) -> Answer {
    let placement = explanation.decision.outcome.as_ref().ok();
    let share = |uuid: &str| placement?.gpus.iter().find(|share| share.uuid == uuid);
    let for_claims = |at: usize| {
        let holders = explanation.holders.get(at).map_or(&[][..], Vec::as_slice);
        holders.iter().any(Holder::is_pool)
    };
    let gpu = |(at, (gpu, report)): (usize, (&fgpu_spec::Gpu, &GpuReport))| GpuAnswer {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        model: gpu.model.clone(),
        mig_enabled: gpu.mig_enabled,
        granted: share(&gpu.uuid).is_some(),
        reason: match report.verdict {
            Verdict::Exclusive if for_claims(at) => Some("another scheduler gives it out"),
            verdict => reason(verdict),
        },
        usable_memory: report.usable,
        free_memory: report.free_memory,
        foreign_memory: report.foreign,
        free_cores_ppm: report.free_cores_ppm,
        asked_memory: report.asked_memory,
        asked_cores_ppm: if request.compute == Compute::Off { 0 } else { request.cores_ppm },
        left_memory: share(&gpu.uuid).map(|share| report.free_memory.saturating_sub(share.memory)),
        left_cores_ppm: share(&gpu.uuid).map(|share| report.free_cores_ppm.saturating_sub(share.cores_ppm)),
    };
    let gpus: Vec<_> = inventory.gpus.iter().zip(&explanation.decision.gpus).enumerate().map(gpu).collect();
    let exclusive = placement.is_some_and(|placement| placement.exclusive);
    Answer {
        granted: placement.is_some(),
        request: request.text.clone(),
        tier,
        compute: if tier == Tier::Mig { Compute::Cap } else { request.compute },
        error: explanation
            .error
            .as_ref()
            .map(|error| Refused { code: error.code.as_str(), message: error.message.clone() }),
        why: placement.map(|placement| placement.why.clone()),
        notes: placement.map_or_else(Vec::new, |placement| notes(request, tier, placement)),
        wasted: gpus.iter().filter_map(|gpu| wasted(gpu, exclusive)).collect(),
        gpus,
    }
}

/// What would be rounded, and what was not asked for.
fn notes(request: &Request, tier: Tier, placement: &Placement) -> Vec<String> {
    let unbooked = request.is_unbooked() && tier.is_interposed();
    let memory_alone = unbooked.then(|| {
        "memory alone books no SM time: it would have what others leave of it (compute is share), weighted by its memory \
         among those that booked none; fgpu/cores books a part"
            .to_owned()
    });
    placement.notes.iter().cloned().chain(memory_alone).collect()
}

/// What no other container could use of a GPU that serves the request.
fn wasted(gpu: &GpuAnswer, exclusive: bool) -> Option<String> {
    let (memory, cores) = (gpu.left_memory?, gpu.left_cores_ppm?);
    let left = format!("{} and {} of the SM time of GPU {}", bytes(memory), percent(cores.into()), gpu.index);
    match (memory, cores) {
        (0, 0) => None,
        _ if exclusive => Some(format!("{left}, which would be the container's alone")),
        (0, _) => Some(format!(
            "{} of the SM time of GPU {}: no memory is left with it",
            percent(cores.into()),
            gpu.index
        )),
        (_, 0) => Some(format!(
            "{} of GPU {}, but for containers that ask for memory alone: no SM time is left with it",
            bytes(memory),
            gpu.index
        )),
        _ => None,
    }
}

fn reason(verdict: Verdict) -> Option<&'static str> {
    Some(match verdict {
        Verdict::Fits => return None,
        Verdict::OtherDevice => "the request is for other devices",
        Verdict::OtherModel => "the request is for other models",
        Verdict::Mig => "it is in MIG mode and serves no fractions",
        Verdict::NotMig => "it is not in MIG mode",
        Verdict::NoProfile => "it has no MIG profile like that",
        Verdict::NoPlacement => "it has no free place for that slice",
        Verdict::TooSmall => "it is too small even when empty",
        Verdict::Unhealthy => "it is lost or must be reset",
        Verdict::Exclusive => "another container has it for itself",
        Verdict::Occupied => "it is not empty, and the request wants it alone",
        Verdict::Short { memory: true, cores: true } => "it is short of memory and SM time",
        Verdict::Short { memory: true, .. } => "it is short of memory",
        Verdict::Short { .. } => "it is short of SM time",
    })
}

fn text(answer: &Answer, look: &Look) -> String {
    let mut table = Table::of([
        Column::new("GPU"),
        Column::new("MODEL").cut(8).drop(2),
        Column::new("ASKED").drop(1),
        Column::new("FREE"),
        Column::new("SM FREE"),
        Column::new("ANSWER"),
    ]);
    for gpu in &answer.gpus {
        let verdict = match (gpu.left_memory.zip(gpu.left_cores_ppm), gpu.reason) {
            (Some((memory, cores)), _) => {
                format!("would serve it and have {} and {} left", bytes(memory), percent(cores.into()))
            }
            (None, Some(reason)) => reason.into(),
            (None, None) => "could serve it".into(),
        };
        let room = match gpu.mig_enabled {
            true => ["-", "-", "-"].map(str::to_owned),
            false => [bytes(gpu.asked_memory), bytes(gpu.free_memory), percent(gpu.free_cores_ppm.into())],
        };
        let start = [gpu.index.to_string(), gpu.model.clone()];
        table.row(start.into_iter().chain(room).chain([verdict]));
    }
    let head = match &answer.why {
        Some(why) => {
            let granted = answer.gpus.iter().filter(|gpu| gpu.granted);
            let indices: Vec<_> = granted.map(|gpu| gpu.index.to_string()).collect();
            let gpus = if indices.len() == 1 { "GPU" } else { "GPUs" };
            let tier = word(&answer.tier);
            let indices = indices.join(", ");
            format!(
                "{} would be granted on {gpus} {indices}, in the {tier} tier.\nWhy: {why}.\n",
                answer.request
            )
        }
        None => format!("{} would not be granted.\n", answer.request),
    };
    let lines = |title: &str, texts: &[String]| -> String {
        texts.iter().map(|text| format!("{title}: {text}.\n")).collect()
    };
    let (notes, wasted) = (lines("Note", &answer.notes), lines("Wasted", &answer.wasted));
    let foreign = answer.gpus.iter().filter(|gpu| gpu.foreign_memory > 0).map(|gpu| {
        format!("{} of GPU {} is held by processes outside fgpu", bytes(gpu.foreign_memory), gpu.index)
    });
    let foreign = lines("Not free", &foreign.collect::<Vec<_>>());
    format!("{head}{notes}{foreign}{wasted}\n{}", table.fitted(look))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fgpu_allocator::{Decision, Refusal};
    use fgpu_spec::{Gpu, GrantedGpu};

    use super::*;

    fn inventory(gpus: u32) -> Inventory {
        let gpu = |index| Gpu {
            uuid: format!("GPU-{index}"),
            index,
            minor: index,
            model: "Simulated A100".into(),
            pci: String::new(),
            numa: None,
            total_memory: 40 << 30,
            reserved_memory: 0,
            mig_enabled: index == 2,
            context_memory: None,
            compute_capability: None,
            mig_profiles: Vec::new(),
        };
        Inventory {
            version: 1,
            boot_id: String::new(),
            root: "/".into(),
            driver_version: "550.163.01".into(),
            cuda_version: 0,
            gpus: (0..gpus).map(gpu).collect(),
            driver_limits: false,
            topology: fgpu_spec::Topology::default(),
            files: Vec::new(),
        }
    }

    fn request() -> Request {
        let annotations = BTreeMap::from([("fgpu/fraction".to_owned(), "1/3".to_owned())]);
        Request::parse(&annotations, None, &fgpu_spec::Defaults::default()).unwrap().unwrap()
    }

    fn report(verdict: Verdict) -> GpuReport {
        GpuReport {
            usable: 40 << 30,
            free_memory: 30 << 30,
            foreign: 0,
            free_cores_ppm: 750_000,
            asked_memory: 13 << 30,
            verdict,
            profile: None,
        }
    }

    #[test]
    fn a_grant() {
        let placement = Placement {
            gpus: vec![GrantedGpu { uuid: "GPU-1".into(), memory: 13 << 30, cores_ppm: 333_333, mig: None }],
            exclusive: false,
            notes: vec!["something was floored".into()],
            why: "no other GPU fits".into(),
        };
        let explanation = Explanation {
            tier: Tier::Quota,
            decision: Decision {
                gpus: vec![report(Verdict::Fits), report(Verdict::Fits), report(Verdict::Mig)],
                outcome: Ok(placement),
            },
            holders: Vec::new(),
            error: None,
        };
        let answer = answer(&request(), Tier::Quota, &inventory(3), &explanation);
        let text = text(&answer, &Look::PLAIN);
        assert!(
            text.starts_with(
                "fgpu/fraction=1/3 would be granted on GPU 1, in the quota tier.\nWhy: no other GPU fits.\n"
            ),
            "{text}"
        );
        assert!(text.contains("Note: something was floored.\n"), "{text}");
        let table: Vec<_> = text.lines().rev().take(4).collect();
        assert_eq!(
            table.into_iter().rev().collect::<Vec<_>>(),
            [
                "GPU  MODEL           ASKED     FREE      SM FREE  ANSWER",
                "0    Simulated A100  13.0 GiB  30.0 GiB  75%      could serve it",
                "1    Simulated A100  13.0 GiB  30.0 GiB  75%      would serve it and have 17.0 GiB and 41.6% left",
                "2    Simulated A100  -         -         -        it is in MIG mode and serves no fractions",
            ]
        );
    }

    #[test]
    fn memory_that_no_other_tenant_can_use() {
        let gpu = |left_memory, left_cores_ppm| GpuAnswer {
            index: 3,
            uuid: String::new(),
            model: String::new(),
            mig_enabled: false,
            granted: true,
            reason: None,
            usable_memory: 40 << 30,
            free_memory: 30 << 30,
            foreign_memory: 0,
            free_cores_ppm: 750_000,
            asked_memory: 0,
            asked_cores_ppm: 0,
            left_memory,
            left_cores_ppm,
        };
        let said = |memory, cores, exclusive| wasted(&gpu(memory, cores), exclusive).unwrap_or_default();
        assert!(said(Some(1 << 30), Some(0), false).starts_with("1.0 GiB of GPU 3, but for containers that"));
        assert_eq!(
            said(Some(0), Some(250_000), false),
            "25% of the SM time of GPU 3: no memory is left with it"
        );
        assert_eq!(
            said(Some(1 << 30), Some(250_000), true),
            "1.0 GiB and 25% of the SM time of GPU 3, which would be the container's alone"
        );
        assert_eq!(said(Some(1 << 30), Some(250_000), false), "");
        assert_eq!(said(Some(0), Some(0), true), "");
        assert_eq!(said(None, None, true), "", "it would not be on this GPU");
    }

    #[test]
    fn a_refusal() {
        let explanation = Explanation {
            tier: Tier::Quota,
            decision: Decision {
                gpus: vec![report(Verdict::Short { memory: true, cores: false })],
                outcome: Err(Refusal::Short { fragmented: false, largest: None }),
            },
            holders: Vec::new(),
            error: Some(Error::new(Code::NoCapacity, "too little")),
        };
        let answer = answer(&request(), Tier::Quota, &inventory(1), &explanation);
        let text = text(&answer, &Look::PLAIN);
        assert!(text.starts_with("fgpu/fraction=1/3 would not be granted.\n"), "{text}");
        assert!(text.ends_with("it is short of memory\n"), "{text}");
        let value = serde_json::to_value(&answer).unwrap();
        assert_eq!((&value["granted"], &value["error"]["code"]), (&false.into(), &"no-capacity".into()));
        assert_eq!(value["gpus"][0]["reason"], "it is short of memory");
        assert_eq!(value["gpus"][0]["asked_cores_ppm"], 333_333);
    }
}
