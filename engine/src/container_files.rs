//! The folder of a grant, `<state>/containers/<nonce>/`.
//!
//! ```text
//! limits                what the quota libraries enforce
//! own/                  what the container writes, and what it sees of the node (own.rs)
//! view/                 the container's /run/fgpu, read-only
//!   limits              the same file
//!   ledger              empty: the grant's is mounted over it
//!   turns/              empty: the boards of its GPUs are mounted over it
//!   driver-…/cuda       empty: the real libcuda is mounted over it (the name: fgpu_wire::Seal)
//!   driver-…/nvml       empty: the real NVML is mounted over it
//! ```
//!
//! The view is mounted as a whole, so no process in the container can put something else in the place of a
//! file. Nothing in this folder but `own` is on a file system that a container can write to. Only root may
//! enter the folder.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use fgpu_spec::{Code, Compute, Error, Grant, GrantedGpu, Inventory};
use fgpu_wire::{FOLDER_PATH, Seal, limits};

/// Makes the limits and the view in a grant's folder, with places for the real libraries where the quota
/// libraries of this `seal` look for them. What is half made when this fails goes with the lease: releasing a
/// lease removes its folder.
pub fn create(
    directory: &Path,
    grant: &Grant,
    inventory: &Inventory,
    seal: &Seal,
    reserve: u64,
) -> Result<(), Error> {
    let limits = grant.gpus.iter().map(|gpu| limit_of(grant, gpu, inventory, reserve));
    let gpus = limits.collect::<Result<Vec<_>, _>>()?;
    let mut page = limits::encode(&grant.nonce.0, &gpus);
    for (number, gpu) in grant.gpus.iter().enumerate() {
        let known = inventory.gpus.iter().find(|known| known.uuid == gpu.uuid);
        limits::put_context(&mut page, number, known.and_then(|known| known.context_memory).unwrap_or(0));
    }
    // The umask of the program that started us decides nothing: every user of the container reads it.
    write(directory, "limits", 0o644, &page, limits::SIZE as u64)?;
    create_view(directory, seal)
}

/// The part of a grant's folder that its container sees.
pub fn view(directory: &Path) -> PathBuf {
    directory.join("view")
}

fn create_view(directory: &Path, seal: &Seal) -> Result<(), Error> {
    let view = view(directory);
    let driver = seal.to_string();
    let driver = view.join(driver.strip_prefix(FOLDER_PATH).unwrap_or(&driver).trim_start_matches('/'));
    for open in [&view, &driver, &view.join("turns")] {
        folder(open)?;
        // The container's users look into it, whatever the umask is. Users of the node stop at the folder
        // above.
        std::fs::set_permissions(open, Permissions::from_mode(0o755))
            .map_err(|error| Error::io("change the mode of", open, &error))?;
    }
    let limits = view.join("limits");
    std::fs::hard_link(directory.join("limits"), &limits)
        .map_err(|error| Error::io("create", &limits, &error))?;
    for (folder, name) in [(&view, "ledger"), (&driver, "cuda"), (&driver, "nvml")] {
        write(folder, name, 0o644, b"", 0)?;
    }
    Ok(())
}

/// Makes the folder alone.
pub fn folder(directory: &Path) -> Result<(), Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|error| Error::io("create", directory, &error))
}

fn limit_of(
    grant: &Grant,
    gpu: &GrantedGpu,
    inventory: &Inventory,
    reserve: u64,
) -> Result<limits::GpuLimit, Error> {
    let known = inventory.gpus.iter().find(|known| known.uuid == gpu.uuid);
    match (fgpu_wire::parse_uuid(&gpu.uuid), known) {
        (Some(uuid), Some(known)) => {
            let (compute, cores_ppm) = compute_of(grant.compute, gpu, known.usable_memory(reserve));
            Ok(limits::GpuLimit { uuid, memory: gpu.memory, cores_ppm, compute, minor: known.minor })
        }
        _ => Err(Error::new(
            Code::DriverError,
            format!("the driver names a GPU {:?}, which is no UUID of its inventory", gpu.uuid),
        )),
    }
}

/// How `limits` says what a share has of the SM time, of a GPU with so much `usable` memory: `compute` and
/// `cores`. A share that booked none has its part of the memory for a weight.
pub fn compute_of(compute: Compute, share: &GrantedGpu, usable: u64) -> (u8, u32) {
    let weight = || {
        let ppm = u128::from(share.memory) * 1_000_000 / u128::from(usable.max(1));
        u32::try_from(ppm).unwrap_or(u32::MAX).clamp(1, 1_000_000)
    };
    match (compute, share.cores_ppm) {
        (Compute::Off, ppm) => (limits::COMPUTE_OFF, ppm),
        (_, 0) => (limits::COMPUTE_REST, weight()),
        (Compute::Cap, ppm) => (limits::COMPUTE_CAP, ppm),
        (Compute::Share, ppm) => (limits::COMPUTE_SHARE, ppm),
    }
}

fn write(directory: &Path, name: &str, mode: u32, start: &[u8], size: u64) -> Result<(), Error> {
    let path = directory.join(name);
    let make = || -> std::io::Result<()> {
        let mut file: File = OpenOptions::new().write(true).create_new(true).mode(mode).open(&path)?;
        file.write_all(start)?;
        file.set_len(size)?;
        file.set_permissions(Permissions::from_mode(mode))
    };
    make().map_err(|error| Error::io("create", &path, &error))
}

#[cfg(test)]
mod tests {
    use fgpu_spec::{Compute, GrantedGpu};
    use fgpu_wire::limits;

    use super::compute_of;

    #[test]
    fn without_sm_time_the_weight_is_the_memory() {
        let of = |compute, memory, cores_ppm, usable| {
            compute_of(compute, &GrantedGpu { uuid: String::new(), memory, cores_ppm, mig: None }, usable)
        };
        assert_eq!(of(Compute::Share, 8 << 30, 0, 24 << 30), (limits::COMPUTE_REST, 333_333));
        assert_eq!(of(Compute::Share, 1, 0, u64::MAX), (limits::COMPUTE_REST, 1));
        assert_eq!(of(Compute::Share, u64::MAX, 0, 0), (limits::COMPUTE_REST, 1_000_000));
        // Between the two writes of a resize a cap may have no share: it does not stand still if that is
        // where it ends.
        assert_eq!(of(Compute::Cap, 8 << 30, 0, 16 << 30), (limits::COMPUTE_REST, 500_000));
        assert_eq!(of(Compute::Share, 8 << 30, 1, 16 << 30), (limits::COMPUTE_SHARE, 1));
        assert_eq!(of(Compute::Off, 8 << 30, 0, 16 << 30).0, limits::COMPUTE_OFF);
    }
}
