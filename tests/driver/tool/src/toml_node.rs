//! The TOML file that describes a node, and the node that it becomes.
//!
//! ```toml
//! driver-version = "550.163.01"   # must be that of the nvidia-smi in use
//! cuda-version = "12.4"
//! memory-limits = true            # by cgroup, as drivers from r615 on have them
//!
//! [[gpu]]
//! preset = "h100-80"              # one of `preset.rs`
//! count = 2                       # so many of them, from here on by default 1
//! ```
//!
//! The other keys of a `[[gpu]]` change what the preset says: `model`, `memory-mib`, `reserved-mib`,
//! `context-mib` (what a context costs), `wave-us` (how long one wave of blocks of an ordinary kernel takes),
//! `mig` (whether MIG mode is enabled), `nvlinks` (how many it has) and `nvlink-group` (with whom: two GPUs
//! of a group are linked directly, more of them over switches), and, for a single GPU: `uuid`, `minor`,
//! `pci`, `numa`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sim_node::config::{Gpu, LAYOUT, MAGIC, MAX_GPUS, Node, Text};
use thiserror::Error;

use crate::preset::{self, Preset};

/// What every model's name begins with: nobody shall take a simulated GPU for a real one.
pub(crate) const MARK: &str = "Simulated ";

const MIB: u64 = 1 << 20;
/// `NVML_NVLINK_MAX_LINKS`.
const MOST_NVLINKS: u32 = 18;

#[derive(Debug, Error)]
pub(crate) enum Error {
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    #[error("{}: {error}", path.display())]
    Syntax { path: PathBuf, error: toml::de::Error },
    #[error("{}: {message}", path.display())]
    Meaning { path: PathBuf, message: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct NodeToml {
    #[serde(default = "default_driver")]
    driver_version: String,
    #[serde(default = "default_cuda")]
    cuda_version: String,
    /// Whether it limits memory by cgroup, as drivers from r615 on do.
    #[serde(default)]
    memory_limits: bool,
    gpu: Vec<GpuToml>,
}

fn default_driver() -> String {
    "550.163.01".into()
}

fn default_cuda() -> String {
    "12.4".into()
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct GpuToml {
    preset: String,
    #[serde(default = "one")]
    count: usize,
    model: Option<String>,
    uuid: Option<String>,
    memory_mib: Option<u64>,
    reserved_mib: Option<u64>,
    #[serde(default)]
    context_mib: u64,
    #[serde(default = "default_wave")]
    wave_us: u64,
    minor: Option<u32>,
    pci: Option<String>,
    numa: Option<i32>,
    #[serde(default)]
    mig: bool,
    #[serde(default)]
    nvlinks: u32,
    #[serde(default)]
    nvlink_group: u32,
}

fn one() -> usize {
    1
}

/// Microseconds: about what a small kernel takes.
fn default_wave() -> u64 {
    5
}

/// Reads a node's description.
pub(crate) fn read(path: &Path) -> Result<Node, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::Read(path.into(), error))?;
    let toml: NodeToml = toml::from_str(&text).map_err(|error| Error::Syntax { path: path.into(), error })?;
    node(&toml).map_err(|message| Error::Meaning { path: path.into(), message })
}

fn node(toml: &NodeToml) -> Result<Node, String> {
    let mut gpus = Vec::new();
    for entry in &toml.gpu {
        if entry.count != 1 && (entry.uuid.is_some() || entry.minor.is_some() || entry.pci.is_some()) {
            return Err("uuid, minor and pci need a [[gpu]] of their own (count = 1)".into());
        }
        for _ in 0..entry.count {
            gpus.push(gpu(entry, gpus.len() as u32)?);
        }
    }
    if gpus.is_empty() || gpus.len() > MAX_GPUS {
        return Err(format!("{} GPUs; a node has 1 to {MAX_GPUS}", gpus.len()));
    }
    for (i, gpu) in gpus.iter().enumerate() {
        let address = |gpu: &Gpu| (gpu.pci_domain, gpu.pci_bus, gpu.pci_device);
        let same = |other: &&Gpu| {
            other.minor == gpu.minor || other.uuid_bytes == gpu.uuid_bytes || address(other) == address(gpu)
        };
        if gpus[..i].iter().any(|other| same(&other)) {
            return Err(format!("GPU {i} has the minor, the uuid or the pci address of another one"));
        }
    }
    let mut node = Node {
        magic: MAGIC,
        layout: LAYOUT,
        size: size_of::<Node>() as u32,
        gpu_count: gpus.len() as u32,
        cuda_version: cuda_version(&toml.cuda_version)?,
        memory_limits: u32::from(toml.memory_limits),
        reserved: 0,
        driver_version: Text::new(&toml.driver_version),
        gpus: [NO_GPU; MAX_GPUS],
    };
    node.gpus[..gpus.len()].copy_from_slice(&gpus);
    Ok(node)
}

/// `12.4` → 12040.
fn cuda_version(text: &str) -> Result<u32, String> {
    let parse = || {
        let (major, minor) = text.split_once('.')?;
        Some(major.parse::<u32>().ok()? * 1000 + minor.parse::<u32>().ok()? * 10)
    };
    parse().ok_or_else(|| format!("cuda-version {text:?} is not <major>.<minor>"))
}

fn gpu(toml: &GpuToml, index: u32) -> Result<Gpu, String> {
    let preset = preset::named(&toml.preset).ok_or_else(|| {
        let known: Vec<_> = preset::PRESETS.iter().map(|preset| preset.name).collect();
        format!("no preset {:?}; there are {}", toml.preset, known.join(", "))
    })?;
    let model = toml.model.as_deref().unwrap_or(preset.model);
    let name = if model.starts_with(MARK) { model.to_owned() } else { format!("{MARK}{model}") };
    let uuid_bytes = match &toml.uuid {
        Some(text) => parse_uuid(text)?,
        None => derive_uuid(&format!("{index} {name}")),
    };
    let (pci_domain, pci_bus, pci_device) = match &toml.pci {
        Some(text) => parse_pci(text)?,
        None => (0, 0x18 + 0x10 * index, 0),
    };
    if toml.nvlinks > MOST_NVLINKS {
        return Err(format!("GPU {index} has {} NVLinks; NVML knows of {MOST_NVLINKS}", toml.nvlinks));
    }
    let memory_total = toml.memory_mib.unwrap_or(preset.memory_mib) * MIB;
    let memory_reserved = toml.reserved_mib.unwrap_or(preset.reserved_mib) * MIB;
    if memory_reserved >= memory_total {
        return Err(format!("GPU {index} reserves all of its memory"));
    }
    Ok(Gpu {
        name: Text::new(&name),
        uuid: Text::new(&format!("GPU-{}", format_uuid(&uuid_bytes))),
        uuid_bytes,
        serial: Text::new(&format!("5{:012}", index + 1)),
        memory_total,
        memory_reserved,
        context_bytes: toml.context_mib * MIB,
        wave_ns: toml.wave_us * 1000,
        minor: toml.minor.unwrap_or(index),
        pci_domain,
        pci_bus,
        pci_device,
        numa_node: toml.numa.unwrap_or(index as i32 / 4),
        mig_enabled: u32::from(toml.mig),
        nvlinks: toml.nvlinks,
        nvlink_group: toml.nvlink_group,
        ..of_preset(preset)
    })
}

fn of_preset(preset: &Preset) -> Gpu {
    Gpu {
        pci_id: preset.pci_id,
        pci_subsystem_id: preset.pci_subsystem_id,
        sm_count: preset.sm_count,
        cores_per_sm: preset.cores_per_sm,
        capability_major: preset.capability.0,
        capability_minor: preset.capability.1,
        architecture: preset.architecture,
        sm_clock: preset.sm_clock,
        memory_clock: preset.memory_clock,
        bus_width: preset.bus_width,
        l2_cache: preset.l2_mib << 20,
        power_limit: preset.power_limit_watts * 1000,
        pcie_generation: preset.pcie_generation,
        mig_geometry: preset.geometry as u32,
        ..NO_GPU
    }
}

/// A place in the file that no GPU has.
const NO_GPU: Gpu = Gpu {
    name: Text::EMPTY,
    uuid: Text::EMPTY,
    uuid_bytes: [0; 16],
    serial: Text::EMPTY,
    memory_total: 0,
    memory_reserved: 0,
    context_bytes: 0,
    wave_ns: 0,
    minor: 0,
    pci_domain: 0,
    pci_bus: 0,
    pci_device: 0,
    pci_id: 0,
    pci_subsystem_id: 0,
    numa_node: -1,
    sm_count: 0,
    cores_per_sm: 0,
    capability_major: 0,
    capability_minor: 0,
    architecture: 0,
    sm_clock: 0,
    memory_clock: 0,
    bus_width: 0,
    l2_cache: 0,
    power_limit: 0,
    pcie_generation: 0,
    mig_geometry: 0,
    mig_enabled: 0,
    nvlinks: 0,
    nvlink_group: 0,
};

/// The same GPU of the same description has the same UUID on every machine: FNV-1a over its name and index,
/// marked as a UUID of version 8 (made by a rule of one's own).
fn derive_uuid(seed: &str) -> [u8; 16] {
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;
    const BASIS: u128 = 0x6C62_272E_07BB_0142_62B8_2175_6295_C58D;
    let hash = seed.bytes().fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    let mut bytes = hash.to_be_bytes();
    bytes[6] = bytes[6] & 0x0F | 0x80;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    bytes
}

fn format_uuid(bytes: &[u8; 16]) -> String {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..4], &hex[4..6], &hex[6..8], &hex[8..10], &hex[10..]].map(|part| part.concat()).join("-")
}

fn parse_uuid(text: &str) -> Result<[u8; 16], String> {
    let digits: String = text.trim_start_matches("GPU-").chars().filter(|c| *c != '-').collect();
    let value = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32);
    value.map(u128::to_be_bytes).ok_or_else(|| format!("uuid {text:?} is not GPU- and a UUID"))
}

/// `domain:bus:device.0`, hexadecimal.
fn parse_pci(text: &str) -> Result<(u32, u32, u32), String> {
    let parse = || {
        let mut numbers = text.strip_suffix(".0")?.split(':').map(|part| u32::from_str_radix(part, 16).ok());
        let address = (numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(address)
    };
    parse().ok_or_else(|| format!("pci {text:?} is not <domain>:<bus>:<device>.0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(toml: &str) -> Result<Node, String> {
        node(&toml::from_str(toml).map_err(|error| error.to_string())?)
    }

    #[test]
    fn every_name_says_that_it_is_simulated() {
        let node = parsed("[[gpu]]\npreset = 'a30'\nmodel = 'Z9'\n[[gpu]]\npreset = 'h100-80'").unwrap();
        assert_eq!(node.gpus[0].name.as_str(), "Simulated Z9");
        assert_eq!(node.gpus[1].name.as_str(), "Simulated H100 80GB HBM3");
    }

    #[test]
    fn a_derived_uuid_is_the_same_every_time_and_different_for_every_gpu() {
        let toml = "[[gpu]]\npreset = 'h100-80'\ncount = 8";
        let (one, two) = (parsed(toml).unwrap(), parsed(toml).unwrap());
        let uuids: std::collections::BTreeSet<_> = one.gpus().iter().map(|gpu| gpu.uuid_bytes).collect();
        assert_eq!(uuids.len(), 8);
        assert_eq!(one.as_bytes(), two.as_bytes());
    }

    #[test]
    fn a_given_uuid_and_address_are_kept() {
        let toml = "[[gpu]]\npreset = 'a30'\nuuid = 'GPU-01234567-89ab-cdef-0123-456789abcdef'\npci = '0001:af:00.0'";
        let gpu = parsed(toml).unwrap().gpus[0];
        assert_eq!(gpu.uuid.as_str(), "GPU-01234567-89ab-cdef-0123-456789abcdef");
        assert_eq!((gpu.pci_domain, gpu.pci_bus), (1, 0xAF));
    }

    #[test]
    fn nonsense_is_refused() {
        for toml in [
            "gpu = []",
            "[[gpu]]\npreset = 'h100-80'\ncount = 9",
            "[[gpu]]\npreset = 'riva-tnt'",
            "[[gpu]]\npreset = 'a30'\ncolour = 'green'",
            "[[gpu]]\npreset = 'a30'\nuuid = 'GPU-1'",
            "[[gpu]]\npreset = 'a30'\nminor = 3\ncount = 2",
            "[[gpu]]\npreset = 'a30'\nminor = 3\n[[gpu]]\npreset = 'a30'\nminor = 3",
            "[[gpu]]\npreset = 'a30'\nmemory-mib = 100\nreserved-mib = 100",
            "[[gpu]]\npreset = 'a30'\nnvlinks = 19",
            "cuda-version = '12'\n[[gpu]]\npreset = 'a30'",
        ] {
            assert!(parsed(toml).is_err(), "{toml}");
        }
    }
}
