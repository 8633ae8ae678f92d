//! Instances that no lease of ours made, as they were when somebody last asked the driver.
//!
//! ```text
//! mig/<minor>.json    {"boot":…,"gpu":"GPU-…","instances":[{"gpu_instance":3,"profile":14,"start":2,"size":2,…}]}
//! mig/<minor>.lock    flock, held by whoever makes or destroys instances of that GPU, across the driver's calls
//! ```
//!
//! A reservation must not wait for the driver, so it believes this file, which may be old. Whoever then makes the instance
//! looks again (a place that is taken after all is a reason to reserve anew), and a request that finds no place has
//! the file made anew before it is refused. It is written with the GPU's lock held: nobody of ours makes or destroys an
//! instance meanwhile, so what is not a lease's is not ours.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use fgpu_spec::{Gpu, Inventory, MigInstance, MigPlacement};
use serde::{Deserialize, Serialize};

use crate::{Error, Slot, SlotHolder, Store};

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

#[derive(Serialize, Deserialize)]
struct Seen<T> {
    boot: String,
    gpu: String,
    instances: T,
}

/// The right to make and destroy instances of one GPU, until dropped.
#[derive(Debug)]
pub struct DriverLock(#[expect(dead_code, reason = "held, not read")] File);

impl Store {
    fn mig_file(&self, gpu: &Gpu, kind: &str) -> PathBuf {
        self.files.dir.join("mig").join(format!("{}.{kind}", gpu.minor))
    }

    /// Waits for the right to make and destroy instances of `gpu`. It is held while the driver works, which may be
    /// seconds: never by whoever holds the store's lock, and for one GPU at a time.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn lock_driver(&self, gpu: &Gpu) -> Result<DriverLock, Error> {
        let path = self.mig_file(gpu, "lock");
        let folder = self.files.dir.join("mig");
        fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, error))?;
        let open = || {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            file.lock()?;
            Ok(file)
        };
        open().map(DriverLock).map_err(|error: std::io::Error| Error::io("lock", &path, error))
    }

    /// Writes down which of a GPU's instances are not ours.
    ///
    /// # Errors
    /// As [`Error`] says; the file is as it was then.
    pub fn saw(&self, _: &DriverLock, gpu: &Gpu, foreign: &[Foreign]) -> Result<(), Error> {
        let seen = Seen { boot: self.boot.id().to_owned(), gpu: gpu.uuid.clone(), instances: foreign };
        let text = serde_json::to_vec(&seen).map_err(Error::Unwritable)?;
        let path = self.mig_file(gpu, "json");
        let temporary = self.mig_file(gpu, "json.new");
        let write = || {
            fs::write(&temporary, &text)?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|error| Error::io("write", &path, error))
    }

    /// What was last written down; nothing if nobody has looked in this boot.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn foreign(&self, gpu: &Gpu) -> Result<Vec<Foreign>, Error> {
        let path = self.mig_file(gpu, "json");
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("read", &path, error)),
        };
        // What does not parse, or is of another boot or GPU, says nothing; whoever makes an instance looks anyway.
        let seen: Option<Seen<Vec<Foreign>>> = serde_json::from_slice(&text).ok();
        let seen = seen.filter(|seen| seen.boot == self.boot.id() && seen.gpu == gpu.uuid);
        Ok(seen.map_or_else(Vec::new, |seen| seen.instances))
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
