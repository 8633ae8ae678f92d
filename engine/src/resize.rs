//! `fgpu resize`: another share for a container that runs.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use fgpu_allocator::{Anchor, Lease, Store};
use fgpu_spec::{Code, Compute, Error, GrantedGpu, Inventory, MemoryAsk, Request, Tier};
use fgpu_wire::limits::{self, Page};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::config::Config;
use crate::container_files::compute_of;
use crate::{driver_step, programs};

/// Gives the holder of a lease what these annotations ask, of the GPUs that it has; what they are silent
/// about stays. The container's processes are held to it from their next call. `None` if the lease has ended.
///
/// A share that is smaller than what is in use ends no process; there is no memory for the container until it
/// uses less.
///
/// # Errors
/// What is wrong with the annotations; `no-capacity` and the other codes of a request; `denied` for a lease
/// that nothing enforces, and for a claim's. Nothing has changed then.
pub fn resize(
    config: &Config,
    store: &Store,
    lease: &Lease,
    annotations: &BTreeMap<String, String>,
) -> Result<Option<Lease>, Error> {
    // What the cluster counts would be another amount.
    if let Some(anchor) = lease.anchor.as_ref().filter(|anchor| !matches!(anchor, Anchor::Pod(_))) {
        let message = format!(
            "{}: the cluster's scheduler has given out its share; ask it for another",
            anchor.words()
        );
        return Err(Error::new(Code::Denied, message));
    }
    set(config, store, lease, annotations)
}

/// [`resize`], also of what another scheduler has given out: it has given more.
///
/// # Errors
/// As [`resize`].
pub fn set(
    config: &Config,
    store: &Store,
    lease: &Lease,
    annotations: &BTreeMap<String, String>,
) -> Result<Option<Lease>, Error> {
    let request = request(config, lease, annotations)?;
    if !matches!(lease.grant.tier, Tier::Quota | Tier::Driver) {
        let tier = lease.grant.tier;
        return Err(Error::new(
            Code::Denied,
            format!(
                "{}: what is granted in tier {tier:?} cannot be changed while it is in use",
                request.text
            ),
        ));
    }
    let inventory = fgpu_driver::load(&config.driver_root, &config.state_dir, &programs::refresh_inventory)?;
    let limits = Limits::open(&store.container_dir(&lease.grant.nonce), lease)?;
    let nonce = &lease.grant.nonce;
    let usable = |uuid: &str| usable(&inventory, config, uuid);
    let resized = store.resize(&inventory, &config.rules(), &request, nonce, |gpus, compute| {
        limits.write(gpus, compute, usable);
    })?;
    if let Some(lease) = resized.as_ref().filter(|lease| lease.grant.tier == Tier::Driver) {
        // The quota libraries hold it to the new share already; the driver's limit is the old one if this
        // fails.
        driver_step::limit(config, store, &lease.grant.nonce, true)?;
    }
    Ok(resized)
}

/// Has the limits of a lease's container say what the lease says.
///
/// # Errors
/// They are not there, or are another grant's.
pub fn enforce(config: &Config, store: &Store, lease: &Lease) -> Result<(), Error> {
    if matches!(lease.grant.tier, Tier::Quota | Tier::Driver) {
        let limits = Limits::open(&store.container_dir(&lease.grant.nonce), lease)?;
        let inventory =
            fgpu_driver::load(&config.driver_root, &config.state_dir, &programs::refresh_inventory);
        // Without one a share that booked no SM time has the largest weight.
        let usable = |uuid: &str| inventory.as_ref().map_or(0, |inventory| usable(inventory, config, uuid));
        limits.write(&lease.grant.gpus, lease.grant.compute, usable);
    }
    Ok(())
}

/// Memory of a GPU that may be granted, bytes; 0 if it is not there any more.
fn usable(inventory: &Inventory, config: &Config, uuid: &str) -> u64 {
    let gpu = inventory.gpus.iter().find(|gpu| gpu.uuid == uuid);
    gpu.map_or(0, |gpu| gpu.usable_memory(config.reserve_memory))
}

/// The annotations as a request, completed by what the lease has.
fn request(config: &Config, lease: &Lease, annotations: &BTreeMap<String, String>) -> Result<Request, Error> {
    const SIZES: [&str; 4] = ["fgpu/fraction", "fgpu/memory", "fgpu/cores", "fgpu/compute"];
    if let Some(key) = annotations.keys().find(|key| !SIZES.contains(&key.as_str())) {
        let message = format!("{key} cannot be changed while the container runs; {} can", SIZES.join(", "));
        return Err(Error::new(Code::InvalidRequest, message));
    }
    let has = |key: &str| annotations.contains_key(key);
    let (fraction, memory, cores) = (has("fgpu/fraction"), has("fgpu/memory"), has("fgpu/cores"));
    let one = lease.grant.gpus.first().ok_or_else(|| Error::new(Code::Internal, "the lease has no GPU"))?;
    // For the grammar alone; what is silent is taken from the lease below.
    let mut whole = annotations.clone();
    if !fraction && !memory {
        whole.insert("fgpu/memory".into(), format!("{}Mi", (one.memory >> 20).max(1)));
    }
    let keeps_cores = !fraction && !cores && one.cores_ppm > 0;
    if keeps_cores {
        whole.insert("fgpu/cores".into(), "100%".into());
    }
    let mut request = Request::parse(&whole, None, &config.defaults())?.ok_or_else(|| {
        Error::new(Code::InvalidRequest, "nothing is asked for; for half of each GPU say: --fraction 0.5")
    })?;
    if !fraction && !memory {
        if lease.grant.gpus.iter().any(|gpu| gpu.memory != one.memory) {
            let message = "the container's GPUs are of different sizes; name the memory or the fraction, too";
            return Err(Error::new(Code::InvalidRequest, message));
        }
        request.memory = MemoryAsk::Bytes(one.memory);
    }
    // A lease that booked no SM time does not say how a share of it would be meant.
    if !has("fgpu/compute")
        && (one.cores_ppm > 0 || request.cores_ppm == 0 || lease.grant.compute == Compute::Off)
    {
        request.compute = lease.grant.compute;
    }
    if keeps_cores {
        request.cores_ppm = one.cores_ppm;
    }
    request.text =
        annotations.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ");
    Ok(request)
}

/// A container's limits, mapped: what is written is what its processes read next.
struct Limits(*mut std::ffi::c_void);

impl Limits {
    #[allow(unsafe_code, reason = "a file that others map cannot be mapped safely")]
    fn open(folder: &Path, lease: &Lease) -> Result<Self, Error> {
        let path = folder.join("limits");
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::WouldBlock => Error::new(
                Code::Denied,
                format!(
                    "{} holds a lease (fcntl(2), F_SETLEASE) on its limits; the kernel takes it away within \
                     fs.lease-break-time (45 s): try again, or end the container",
                    lease.key.short()
                ),
            ),
            _ => Error::io("open", &path, &error),
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(nix::libc::O_NONBLOCK)
            .open(&path)
            .map_err(failed)?;
        if file.metadata().map_err(failed)?.len() != limits::SIZE as u64 {
            return Err(Error::new(Code::Internal, format!("{} has another size", path.display())));
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; no existing memory is touched.
        let at = unsafe { mmap(std::ptr::null_mut(), limits::SIZE, protection, MapFlags::SHARED, &file, 0) };
        let limits = Self(at.map_err(|errno| failed(errno.into()))?);
        if limits.page().is_valid() && limits.page().nonce() == lease.grant.nonce.0 {
            return Ok(limits);
        }
        Err(Error::new(Code::Internal, format!("{} is not of grant {}", path.display(), lease.grant.nonce)))
    }

    #[allow(unsafe_code, reason = "see open")]
    fn page(&self) -> &Page {
        // SAFETY: the mapping is as large as a page, is aligned to the machine's pages, stays until `self` is
        // dropped (no process cuts the file short: only its maker writes to the folder), and Page is made of
        // atomics, for which every content is a value.
        unsafe { &*self.0.cast::<Page>() }
    }

    fn write(&self, gpus: &[GrantedGpu], compute: Compute, usable: impl Fn(&str) -> u64) {
        let page = self.page();
        for gpu in gpus {
            let at = fgpu_wire::parse_uuid(&gpu.uuid).and_then(|uuid| page.find(&uuid));
            if let Some(at) = at {
                let (compute, cores) = compute_of(compute, gpu, usable(&gpu.uuid));
                page.resize(at, gpu.memory, cores, compute);
            }
        }
    }
}

impl Drop for Limits {
    #[allow(unsafe_code, reason = "see open")]
    fn drop(&mut self) {
        // SAFETY: our own mapping; references to it do not outlive `self`. It cannot fail for a range that is
        // mapped.
        let _ = unsafe { munmap(self.0, limits::SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use fgpu_allocator::{Key, Process, State};
    use fgpu_spec::{Grant, Nonce};

    use super::*;

    fn lease() -> Lease {
        Lease {
            key: Key { namespace: "moby".into(), id: "abc".into() },
            grant: Grant {
                nonce: Nonce([7; 16]),
                tier: Tier::Quota,
                compute: Compute::Cap,
                gpus: Vec::new(),
                notes: Vec::new(),
            },
            state: State::Active,
            owner: None,
            exclusive: false,
            bundle: "/b".into(),
            maker: Process::current().unwrap(),
            pid_namespace: None,
            pid_file: None,
            init: None,
            cgroup: None,
            created: 0,
            wall: 0,
            request: String::new(),
            trouble: None,
            kept: None,
            anchor: None,
            joined: Vec::new(),
        }
    }

    /// The limits are mounted read-only into the container, and its root can take a lease on what it can
    /// read.
    #[test]
    fn limits_on_which_the_container_holds_a_lease_are_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("limits");
        std::fs::write(&path, limits::encode(&[7; 16], &[])).unwrap();
        let held = crate::own::tests::lease(&path, nix::libc::F_RDLCK);
        let error = Limits::open(folder.path(), &lease()).err().unwrap();
        assert_eq!(error.code, Code::Denied);
        assert!(error.message.contains("abc holds a lease"), "{error}");
        drop(held);
        assert!(Limits::open(folder.path(), &lease()).is_ok());
    }
}
