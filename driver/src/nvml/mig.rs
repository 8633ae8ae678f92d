//! MIG: the profiles of a GPU, and making and destroying its instances.
//!
//! The raw calls, because nvml-wrapper 0.13 wraps none that creates an instance, and its
//! `possible_placements` always returns an empty list. Instances are found by GPU and id and never by walking
//! MIG indices: a GPU instance without a compute instance has no index.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use fgpu_spec::{Code, Error, Gpu, MigInstance, MigPlacement, MigProfile};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
use nvml_wrapper_sys::bindings::{
    NVML_DEVICE_MIG_DISABLE, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t,
    nvmlComputeInstanceProfileInfo_t, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t,
    nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t,
};

/// Numbers of GPU instance profiles that are asked for: NVML 13 knows 17, and answers that it does not know
/// the rest.
const PROFILE_NUMBERS: u32 = 32;
/// Numbers of compute instance profiles (`NVML_COMPUTE_INSTANCE_PROFILE_COUNT`).
const COMPUTE_PROFILES: u32 = 8;
/// `NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED`, the only one.
const SHARED_ENGINES: u32 = 0;
/// Room for a UUID (`NVML_DEVICE_UUID_V2_BUFFER_SIZE`).
const UUID_ROOM: usize = 96;
/// The most instances of one kind that a call may list.
const LIST_MOST: usize = 64;

/// `NVML_ERROR_INSUFFICIENT_RESOURCES`, for which nvml-wrapper has no word.
const INSUFFICIENT_RESOURCES: u32 = 23;

/// Why the driver did not do something.
#[derive(Debug)]
pub struct Refused {
    /// The call.
    pub call: &'static str,
    /// What it answered.
    pub error: NvmlError,
}

impl Refused {
    /// Whether what was to be destroyed is in use.
    pub fn is_in_use(&self) -> bool {
        matches!(self.error, NvmlError::InUse)
    }

    /// Whether there is no such thing (any more).
    pub fn is_not_found(&self) -> bool {
        matches!(self.error, NvmlError::NotFound)
    }

    /// Whether there is no room for what was to be made.
    pub fn is_full(&self) -> bool {
        matches!(self.error, NvmlError::UnexpectedVariant(INSUFFICIENT_RESOURCES))
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.error {
            _ if self.is_full() => write!(f, "{} answers: insufficient resources", self.call),
            error => write!(f, "{} answers: {error}", self.call),
        }
    }
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        let next = match refused.error {
            NvmlError::NoPermission => "; run as root",
            NvmlError::NotSupported => "; is MIG mode still on? Run fgpu inventory --refresh",
            _ => "; see `dmesg`",
        };
        Self::new(Code::DriverError, format!("{refused}{next}"))
    }
}

/// A GPU instance that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInstance {
    /// Its id.
    pub id: u32,
    /// Its profile's id.
    pub profile: u32,
    /// Where it lies.
    pub placement: MigPlacement,
    /// Its compute instances.
    pub compute: Vec<ComputeInstance>,
    handle: nvmlGpuInstance_t,
}

impl GpuInstance {
    /// The MIG device, if one compute instance fills it, which has `slices`.
    pub fn device(&self, slices: u32) -> Option<MigInstance> {
        let [compute] = self.compute.as_slice() else { return None };
        (compute.slices == slices).then(|| MigInstance {
            gpu_instance: self.id,
            compute_instance: compute.id,
            uuid: compute.uuid.clone(),
        })
    }
}

/// A compute instance that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeInstance {
    /// Its id in the GPU instance.
    pub id: u32,
    /// The MIG device's UUID.
    pub uuid: String,
    /// Compute slices.
    pub slices: u32,
    handle: nvmlComputeInstance_t,
}

/// A GPU in MIG mode.
pub struct MigGpu<'n> {
    nvml: &'n Nvml,
    handle: nvmlDevice_t,
    profiles: Vec<MigProfile>,
}

impl std::fmt::Debug for MigGpu<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MigGpu").field("profiles", &self.profiles).finish_non_exhaustive()
    }
}

/// Calls a function of NVML by its name and gives an error that name.
macro_rules! call {
    ($nvml:expr, $name:ident($($argument:expr),*)) => {{
        let refused = |error| Refused { call: stringify!($name), error };
        let function = nvml_sym($nvml.lib().$name.as_ref()).map_err(refused)?;
        // SAFETY: the function comes from the library that `nvml` keeps loaded and initialised and has the
        // type that nvml.h gives it; handles are NVML's own of this session, and what is written to outlives
        // the call.
        nvml_try(unsafe { function($($argument),*) }).map_err(refused)
    }};
}

impl<'n> MigGpu<'n> {
    /// Finds a GPU of the inventory.
    ///
    /// # Errors
    /// The driver does not know it (any more).
    pub fn open(nvml: &'n Nvml, gpu: &Gpu) -> Result<Self, Refused> {
        let refused = |error| Refused { call: "nvmlDeviceGetHandleByUUID", error };
        let device = nvml.device_by_uuid(gpu.uuid.as_str()).map_err(refused)?;
        // SAFETY: the handle is used only while `nvml` lives.
        let handle = unsafe { device.handle() };
        Ok(Self { nvml, handle, profiles: gpu.mig_profiles.clone() })
    }

    /// Every GPU instance, with or without compute instances. None once MIG mode is off: they go with it.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn instances(&self) -> Result<Vec<GpuInstance>, Refused> {
        match self.listed() {
            Err(Refused { error: NvmlError::NotSupported, .. }) if self.mode_is_off()? => Ok(Vec::new()),
            listed => listed,
        }
    }

    fn mode_is_off(&self) -> Result<bool, Refused> {
        let (mut current, mut pending) = (0, 0);
        call!(self.nvml, nvmlDeviceGetMigMode(self.handle, &raw mut current, &raw mut pending))?;
        Ok(current == NVML_DEVICE_MIG_DISABLE)
    }

    fn listed(&self) -> Result<Vec<GpuInstance>, Refused> {
        let mut found = Vec::new();
        for profile in &self.profiles {
            let mut handles = [std::ptr::null_mut(); LIST_MOST];
            let mut count = LIST_MOST as u32;
            call!(
                self.nvml,
                nvmlDeviceGetGpuInstances(self.handle, profile.id, handles.as_mut_ptr(), &raw mut count)
            )?;
            for &handle in handles.iter().take(count as usize) {
                found.push(self.look(handle)?);
            }
        }
        Ok(found)
    }

    fn look(&self, handle: nvmlGpuInstance_t) -> Result<GpuInstance, Refused> {
        let mut info = MaybeUninit::<nvmlGpuInstanceInfo_t>::zeroed();
        call!(self.nvml, nvmlGpuInstanceGetInfo(handle, info.as_mut_ptr()))?;
        // SAFETY: a pointer, which may be null, and integers: zeroes are a value, and the call has succeeded.
        let info = unsafe { info.assume_init() };
        let placement = MigPlacement { start: info.placement.start, size: info.placement.size };
        let mut instance =
            GpuInstance { id: info.id, profile: info.profileId, placement, compute: Vec::new(), handle };
        for profile in self.compute_profiles(handle)? {
            let mut handles = [std::ptr::null_mut(); LIST_MOST];
            let mut count = LIST_MOST as u32;
            let list = handles.as_mut_ptr();
            call!(self.nvml, nvmlGpuInstanceGetComputeInstances(handle, profile.id, list, &raw mut count))?;
            for &handle in handles.iter().take(count as usize) {
                instance.compute.push(self.look_at_compute(handle, profile.sliceCount)?);
            }
        }
        Ok(instance)
    }

    /// The kinds of compute instances that a GPU instance can have.
    ///
    /// # Errors
    /// What the driver answers; with a kind left out, a compute instance would be.
    fn compute_profiles(
        &self,
        handle: nvmlGpuInstance_t,
    ) -> Result<Vec<nvmlComputeInstanceProfileInfo_t>, Refused> {
        let ask = |number: u32| -> Result<_, Refused> {
            let mut info = MaybeUninit::<nvmlComputeInstanceProfileInfo_t>::zeroed();
            let out = info.as_mut_ptr();
            call!(
                self.nvml,
                nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, number, SHARED_ENGINES, out)
            )?;
            // SAFETY: integers, for which zeroes are a value.
            Ok(unsafe { info.assume_init() })
        };
        // So is a number answered that this GPU instance has no profile for.
        let is_none = |refused: &Refused| {
            matches!(refused.error, NvmlError::NotSupported | NvmlError::InvalidArg | NvmlError::NotFound)
        };
        let asked = (0..COMPUTE_PROFILES).map(ask);
        asked.filter(|answer| !answer.as_ref().is_err_and(is_none)).collect()
    }

    fn look_at_compute(
        &self,
        handle: nvmlComputeInstance_t,
        slices: u32,
    ) -> Result<ComputeInstance, Refused> {
        let mut info = MaybeUninit::<nvmlComputeInstanceInfo_t>::zeroed();
        call!(self.nvml, nvmlComputeInstanceGetInfo_v2(handle, info.as_mut_ptr()))?;
        // SAFETY: pointers, which may be null, and integers: zeroes are a value, and the call has succeeded.
        let info = unsafe { info.assume_init() };
        let mut uuid = [0; UUID_ROOM];
        // The `device` of a compute instance is its MIG device.
        call!(self.nvml, nvmlDeviceGetUUID(info.device, uuid.as_mut_ptr(), UUID_ROOM as u32))?;
        Ok(ComputeInstance { id: info.id, uuid: text(&uuid), slices, handle })
    }

    /// Makes a GPU instance.
    ///
    /// # Errors
    /// What the driver answers; there is none then, unless it was made and then could not be looked at.
    pub fn create(&self, profile: u32, placement: MigPlacement) -> Result<GpuInstance, Refused> {
        let place = nvmlGpuInstancePlacement_t { start: placement.start, size: placement.size };
        let mut handle = std::ptr::null_mut();
        call!(
            self.nvml,
            nvmlDeviceCreateGpuInstanceWithPlacement(self.handle, profile, &raw const place, &raw mut handle)
        )?;
        self.look(handle)
    }

    /// Makes the compute instance that fills a GPU instance of `slices`, and returns it as a MIG device.
    ///
    /// # Errors
    /// What the driver answers; there is no compute instance then, unless it was made and then could not be
    /// looked at.
    pub fn create_compute(&self, instance: &GpuInstance, slices: u32) -> Result<MigInstance, Refused> {
        let profiles = self.compute_profiles(instance.handle)?;
        let fills = |profile: &&nvmlComputeInstanceProfileInfo_t| profile.sliceCount <= slices;
        // Of the largest ones, the one that can exist only once.
        let profile = profiles
            .iter()
            .filter(fills)
            .max_by_key(|profile| (profile.sliceCount, std::cmp::Reverse(profile.instanceCount)))
            .ok_or(Refused {
                call: "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                error: NvmlError::NotSupported,
            })?;
        let mut handle = std::ptr::null_mut();
        call!(self.nvml, nvmlGpuInstanceCreateComputeInstance(instance.handle, profile.id, &raw mut handle))?;
        let made = self.look_at_compute(handle, profile.sliceCount)?;
        Ok(MigInstance { gpu_instance: instance.id, compute_instance: made.id, uuid: made.uuid })
    }

    /// Destroys a compute instance.
    ///
    /// # Errors
    /// What the driver answers; it is still there then.
    pub fn destroy_compute(&self, compute: &ComputeInstance) -> Result<(), Refused> {
        call!(self.nvml, nvmlComputeInstanceDestroy(compute.handle))
    }

    /// Destroys a GPU instance that has no compute instance.
    ///
    /// # Errors
    /// What the driver answers; it is still there then.
    pub fn destroy(&self, instance: &GpuInstance) -> Result<(), Refused> {
        call!(self.nvml, nvmlGpuInstanceDestroy(instance.handle))
    }
}

/// The profiles of a GPU in MIG mode, in the driver's order.
pub(super) fn profiles(nvml: &Nvml, device: nvmlDevice_t) -> Result<Vec<MigProfile>, Refused> {
    let mut found: Vec<MigProfile> = Vec::new();
    for number in 0..PROFILE_NUMBERS {
        // A number that the GPU has no profile for is answered with an error.
        let Ok(mut profile) = profile(nvml, device, number) else { continue };
        if found.iter().any(|known| known.id == profile.id) {
            continue;
        }
        profile.placements = placements(nvml, device, profile.id)?;
        found.push(profile);
    }
    Ok(found)
}

fn profile(nvml: &Nvml, device: nvmlDevice_t, number: u32) -> Result<MigProfile, Refused> {
    /// `nvmlGpuInstanceProfileInfo_v2`: the struct's size and version.
    const VERSION: u32 = size_of::<nvmlGpuInstanceProfileInfo_v2_t>() as u32 | 2 << 24;
    let named = || -> Result<_, Refused> {
        let mut info = MaybeUninit::<nvmlGpuInstanceProfileInfo_v2_t>::zeroed();
        // SAFETY: the first field of a struct that is ours.
        unsafe { (&raw mut (*info.as_mut_ptr()).version).write(VERSION) };
        call!(nvml, nvmlDeviceGetGpuInstanceProfileInfoV(device, number, info.as_mut_ptr()))?;
        // SAFETY: integers, for which zeroes are a value.
        Ok(unsafe { info.assume_init() })
    };
    if let Ok(info) = named() {
        let name = text(&info.name);
        return Ok(MigProfile {
            // The driver writes `MIG 1g.10gb`.
            name: name.strip_prefix("MIG ").unwrap_or(&name).to_owned(),
            id: info.id,
            slices: info.sliceCount,
            multiprocessors: info.multiprocessorCount,
            memory: info.memorySizeMB << 20,
            most: info.instanceCount,
            placements: Vec::new(),
        });
    }
    // Drivers before 510 do not tell names.
    let mut info = MaybeUninit::<nvmlGpuInstanceProfileInfo_t>::zeroed();
    call!(nvml, nvmlDeviceGetGpuInstanceProfileInfo(device, number, info.as_mut_ptr()))?;
    // SAFETY: integers, for which zeroes are a value.
    let info = unsafe { info.assume_init() };
    Ok(MigProfile {
        name: format!("{}g.{}gb", info.sliceCount, info.memorySizeMB.div_ceil(1024)),
        id: info.id,
        slices: info.sliceCount,
        multiprocessors: info.multiprocessorCount,
        memory: info.memorySizeMB << 20,
        most: info.instanceCount,
        placements: Vec::new(),
    })
}

fn placements(nvml: &Nvml, device: nvmlDevice_t, profile: u32) -> Result<Vec<MigPlacement>, Refused> {
    let mut list = [nvmlGpuInstancePlacement_t { start: 0, size: 0 }; LIST_MOST];
    let mut count = LIST_MOST as u32;
    call!(
        nvml,
        nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profile, list.as_mut_ptr(), &raw mut count)
    )?;
    let listed = list.iter().take(count as usize);
    Ok(listed.map(|place| MigPlacement { start: place.start, size: place.size }).collect())
}

/// A text in a buffer of NVML's.
fn text(buffer: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|&byte| byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}
