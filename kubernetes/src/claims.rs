//! From a ResourceClaim to what each of its requests has been given on this node.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fgpu_engine::claims::{Asked, Share};
use fgpu_spec::{Compute, Gpu, Inventory, Isolation, MigPlace, escape_for_display};
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use serde::Deserialize;

use crate::names::{CORES, DRIVER, MEMORY, SHARE, SHARE_DEVICE, device, slice};
use crate::quantity;

/// A request of a claim, as it was given out.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    /// What is to be reserved for it.
    pub asked: Asked,
    /// The devices of the request, in the order of the claim's results.
    pub results: Vec<DeviceRequestAllocationResult>,
}

/// Parameters of ours in a claim or a DeviceClass: the opaque configuration of a request.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FgpuConfig {
    api_version: String,
    kind: String,
    compute: Option<Compute>,
    isolation: Option<Isolation>,
    owner: Option<String>,
}

/// What of a claim was given on the node whose pool and GPUs these are. Empty if it is nothing of ours.
///
/// # Errors
/// In words for the claim's pods: the claim is not allocated, is not for a device of this node, or its
/// parameters are wrong.
pub fn given(
    claim: &ResourceClaim,
    pool: &str,
    inventory: &Inventory,
    reserve: u64,
) -> Result<Vec<Given>, String> {
    let name = |of: Option<&String>| of.cloned().unwrap_or_default();
    let meta = &claim.metadata;
    let status = claim.status.as_ref();
    let allocation =
        status.and_then(|status| status.allocation.as_ref()).ok_or("the claim is not allocated")?;
    let devices = allocation.devices.clone().unwrap_or_default();
    let mut requests: BTreeMap<String, Vec<DeviceRequestAllocationResult>> = BTreeMap::new();
    for result in devices.results.unwrap_or_default() {
        if result.driver == DRIVER && result.pool == pool {
            requests.entry(main(&result.request).to_owned()).or_default().push(result);
        }
    }
    let pods = pods(claim);
    let configs = devices.config.unwrap_or_default();
    let mut all = Vec::new();
    for (request, results) in requests {
        let failed = |why: String| format!("request {request}: {why}");
        // Those of the class come first, and a later one counts.
        let mut config = FgpuConfig::default();
        for one in &configs {
            // One may name alternatives that were not chosen.
            let is_name = |name: &String| *name == request || results.iter().any(|one| one.request == *name);
            let is_meant =
                one.requests.as_ref().is_none_or(|names| names.is_empty() || names.iter().any(is_name));
            if let Some(opaque) = one.opaque.as_ref().filter(|opaque| opaque.driver == DRIVER && is_meant) {
                let new = parse(&opaque.parameters.0).map_err(failed)?;
                config.compute = new.compute.or(config.compute);
                config.isolation = new.isolation.or(config.isolation);
                config.owner = new.owner.or(config.owner);
            }
        }
        let shares = results.iter().map(|result| one(result, inventory, reserve));
        let shares = shares.collect::<Result<Vec<_>, _>>().and_then(together).map_err(failed)?;
        all.push(Given {
            asked: Asked {
                uid: name(meta.uid.as_ref()),
                namespace: name(meta.namespace.as_ref()),
                name: name(meta.name.as_ref()),
                request: request.clone(),
                pods: pods.clone(),
                share: shares,
                words: words(&results, &config),
                compute: config.compute,
                isolation: config.isolation.unwrap_or_default(),
                owner: config.owner,
            },
            results,
        });
    }
    Ok(all)
}

/// The uids of the pods that may use a claim.
pub fn pods(claim: &ResourceClaim) -> Vec<String> {
    let consumers = claim.status.as_ref().and_then(|status| status.reserved_for.clone()).unwrap_or_default();
    consumers.into_iter().filter(|user| user.resource == "pods").map(|user| user.uid).collect()
}

/// A request of a prioritised list is `main/sub`; containers name the former.
fn main(request: &str) -> &str {
    request.split('/').next().unwrap_or(request)
}

fn parse(parameters: &serde_json::Value) -> Result<FgpuConfig, String> {
    let config: FgpuConfig = serde_json::from_value(parameters.clone())
        .map_err(|error| format!("its parameters for {DRIVER} are wrong: {error}"))?;
    match (config.api_version.as_str(), config.kind.as_str()) {
        ("fgpu.dev/v1", "FgpuConfig") => Ok(config),
        (version, kind) => {
            Err(format!("its parameters for {DRIVER} are {version} {kind}, and not fgpu.dev/v1 FgpuConfig"))
        }
    }
}

/// What a request was given, as the claim has it: `memory=20Gi cores=40 of gpu-2`. The same claim has the same
/// words whatever becomes of the node's configuration.
fn words(results: &[DeviceRequestAllocationResult], config: &FgpuConfig) -> String {
    let one = |result: &DeviceRequestAllocationResult| {
        let capacities = result.consumed_capacity.iter().flatten();
        let amounts: Vec<_> = capacities.map(|(name, amount)| format!("{name}={}", amount.0)).collect();
        let amounts = if amounts.is_empty() { "all".to_owned() } else { amounts.join(" ") };
        format!("{amounts} of {}", result.device)
    };
    let mut words = results.iter().map(one).collect::<Vec<_>>().join(", ");
    let parameters = [
        ("compute", config.compute.map(|compute| format!("{compute:?}"))),
        ("isolation", config.isolation.map(|isolation| format!("{isolation:?}"))),
        ("owner", config.owner.as_ref().map(|owner| escape_for_display(owner))),
    ];
    for (name, value) in parameters.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        let _ = write!(words, ", {name}={}", value.to_lowercase());
    }
    words
}

/// The devices of a request, which are alike.
fn together(shares: Vec<Share>) -> Result<Share, String> {
    let mut shares = shares.into_iter();
    let mut all = shares.next().ok_or("it was given nothing")?;
    for share in shares {
        match (&mut all, share) {
            (
                Share::Part { gpus, memory, cores_ppm },
                Share::Part { gpus: more, memory: same, cores_ppm: alike },
            ) if (*memory, *cores_ppm) == (same, alike) => gpus.extend(more),
            (Share::Slices { profile, places }, Share::Slices { profile: same, places: more })
                if *profile == same =>
            {
                places.extend(more);
            }
            _ => return Err("its devices have different amounts of memory".into()),
        }
    }
    Ok(all)
}

/// What a result gives.
fn one(result: &DeviceRequestAllocationResult, inventory: &Inventory, reserve: u64) -> Result<Share, String> {
    if result.admin_access == Some(true) {
        return Err("fgpu gives no admin access; look at the node with fgpu status".into());
    }
    let gone = || format!("device {} is not on this node any more", escape_for_display(&result.device));
    let (own, by_shares) = match result.device.strip_suffix(SHARE_DEVICE) {
        Some(own) => (own, true),
        None => (result.device.as_str(), false),
    };
    match inventory.gpus.iter().find(|gpu| !gpu.mig_enabled && device(gpu.minor) == own) {
        Some(gpu) => part(result, gpu, reserve, by_shares),
        None => slice_of(&result.device, inventory).ok_or_else(gone),
    }
}

/// The MIG slice that is this device.
fn slice_of(name: &str, inventory: &Inventory) -> Option<Share> {
    for gpu in inventory.gpus.iter().filter(|gpu| gpu.mig_enabled) {
        for profile in &gpu.mig_profiles {
            let mut placements = profile.placements.iter();
            if let Some(&placement) = placements.find(|&&at| slice(gpu.minor, profile, at) == name) {
                let places = vec![MigPlace { gpu: gpu.uuid.clone(), placement }];
                return Some(Share::Slices { profile: profile.name.clone(), places });
            }
        }
    }
    None
}

/// A part of a GPU.
fn part(
    result: &DeviceRequestAllocationResult,
    gpu: &Gpu,
    reserve: u64,
    by_shares: bool,
) -> Result<Share, String> {
    let usable = gpu.usable_memory(reserve);
    let taken = |name: &str| -> Result<Option<u64>, String> {
        let capacities = result.consumed_capacity.as_ref();
        let full = format!("{DRIVER}/{name}");
        let found = capacities.and_then(|all| all.get(name).or_else(|| all.get(&full)));
        let number = |text: &str| {
            quantity::parse(text).ok_or_else(|| format!("its {name} is {text:?}, no whole number"))
        };
        found.map(|one| number(&one.0)).transpose()
    };
    let percent = |name: &str, default: u64| -> Result<u64, String> {
        let percent = taken(name)?.unwrap_or(default);
        if percent > 100 { Err(format!("its {name} is {percent} percent")) } else { Ok(percent) }
    };
    let ppm = |percent: u64| u32::try_from(percent * 10_000).unwrap_or(u32::MAX);
    let (memory, cores_ppm) = if by_shares {
        let percent = percent(SHARE, 100)?;
        // Floored to 1 MiB, as a fraction of an annotation is: a hundred of 1% fit.
        let mebibytes = u128::from(usable >> 20) * u128::from(percent) / 100;
        (u64::try_from(mebibytes).unwrap_or(0) << 20, ppm(percent))
    } else {
        (taken(MEMORY)?.unwrap_or(usable), ppm(percent(CORES, 0)?))
    };
    Ok(Share::Part { gpus: vec![gpu.uuid.clone()], memory, cores_ppm })
}

#[cfg(test)]
mod tests;
