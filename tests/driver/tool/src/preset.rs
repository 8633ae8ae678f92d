//! What the GPUs that can be simulated are like. The figures are those of the data sheets and of what NVML
//! answers on such GPUs.

use sim_node::mig::Geometry;

/// A kind of GPU.
pub(crate) struct Preset {
    pub(crate) name: &'static str,
    /// Model, without the `Simulated ` in front.
    pub(crate) model: &'static str,
    pub(crate) memory_mib: u64,
    pub(crate) reserved_mib: u64,
    pub(crate) pci_id: u32,
    pub(crate) pci_subsystem_id: u32,
    pub(crate) sm_count: u32,
    pub(crate) cores_per_sm: u32,
    pub(crate) capability: (u32, u32),
    /// `nvmlDeviceArchitecture_t`.
    pub(crate) architecture: u32,
    /// MHz.
    pub(crate) sm_clock: u32,
    /// MHz.
    pub(crate) memory_clock: u32,
    /// Bits.
    pub(crate) bus_width: u32,
    pub(crate) l2_mib: u32,
    pub(crate) power_limit_watts: u32,
    pub(crate) pcie_generation: u32,
    pub(crate) geometry: Geometry,
}

const AMPERE: u32 = 7;
const HOPPER: u32 = 9;

/// Every preset.
pub(crate) const PRESETS: [Preset; 3] = [
    Preset {
        name: "h100-80",
        model: "H100 80GB HBM3",
        memory_mib: 81_559,
        reserved_mib: 551,
        pci_id: 0x2330_10DE,
        pci_subsystem_id: 0x16C1_10DE,
        sm_count: 132,
        cores_per_sm: 128,
        capability: (9, 0),
        architecture: HOPPER,
        sm_clock: 1980,
        memory_clock: 2619,
        bus_width: 5120,
        l2_mib: 50,
        power_limit_watts: 700,
        pcie_generation: 5,
        geometry: Geometry::H100_80,
    },
    Preset {
        name: "a100-40",
        model: "A100-SXM4-40GB",
        memory_mib: 40_960,
        reserved_mib: 571,
        pci_id: 0x20B0_10DE,
        pci_subsystem_id: 0x134F_10DE,
        sm_count: 108,
        cores_per_sm: 64,
        capability: (8, 0),
        architecture: AMPERE,
        sm_clock: 1410,
        memory_clock: 1215,
        bus_width: 5120,
        l2_mib: 40,
        power_limit_watts: 400,
        pcie_generation: 4,
        geometry: Geometry::A100_40,
    },
    Preset {
        name: "a30",
        model: "A30",
        memory_mib: 24_576,
        reserved_mib: 328,
        pci_id: 0x20B7_10DE,
        pci_subsystem_id: 0x1532_10DE,
        sm_count: 56,
        cores_per_sm: 64,
        capability: (8, 0),
        architecture: AMPERE,
        sm_clock: 1440,
        memory_clock: 1215,
        bus_width: 3072,
        l2_mib: 24,
        power_limit_watts: 165,
        pcie_generation: 4,
        geometry: Geometry::A30_24,
    },
];

/// The preset of that name.
pub(crate) fn named(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|preset| preset.name == name)
}
