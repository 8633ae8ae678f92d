//! From a ResourceClaim to what each of its requests has been given on this node.

use std::collections::BTreeMap;

use fgpu_engine::claims::Asked;
use fgpu_spec::{Compute, Gpu, Inventory, Isolation};
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use serde::Deserialize;

use crate::names::{CORES, DRIVER, MEMORY, SHARE, SHARE_DEVICE, device};
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
    let consumers = status.and_then(|status| status.reserved_for.clone()).unwrap_or_default();
    let pods: Vec<String> =
        consumers.into_iter().filter(|user| user.resource == "pods").map(|user| user.uid).collect();
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
        let shares = results.iter().map(|result| share(result, inventory, reserve));
        let shares = shares.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let Some((_, memory, cores_ppm)) = shares.first().map(|(gpu, memory, cores)| (*gpu, *memory, *cores))
        else {
            continue;
        };
        if shares.iter().any(|(_, other, cores)| (*other, *cores) != (memory, cores_ppm)) {
            return Err(failed("its devices have different amounts of memory".into()));
        }
        all.push(Given {
            asked: Asked {
                uid: name(meta.uid.as_ref()),
                namespace: name(meta.namespace.as_ref()),
                name: name(meta.name.as_ref()),
                request: request.clone(),
                pods: pods.clone(),
                gpus: shares.iter().map(|(gpu, ..)| gpu.uuid.clone()).collect(),
                memory,
                cores_ppm,
                compute: config.compute,
                isolation: config.isolation.unwrap_or_default(),
                owner: config.owner,
            },
            results,
        });
    }
    Ok(all)
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

/// The GPU of a result, bytes of it and parts per million of its SM time.
fn share<'a>(
    result: &DeviceRequestAllocationResult,
    inventory: &'a Inventory,
    reserve: u64,
) -> Result<(&'a Gpu, u64, u32), String> {
    if result.admin_access == Some(true) {
        return Err("fgpu gives no admin access; look at the node with fgpu status".into());
    }
    let (own, by_shares) = match result.device.strip_suffix(SHARE_DEVICE) {
        Some(own) => (own, true),
        None => (result.device.as_str(), false),
    };
    let known = inventory.gpus.iter().find(|gpu| device(gpu.minor) == own);
    let gpu = known.ok_or_else(|| format!("device {} is not on this node any more", result.device))?;
    let usable = gpu.usable_memory(reserve);
    let taken = |name: &str| -> Result<Option<u64>, String> {
        let capacities = result.consumed_capacity.as_ref();
        let full = format!("{DRIVER}/{name}");
        let found = capacities.and_then(|all| all.get(name).or_else(|| all.get(&full)));
        found
            .map(|one| {
                quantity::parse(&one.0).ok_or_else(|| format!("its {name} is {:?}, no whole number", one.0))
            })
            .transpose()
    };
    let percent = |name: &str, default: u64| -> Result<u64, String> {
        let percent = taken(name)?.unwrap_or(default);
        if percent > 100 { Err(format!("its {name} is {percent} percent")) } else { Ok(percent) }
    };
    let ppm = |percent: u64| u32::try_from(percent * 10_000).unwrap_or(u32::MAX);
    if by_shares {
        let percent = percent(SHARE, 100)?;
        // Floored to 1 MiB, as a fraction of an annotation is: a hundred of 1% fit.
        let mebibytes = u128::from(usable >> 20) * u128::from(percent) / 100;
        return Ok((gpu, u64::try_from(mebibytes).unwrap_or(0) << 20, ppm(percent)));
    }
    Ok((gpu, taken(MEMORY)?.unwrap_or(usable), ppm(percent(CORES, 0)?)))
}

#[cfg(test)]
mod tests;
