//! The node's ResourceSlices: published at start, when the node's GPUs change, and when somebody else has
//! changed or deleted them.
//!
//! A GPU is offered after it is held for claims ([`fgpu_engine::claims::hold`]) and nothing else is on it any
//! more, so what kube-scheduler gives out is there.

use std::sync::Arc;
use std::time::Duration;

use fgpu_engine::claims::{hold, inventory};
use fgpu_spec::Code;
use futures_util::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::{CounterSet, Device, ResourcePool, ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::watcher::{Event, watch_object};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource, ResourceExt};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::chosen::Chosen;
use crate::devices::{Devices, Offer};
use crate::names::DRIVER;
use crate::plugin::Plugin;

/// How often the node's own files are looked at.
const LOOK: Duration = Duration::from_secs(30);
/// How long what was published is left alone. Two that do not agree would write all the time.
const PAUSE: Duration = Duration::from_secs(5);
/// Most counter sets and devices with counters of one slice (resource.k8s.io/v1).
const MOST_SETS: usize = 8;
const MOST_DEVICES: usize = 64;
/// NVIDIA's DRA driver for GPUs, and the resources of its device plugin.
const NVIDIA: &str = "gpu.nvidia.com";
const NVIDIA_RESOURCES: [&str; 2] = ["nvidia.com/gpu", "nvidia.com/mig-"];

/// What was published last: what was sent, and what the API server made of it.
type Published = (Vec<ResourceSliceSpec>, Vec<ResourceSlice>);

/// Keeps the slices as they should be, for ever.
pub async fn keep(plugin: Arc<Plugin>) {
    let mut changes = Box::pin(changes(&plugin));
    let mut look = tokio::time::interval(LOOK);
    let mut node: Option<Node> = None;
    let mut kept: Option<Published> = None;
    let mut said = Vec::new();
    let mut last: Option<Instant> = None;
    loop {
        let by_event = tokio::select! {
            change = changes.next() => match change {
                Some(Change::Node(new)) => {
                    node = new.map(|node| *node);
                    true
                }
                Some(Change::Slices) => true,
                None => return,
            },
            _ = look.tick() => false,
        };
        // The node is the owner of its slices, and says what is offered.
        let Some(node) = &node else { continue };
        let (wanted, mut words) = match wanted(&plugin, node).await {
            Ok(wanted) => wanted,
            Err(why) => {
                warn!("the node's GPUs are not known: {why}");
                continue;
            }
        };
        let is_new = kept.as_ref().is_none_or(|(sent, _)| *sent != wanted);
        if by_event || is_new {
            if let (Some(last), false) = (last, is_new) {
                tokio::time::sleep_until(last + PAUSE).await;
            }
            match publish(&plugin, node, &wanted, kept.as_ref()).await {
                Ok(None) => {}
                Ok(Some(slices)) => {
                    info!("{} slices are published", slices.len());
                    last = Some(Instant::now());
                    kept = Some((wanted, slices));
                }
                Err(error) => {
                    warn!("the slices cannot be published: {error}");
                    // The next look tries again: no event need come.
                    kept = None;
                }
            }
        }
        words.extend(kept.iter().flat_map(|(sent, kept)| dropped(sent, kept)));
        if words != said {
            words.iter().for_each(|word| warn!("{word}"));
            said = words;
        }
    }
}

/// What may change what is published.
enum Change {
    /// The node's object; `None` if there is none.
    Node(Option<Box<Node>>),
    /// A slice of the node.
    Slices,
}

/// The node and its slices as they change.
fn changes(plugin: &Plugin) -> impl Stream<Item = Change> + use<> {
    let slices = Api::<ResourceSlice>::all(plugin.client.clone());
    let config = watcher::Config::default().fields(&format!("spec.nodeName={}", plugin.node));
    let slices = watcher(slices, config).default_backoff().filter_map(async |event| match event {
        // The list at the start of a watch is not yet complete.
        Ok(Event::Init | Event::InitApply(_)) => None,
        Ok(_) => Some(Change::Slices),
        Err(error) => {
            warn!("the slices cannot be watched: {error}");
            None
        }
    });
    let node = watch_object(Api::<Node>::all(plugin.client.clone()), &plugin.node);
    let node = node.default_backoff().filter_map(async |node| match node {
        Ok(node) => Some(Change::Node(node.map(Box::new))),
        Err(error) => {
            warn!("the node cannot be watched: {error}");
            None
        }
    });
    futures_util::stream::select(node, slices)
}

/// The slices of this node, without a generation, and what an administrator should know of it.
async fn wanted(plugin: &Arc<Plugin>, node: &Node) -> Result<(Vec<ResourceSliceSpec>, Vec<String>), String> {
    let mut words = Vec::new();
    let beside = match nvidia(node) {
        None => slices_of_nvidia(plugin).await.map_err(|error| error.to_string())?,
        beside => beside,
    };
    let mut chosen = Chosen::of(node.labels(), &plugin.gpus)?;
    if let Some(beside) = beside {
        words.push(format!(
            "no GPU is offered: {beside} is on this node and gives out the same GPUs; take it off the node, or label the \
             node {}=none",
            crate::chosen::LABEL
        ));
        chosen = Chosen::None;
    }
    let read = move |plugin: &Plugin, config: &fgpu_engine::config::Config| {
        let inventory = match inventory(config) {
            Err(error) if error.code == Code::NoGpu => return Ok((Vec::new(), Some(error.to_string()))),
            inventory => inventory?,
        };
        let uuids = inventory.gpus.iter().filter(|gpu| chosen.has(gpu)).map(|gpu| gpu.uuid.clone());
        let uuids: Vec<_> = uuids.collect();
        let used = hold(config, &plugin.node, &uuids)?;
        let (rules, reserve) = (config.rules(), config.reserve_memory);
        let offer = Offer { inventory: &inventory, reserve, seen: &rules.seen };
        let all = offer.devices(|gpu| uuids.contains(&gpu.uuid) && !used.contains(&gpu.uuid));
        let waits = (!used.is_empty()).then(|| {
            format!("not offered until what is on them has ended, see fgpu status: {}", used.join(", "))
        });
        Ok((slices(&plugin.node, all), waits))
    };
    let (slices, more) = plugin.with_config(read).await?;
    words.extend(more);
    Ok((slices, words))
}

/// What of NVIDIA's device plugin a node's status tells.
fn nvidia(node: &Node) -> Option<String> {
    let capacity = node.status.as_ref()?.capacity.as_ref()?;
    let is_its = |name: &str| NVIDIA_RESOURCES.iter().any(|resource| name.starts_with(resource));
    let found = capacity.iter().find(|(name, amount)| is_its(name) && amount.0 != "0");
    found.map(|(name, amount)| format!("a device plugin of NVIDIA's ({name}: {})", amount.0))
}

async fn slices_of_nvidia(plugin: &Plugin) -> kube::Result<Option<String>> {
    let api: Api<ResourceSlice> = Api::all(plugin.client.clone());
    let selector = format!("spec.nodeName={},spec.driver={NVIDIA}", plugin.node);
    let there = api.list(&ListParams::default().fields(&selector).limit(1)).await?;
    Ok((!there.items.is_empty()).then(|| format!("the DRA driver {NVIDIA}")))
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

/// Makes the API server have these slices and no others of ours. `None` if it has them, or what it made of them
/// last time.
async fn publish(
    plugin: &Plugin,
    node: &Node,
    wanted: &[ResourceSliceSpec],
    kept: Option<&Published>,
) -> kube::Result<Option<Vec<ResourceSlice>>> {
    let api: Api<ResourceSlice> = Api::all(plugin.client.clone());
    let selector = format!("spec.nodeName={},spec.driver={DRIVER}", plugin.node);
    let there = api.list(&ListParams::default().fields(&selector)).await?.items;
    if is_one_pool(&there) {
        let has = specs(&there);
        match kept {
            Some((sent, slices)) if *sent == *wanted && specs(slices) == has => return Ok(None),
            None if specs_of(wanted) == has => return Ok(Some(there)),
            _ => {}
        }
    }
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

/// Whether all are of one generation, as kube-scheduler wants them.
fn is_one_pool(slices: &[ResourceSlice]) -> bool {
    slices.windows(2).all(|two| two[0].spec.pool.generation == two[1].spec.pool.generation)
}

/// What slices say apart from their generation, in their order.
fn specs(slices: &[ResourceSlice]) -> Vec<ResourceSliceSpec> {
    let mut slices: Vec<_> = slices.iter().collect();
    slices.sort_by_key(|slice| slice.name_any());
    let specs: Vec<_> = slices.into_iter().map(|slice| slice.spec.clone()).collect();
    specs_of(&specs)
}

fn specs_of(specs: &[ResourceSliceSpec]) -> Vec<ResourceSliceSpec> {
    let mut specs = specs.to_vec();
    specs.iter_mut().for_each(|spec| spec.pool.generation = 0);
    specs
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
    if lost(|device| device.taints.is_some()) {
        gates.push(gate("DRADeviceTaints", "unhealthy GPUs are given out; the node refuses their claims"));
    }
    gates
}

fn gate(name: &str, what: &str) -> String {
    format!("the API server has the feature gate {name} off (it is on since Kubernetes 1.36): {what}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::devices::tests::inventory;

    fn all(inventory: &fgpu_spec::Inventory) -> Devices {
        Offer { inventory, reserve: 0, seen: &BTreeMap::new() }.devices(|_| true)
    }

    #[test]
    fn nvidias_device_plugin_is_noticed() {
        let node = |capacity: serde_json::Value| -> Node {
            serde_json::from_value(serde_json::json!({"status": {"capacity": capacity}})).unwrap()
        };
        let found = nvidia(&node(serde_json::json!({"cpu": "2", "nvidia.com/gpu.shared": "8"})));
        assert!(found.is_some_and(|words| words.contains("nvidia.com/gpu.shared: 8")));
        assert!(nvidia(&node(serde_json::json!({"nvidia.com/mig-1g.10gb": "2"}))).is_some());
        assert_eq!(nvidia(&node(serde_json::json!({"nvidia.com/gpu": "0", "memory": "1Gi"}))), None);
        assert_eq!(nvidia(&Node::default()), None);
    }

    #[test]
    fn slices_are_compared_without_their_generation() {
        let slice = |name: &str, generation: i64| {
            let mut spec = slices("node1", all(&inventory(1))).remove(0);
            spec.pool.generation = generation;
            ResourceSlice { metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() }, spec }
        };
        assert_eq!(specs(&[slice("a", 1)]), specs(&[slice("a", 7)]));
        assert!(is_one_pool(&[slice("a", 7), slice("b", 7)]));
        assert!(!is_one_pool(&[slice("a", 7), slice("b", 8)]), "somebody died between the two");
    }

    #[test]
    fn counters_and_devices_are_in_slices_of_their_own() {
        let all = all(&inventory(16));
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
        let sent = slices("node1", all(&inventory(1)));
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
