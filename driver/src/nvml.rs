//! The probe: asks NVML which GPUs there are.
//!
//! NVML is loaded into the calling process, where it may crash or hang with the driver. Only the `fgpu`
//! command does this, in a process that does nothing else.

#![expect(unsafe_code, reason = "functions of NVML that nvml-wrapper does not wrap")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use fgpu_spec::{Code, DriverFile, Error, FileKind, Gpu, Inventory, MigProfile};
use nvml_wrapper::Device;
pub use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::cache::{self, FORMAT};
use crate::context::{self, Holder};
use crate::files;
use crate::limits::Limiter;
use crate::procfs::{boot_id, of, running_version};

pub mod health;
pub mod mig;
mod nvlink;
mod processes;
mod topology;

pub use processes::processes;

/// `MigMode::current` of a GPU on which MIG is on (`NVML_DEVICE_MIG_ENABLE`).
const MIG_ENABLED: u32 = 1;

/// A GPU of which something cannot be told: NVML counts it but will not describe it (it has fallen off the
/// bus, needs a reset, or is not ours to see), or it is in no state to be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    /// NVML's index on the host.
    pub index: u32,
    /// What NVML says, with the call that said it.
    pub reason: String,
}

/// What a probe found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Everything that can be used. At least one GPU.
    pub inventory: Inventory,
    /// GPUs that are left out of it.
    pub unusable: Vec<Unusable>,
    /// GPUs of which it is not known what a context takes, and why.
    pub unmeasured: Vec<Unusable>,
}

/// Probes the driver under `root` and stores what it found in `state_dir`, for [`load`](crate::load). Two
/// that refresh at once do it one after the other, so that what was found last is what stays. What a context
/// takes of a model of GPU is measured once under a driver: what the stored inventory says of it stays.
///
/// # Errors
/// See [`inspect`]. Then there is no stored inventory, not even an old one: what it said is not so any more.
pub fn refresh(root: &Path, state_dir: &Path, holder: Holder<'_>) -> Result<Probe, Error> {
    refresh_and(root, state_dir, holder, &mut |_, _| ())
}

/// As [`refresh`]. What was found is shown to `look` while NVML is there: to initialise it takes long.
///
/// # Errors
/// As [`refresh`].
pub fn refresh_and(
    root: &Path,
    state_dir: &Path,
    holder: Holder<'_>,
    look: &mut dyn FnMut(&Nvml, &Inventory),
) -> Result<Probe, Error> {
    let _lock = cache::lock(state_dir, cache::PROBE_LOCK)?;
    let known = cache::stored(state_dir);
    let found = inspect(root, known.as_ref(), holder, look)
        .and_then(|probe| cache::store(state_dir, &probe.inventory).map(|()| probe));
    found.or_else(|error| cache::forget(state_dir).and(Err(error)))
}

/// Looks at the driver under `root`: the running version from the kernel, its files from the file system, the
/// GPUs from the NVML of that version, and what a context takes from a process that `holder` starts. A GPU in
/// error does not hide the others.
///
/// # Errors
/// `no-gpu` if no driver is loaded or it drives no GPU; `gpu-unhealthy` if all GPUs are in error;
/// `driver-error` if the driver's libraries are not installed or NVML refuses.
fn inspect(
    root: &Path,
    known: Option<&Inventory>,
    holder: Holder<'_>,
    look: &mut dyn FnMut(&Nvml, &Inventory),
) -> Result<Probe, Error> {
    let (nvml, driver_version, files) = load(root)?;
    let (mut gpus, unusable) = all_gpus(root, &nvml)?;
    let known = known.filter(|known| known.driver_version == driver_version && known.root == root);
    let sizes = known.into_iter().flat_map(|known| &known.gpus);
    let sizes = sizes.filter_map(|gpu| Some((gpu.model.clone(), gpu.context_memory?))).collect();
    let libcuda = files.iter().find(|file| file.kind == FileKind::Library && file.name == "libcuda.so.1");
    let start = || libcuda.map(|file| holder(&file.host));
    let unmeasured = contexts(&nvml, &mut gpus, sizes, &start);
    let inventory = Inventory {
        version: FORMAT,
        boot_id: boot_id()?,
        root: root.to_owned(),
        driver_version,
        cuda_version: cuda_version(&nvml),
        driver_limits: driver_limits(&files, &gpus),
        topology: topology::topology(&nvml, &gpus),
        gpus,
        files,
    };
    look(&nvml, &inventory);
    Ok(Probe { inventory, unusable, unmeasured })
}

/// Loads the NVML of the running driver under `root` into this process.
///
/// # Errors
/// See [`refresh`].
pub fn open(root: &Path) -> Result<Nvml, Error> {
    load(root).map(|(nvml, ..)| nvml)
}

fn load(root: &Path) -> Result<(Nvml, String, Vec<DriverFile>), Error> {
    let driver_version = running_version(root)?;
    let files = files::find(root, &driver_version)?;
    let library = library(&files)
        .ok_or_else(|| Error::new(Code::DriverError, "the driver's NVML has an unknown SONAME"))?;

    let nvml = Nvml::builder()
        .lib_path(library.host.as_os_str())
        .init()
        .map_err(|error| refused(&format!("{} cannot be initialised", library.host.display()), &error))?;
    let reported =
        nvml.sys_driver_version().map_err(|error| refused("NVML reports no driver version", &error))?;
    if reported != driver_version {
        return Err(Error::new(
            Code::DriverError,
            format!(
                "the kernel says that driver {driver_version} is loaded and NVML says {reported}; reboot, or \
                 reload the nvidia modules"
            ),
        ));
    }
    Ok((nvml, driver_version, files))
}

fn library(files: &[DriverFile]) -> Option<&DriverFile> {
    let is_nvml =
        |file: &&DriverFile| file.kind == FileKind::Library && file.name.starts_with("libnvidia-ml.so");
    files.iter().find(is_nvml)
}

/// Whether the driver limits memory by cgroup, on every GPU that could serve a fraction.
fn driver_limits(files: &[DriverFile], gpus: &[Gpu]) -> bool {
    let Some(Ok(Some(limiter))) = library(files).map(|nvml| Limiter::open(&nvml.host)) else { return false };
    let mut gpus = gpus.iter().filter(|gpu| !gpu.mig_enabled).peekable();
    gpus.peek().is_some() && gpus.all(|gpu| limiter.serves(&gpu.uuid))
}

/// Fills in what a context takes of each GPU on which fractions are served; of a model that is in `sizes`,
/// what they say. Gives the GPUs of which it cannot be told.
fn contexts(
    nvml: &Nvml,
    gpus: &mut [Gpu],
    mut sizes: BTreeMap<String, u64>,
    start: &dyn Fn() -> Option<Command>,
) -> Vec<Unusable> {
    let mut reasons = Vec::new();
    for gpu in gpus.iter().filter(|gpu| !gpu.mig_enabled) {
        if sizes.contains_key(&gpu.model) {
            continue;
        }
        let measured = nvml.device_by_index(gpu.index).map_err(|error| format!("cannot open it: {error}"));
        let measured =
            measured.and_then(|device| context::measure(&device, &|| used(nvml, &device), &gpu.uuid, start));
        match measured {
            Ok(bytes) => drop(sizes.insert(gpu.model.clone(), bytes)),
            Err(reason) => reasons.push(Unusable { index: gpu.index, reason }),
        }
    }
    for gpu in gpus.iter_mut().filter(|gpu| !gpu.mig_enabled) {
        gpu.context_memory = sizes.get(&gpu.model).copied();
    }
    let unknown = |index| gpus.iter().any(|gpu| gpu.index == index && gpu.context_memory.is_none());
    reasons.retain(|one| unknown(one.index));
    reasons
}

fn all_gpus(root: &Path, nvml: &Nvml) -> Result<(Vec<Gpu>, Vec<Unusable>), Error> {
    let count = nvml.device_count().map_err(|error| refused("NVML cannot count the GPUs", &error))?;
    let mut gpus = Vec::new();
    let mut unusable = Vec::new();
    for index in 0..count {
        match gpu(root, nvml, index) {
            Ok(gpu) => gpus.push(gpu),
            Err(reason) => unusable.push(Unusable { index, reason }),
        }
    }
    match unusable.first() {
        _ if !gpus.is_empty() => Ok((gpus, unusable)),
        None => Err(Error::new(
            Code::NoGpu,
            "the NVIDIA driver is loaded but drives no GPU: `lspci -d 10de:` shows those that are plugged in, \
             `dmesg` why the driver does not take them",
        )),
        Some(first) => Err(Error::new(
            Code::GpuUnhealthy,
            format!("none of {count} GPUs can be used; GPU {}: {}; see `dmesg`", first.index, first.reason),
        )),
    }
}

fn gpu(root: &Path, nvml: &Nvml, index: u32) -> Result<Gpu, String> {
    let failed = |what: &'static str| move |error: NvmlError| format!("{what}: {error}");
    let device = nvml.device_by_index(index).map_err(failed("cannot open it"))?;
    let pci = device.pci_info().map_err(failed("no PCI bus id"))?.bus_id;
    let (total_memory, reserved_memory) = memory(nvml, &device).map_err(failed("no memory size"))?;
    if total_memory == 0 {
        return Err("it reports no memory of its own".into());
    }
    let mig_enabled = mig_enabled(&device).map_err(failed("no MIG mode"))?;
    Ok(Gpu {
        uuid: device.uuid().map_err(failed("no UUID"))?,
        index,
        minor: device.minor_number().map_err(failed("no minor number"))?,
        model: device.name().map_err(failed("no name"))?,
        numa: numa(root, &pci),
        pci,
        total_memory,
        reserved_memory,
        mig_enabled,
        mig_profiles: if mig_enabled { mig_profiles(nvml, &device)? } else { Vec::new() },
        context_memory: None,
        compute_capability: device
            .cuda_compute_capability()
            .ok()
            .map(|version| format!("{}.{}", version.major, version.minor)),
    })
}

/// Total and reserved memory in bytes. Drivers before 510 have only the first version of the call, in which
/// the reserve is part of what is used.
fn memory(nvml: &Nvml, device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    match device.memory_info() {
        Ok(memory) => Ok((memory.total, memory.reserved)),
        Err(NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound | NvmlError::NotSupported) => {
            memory_v1(nvml, device).map(|(total, _)| (total, 0))
        }
        Err(error) => Err(error),
    }
}

/// Memory that is in use, in bytes. What the driver reserves is or is not in it.
fn used(nvml: &Nvml, device: &Device<'_>) -> Result<u64, NvmlError> {
    memory_v1(nvml, device).map(|(_, used)| used)
}

/// `nvmlDeviceGetMemoryInfo`, which every driver has: bytes in all and in use.
fn memory_v1(nvml: &Nvml, device: &Device<'_>) -> Result<(u64, u64), NvmlError> {
    let call = nvml.lib().nvmlDeviceGetMemoryInfo.as_ref().map_err(|_| NvmlError::FunctionNotFound)?;
    let mut memory = std::mem::MaybeUninit::zeroed();
    // SAFETY: `call` comes from the library that `nvml` keeps loaded and initialised, the handle is of a
    // device of it, and `memory` is an nvmlMemory_t (its type comes from `call`'s) that outlives the call.
    let code = unsafe { call(device.handle(), memory.as_mut_ptr()) };
    nvml_wrapper::error::nvml_try(code)?;
    // SAFETY: nvmlMemory_t is three integers, so all zeroes is a valid value, and the call may have
    // overwritten it.
    let memory = unsafe { memory.assume_init() };
    Ok((memory.total, memory.used))
}

fn mig_profiles(nvml: &Nvml, device: &Device<'_>) -> Result<Vec<MigProfile>, String> {
    // SAFETY: the handle is used while `nvml` and `device` live.
    let handle = unsafe { device.handle() };
    mig::profiles(nvml, handle).map_err(|refused| refused.to_string())
}

fn mig_enabled(device: &Device<'_>) -> Result<bool, NvmlError> {
    match device.mig_mode() {
        Ok(mode) => Ok(mode.current == MIG_ENABLED),
        // A GPU or a driver without MIG. Any other error leaves it open whether the GPU serves fractions.
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// The highest CUDA version of the driver. NVML asks libcuda, which the host's loader may not know (a driver
/// container's is elsewhere); the older call then falls back on the version that NVML was built with. 0 if
/// neither answers: it is shown and decides nothing.
fn cuda_version(nvml: &Nvml) -> u32 {
    let from_libcuda = nvml.sys_cuda_driver_version().ok();
    let version = from_libcuda.or_else(|| {
        let call = nvml.lib().nvmlSystemGetCudaDriverVersion.as_ref().ok()?;
        let mut version = 0;
        // SAFETY: `call` comes from the library that `nvml` keeps loaded and initialised, and `version`
        // outlives it.
        let code = unsafe { call(&raw mut version) };
        nvml_wrapper::error::nvml_try(code).ok().map(|()| version)
    });
    version.and_then(|version| u32::try_from(version).ok()).unwrap_or(0)
}

/// The NUMA node of the slot, from sysfs; the kernel writes -1 when the firmware does not say.
fn numa(root: &Path, pci: &str) -> Option<u32> {
    let path = format!("/sys/bus/pci/devices/{}/numa_node", sysfs_name(pci)?);
    fs::read_to_string(of(root, &path)).ok()?.trim_end().parse().ok()
}

/// sysfs writes a PCI address with a domain of at least four digits in lower case, NVML with eight in upper
/// case.
fn sysfs_name(pci: &str) -> Option<String> {
    let (domain, rest) = pci.split_once(':')?;
    let domain = u32::from_str_radix(domain, 16).ok()?;
    let plain = rest.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':' || byte == b'.');
    plain.then(|| format!("{domain:04x}:{}", rest.to_ascii_lowercase()))
}

fn refused(what: &str, error: &NvmlError) -> Error {
    let next = match error {
        NvmlError::NoPermission => "; run as root",
        NvmlError::LibRmVersionMismatch => "; the driver was upgraded without a reboot: reboot",
        NvmlError::DriverNotLoaded => "; run `modprobe nvidia`",
        _ => "; see `dmesg`",
    };
    Error::new(Code::DriverError, format!("{what}: {error}{next}"))
}

#[cfg(test)]
mod tests;
