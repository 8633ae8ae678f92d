//! The store: opening it, what is done to leases that are there, and reading the file.
//!
//! Taking a share is in `reserve.rs`, changing it in `resize.rs`, what the driver has of it in `phases.rs`,
//! freeing the dead's in `reconcile.rs`, and waiting for it in `queue/`.

use std::io;
use std::path::{Path, PathBuf};

use fgpu_spec::Nonce;
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::file::{Files, Lock};
use crate::image::{self, Boot, Damage, Edit, Image, Summary};
use crate::{Anchor, Change, Error, Host, Joined, Key, Lease, Observer, Process, State};

/// How often a reader without the lock reads again before it takes the lock.
const READS: usize = 3;

/// The leases of a node, in a directory.
///
/// It holds no descriptor and no lock between calls; it may be shared by threads and inherited by a fork.
#[derive(Debug)]
pub struct Store {
    pub(crate) files: Files,
    pub(crate) host: Host,
    pub(crate) boot: Boot,
    /// Ours; a lease names its processes by the pids that they have in it.
    pub(crate) pid_namespace: Option<u64>,
    pub(crate) observer: Option<Box<dyn Observer>>,
}

impl Store {
    /// Opens the store in `dir` (mode 0755) and creates the directory if it is missing, but not its parents.
    ///
    /// # Errors
    /// When the directory cannot be made or looked at, or the boot id cannot be read.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        Self::open_on(dir, Host::default())
    }

    /// [`Store::open`] where procfs and cgroupfs are mounted elsewhere.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_on(dir: &Path, host: Host) -> Result<Self, Error> {
        let boot = Boot::new(host.boot_id()?);
        let pid_namespace = host.pid_namespace()?;
        Ok(Self { files: Files::open(dir)?, host, boot, pid_namespace, observer: None })
    }

    /// The same store, whose changes `observer` is told.
    pub fn observed_by(mut self, observer: Box<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    pub(crate) fn tell(&self, change: Change<'_>) {
        if let Some(observer) = &self.observer {
            observer.observe(change);
        }
    }

    /// Records that the container runs, and what keeps its lease alive from now on; what is `None` stays as
    /// it was. One with an anchor learns of one more container instead, if both are known. Idempotent. `false`
    /// if there is no such lease (any more).
    ///
    /// # Errors
    /// As [`Error`] says; then nothing has changed.
    pub fn activate(
        &self,
        nonce: &Nonce,
        init: Option<Process>,
        cgroup: Option<String>,
    ) -> Result<bool, Error> {
        self.change(nonce, |lease| {
            let held = lease.state.is_held();
            if held && lease.anchor.is_some() {
                let is_job = matches!(lease.anchor, Some(Anchor::Job(_)));
                let may_live = |one: &Joined| match is_job {
                    // All its tasks are in one cgroup, and one of them stands for those in its namespace.
                    true => self.host.is_alive(one.init).unwrap_or(true),
                    false => self.host.cgroup_has_process(&one.cgroup).unwrap_or(true),
                };
                lease.joined.retain(may_live);
                let joins = init.zip(cgroup).map(|(init, cgroup)| Joined { init, cgroup });
                lease.joined.extend(joins.filter(|one| !lease.joined.contains(one)));
            } else if held {
                lease.state = State::Active;
                lease.init = init.or(lease.init);
                lease.cgroup = cgroup.or(lease.cgroup.take());
            }
            held
        })
    }

    /// Ends a container's lease and removes its folder. Idempotent; `None` if there is no such lease (any
    /// more), or if it has an anchor: it is not one container's to end.
    ///
    /// One in which the driver has a part becomes [`State::Releasing`] instead, and is returned so: it goes
    /// with [`crate::DriverPart::finish`].
    ///
    /// # Errors
    /// As [`Error`] says; then the lease is still there.
    pub fn release(&self, nonce: &Nonce) -> Result<Option<Lease>, Error> {
        self.release_if(nonce, |lease| lease.anchor.is_none())
    }

    /// [`Store::release`] for a lease with an anchor as well.
    ///
    /// # Errors
    /// As [`Store::release`].
    pub fn release_held(&self, nonce: &Nonce) -> Result<Option<Lease>, Error> {
        self.release_if(nonce, |_| true)
    }

    pub(crate) fn release_if(
        &self,
        nonce: &Nonce,
        may_end: impl Fn(&Lease) -> bool,
    ) -> Result<Option<Lease>, Error> {
        let released = {
            let lock = self.files.lock(&self.host)?;
            let image = self.read_locked(&lock)?;
            match image.find(nonce) {
                None => None,
                Some(old) => {
                    let lease = image::lease(old).map_err(|damage| self.damaged(&lock, damage))?;
                    if !lease.state.is_held() || !may_end(&lease) {
                        return Ok(None);
                    }
                    let mut ends: Ends<'_> = Vec::new();
                    let lease = self.end(old, lease, &mut ends)?;
                    self.files
                        .replace(&lock, &image.rewrite(&self.boot, |line| end_of(&ends, line), None))?;
                    drop(lock);
                    self.queue().wake_first(&image, None);
                    Some(lease)
                }
            }
        };
        match &released {
            None => self.remove_folder(nonce),
            Some(lease) => {
                self.remove_folders(std::slice::from_ref(lease));
                self.tell(Change::Released(lease));
            }
        }
        Ok(released)
    }

    /// Ends every lease of a container, and its wait for one.
    ///
    /// # Errors
    /// As [`Error`] says; then the leases are still there.
    pub fn release_key(&self, container: &Key) -> Result<Vec<Lease>, Error> {
        let key = image::key_head(container);
        let mut released = Vec::new();
        let somebody_waits = {
            let lock = self.files.lock(&self.host)?;
            let image = self.read_locked(&lock)?;
            let mut ends: Ends<'_> = Vec::new();
            for line in image.lines() {
                if self.summary(&lock, line)?.rest.starts_with(&key) {
                    let lease = image::lease(line).map_err(|damage| self.damaged(&lock, damage))?;
                    if lease.state.is_held() {
                        released.push(self.end(line, lease, &mut ends)?);
                    }
                }
            }
            if !released.is_empty() {
                self.files.replace(&lock, &image.rewrite(&self.boot, |line| end_of(&ends, line), None))?;
                drop(lock);
                self.queue().wake_first(&image, None);
            }
            image.waiters().next().is_some()
        };
        self.remove_folders(&released);
        released.iter().for_each(|lease| self.tell(Change::Released(lease)));
        // Its create may wait, or have been killed while it did. The leases are gone either way, and every
        // reconcile tries again.
        let cancelled = if somebody_waits { self.queue().cancel_key(container) } else { Ok(()) };
        let _ = cancelled.and_then(|()| self.queue().sweep());
        Ok(released)
    }

    /// Ends the leases of a container that have no living holder any more, and returns them. One whose
    /// container runs stays: it may be a new container of the same name.
    ///
    /// # Errors
    /// As [`Error`] says. A lease stays if it cannot be told whether it is held; that is no error.
    pub fn release_dead(&self, key: &Key) -> Result<Vec<Lease>, Error> {
        self.sweep(Some(&image::key_head(key)))
    }

    /// Every lease, in the order in which they were made. Takes no lock unless the file changes all the time.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn leases(&self) -> Result<Vec<Lease>, Error> {
        self.parse_all(&self.read()?)
    }

    /// Whether a container has a lease, whatever its state. Takes no lock, as [`Store::leases`].
    ///
    /// # Errors
    /// As [`Error`] says.
    pub fn has(&self, container: &Key) -> Result<bool, Error> {
        let (image, key) = (self.read()?, image::key_head(container));
        let mut summaries = image.lines().map(Summary::scan);
        let found = summaries.find(|line| line.as_ref().map_or(true, |line| line.rest.starts_with(&key)));
        found.transpose().map(|found| found.is_some()).map_err(|damage| self.damage(damage, None))
    }

    /// Where a grant's files for its container are: `<dir>/containers/<nonce>`. Make it after the lease; it
    /// is removed after the lease.
    pub fn container_dir(&self, nonce: &Nonce) -> PathBuf {
        self.files.folder(nonce)
    }

    /// Changes one lease; `false` if there is none or `change` says so. Nothing is written if it stays as it
    /// is.
    pub(crate) fn change(
        &self,
        nonce: &Nonce,
        change: impl FnOnce(&mut Lease) -> bool,
    ) -> Result<bool, Error> {
        let lock = self.files.lock(&self.host)?;
        let image = self.read_locked(&lock)?;
        let Some(old) = image.find(nonce) else { return Ok(false) };
        let mut lease = image::lease(old).map_err(|damage| self.damaged(&lock, damage))?;
        if !change(&mut lease) {
            return Ok(false);
        }
        let new = image::line(&lease, &self.boot)?;
        if new != old {
            let edit = |line| if line == old { Edit::Replace(&new) } else { Edit::Keep };
            self.files.replace(&lock, &image.rewrite(&self.boot, edit, None))?;
        }
        Ok(true)
    }

    /// Notes what becomes of the line of a lease that has come to its end, and returns the lease as it is
    /// then.
    pub(crate) fn end<'a>(&self, line: &'a [u8], lease: Lease, ends: &mut Ends<'a>) -> Result<Lease, Error> {
        let rest = lease.ended();
        let text = rest.as_ref().map(|rest| image::line(rest, &self.boot)).transpose()?;
        ends.push((line, text));
        Ok(rest.unwrap_or(lease))
    }

    /// Removes the folders of leases that are gone.
    pub(crate) fn remove_folders(&self, ended: &[Lease]) {
        let gone = ended.iter().filter(|lease| lease.state != State::Releasing);
        gone.for_each(|lease| self.remove_folder(&lease.grant.nonce));
    }

    /// Removes a container folder as far as it can be. The lease is gone already, and every reconcile tries
    /// again.
    pub(crate) fn remove_folder(&self, nonce: &Nonce) {
        let _ = self.files.remove_folder(nonce);
    }

    /// The file as it is, without the lock if that is possible.
    pub(crate) fn read(&self) -> Result<Image, Error> {
        for _ in 0..READS {
            match self.files.read()? {
                None if self.files.folders()?.is_empty() => return Ok(Image::default()),
                // Either the first lease was made in between, or the file was removed.
                None => break,
                // A failed check may only mean that two changes passed while it was read (file.rs).
                Some(bytes) => match Image::parse(bytes, &self.boot) {
                    Ok(image) => return Ok(image),
                    Err(Damage::Torn) => {}
                    Err(damage) => return Err(self.damage(damage, None)),
                },
            }
        }
        match self.files.lock(&self.host) {
            Ok(lock) => self.read_locked(&lock),
            // The caller may only look: the file is not kept aside, and it may be whole the next moment.
            Err(Error::Io { source, .. })
                if matches!(
                    source.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                Err(self.damage(Damage::Torn, None))
            }
            Err(error) => Err(error),
        }
    }

    /// The file as it stays while the lock is held. A damaged one is kept aside and left in place: everything
    /// fails alike until it is rebuilt.
    pub(crate) fn read_locked(&self, lock: &Lock) -> Result<Image, Error> {
        match self.files.read()? {
            Some(bytes) => Image::parse(bytes, &self.boot).map_err(|damage| self.damaged(lock, damage)),
            // A node without a file is empty, unless containers hold grants.
            None if self.files.folders()?.is_empty() => Ok(Image::default()),
            None => Err(Error::Corrupt {
                path: self.files.main.clone(),
                reason: "is missing although containers hold grants",
                aside: None,
            }),
        }
    }

    pub(crate) fn summary<'a>(&self, lock: &Lock, line: &'a [u8]) -> Result<Summary<'a>, Error> {
        Summary::scan(line).map_err(|damage| self.damaged(lock, damage))
    }

    pub(crate) fn parse_all(&self, image: &Image) -> Result<Vec<Lease>, Error> {
        image.lines().map(image::lease).collect::<Result<_, _>>().map_err(|damage| self.damage(damage, None))
    }

    pub(crate) fn damaged(&self, lock: &Lock, damage: Damage) -> Error {
        let aside = (damage == Damage::Torn).then(|| self.files.set_aside(lock)).flatten();
        self.damage(damage, aside)
    }

    pub(crate) fn damage(&self, damage: Damage, aside: Option<PathBuf>) -> Error {
        let path = self.files.main.clone();
        match damage {
            Damage::Torn => Error::Corrupt { path, reason: "fails its check", aside },
            Damage::Version(found) => Error::Version { path, found, known: image::VERSION },
            Damage::Unknown => Error::Unknown { path },
        }
    }
}

/// Lines, and what takes the place of each.
pub(crate) type Ends<'a> = Vec<(&'a [u8], Option<Vec<u8>>)>;

/// What becomes of a line.
pub(crate) fn end_of<'a>(ends: &'a Ends<'_>, line: &[u8]) -> Edit<'a> {
    match ends.iter().find(|(old, _)| *old == line) {
        None => Edit::Keep,
        Some((_, None)) => Edit::Drop,
        Some((_, Some(rest))) => Edit::Replace(rest),
    }
}

pub(crate) fn new_nonce() -> Result<Nonce, Error> {
    let mut nonce = [0; 16];
    let mut filled = 0;
    while filled < nonce.len() {
        filled += retry_on_intr(|| getrandom(&mut nonce[filled..], GetRandomFlags::empty()))
            .map_err(|errno| Error::io("read", Path::new("getrandom(2)"), errno))?;
    }
    Ok(Nonce(nonce))
}
