//! How the GPUs are connected, as NVML tells it. What it does not tell is taken for the longest way: the
//! connections only order GPUs that would serve a request equally well.

use fgpu_spec::{Gpu, Link, Path, Topology};
use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::nvlink::{Remote, remote};
use super::sysfs_name;

/// `NVML_NVLINK_MAX_LINKS` of the newest header there is, and the end of the loop on a GPU that has fewer is
/// [`NvmlError::InvalidArg`].
const MOST_LINKS: u32 = 36;
/// PCI vendor of NVIDIA's GPUs and switches.
const NVIDIA: u32 = 0x10DE;

/// The connections of `gpus`.
pub(super) fn topology(nvml: &Nvml, gpus: &[Gpu]) -> Topology {
    let addresses: Vec<_> = gpus.iter().map(|gpu| sysfs_name(&gpu.pci)).collect();
    let devices: Vec<_> = gpus.iter().map(|gpu| nvml.device_by_index(gpu.index).ok()).collect();
    let nvlinks: Vec<_> = devices.iter().map(|device| NvLinks::of(device.as_ref(), &addresses)).collect();
    Topology::new(gpus.len(), |one, other| Link {
        nvlinks: nvlinks[one].to(other, &nvlinks[other]),
        path: path(&devices, one, other).unwrap_or_else(|| by_numa(&gpus[one], &gpus[other])),
    })
}

fn path(devices: &[Option<Device<'_>>], one: usize, other: usize) -> Option<Path> {
    // `topology_common_ancestor` wants the other device by value.
    let second = devices[other].as_ref()?;
    let second = second.nvml().device_by_index(second.index().ok()?).ok()?;
    Some(match devices[one].as_ref()?.topology_common_ancestor(second).ok()? {
        TopologyLevel::Internal => Path::Board,
        TopologyLevel::Single => Path::Switch,
        TopologyLevel::Multiple => Path::Switches,
        TopologyLevel::HostBridge => Path::HostBridge,
        TopologyLevel::Node => Path::Node,
        TopologyLevel::System => Path::System,
    })
}

fn by_numa(one: &Gpu, other: &Gpu) -> Path {
    if one.numa.is_some() && one.numa == other.numa { Path::Node } else { Path::System }
}

/// Where the active NVLinks of one GPU lead.
struct NvLinks {
    /// To the GPU at each place.
    direct: Vec<u8>,
    /// To NVSwitches, behind which are all GPUs with such links.
    switched: u8,
}

impl NvLinks {
    fn of(device: Option<&Device<'_>>, addresses: &[Option<String>]) -> Self {
        let mut links = Self { direct: vec![0; addresses.len()], switched: 0 };
        let Some(device) = device else { return links };
        for number in 0..MOST_LINKS {
            let link = device.link_wrapper_for(number);
            match link.is_active() {
                Ok(true) => {}
                Ok(false) => continue,
                // There is no such link, or the GPU has none.
                Err(NvmlError::InvalidArg | NvmlError::NotSupported) => break,
                Err(_) => continue,
            }
            let kind = remote(device, number);
            if kind == Remote::Switch {
                links.switched += 1;
                continue;
            }
            let Ok(end) = link.remote_pci_info() else { continue };
            let address = sysfs_name(&end.bus_id);
            match addresses.iter().position(|known| known.is_some() && *known == address) {
                Some(place) => links.direct[place] += 1,
                // A driver before 470 tells no kind: what is NVIDIA's and no GPU of ours is taken for a
                // switch.
                None if kind == Remote::Unknown && end.pci_device_id & 0xFFFF == NVIDIA => {
                    links.switched += 1
                }
                None => {}
            }
        }
        links
    }

    /// Links to the GPU at a place, whose links are `its`.
    fn to(&self, place: usize, its: &Self) -> u8 {
        self.direct[place].saturating_add(self.switched.min(its.switched))
    }
}
