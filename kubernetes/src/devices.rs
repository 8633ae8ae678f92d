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
//! A GPU in MIG mode is a device for each place of each of its profiles. They share counters: one for each
//! memory slice, one of compute slices, and one of each profile of which the driver makes fewer than there are
//! places. Of a profile the place comes first that leaves the most to others.

use std::collections::BTreeMap;
use std::path::Path;

use fgpu_engine::claims::placements;
use fgpu_spec::{Gpu, Inventory, Seen};
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, CapacityRequestPolicyRange, Counter, CounterSet, Device, DeviceAttribute,
    DeviceCapacity, DeviceCounterConsumption, DeviceTaint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::names::{CORES, MEMORY, SHARE, SHARE_DEVICE, SLICES, device, label, slice};

/// The counter of a GPU that is not in MIG mode.
const WHOLE: &str = "whole";
/// An attribute that all drivers have in common.
const PCIE_ROOT: &str = "resource.kubernetes.io/pcieRoot";

/// The node's devices and the counters that they take.
#[derive(Debug, Clone, PartialEq)]
pub struct Devices {
    /// In the order in which they are tried.
    pub devices: Vec<Device>,
    /// One set for each GPU.
    pub counters: Vec<CounterSet>,
}

/// What decides what a node offers.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// What the node has.
    pub inventory: &'a Inventory,
    /// Bytes of each GPU that are never granted.
    pub reserve: u64,
    /// What was last seen of each GPU, by UUID.
    pub seen: &'a BTreeMap<String, Seen>,
}

impl Offer<'_> {
    /// The devices of those GPUs of a node that are `offered`.
    pub fn devices(&self, offered: impl Fn(&Gpu) -> bool) -> Devices {
        let mut all = Devices { devices: Vec::new(), counters: Vec::new() };
        for gpu in self.inventory.gpus.iter().filter(|gpu| offered(gpu)) {
            let (counters, mut devices) = if gpu.mig_enabled { self.slices(gpu) } else { self.whole(gpu) };
            if devices.is_empty() {
                continue;
            }
            if self.seen.get(&gpu.uuid).is_some_and(|seen| seen.unhealthy.is_some()) {
                devices.iter_mut().for_each(|device| device.taints = Some(vec![taint()]));
            }
            all.counters.push(CounterSet { name: device(gpu.minor), counters });
            all.devices.append(&mut devices);
        }
        all
    }

    /// A GPU by bytes and by shares.
    fn whole(&self, gpu: &Gpu) -> (BTreeMap<String, Counter>, Vec<Device>) {
        let usable = gpu.usable_memory(self.reserve);
        if usable == 0 {
            return Default::default();
        }
        let name = device(gpu.minor);
        let by_bytes =
            BTreeMap::from([(MEMORY.to_owned(), memory(usable >> 20)), (CORES.to_owned(), percent(0, 0))]);
        let by_shares = BTreeMap::from([(SHARE.to_owned(), percent(1, 100))]);
        let share = format!("{name}{SHARE_DEVICE}");
        let devices = [(name.clone(), "memory", by_bytes), (share, "share", by_shares)];
        let devices = devices.map(|(own, kind, capacity)| Device {
            name: own,
            allow_multiple_allocations: Some(true),
            attributes: Some(attributes(self.inventory, gpu, kind)),
            capacity: Some(capacity),
            consumes_counters: Some(consumes(&name, whole())),
            ..Device::default()
        });
        (whole(), devices.into())
    }

    /// A GPU in MIG mode: a device for each place of each profile.
    fn slices(&self, gpu: &Gpu) -> (BTreeMap<String, Counter>, Vec<Device>) {
        let mut profiles: Vec<_> = gpu.mig_profiles.iter().collect();
        profiles.sort_by_key(|profile| (profile.memory, profile.slices, profile.id));
        let mut counters = BTreeMap::new();
        let most = profiles.iter().map(|profile| profile.slices).max().unwrap_or(0);
        counters.insert(SLICES.to_owned(), count(most));
        let mut devices = Vec::new();
        for profile in profiles {
            let scarce = (profile.most as usize) < profile.placements.len();
            let own = format!("most-{}", label(&profile.name));
            if scarce {
                counters.insert(own.clone(), count(profile.most));
            }
            for placement in placements(&gpu.mig_profiles, profile) {
                let mut takes = BTreeMap::from([(SLICES.to_owned(), count(profile.slices))]);
                for at in placement.start..placement.start + placement.size {
                    takes.insert(memory_slice(at), count(1));
                    counters.insert(memory_slice(at), count(1));
                }
                if scarce {
                    takes.insert(own.clone(), count(1));
                }
                let mut attributes = attributes(self.inventory, gpu, "mig");
                attributes.insert("profile".to_owned(), text(&profile.name));
                let size = |value: String| DeviceCapacity { request_policy: None, value: quantity(value) };
                devices.push(Device {
                    name: slice(gpu.minor, profile, placement),
                    attributes: Some(attributes),
                    capacity: Some(BTreeMap::from([
                        (MEMORY.to_owned(), size(format!("{}Mi", profile.memory >> 20))),
                        ("multiprocessors".to_owned(), size(profile.multiprocessors.to_string())),
                    ])),
                    consumes_counters: Some(consumes(&device(gpu.minor), takes)),
                    ..Device::default()
                });
            }
        }
        (counters, devices)
    }
}

fn consumes(set: &str, counters: BTreeMap<String, Counter>) -> Vec<DeviceCounterConsumption> {
    vec![DeviceCounterConsumption { counter_set: set.to_owned(), counters }]
}

fn count(number: u32) -> Counter {
    Counter { value: quantity(number.to_string()) }
}

fn memory_slice(at: u32) -> String {
    format!("memory-slice-{at}")
}

fn quantity(text: impl Into<String>) -> Quantity {
    Quantity(text.into())
}

fn whole() -> BTreeMap<String, Counter> {
    BTreeMap::from([(WHOLE.to_owned(), count(1))])
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

fn text(text: &str) -> DeviceAttribute {
    DeviceAttribute { string: Some(cut(text)), ..DeviceAttribute::default() }
}

fn number(number: u32) -> DeviceAttribute {
    DeviceAttribute { int: Some(number.into()), ..DeviceAttribute::default() }
}

fn version(text: String) -> DeviceAttribute {
    DeviceAttribute { version: Some(text), ..DeviceAttribute::default() }
}

fn attributes(inventory: &Inventory, gpu: &Gpu, kind: &str) -> BTreeMap<String, DeviceAttribute> {
    let mut all = BTreeMap::from([
        // Which way of giving it out: `memory`, `share` or `mig`.
        ("kind".to_owned(), text(kind)),
        ("uuid".to_owned(), text(&gpu.uuid)),
        ("productName".to_owned(), text(&gpu.model)),
        ("pciBusID".to_owned(), text(&gpu.pci)),
        ("index".to_owned(), number(gpu.index)),
        ("minor".to_owned(), number(gpu.minor)),
    ]);
    if let Some(capability) = &gpu.compute_capability {
        all.insert("cudaComputeCapability".to_owned(), version(format!("{capability}.0")));
        all.extend(architecture(capability).map(|name| ("architecture".to_owned(), text(name))));
    }
    all.extend(gpu.numa.map(|node| ("numaNode".to_owned(), number(node))));
    all.extend(pcie_root(Path::new("/sys"), &gpu.pci).map(|root| (PCIE_ROOT.to_owned(), text(&root))));
    all.extend(nvlink_domain(inventory, gpu).map(|domain| ("nvlinkDomain".to_owned(), number(domain))));
    all.extend(semantic(&inventory.driver_version).map(|text| ("driverVersion".to_owned(), version(text))));
    let cuda = inventory.cuda_version;
    all.insert("cudaDriverVersion".to_owned(), version(format!("{}.{}.0", cuda / 1000, cuda % 1000 / 10)));
    all
}

/// The name of an architecture by its compute capability (CUDA C++ Programming Guide, "Compute Capabilities").
fn architecture(capability: &str) -> Option<&'static str> {
    let (major, minor) = capability.split_once('.')?;
    Some(match (major, minor) {
        ("5", _) => "Maxwell",
        ("6", _) => "Pascal",
        ("7", "5") => "Turing",
        ("7", _) => "Volta",
        ("8", "9") => "Ada Lovelace",
        ("8", _) => "Ampere",
        ("9", _) => "Hopper",
        ("10" | "11" | "12", _) => "Blackwell",
        _ => return None,
    })
}

/// The root of a GPU's PCI tree, `pci0000:3a`, by which other drivers tell what is near it
/// (k8s.io/dynamic-resource-allocation/deviceattribute). The kernel's address has a domain of four digits.
fn pcie_root(sys: &Path, pci: &str) -> Option<String> {
    let address = pci.to_ascii_lowercase();
    let address = if address.len() == 16 { &address[4..] } else { &address };
    let device = std::fs::canonicalize(sys.join("bus/pci/devices").join(address)).ok()?;
    let mut parts = device.iter().filter_map(|part| part.to_str());
    parts.find(|part| part.starts_with("pci")).map(str::to_owned)
}

/// Which GPUs are connected by NVLinks, directly or over others: they have one number, the least index of
/// them. `None` for a GPU without NVLinks.
fn nvlink_domain(inventory: &Inventory, gpu: &Gpu) -> Option<u32> {
    let linked =
        |one: usize, other: usize| inventory.topology.link(one, other).is_some_and(|link| link.nvlinks > 0);
    let own = inventory.gpus.iter().position(|one| one.uuid == gpu.uuid)?;
    let mut domain = vec![own];
    let mut next = 0;
    while let Some(&one) = domain.get(next) {
        let more = (0..inventory.gpus.len()).filter(|&other| linked(one, other) && !domain.contains(&other));
        domain.extend(more.collect::<Vec<_>>());
        next += 1;
    }
    if domain.len() < 2 {
        return None;
    }
    domain.iter().map(|&at| inventory.gpus[at].index).min()
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
pub(crate) mod tests;
