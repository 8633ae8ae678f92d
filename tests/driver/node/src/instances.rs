//! The MIG instances of a node: which there are, and the driver's rules for making and destroying them.
//!
//! ```text
//! cell of a GPU instance       0: none;  start << 24 | profile number << 16 | id << 8 | 1
//! cell of its compute instance 0: none;  serial number << 16 | slices << 8 | 1
//! ```
//!
//! Of a GPU instance's compute instances only one is simulated; it may be smaller than the GPU instance. The
//! serial number goes into the MIG device's UUID, so that one that is made again has another UUID. Ids are
//! the lowest that are free, so they are used again at once.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::mig::{Geometry, Profile};
use crate::state::{GpuState, Mapped};
use crate::sys;

/// Most GPU instances of one GPU.
pub const MOST: usize = 16;

/// Byte (past the end of the state file) whose POSIX lock is held by who changes the instances of GPU 0; the
/// following are those of the other GPUs. The kernel drops it when its holder dies.
const LOCKS: u64 = 1 << 41;

/// Where a GPU instance and its compute instance are written down.
#[repr(C)]
pub struct Cell {
    /// See the module.
    pub gpu_instance: AtomicU64,
    /// See the module.
    pub compute_instance: AtomicU64,
}

/// A GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its cell.
    pub cell: usize,
    /// Its id.
    pub id: u32,
    /// Its profile.
    pub profile: &'static Profile,
    /// Its first memory slice.
    pub start: u32,
    /// Its compute instance.
    pub compute: Option<Compute>,
}

/// A compute instance. Its id is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compute {
    /// Compute slices.
    pub slices: u32,
    /// How many compute instances the GPU has had with this one.
    pub serial: u64,
}

/// Why something is not made or destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `NVML_ERROR_INVALID_ARGUMENT`: no such profile or placement.
    Invalid,
    /// `NVML_ERROR_INSUFFICIENT_RESOURCES`.
    Full,
    /// `NVML_ERROR_IN_USE`.
    InUse,
    /// `NVML_ERROR_NOT_FOUND`.
    Gone,
    /// The lock cannot be taken.
    Unknown,
}

/// The instances of a GPU, by their cells.
pub fn instances(state: &GpuState, geometry: Geometry) -> impl Iterator<Item = Instance> + '_ {
    (0..MOST).filter_map(move |cell| instance(state, geometry, cell))
}

/// The instance in a cell.
pub fn instance(state: &GpuState, geometry: Geometry, cell: usize) -> Option<Instance> {
    let word = state.mig.get(cell)?.gpu_instance.load(Ordering::Acquire);
    if word == 0 {
        return None;
    }
    let byte = |shift: u32| (word >> shift) as u32 & 0xff;
    let compute = state.mig[cell].compute_instance.load(Ordering::Acquire);
    let compute =
        (compute != 0).then_some(Compute { slices: (compute >> 8) as u32 & 0xff, serial: compute >> 16 });
    Some(Instance { cell, id: byte(8), profile: geometry.profile(byte(16))?, start: byte(24), compute })
}

impl Instance {
    fn overlaps(&self, start: u32, size: u32) -> bool {
        start < self.start + self.profile.size && self.start < start + size
    }
}

/// Makes a GPU instance and gives its cell.
///
/// # Errors
/// As the driver: [`Refusal::Full`] if the place is taken or the slices or the profile's instances are used
/// up.
pub fn create(
    mapped: &Mapped,
    gpu: usize,
    geometry: Geometry,
    profile: &Profile,
    start: u32,
) -> Result<usize, Refusal> {
    let state = &mapped.state.gpus[gpu];
    if !profile.starts.contains(&start) {
        return Err(Refusal::Invalid);
    }
    let _lock = Lock::take(mapped, gpu)?;
    let taken: u32 = instances(state, geometry).map(|other| other.profile.slices).sum();
    let same = instances(state, geometry).filter(|other| other.profile.number == profile.number).count();
    if taken + profile.slices > geometry.slices()
        || same as u32 >= profile.most
        || instances(state, geometry).any(|other| other.overlaps(start, profile.size))
    {
        return Err(Refusal::Full);
    }
    let is_free = |id: &u32| instances(state, geometry).all(|other| other.id != *id);
    let id = (1..MOST as u32).find(is_free).ok_or(Refusal::Full)?;
    let free = |cell: &&Cell| cell.gpu_instance.load(Ordering::Acquire) == 0;
    let cell = state.mig.iter().position(|cell| free(&cell)).ok_or(Refusal::Full)?;
    let word = u64::from(start) << 24 | u64::from(profile.number) << 16 | u64::from(id) << 8 | 1;
    state.mig[cell].compute_instance.store(0, Ordering::Release);
    state.mig[cell].gpu_instance.store(word, Ordering::Release);
    Ok(cell)
}

/// Makes a compute instance.
///
/// # Errors
/// [`Refusal::Full`] if there is one, [`Refusal::Gone`] if the GPU instance is gone.
pub fn create_compute(mapped: &Mapped, gpu: usize, cell: usize, slices: u32) -> Result<(), Refusal> {
    let state = &mapped.state.gpus[gpu];
    let _lock = Lock::take(mapped, gpu)?;
    let cell = &state.mig[cell];
    if cell.gpu_instance.load(Ordering::Acquire) == 0 {
        return Err(Refusal::Gone);
    }
    if cell.compute_instance.load(Ordering::Acquire) != 0 {
        return Err(Refusal::Full);
    }
    let serial = state.mig_serial.fetch_add(1, Ordering::AcqRel) + 1;
    cell.compute_instance.store(serial << 16 | u64::from(slices) << 8 | 1, Ordering::Release);
    Ok(())
}

/// Destroys a compute instance.
///
/// # Errors
/// [`Refusal::Gone`] if there is none.
pub fn destroy_compute(mapped: &Mapped, gpu: usize, cell: usize) -> Result<(), Refusal> {
    let _lock = Lock::take(mapped, gpu)?;
    match mapped.state.gpus[gpu].mig[cell].compute_instance.swap(0, Ordering::AcqRel) {
        0 => Err(Refusal::Gone),
        _ => Ok(()),
    }
}

/// Destroys a GPU instance.
///
/// # Errors
/// [`Refusal::InUse`] if it has a compute instance, [`Refusal::Gone`] if there is none.
pub fn destroy(mapped: &Mapped, gpu: usize, cell: usize) -> Result<(), Refusal> {
    let _lock = Lock::take(mapped, gpu)?;
    let cell = &mapped.state.gpus[gpu].mig[cell];
    if cell.compute_instance.load(Ordering::Acquire) != 0 {
        return Err(Refusal::InUse);
    }
    match cell.gpu_instance.swap(0, Ordering::AcqRel) {
        0 => Err(Refusal::Gone),
        _ => Ok(()),
    }
}

/// The minor of a capability's node, counted as the kernel module does: `config` 1, `monitor` 2, then for
/// each GPU 15 GPU instances with one for themselves and eight for their compute instances.
pub fn capability_minor(gpu: u32, gpu_instance: u32, compute_instance: Option<u32>) -> u32 {
    3 + gpu * 135 + gpu_instance * 9 + compute_instance.map_or(0, |id| id + 1)
}

struct Lock<'a> {
    mapped: &'a Mapped,
    byte: u64,
}

impl<'a> Lock<'a> {
    fn take(mapped: &'a Mapped, gpu: usize) -> Result<Self, Refusal> {
        let byte = LOCKS + gpu as u64;
        sys::lock_byte(mapped.fd, byte).map_err(|_| Refusal::Unknown)?;
        Ok(Self { mapped, byte })
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        sys::unlock_byte(self.mapped.fd, self.byte);
    }
}
