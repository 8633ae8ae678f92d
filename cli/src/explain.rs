//! `fgpu explain`: what a request would get now, or why nothing.

use fgpu_allocator::{Explanation, GpuReport, Placement, Store, Verdict};
use fgpu_spec::{Code, Compute, Error, Inventory, Request, Tier};
use serde::Serialize;

use crate::node::Node;
use crate::output::{Output, json, word};
use crate::quantity::{bytes, percent};
use crate::share;
use crate::table::Table;

/// Answers what a container with these annotations would get.
///
/// # Errors
/// What is wrong with the annotations themselves or with the node; a refusal is no error but
/// [`Output::failure`], beside the table that explains it.
pub(crate) fn run(node: &Node, annotations: &[(String, String)], as_json: bool) -> Result<Output, Error> {
    let given = share::once(annotations.iter().cloned())?;
    let request = Request::parse(&given, None, &node.config.defaults())?.ok_or_else(|| {
        Error::new(
            Code::InvalidRequest,
            "these annotations ask for no GPU, such a container runs as without fgpu; try fraction=0.25",
        )
    })?;
    let inventory = node.inventory()?;
    let tiers = fgpu_hook::tiers(&request, &inventory)?;
    let store = Store::open(&node.config.state_dir)?;
    let explanation = store.explain(&inventory, &node.config.rules(), &request, &tiers)?;
    let answer = answer(&request, explanation.tier, &inventory, &explanation);
    let text = if as_json { json(&answer)? } else { text(&answer) };
    Ok(Output { text, warnings: Vec::new(), failure: explanation.error })
}

/// The answer of `fgpu explain --json`. Memory is in bytes, cores in ppm of a GPU.
#[derive(Debug, Serialize)]
struct Answer {
    granted: bool,
    request: String,
    tier: Tier,
    error: Option<Refused>,
    /// What would be rounded, in words.
    notes: Vec<String>,
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
    free_cores_ppm: u32,
    asked_memory: u64,
    asked_cores_ppm: u32,
}

fn answer(request: &Request, tier: Tier, inventory: &Inventory, explanation: &Explanation) -> Answer {
    let placement = explanation.decision.outcome.as_ref().ok();
    let granted = |uuid: &str| placement.is_some_and(|placement| on(placement, uuid));
    let gpu = |(gpu, report): (&fgpu_spec::Gpu, &GpuReport)| GpuAnswer {
        index: gpu.index,
        uuid: gpu.uuid.clone(),
        model: gpu.model.clone(),
        mig_enabled: gpu.mig_enabled,
        granted: granted(&gpu.uuid),
        reason: reason(report.verdict),
        usable_memory: report.usable,
        free_memory: report.free_memory,
        free_cores_ppm: report.free_cores_ppm,
        asked_memory: report.asked_memory,
        asked_cores_ppm: if request.compute == Compute::Off { 0 } else { request.cores_ppm },
    };
    Answer {
        granted: placement.is_some(),
        request: request.text.clone(),
        tier,
        error: explanation
            .error
            .as_ref()
            .map(|error| Refused { code: error.code.as_str(), message: error.message.clone() }),
        notes: placement.map_or_else(Vec::new, |placement| placement.notes.clone()),
        gpus: inventory.gpus.iter().zip(&explanation.decision.gpus).map(gpu).collect(),
    }
}

fn on(placement: &Placement, uuid: &str) -> bool {
    placement.gpus.iter().any(|share| share.uuid == uuid)
}

fn reason(verdict: Verdict) -> Option<&'static str> {
    Some(match verdict {
        Verdict::Fits => return None,
        Verdict::OtherDevice => "fgpu/device rules it out",
        Verdict::OtherModel => "fgpu/model rules it out",
        Verdict::Mig => "it is in MIG mode and serves no fractions",
        Verdict::NotMig => "it is not in MIG mode",
        Verdict::NoProfile => "it has no MIG profile like that",
        Verdict::NoPlacement => "it has no free place for that slice",
        Verdict::TooSmall => "it is too small even when empty",
        Verdict::Exclusive => "another container has it for itself",
        Verdict::Occupied => "it is not empty, and the request wants it alone",
        Verdict::Short { memory: true, cores: true } => "it is short of memory and SM time",
        Verdict::Short { memory: true, .. } => "it is short of memory",
        Verdict::Short { .. } => "it is short of SM time",
    })
}

fn text(answer: &Answer) -> String {
    let mut table = Table::new(&["GPU", "MODEL", "ASKED", "FREE", "SM FREE", "ANSWER"]);
    for gpu in &answer.gpus {
        let verdict = match (gpu.granted, gpu.reason) {
            (true, _) => "would serve it",
            (_, Some(reason)) => reason,
            (_, None) => "could serve it",
        };
        let room = match gpu.mig_enabled {
            true => ["-", "-", "-"].map(str::to_owned),
            false => [bytes(gpu.asked_memory), bytes(gpu.free_memory), percent(gpu.free_cores_ppm.into())],
        };
        let start = [gpu.index.to_string(), gpu.model.clone()];
        table.row(start.into_iter().chain(room).chain([verdict.into()]));
    }
    let head = match answer.granted {
        true => format!("{} would be granted, in the {} tier.", answer.request, word(&answer.tier)),
        false => format!("{} would not be granted.", answer.request),
    };
    let notes: String = answer.notes.iter().map(|note| format!("Note: {note}.\n")).collect();
    format!("{head}\n{notes}\n{}", table.render())
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
            mig_profiles: Vec::new(),
        };
        Inventory {
            version: 1,
            boot_id: String::new(),
            root: "/".into(),
            driver_version: "550.163.01".into(),
            cuda_version: 0,
            gpus: (0..gpus).map(gpu).collect(),
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
        let text = text(&answer);
        assert!(text.starts_with("fgpu/fraction=1/3 would be granted, in the quota tier.\n"), "{text}");
        assert!(text.contains("Note: something was floored.\n"), "{text}");
        let table: Vec<_> = text.lines().rev().take(4).collect();
        assert_eq!(
            table.into_iter().rev().collect::<Vec<_>>(),
            [
                "GPU  MODEL           ASKED     FREE      SM FREE  ANSWER",
                "0    Simulated A100  13.0 GiB  30.0 GiB  75%      could serve it",
                "1    Simulated A100  13.0 GiB  30.0 GiB  75%      would serve it",
                "2    Simulated A100  -         -         -        it is in MIG mode and serves no fractions",
            ]
        );
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
        let text = text(&answer);
        assert!(text.starts_with("fgpu/fraction=1/3 would not be granted.\n"), "{text}");
        assert!(text.ends_with("it is short of memory\n"), "{text}");
        let value = serde_json::to_value(&answer).unwrap();
        assert_eq!((&value["granted"], &value["error"]["code"]), (&false.into(), &"no-capacity".into()));
        assert_eq!(value["gpus"][0]["reason"], "it is short of memory");
        assert_eq!(value["gpus"][0]["asked_cores_ppm"], 333_333);
    }
}
