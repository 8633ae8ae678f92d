//! What is known of a GPU's instances beside the leases: those that are not ours, as they were when the
//! driver was last asked, and those that we made.
//!
//! ```text
//! mig/<minor>.json    {"version":1,"boot":…,"gpu":"GPU-…","instances":[{"gpu_instance":3,"profile":14,"start":2,"size":2,…}],
//!                      "made":[{"uuid":"GPU-…","memory":…,"cores_ppm":…,"mig":{"start":4,"size":2,…}}]}
//! mig/<minor>.lock    flock, held across the driver's calls that make or destroy instances of that GPU
//! ```
//!
//! A reservation must not wait for the driver, so it believes this file, which may be old. The process that
//! then makes the instance looks again (a place that is taken after all is a reason to reserve anew), and a
//! request that finds no place has the file made anew before it is refused. It is written with the GPU's lock
//! held: fgpu makes or destroys no instance meanwhile, so what is not a lease's is not ours.
//!
//! `made` is for one case: the allocator file was lost or given up, and its leases with it. Only what is
//! written here then tells our instance from an administrator's ([`Slices::adopt_orphans`]). If the whole
//! state directory is deleted, this goes, too, and the instances become the administrator's, which fgpu does
//! not destroy: an instance has no name that we could give it, and a list elsewhere would be a second truth,
//! which outlives the first.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use fgpu_spec::{Compute, Gpu, Grant, GrantedGpu, Inventory, MigInstance, MigPlacement, Tier};
use serde::{Deserialize, Serialize};

use crate::store::new_nonce;
use crate::{Error, Key, Lease, Process, Slot, SlotHolder, State, Store, host, image};

/// An instance that is not ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreign {
    /// Its id.
    pub gpu_instance: u32,
    /// Its profile's id.
    pub profile: u32,
    /// Where it lies.
    #[serde(flatten)]
    pub placement: MigPlacement,
    /// The device, if it can be used as it is: one compute instance fills it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<MigInstance>,
}

/// The version of the file's format. What has none is of version 1.
const VERSION: u64 = 1;

/// The file. A newer version than ours is not read past: what we made would be forgotten. In the same one,
/// unknown fields are.
#[derive(Serialize, Deserialize)]
struct Seen {
    #[serde(default = "first")]
    version: u64,
    boot: String,
    gpu: String,
    instances: Vec<Foreign>,
    #[serde(default)]
    made: Vec<GrantedGpu>,
}

fn first() -> u64 {
    1
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            version: VERSION,
            boot: String::new(),
            gpu: String::new(),
            instances: Vec::new(),
            made: Vec::new(),
        }
    }
}

/// What every version of the file has.
#[derive(Deserialize)]
struct Head {
    #[serde(default = "first")]
    version: u64,
    boot: String,
    gpu: String,
}

/// The right to make and destroy instances of one GPU, until dropped.
#[derive(Debug)]
pub struct DriverLock(#[expect(dead_code, reason = "held, not read")] File);

/// The record of a GPU's instances beside the leases.
#[derive(Debug, Clone, Copy)]
pub struct Slices<'a> {
    store: &'a Store,
}

impl Store {
    /// The record of the GPUs' instances.
    pub fn slices(&self) -> Slices<'_> {
        Slices { store: self }
    }
}

impl Slices<'_> {
    fn mig_file(&self, gpu: &Gpu, kind: &str) -> PathBuf {
        self.store.files.dir.join("mig").join(format!("{}.{kind}", gpu.minor))
    }

    /// Waits for the right to make and destroy instances of `gpu`. It is held while the driver works, which
    /// may be seconds: never by a holder of the store's lock, and for one GPU at a time.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn lock_driver(&self, gpu: &Gpu) -> Result<DriverLock, Error> {
        let path = self.mig_file(gpu, "lock");
        let folder = self.store.files.dir.join("mig");
        let mut builder = DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o755)
            .create(&folder)
            .map_err(|error| Error::io("create", &folder, error))?;
        let open = || {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            file.lock()?;
            Ok(file)
        };
        open().map(DriverLock).map_err(|error: std::io::Error| Error::io("lock", &path, error))
    }

    fn seen(&self, gpu: &Gpu) -> Result<Seen, Error> {
        let path = self.mig_file(gpu, "json");
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Seen::default()),
            Err(error) => return Err(Error::io("read", &path, error)),
        };
        // What does not parse, or is of another boot or GPU, says nothing; a process that makes an instance
        // looks anyway.
        let head: Option<Head> = serde_json::from_slice(&text).ok();
        match head.filter(|head| head.boot == self.store.boot.id() && head.gpu == gpu.uuid) {
            None => Ok(Seen::default()),
            Some(Head { version, .. }) if version > VERSION => {
                Err(Error::Version { path, found: version, known: VERSION })
            }
            Some(_) => Ok(serde_json::from_slice(&text).unwrap_or_default()),
        }
    }

    /// Changes the file of a GPU. The lock excludes other writers.
    fn see(&self, _: &DriverLock, gpu: &Gpu, change: impl FnOnce(&mut Seen)) -> Result<(), Error> {
        let mut seen = self.seen(gpu)?;
        change(&mut seen);
        seen.version = VERSION;
        seen.boot = self.store.boot.id().to_owned();
        seen.gpu = gpu.uuid.clone();
        let text = serde_json::to_vec(&seen).map_err(Error::Unwritable)?;
        let path = self.mig_file(gpu, "json");
        let temporary = self.mig_file(gpu, "json.new");
        let write = || {
            fs::write(&temporary, &text)?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|error| Error::io("write", &path, error))
    }

    /// Writes down which of a GPU's instances are not ours.
    ///
    /// # Errors
    /// As [`Error`] says; the file is as it was then.
    pub fn record_foreign(&self, lock: &DriverLock, gpu: &Gpu, foreign: &[Foreign]) -> Result<(), Error> {
        self.see(lock, gpu, |seen| seen.instances = foreign.to_vec())
    }

    /// What was last written down; nothing if the driver was not asked in this boot.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn foreign(&self, gpu: &Gpu) -> Result<Vec<Foreign>, Error> {
        Ok(self.seen(gpu)?.instances)
    }

    /// Writes down that we made this slice.
    ///
    /// # Errors
    /// As [`Error`] says; the file is as it was then.
    pub fn made(&self, lock: &DriverLock, gpu: &Gpu, slice: GrantedGpu) -> Result<(), Error> {
        self.see(lock, gpu, |seen| {
            seen.made.retain(|other| !same_place(other, &slice));
            seen.made.push(slice);
        })
    }

    /// Writes down that what we made in the place of this slice is no more.
    ///
    /// # Errors
    /// As [`Error`] says; the file is as it was then.
    pub fn unmade(&self, lock: &DriverLock, gpu: &Gpu, slice: &GrantedGpu) -> Result<(), Error> {
        self.see(lock, gpu, |seen| seen.made.retain(|other| !same_place(other, slice)))
    }

    /// The slices that we made and have not destroyed, and that no lease holds: their leases were lost.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn orphans(&self, inventory: &Inventory) -> Result<Vec<GrantedGpu>, Error> {
        let mut orphans = self.all_made(inventory)?;
        if !orphans.is_empty() {
            let leases = self.store.leases()?;
            orphans.retain(|orphan| !leases.iter().any(|lease| holds(lease, orphan)));
        }
        if !orphans.is_empty() {
            // What was destroyed meanwhile, and its lease dropped, is none.
            let still = self.all_made(inventory)?;
            orphans.retain(|orphan| still.contains(orphan));
        }
        Ok(orphans)
    }

    /// What we made and have not destroyed. The lease of each was written before, and goes after it is taken
    /// off the list.
    fn all_made(&self, inventory: &Inventory) -> Result<Vec<GrantedGpu>, Error> {
        let of = |gpu| Ok(self.seen(gpu)?.made);
        Ok(inventory.gpus.iter().map(of).collect::<Result<Vec<_>, _>>()?.concat())
    }

    /// Gives each slice in [`Slices::orphans`] a lease that has come to its end, so that it is destroyed like
    /// any other. Returns those leases.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn adopt_orphans(&self, inventory: &Inventory) -> Result<Vec<Lease>, Error> {
        let mut adopted = Vec::new();
        for orphan in self.orphans(inventory)? {
            let lock = self.store.files.lock(&self.store.host)?;
            let image = self.store.read_locked(&lock)?;
            // Another process may have been as quick, or it is gone.
            let is_held = self.store.parse_all(&image)?.iter().any(|lease| holds(lease, &orphan));
            if is_held || !self.all_made(inventory)?.contains(&orphan) {
                continue;
            }
            let lease = lease_of(orphan)?;
            let line = image::line(&lease, &self.store.boot)?;
            let keep = |_| image::Edit::Keep;
            self.store.files.replace(&lock, &image.rewrite(&self.store.boot, keep, Some(&line)))?;
            adopted.push(lease);
        }
        Ok(adopted)
    }

    /// The slots of the instances that are not ours, per GPU in the inventory's order.
    pub(crate) fn foreign_slots(&self, inventory: &Inventory) -> Result<Vec<Vec<Slot>>, Error> {
        let slot = |foreign: Foreign| Slot {
            placement: foreign.placement,
            profile: foreign.profile,
            holder: foreign.device.map_or(SlotHolder::Other, SlotHolder::Idle),
        };
        let of = |gpu: &Gpu| match gpu.mig_enabled {
            true => Ok(self.foreign(gpu)?.into_iter().map(slot).collect()),
            false => Ok(Vec::new()),
        };
        inventory.gpus.iter().map(of).collect()
    }
}

fn same_place(one: &GrantedGpu, other: &GrantedGpu) -> bool {
    let place = |share: &GrantedGpu| share.mig.as_ref().map(|mig| mig.placement);
    one.uuid == other.uuid && place(one) == place(other)
}

/// Whether a lease answers for what lies in the place of a slice.
fn holds(lease: &Lease, slice: &GrantedGpu) -> bool {
    let mut ours =
        lease.grant.gpus.iter().filter(|share| share.mig.as_ref().is_some_and(|mig| mig.stage.is_ours()));
    ours.any(|share| same_place(share, slice))
}

/// A lease that has come to its end, of this slice.
fn lease_of(slice: GrantedGpu) -> Result<Lease, Error> {
    let name = slice.mig.as_ref().map_or("", |mig| &mig.name);
    Ok(Lease {
        key: Key { namespace: "fgpu".into(), id: format!("lost-{name}") },
        request: format!("fgpu/mig={name}"),
        grant: Grant {
            nonce: new_nonce()?,
            tier: Tier::Mig,
            compute: Compute::Cap,
            gpus: vec![slice],
            notes: Vec::new(),
        },
        state: State::Releasing,
        owner: None,
        exclusive: false,
        bundle: PathBuf::new(),
        maker: Process::current()?,
        pid_namespace: None,
        pid_file: None,
        init: None,
        cgroup: None,
        created: host::boottime(),
        wall: host::wall(),
        trouble: None,
        kept: None,
        anchor: None,
        joined: Vec::new(),
    })
}
