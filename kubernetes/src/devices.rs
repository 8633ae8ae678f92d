//! What the node has, as the devices and counters of ResourceSlices (resource.k8s.io/v1).
//!
//! Each GPU is two devices over one counter. `gpu-0` is given out by bytes: `memory`, whole MiB, and `cores`,
//! percent of SM time. `gpu-0-share` is given out by `share`, percent of both. A device takes the counter with
//! its first allocation and gives it back with its last, so a GPU is used in one of the two ways at a time and
//! its memory is never given out twice.
//!
//! A request without a capacity gets a whole GPU: all of its memory, and with it all of its SM time, since no
//! other share is left on it. kube-scheduler takes the first device that fits, so the order here is `pack`.
//!
//! GPUs in MIG mode have no devices yet.

use std::collections::BTreeMap;

use fgpu_spec::{Gpu, Inventory, Seen};
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Counter, CounterSet, Device, DeviceAttribute,
    DeviceCapacity, DeviceCounterConsumption, DeviceTaint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::names::{CORES, MEMORY, SHARE, SHARE_DEVICE, device};

/// The counter of a GPU's set.
const WHOLE: &str = "whole";

/// The node's devices and the counters that they take.
#[derive(Debug, Clone, PartialEq)]
pub struct Devices {
    /// In the order in which they are tried.
    pub devices: Vec<Device>,
    /// One set for each GPU.
    pub counters: Vec<CounterSet>,
}

/// The devices of a node: `reserve` bytes of each GPU are never granted, and `seen` tells which GPUs are
/// unhealthy.
pub fn devices(inventory: &Inventory, reserve: u64, seen: &BTreeMap<String, Seen>) -> Devices {
    let mut all = Devices { devices: Vec::new(), counters: Vec::new() };
    for gpu in inventory.gpus.iter().filter(|gpu| !gpu.mig_enabled && gpu.usable_memory(reserve) > 0) {
        let name = device(gpu.minor);
        let sick = seen.get(&gpu.uuid).and_then(|seen| seen.unhealthy.as_ref());
        all.counters.push(CounterSet { name: name.clone(), counters: whole() });
        let by_bytes = BTreeMap::from([
            (MEMORY.to_owned(), memory(gpu.usable_memory(reserve) >> 20)),
            (CORES.to_owned(), percent(0, 0)),
        ]);
        let by_shares = BTreeMap::from([(SHARE.to_owned(), percent(1, 100))]);
        let share = format!("{name}{SHARE_DEVICE}");
        for (own, kind, capacity) in [(name.clone(), "memory", by_bytes), (share, "share", by_shares)] {
            all.devices.push(Device {
                name: own,
                allow_multiple_allocations: Some(true),
                attributes: Some(attributes(inventory, gpu, kind)),
                capacity: Some(capacity),
                consumes_counters: Some(vec![DeviceCounterConsumption {
                    counter_set: name.clone(),
                    counters: whole(),
                }]),
                taints: sick.map(|_| vec![taint()]),
                ..Device::default()
            });
        }
    }
    all
}

fn quantity(text: impl Into<String>) -> Quantity {
    Quantity(text.into())
}

fn whole() -> BTreeMap<String, Counter> {
    BTreeMap::from([(WHOLE.to_owned(), Counter { value: quantity("1") })])
}

fn memory(mebibytes: u64) -> DeviceCapacity {
    let all = quantity(format!("{mebibytes}Mi"));
    capacity(all.clone(), all, "1Mi", "1Mi")
}

fn percent(least: u32, default: u32) -> DeviceCapacity {
    capacity(quantity("100"), quantity(default.to_string()), &least.to_string(), "1")
}

fn capacity(value: Quantity, default: Quantity, least: &str, step: &str) -> DeviceCapacity {
    let range = CapacityRequestPolicyRange { min: quantity(least), max: None, step: Some(quantity(step)) };
    let policy =
        CapacityRequestPolicy { default: Some(default), valid_range: Some(range), valid_values: None };
    DeviceCapacity { request_policy: Some(policy), value }
}

fn taint() -> DeviceTaint {
    DeviceTaint {
        key: format!("{}/unhealthy", crate::names::DRIVER),
        effect: "NoSchedule".into(),
        ..DeviceTaint::default()
    }
}

fn attributes(inventory: &Inventory, gpu: &Gpu, kind: &str) -> BTreeMap<String, DeviceAttribute> {
    let text = |text: &str| DeviceAttribute { string: Some(cut(text)), ..DeviceAttribute::default() };
    let number = |number: u32| DeviceAttribute { int: Some(number.into()), ..DeviceAttribute::default() };
    let version = |text: String| DeviceAttribute { version: Some(text), ..DeviceAttribute::default() };
    let mut all = BTreeMap::from([
        // Which of the GPU's two devices it is: `memory` or `share`.
        ("kind".to_owned(), text(kind)),
        ("uuid".to_owned(), text(&gpu.uuid)),
        ("productName".to_owned(), text(&gpu.model)),
        ("pciBusID".to_owned(), text(&gpu.pci)),
        ("index".to_owned(), number(gpu.index)),
        ("minor".to_owned(), number(gpu.minor)),
    ]);
    all.extend(gpu.numa.map(|node| ("numaNode".to_owned(), number(node))));
    all.extend(semantic(&inventory.driver_version).map(|text| ("driverVersion".to_owned(), version(text))));
    let cuda = inventory.cuda_version;
    all.insert("cudaDriverVersion".to_owned(), version(format!("{}.{}.0", cuda / 1000, cuda % 1000 / 10)));
    all
}

/// At most 64 characters: the API server refuses a whole slice for one more.
fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

/// A driver's version as semver.org has it: `550.163.01` is `550.163.1`.
fn semantic(version: &str) -> Option<String> {
    let mut parts: Vec<u64> = version.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    parts.resize(3, 0);
    Some(format!("{}.{}.{}", parts[0], parts[1], parts[2]))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn inventory(gpus: u32) -> Inventory {
        let gpu = |index| Gpu {
            uuid: format!("GPU-{index:08x}-aaaa-bbbb-cccc-dddddddddddd"),
            index,
            minor: index,
            model: "NVIDIA H100 80GB HBM3".into(),
            pci: format!("00000000:{index:02X}:00.0"),
            numa: Some(index / 4),
            total_memory: 80 << 30,
            reserved_memory: 1 << 20,
            mig_enabled: false,
            context_memory: None,
            mig_profiles: Vec::new(),
        };
        Inventory {
            version: 1,
            boot_id: String::new(),
            root: "/".into(),
            driver_version: "550.163.01".into(),
            cuda_version: 12040,
            gpus: (0..gpus).map(gpu).collect(),
            driver_limits: false,
            topology: fgpu_spec::Topology::default(),
            files: Vec::new(),
        }
    }

    #[test]
    fn a_gpu_is_two_devices_over_one_counter() {
        let Devices { devices, counters } = devices(&inventory(1), 1 << 30, &BTreeMap::new());
        let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["gpu-0", "gpu-0-share"]);
        assert_eq!(counters.len(), 1);
        assert_eq!(devices[0].consumes_counters, devices[1].consumes_counters);
        assert_eq!(devices[0].consumes_counters.as_ref().unwrap()[0].counter_set, counters[0].name);
        assert_eq!(devices[0].consumes_counters.as_ref().unwrap()[0].counters, counters[0].counters);
        let policy = |device: usize, name: &str| {
            let capacity = &devices[device].capacity.as_ref().unwrap()[name];
            let policy = capacity.request_policy.clone().unwrap();
            let range = policy.valid_range.unwrap();
            [capacity.value.clone(), policy.default.unwrap(), range.min, range.step.unwrap()].map(|one| one.0)
        };
        assert_eq!(policy(0, MEMORY), ["80895Mi", "80895Mi", "1Mi", "1Mi"]);
        assert_eq!(policy(0, CORES), ["100", "0", "0", "1"]);
        assert_eq!(policy(1, SHARE), ["100", "100", "1", "1"]);
        let attributes = devices[0].attributes.as_ref().unwrap();
        assert_eq!(attributes["driverVersion"].version.as_deref(), Some("550.163.1"));
        assert_eq!(attributes["cudaDriverVersion"].version.as_deref(), Some("12.4.0"));
        assert_eq!(attributes["kind"].string.as_deref(), Some("memory"));
    }

    #[test]
    fn gpus_in_mig_mode_have_none_and_unhealthy_ones_are_tainted() {
        let mut inventory = inventory(8);
        inventory.gpus[3].mig_enabled = true;
        let sick = Seen {
            uuid: inventory.gpus[5].uuid.clone(),
            unhealthy: Some("fell off the bus".into()),
            ..Seen::default()
        };
        let Devices { devices, counters } =
            devices(&inventory, 0, &BTreeMap::from([(sick.uuid.clone(), sick)]));
        assert_eq!((devices.len(), counters.len()), (14, 7));
        assert!(!devices.iter().any(|device| device.name.starts_with("gpu-3")));
        for device in &devices {
            assert_eq!(device.taints.is_some(), device.name.starts_with("gpu-5"), "{}", device.name);
        }
    }

    #[test]
    fn versions_of_drivers_are_semantic() {
        assert_eq!(semantic("615.12").as_deref(), Some("615.12.0"));
        assert_eq!(semantic("beta"), None);
    }
}
