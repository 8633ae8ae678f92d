//! The folder of a grant, `<state>/containers/<nonce>/`, and the file of the node, `<state>/shared/turns`.
//!
//! ```text
//! limits                what the quota libraries enforce
//! ledger                what the container's processes hold
//! view/                 the container's /run/fgpu, read-only
//!   limits              the same file
//!   ledger, turns       empty: the grant's and the node's are mounted over them
//!   driver-…/cuda       empty: the real libcuda is mounted over it (the name: fgpu_wire::Seal)
//!   driver-…/nvml       empty: the real NVML is mounted over it
//! ```
//!
//! The view is mounted as a whole, so nobody in the container can put something else in the place of a file.
//! Every user of a container must be able to write the ledger and the turns, so their modes let anybody. What keeps the
//! node's own users from them are the folders, which only root may enter; into a container the files are mounted.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use fgpu_allocator::cut_overgrown;
use fgpu_spec::{Code, Compute, Error, Grant, GrantedGpu, Inventory};
use fgpu_wire::{FOLDER_PATH, Seal, ledger, limits};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use rustix::io::Errno;

/// Makes the folder and what is in it, with places for the real libraries where the quota libraries of this `seal` look for them. What is half made when this fails goes with the lease: releasing a lease
/// removes its folder.
pub(crate) fn create(
    directory: &Path,
    grant: &Grant,
    inventory: &Inventory,
    seal: &Seal,
    reserve: u64,
) -> Result<(), Error> {
    folder(directory)?;
    let limits = grant.gpus.iter().map(|gpu| limit_of(grant, gpu, inventory, reserve));
    let gpus = limits.collect::<Result<Vec<_>, _>>()?;
    let mut page = limits::encode(&grant.nonce.0, &gpus);
    for (number, gpu) in grant.gpus.iter().enumerate() {
        let known = inventory.gpus.iter().find(|known| known.uuid == gpu.uuid);
        limits::put_context(&mut page, number, known.and_then(|known| known.context_memory).unwrap_or(0));
    }
    // The umask of whoever started us decides nothing: the ledger must be writable for every user of the container.
    write(directory, "limits", 0o644, &page, limits::SIZE as u64)?;
    write(directory, "ledger", 0o666, &ledger::encode(&grant.nonce.0), ledger::SIZE as u64)?;
    create_view(directory, seal)
}

/// The part of a grant's folder that its container sees.
pub(crate) fn view(directory: &Path) -> PathBuf {
    directory.join("view")
}

fn create_view(directory: &Path, seal: &Seal) -> Result<(), Error> {
    let view = view(directory);
    let driver = seal.to_string();
    let driver = view.join(driver.strip_prefix(FOLDER_PATH).unwrap_or(&driver).trim_start_matches('/'));
    for open in [&view, &driver] {
        folder(open)?;
        // The container's users look into it, whatever the umask is. Users of the node stop at the folder above.
        std::fs::set_permissions(open, Permissions::from_mode(0o755))
            .map_err(|error| Error::io("change the mode of", open, &error))?;
    }
    let limits = view.join("limits");
    std::fs::hard_link(directory.join("limits"), &limits)
        .map_err(|error| Error::io("create", &limits, &error))?;
    for (folder, name) in [(&view, "ledger"), (&view, "turns"), (&driver, "cuda"), (&driver, "nvml")] {
        write(folder, name, 0o644, b"", 0)?;
    }
    Ok(())
}

/// Makes the folder alone.
pub(crate) fn folder(directory: &Path) -> Result<(), Error> {
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

/// How `limits` says what a share has of the SM time, of a GPU with so much `usable` memory: `compute` and `cores`. A share that booked
/// none has its part of the memory for a weight.
pub(crate) fn compute_of(compute: Compute, share: &GrantedGpu, usable: u64) -> (u8, u32) {
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
    // Another container may have filled the file system by what it can write there.
    let again = |error: std::io::Error| match directory
        .ancestors()
        .find(|above| above.ends_with("containers"))
        .and_then(Path::parent)
    {
        Some(state_dir) if error.kind() == ErrorKind::StorageFull && cut_overgrown(state_dir) => {
            match std::fs::remove_file(&path) {
                // It was not even made.
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => make(),
            }
        }
        _ => Err(error),
    };
    make().or_else(again).map_err(|error| Error::io("create", &path, &error))
}

/// Where the node's turns are.
pub(crate) fn turns(state_dir: &Path) -> PathBuf {
    state_dir.join("shared/turns")
}

/// Makes the node's turns if they are not there. The file appears whole, so whoever is killed in here leaves nothing, and
/// it stays: containers that run have it mounted. Every one of them can write it: it gets its size and its header back here.
pub(crate) fn create_turns(state_dir: &Path) -> Result<(), Error> {
    let path = turns(state_dir);
    let failed = |error: std::io::Error| Error::io("create", &path, &error);
    match File::options().read(true).write(true).custom_flags(nix::libc::O_NOFOLLOW).open(&path) {
        Ok(file) => return mend_turns(&file).map_err(failed),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    folder(&state_dir.join("shared"))?;
    let make = || -> std::io::Result<()> {
        let unnamed = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let mut file = File::from(open(state_dir, unnamed, Mode::RUSR | Mode::WUSR)?);
        file.write_all(&fgpu_wire::turns::encode())?;
        file.set_len(fgpu_wire::turns::SIZE as u64)?;
        file.set_permissions(Permissions::from_mode(0o666))?;
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        match linkat(CWD, own, CWD, &path, AtFlags::SYMLINK_FOLLOW) {
            // Somebody else was faster.
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    };
    make().map_err(failed)
}

fn mend_turns(file: &File) -> std::io::Result<()> {
    let header = fgpu_wire::turns::encode();
    let mut there = [0; fgpu_wire::turns::HEADER];
    let size = fgpu_wire::turns::SIZE as u64;
    if file.metadata()?.len() != size {
        file.set_len(size)?;
    }
    if file.read_exact_at(&mut there, 0).is_err() || there != header {
        file.write_all_at(&header, 0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};

    use fgpu_spec::{Compute, GrantedGpu};
    use fgpu_wire::limits;

    use super::{compute_of, create_turns, turns, write};

    #[test]
    fn who_booked_no_sm_time_has_his_memory_for_a_weight() {
        let of = |compute, memory, cores_ppm, usable| {
            compute_of(compute, &GrantedGpu { uuid: String::new(), memory, cores_ppm, mig: None }, usable)
        };
        assert_eq!(of(Compute::Share, 8 << 30, 0, 24 << 30), (limits::COMPUTE_REST, 333_333));
        assert_eq!(of(Compute::Share, 1, 0, u64::MAX), (limits::COMPUTE_REST, 1));
        assert_eq!(of(Compute::Share, u64::MAX, 0, 0), (limits::COMPUTE_REST, 1_000_000));
        // Between the two writes of a resize a cap may have no share: it does not stand still if that is where it ends.
        assert_eq!(of(Compute::Cap, 8 << 30, 0, 16 << 30), (limits::COMPUTE_REST, 500_000));
        assert_eq!(of(Compute::Share, 8 << 30, 1, 16 << 30), (limits::COMPUTE_SHARE, 1));
        assert_eq!(of(Compute::Off, 8 << 30, 0, 16 << 30).0, limits::COMPUTE_OFF);
    }

    #[test]
    fn the_turns_are_made_once_and_for_every_user() {
        let state = tempfile::tempdir().unwrap();
        let path = turns(state.path());
        std::thread::scope(|scope| {
            let makers: Vec<_> = (0..8).map(|_| scope.spawn(|| create_turns(state.path()))).collect();
            makers.into_iter().for_each(|maker| maker.join().unwrap().unwrap());
        });
        let made = path.metadata().unwrap();
        assert_eq!((made.len(), made.mode() & 0o7777), (fgpu_wire::turns::SIZE as u64, 0o666));
        assert!(std::fs::read(&path).unwrap().starts_with(&fgpu_wire::turns::encode()));
        // Containers have it mounted: it is never another file.
        create_turns(state.path()).unwrap();
        assert_eq!(path.metadata().unwrap().ino(), made.ino());
        assert_eq!(path.parent().unwrap().read_dir().unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn turns_that_a_container_spoilt_are_mended() {
        let state = tempfile::tempdir().unwrap();
        let path = turns(state.path());
        create_turns(state.path()).unwrap();
        for spoilt in [vec![], vec![7; 100], vec![0; 3 * fgpu_wire::turns::SIZE]] {
            std::fs::write(&path, spoilt).unwrap();
            create_turns(state.path()).unwrap();
            let mended = std::fs::read(&path).unwrap();
            assert_eq!(mended.len(), fgpu_wire::turns::SIZE);
            assert!(mended.starts_with(&fgpu_wire::turns::encode()));
        }
    }

    #[test]
    fn a_state_directory_that_is_none_is_told_with_the_path() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = create_turns(file.path()).unwrap_err();
        assert!(error.message.contains(file.path().to_str().unwrap()), "{}", error.message);
    }

    /// Cutting off what containers wrote gives back blocks; there may be no room for one more file all the same.
    #[test]
    fn what_is_short_is_told_though_a_cut_does_not_help() {
        let state = tempfile::tempdir().unwrap();
        // In a mount namespace of this thread's own.
        let made = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNS).unwrap();
                mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
                    .unwrap();
                // The root, three folders and one file.
                mount(Some("state"), state.path(), Some("tmpfs"), MsFlags::empty(), Some("nr_inodes=5"))
                    .unwrap();
                let folder = |name: &str| state.path().join("containers").join(name);
                std::fs::create_dir_all(folder("greedy")).unwrap();
                std::fs::create_dir(folder("next")).unwrap();
                let ledger = std::fs::File::create(folder("greedy").join("ledger")).unwrap();
                ledger.set_len(fgpu_wire::ledger::SIZE as u64 + 1).unwrap();
                write(&folder("next"), "limits", 0o644, b"", 0)
            });
            thread.join().unwrap()
        });
        let error = made.unwrap_err();
        assert!(error.message.contains("No space left"), "{}", error.message);
    }
}
