//! The node's ResourceSlices: published at start, when the node's GPUs change, and when somebody else has
//! changed or deleted them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fgpu_engine::claims::inventory;
use fgpu_engine::config::Config;
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use tracing::{info, warn};

use crate::devices::{Devices, devices};
use crate::names::DRIVER;
use crate::plugin::Plugin;

/// How often the node's own files are looked at.
const LOOK: Duration = Duration::from_secs(30);
/// Most counter sets and devices with counters of one slice (resource.k8s.io/v1).
const MOST_SETS: usize = 8;
const MOST_DEVICES: usize = 64;

/// Keeps the slices as they should be, for ever.
pub async fn keep(plugin: Arc<Plugin>) {
    let api: Api<ResourceSlice> = Api::all(plugin.client.clone());
    let config = watcher::Config::default().fields(&selector(&plugin.node));
    let mut events = watcher(api, config).default_backoff().boxed();
    let mut look = tokio::time::interval(LOOK);
    let mut kept: Option<(Vec<ResourceSliceSpec>, Vec<ResourceSlice>)> = None;
    let mut said = Vec::new();
    loop {
        let by_event = tokio::select! {
            event = events.next() => match event {
                // The list at the start of a watch is not yet complete.
                Some(Ok(watcher::Event::Init | watcher::Event::InitApply(_))) => continue,
                Some(Ok(_)) => true,
                Some(Err(error)) => {
                    warn!("the slices cannot be watched: {error}");
                    continue;
                }
                None => return,
            },
            _ = look.tick() => false,
        };
        let wanted = match wanted(&plugin.node).await {
            Ok(wanted) => wanted,
            Err(why) => {
                warn!("the node's GPUs are not known: {why}");
                continue;
            }
        };
        if !by_event && kept.as_ref().is_some_and(|(sent, _)| *sent == wanted) {
            continue;
        }
        match publish(&plugin, &wanted, kept.as_ref()).await {
            Ok(None) => {}
            Ok(Some(slices)) => {
                info!("{} slices are published", slices.len());
                let missing = dropped(&wanted, &slices);
                if missing != said {
                    missing.iter().for_each(|gate| warn!("{gate}"));
                    said = missing;
                }
                kept = Some((wanted, slices));
            }
            Err(error) => {
                warn!("the slices cannot be published: {error}");
                // The next look tries again: no event need come.
                kept = None;
            }
        }
    }
}

fn selector(node: &str) -> String {
    format!("spec.nodeName={node},spec.driver={DRIVER}")
}

/// The slices of this node, without a generation.
async fn wanted(node: &str) -> Result<Vec<ResourceSliceSpec>, String> {
    let node = node.to_owned();
    let read = move || {
        let config = Config::load()?;
        let inventory = inventory(&config)?;
        Ok(slices(&node, devices(&inventory, config.reserve_memory, &config.rules().seen)))
    };
    let read = tokio::task::spawn_blocking(read).await;
    read.map_err(|error| error.to_string())?.map_err(|error: fgpu_spec::Error| error.to_string())
}

/// Puts devices into slices: counters and devices cannot be in one.
fn slices(node: &str, all: Devices) -> Vec<ResourceSliceSpec> {
    let spec = |counters: Option<Vec<CounterSet>>, devices: Option<Vec<Device>>| ResourceSliceSpec {
        driver: DRIVER.into(),
        node_name: Some(node.to_owned()),
        shared_counters: counters,
        devices,
        ..ResourceSliceSpec::default()
    };
    let mut slices: Vec<_> =
        all.counters.chunks(MOST_SETS).map(|sets| spec(Some(sets.to_vec()), None)).collect();
    slices.extend(all.devices.chunks(MOST_DEVICES).map(|some| spec(None, Some(some.to_vec()))));
    let count = i64::try_from(slices.len()).unwrap_or(i64::MAX);
    for slice in &mut slices {
        slice.pool = ResourcePool { name: node.to_owned(), generation: 0, resource_slice_count: count };
    }
    slices
}

/// Makes the API server have these slices and no others of ours. `None` if it has what it kept of them last
/// time.
async fn publish(
    plugin: &Plugin,
    wanted: &[ResourceSliceSpec],
    kept: Option<&(Vec<ResourceSliceSpec>, Vec<ResourceSlice>)>,
) -> kube::Result<Option<Vec<ResourceSlice>>> {
    let api: Api<ResourceSlice> = Api::all(plugin.client.clone());
    let there = api.list(&ListParams::default().fields(&selector(&plugin.node))).await?.items;
    if let Some((sent, slices)) = kept
        && *sent == *wanted
        && versions(slices) == versions(&there)
    {
        return Ok(None);
    }
    let node: Node = Api::all(plugin.client.clone()).get(&plugin.node).await?;
    let owner = OwnerReference {
        api_version: Node::api_version(&()).into(),
        kind: Node::kind(&()).into(),
        name: node.name_any(),
        uid: node.uid().unwrap_or_default(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    let generation = there.iter().map(|slice| slice.spec.pool.generation).max().unwrap_or(0) + 1;
    let mut slices = Vec::new();
    for (number, spec) in wanted.iter().enumerate() {
        let name = format!("{}-{DRIVER}-{number:03}", plugin.node);
        let mut spec = spec.clone();
        spec.pool.generation = generation;
        let old = there.iter().find(|slice| slice.name_any() == name);
        let slice = ResourceSlice {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                owner_references: Some(vec![owner.clone()]),
                resource_version: old.and_then(ResourceExt::resource_version),
                ..ObjectMeta::default()
            },
            spec,
        };
        let params = PostParams::default();
        slices.push(match old {
            Some(_) => api.replace(&name, &params, &slice).await?,
            None => api.create(&params, &slice).await?,
        });
    }
    for old in there.iter().filter(|old| !slices.iter().any(|new| new.name_any() == old.name_any())) {
        api.delete(&old.name_any(), &DeleteParams::default()).await?;
    }
    Ok(Some(slices))
}

fn versions(slices: &[ResourceSlice]) -> BTreeMap<String, Option<String>> {
    slices.iter().map(|slice| (slice.name_any(), slice.resource_version())).collect()
}

/// What the API server dropped of what was sent, as the feature gates that are off.
fn dropped(sent: &[ResourceSliceSpec], kept: &[ResourceSlice]) -> Vec<String> {
    let devices = |spec: &ResourceSliceSpec| spec.devices.clone().unwrap_or_default();
    let lost = |has: fn(&Device) -> bool| {
        let count = |all: Vec<Device>| all.iter().filter(|device| has(device)).count();
        let kept: usize = kept.iter().map(|slice| count(devices(&slice.spec))).sum();
        kept < sent.iter().map(|spec| count(devices(spec))).sum()
    };
    let mut gates = Vec::new();
    if lost(|device| device.allow_multiple_allocations == Some(true)) {
        gates.push(gate("DRAConsumableCapacity", "a claim can only have a whole GPU"));
    }
    if lost(|device| device.consumes_counters.is_some())
        || kept.iter().filter(|slice| slice.spec.shared_counters.is_some()).count()
            < sent.iter().filter(|spec| spec.shared_counters.is_some()).count()
    {
        gates.push(gate(
            "DRAPartitionableDevices",
            "a GPU may be given out by bytes and by shares at once; the node refuses the second",
        ));
    }
    gates
}

fn gate(name: &str, what: &str) -> String {
    format!("the API server has the feature gate {name} off (it is on since Kubernetes 1.36): {what}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::tests::inventory;

    #[test]
    fn counters_and_devices_are_in_slices_of_their_own() {
        let all = devices(&inventory(16), 0, &BTreeMap::new());
        let slices = slices("node1", all);
        let sizes: Vec<_> = slices
            .iter()
            .map(|slice| (slice.shared_counters.as_ref().map(Vec::len), slice.devices.as_ref().map(Vec::len)))
            .collect();
        assert_eq!(sizes, [(Some(8), None), (Some(8), None), (None, Some(32))]);
        assert!(slices.iter().all(|slice| slice.pool.resource_slice_count == 3));
        assert!(slices.iter().all(|slice| slice.pool.name == "node1"));
    }

    #[test]
    fn what_was_dropped_names_its_gate() {
        let sent = slices("node1", devices(&inventory(1), 0, &BTreeMap::new()));
        let keep = |change: fn(&mut ResourceSliceSpec)| {
            let kept = sent.iter().map(|spec| {
                let mut spec = spec.clone();
                change(&mut spec);
                ResourceSlice { metadata: ObjectMeta::default(), spec }
            });
            dropped(&sent, &kept.collect::<Vec<_>>())
        };
        assert_eq!(keep(|_| {}), [""; 0]);
        let plain = keep(|spec| {
            spec.devices.iter_mut().flatten().for_each(|device| device.allow_multiple_allocations = None);
        });
        assert!(plain.len() == 1 && plain[0].contains("DRAConsumableCapacity"), "{plain:?}");
        let bare = keep(|spec| spec.shared_counters = None);
        assert!(bare.len() == 1 && bare[0].contains("DRAPartitionableDevices"), "{bare:?}");
    }
}
