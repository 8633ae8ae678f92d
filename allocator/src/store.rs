//! The operations.

use std::io;
use std::path::{Path, PathBuf};

use fgpu_spec::{Grant, Inventory, Nonce, Request, Tier};
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::capacity::{self, Holder, Sums};
use crate::file::{Files, Lock};
use crate::image::{self, Boot, Damage, Draft, Edit, Image, Summary};
use crate::liveness::{Life, judge};
use crate::place::{Decision, Placement, Refusal};
use crate::refusal::Case;
use crate::{
    Change, Claim, Error, Host, Key, Lease, Observer, Process, Rules, Slot, State, Ticket, host, queue,
    refusal,
};

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
    pub(crate) observer: Option<Box<dyn Observer>>,
}

/// What a request would get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The tier that would serve it, or the last one that was tried.
    pub tier: Tier,
    /// How each GPU stands to it, in the inventory's order, and the placement or the refusal.
    pub decision: Decision,
    /// Who holds what of each GPU, in the inventory's order.
    pub holders: Vec<Vec<Holder>>,
    /// The error that [`Store::reserve`] would return.
    pub error: Option<fgpu_spec::Error>,
}

/// A request and what decides it.
pub(crate) struct Ask<'a> {
    pub(crate) inventory: &'a Inventory,
    pub(crate) rules: &'a Rules,
    pub(crate) request: &'a Request,
    /// Those that may serve it, the strongest first.
    pub(crate) tiers: &'a [Tier],
    /// What lies on each GPU that no lease made.
    pub(crate) foreign: Vec<Vec<Slot>>,
}

impl Ask<'_> {
    fn sums(&self, image: &Image, key: Option<&Vec<u8>>) -> Result<Sums, Damage> {
        let sums = capacity::sum(image, self.inventory, self.rules, None, key.map(Vec::as_slice))?;
        Ok(sums.with(&self.foreign))
    }
}

/// What a look at the leases came to.
pub(crate) enum Attempt {
    Done(Box<Lease>),
    Refused(Refused),
    /// Leases of the same container are there: a former life of it, most likely.
    SameKey,
    /// The ticket has no place in the queue: the file was made anew.
    NoPlace,
}

/// A refusal in words, and what can be done about it.
pub(crate) struct Refused {
    pub(crate) error: fgpu_spec::Error,
    /// Whether it may go away when the leases of the dead are freed.
    pub(crate) may_pass: bool,
    /// Whether it is worth waiting.
    pub(crate) is_passing: bool,
    /// Who waits ahead and would lose.
    pub(crate) behind: Option<Process>,
    /// Its place in the queue, from 1, and how many wait in all.
    pub(crate) place: Option<(usize, usize)>,
}

/// How a reservation stands to the queue.
pub(crate) enum Stand<'a> {
    /// It is behind all that wait, and does not wait itself.
    Aside,
    /// It waits, or would like to; it takes a place if it has none and is refused.
    Waits(&'a mut Ticket),
}

impl Stand<'_> {
    fn ticket(&self) -> Option<Nonce> {
        match self {
            Self::Waits(Ticket { place: Some(place), .. }) => Some(place.nonce),
            _ => None,
        }
    }
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
        Ok(Self { files: Files::open(dir)?, host, boot, observer: None })
    }

    /// Gives `claim` what `request` asks, in the first of `tiers` that has room for it, or says why not.
    ///
    /// If there is no room, the leases of the dead are freed and it is tried once more. Dead leases of the same
    /// container are freed in any case: a restarted container has one lease.
    ///
    /// # Errors
    /// With the codes of [`crate::Refusal::code`]; `state-corrupt` and `internal` as [`Error`] says. Then there is no
    /// lease.
    pub fn reserve(
        &self,
        inventory: &Inventory,
        rules: &Rules,
        request: &Request,
        tiers: &[Tier],
        claim: &Claim,
    ) -> Result<Lease, fgpu_spec::Error> {
        let nonce = new_nonce()?;
        let ask = self.ask(inventory, rules, request, tiers)?;
        let key = image::key_head(&claim.key);
        let (mut swept_key, mut swept_all) = (false, false);
        loop {
            match self.attempt(&ask, claim, nonce, (!swept_key).then_some(&key), Stand::Aside)? {
                Attempt::Done(lease) => {
                    self.tell(Change::Granted(&lease));
                    return Ok(*lease);
                }
                Attempt::SameKey => {
                    self.sweep(Some(&key))?;
                    swept_key = true;
                }
                Attempt::Refused(Refused { may_pass: true, .. }) if !swept_all => {
                    self.reconcile()?;
                    (swept_key, swept_all) = (true, true);
                }
                Attempt::Refused(Refused { error, .. }) => return Err(error),
                Attempt::NoPlace => {}
            }
        }
    }

    pub(crate) fn ask<'a>(
        &self,
        inventory: &'a Inventory,
        rules: &'a Rules,
        request: &'a Request,
        tiers: &'a [Tier],
    ) -> Result<Ask<'a>, Error> {
        let foreign = if tiers.contains(&Tier::Mig) { self.foreign_slots(inventory)? } else { Vec::new() };
        Ok(Ask { inventory, rules, request, tiers, foreign })
    }

    pub(crate) fn attempt(
        &self,
        ask: &Ask<'_>,
        claim: &Claim,
        nonce: Nonce,
        same_key: Option<&Vec<u8>>,
        mut stand: Stand<'_>,
    ) -> Result<Attempt, Error> {
        let lock = self.files.lock()?;
        let image = self.read_locked(&lock)?;
        let torn = |damage| self.damaged(&lock, damage);
        let ticket = stand.ticket();
        let mut place = ticket.and_then(|ticket| image.place_of(&ticket));
        if ticket.is_some() && place.is_none() {
            return Ok(Attempt::NoPlace);
        }
        let sums = ask.sums(&image, same_key).map_err(torn)?;
        if sums.same_key {
            return Ok(Attempt::SameKey);
        }
        let (tier, decision, passed) = queue::decide(ask, &image, &sums, place).map_err(torn)?;
        match &decision.outcome {
            Ok(placement) => {
                let mut lease = lease(ask, claim, nonce, tier, placement.clone());
                let taken = self.take_kept(&image, &mut lease)?;
                let line = image::line(&lease, &self.boot)?;
                let passed = queue::count_passes(&image, &passed, &self.boot).map_err(torn)?;
                let edit = queue::served(place, &passed);
                let draft =
                    image.rewrite_all(&self.boot, |line| end_of(&taken, line), Some(&line), edit, None);
                self.files.replace(&lock, &draft)?;
                match stand {
                    Stand::Waits(ticket) => self.left(lock, &image, ticket),
                    Stand::Aside => {
                        drop(lock);
                        self.wake_first(&image, None);
                    }
                }
                Ok(Attempt::Done(Box::new(lease)))
            }
            Err(refusal) => {
                if let Stand::Waits(ticket) = &mut stand
                    && ticket.place.is_none()
                    && refusal.is_passing()
                {
                    self.join(&lock, &image, ask, claim, ticket)?;
                    place = Some(image.waiters().count());
                }
                // Nothing else is written: the words can be made without the lock.
                drop(lock);
                let holders = capacity::holders(&self.parse_all(&image)?, ask.inventory);
                let error = refusal::error(
                    refusal,
                    &Case {
                        decision: &decision,
                        request: ask.request,
                        inventory: ask.inventory,
                        holders: &holders,
                        slots: &sums.slots,
                    },
                );
                let waiting = image.waiters().count();
                Ok(Attempt::Refused(Refused {
                    error,
                    may_pass: refusal.may_pass(),
                    is_passing: refusal.is_passing(),
                    behind: match refusal {
                        Refusal::Behind(waiter) => Some(waiter.process),
                        _ => None,
                    },
                    place: place.map(|place| (place + 1, waiting.max(place + 1))),
                }))
            }
        }
    }

    /// What [`Store::reserve`] would answer now. Takes nothing and frees nothing; leases of the dead do not count.
    ///
    /// # Errors
    /// As [`Store::leases`].
    pub fn explain(
        &self,
        inventory: &Inventory,
        rules: &Rules,
        request: &Request,
        tiers: &[Tier],
    ) -> Result<Explanation, Error> {
        self.host.check_proc()?;
        let now = self.read()?;
        let mut leases = self.parse_all(&now)?;
        let dead = |lease: &Lease| matches!(judge(&self.host, lease), Ok(Life::Dead));
        // A dead container's instances are destroyed before a request is refused.
        leases.retain(|lease| match lease.state {
            State::Reserving | State::Active => !dead(lease),
            State::Releasing => lease.trouble.is_some(),
            State::Kept => true,
        });
        let lines =
            leases.iter().map(|lease| image::line(lease, &self.boot)).collect::<Result<Vec<_>, _>>()?;
        let waiters = now.waiters().filter(|line| self.waits(line));
        let draft = Draft::with_queue(&self.boot, lines.iter().map(Vec::as_slice), waiters);
        let torn = |damage| self.damage(damage, None);
        let image = Image::parse(draft.concat(), &self.boot).map_err(torn)?;
        let ask = self.ask(inventory, rules, request, tiers)?;
        let sums = ask.sums(&image, None).map_err(torn)?;
        let (tier, decision, _) = queue::decide(&ask, &image, &sums, None).map_err(torn)?;
        let holders = capacity::holders(&leases, inventory);
        let refusal = decision.outcome.as_ref().err();
        let case = Case { decision: &decision, request, inventory, holders: &holders, slots: &sums.slots };
        let error = refusal.map(|refusal| refusal::error(refusal, &case));
        Ok(Explanation { tier, decision, holders, error })
    }

    /// Records that the container runs, and what keeps its lease alive from now on; what is `None` stays as it
    /// was. Idempotent. `false` if there is no such lease (any more).
    ///
    /// # Errors
    /// As [`Error`] says; then nothing has changed.
    pub fn activate(
        &self,
        nonce: &Nonce,
        init: Option<Process>,
        cgroup: Option<String>,
    ) -> Result<bool, Error> {
        let lock = self.files.lock()?;
        let image = self.read_locked(&lock)?;
        let Some(old) = image.find(nonce) else { return Ok(false) };
        let mut lease = image::lease(old).map_err(|damage| self.damaged(&lock, damage))?;
        if !lease.state.is_held() {
            return Ok(false);
        }
        lease.state = State::Active;
        lease.init = init.or(lease.init);
        lease.cgroup = cgroup.or(lease.cgroup);
        let new = image::line(&lease, &self.boot)?;
        if new != old {
            let edit = |line| if line == old { Edit::Replace(&new) } else { Edit::Keep };
            self.files.replace(&lock, &image.rewrite(&self.boot, edit, None))?;
        }
        Ok(true)
    }

    /// Ends a lease and removes its container's folder. Idempotent; `None` if there is no such lease (any more).
    ///
    /// One in which the driver has a part becomes [`State::Releasing`] instead, and is returned so: it goes with
    /// [`Store::finish`].
    ///
    /// # Errors
    /// As [`Error`] says; then the lease is still there.
    pub fn release(&self, nonce: &Nonce) -> Result<Option<Lease>, Error> {
        let released = {
            let lock = self.files.lock()?;
            let image = self.read_locked(&lock)?;
            match image.find(nonce) {
                None => None,
                Some(old) => {
                    let lease = image::lease(old).map_err(|damage| self.damaged(&lock, damage))?;
                    if !lease.state.is_held() {
                        return Ok(None);
                    }
                    let mut ends: Ends<'_> = Vec::new();
                    let lease = self.end(old, lease, &mut ends)?;
                    self.files
                        .replace(&lock, &image.rewrite(&self.boot, |line| end_of(&ends, line), None))?;
                    drop(lock);
                    self.wake_first(&image, None);
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
            let lock = self.files.lock()?;
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
                self.wake_first(&image, None);
            }
            image.waiters().next().is_some()
        };
        self.remove_folders(&released);
        released.iter().for_each(|lease| self.tell(Change::Released(lease)));
        // Its create may wait, or have been killed while it did. The leases are gone either way, and every reconcile tries
        // again.
        let cancelled = if somebody_waits { self.cancel_key(container) } else { Ok(()) };
        let _ = cancelled.and_then(|()| self.sweep_queue());
        Ok(released)
    }

    /// Ends the leases of a container on which nobody lives any more, and returns them. One whose container runs stays:
    /// it may be a new container of the same name.
    ///
    /// # Errors
    /// As [`Error`] says. A lease of which it cannot be told whether somebody holds it stays, and is no error.
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

    /// Where a grant's files for its container are: `<dir>/containers/<nonce>`. Make it after the lease; it is
    /// removed after the lease.
    pub fn container_dir(&self, nonce: &Nonce) -> PathBuf {
        self.files.folder(nonce)
    }

    /// Notes what becomes of the line of a lease that has come to its end, and returns the lease as it is then.
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

    /// Removes a container folder as far as it can be. The lease is gone already, and every reconcile tries again.
    pub(crate) fn remove_folder(&self, nonce: &Nonce) {
        let _ = self.files.remove_folder(nonce);
    }

    /// The file as it is, without the lock if that is possible.
    pub(crate) fn read(&self) -> Result<Image, Error> {
        for _ in 0..READS {
            match self.files.read()? {
                None if self.files.folders()?.is_empty() => return Ok(Image::default()),
                // Either the first lease was made in between, or somebody removed the file.
                None => break,
                // A failed check may only mean that two changes passed while it was read (file.rs).
                Some(bytes) => match Image::parse(bytes, &self.boot) {
                    Ok(image) => return Ok(image),
                    Err(Damage::Torn) => {}
                    Err(damage) => return Err(self.damage(damage, None)),
                },
            }
        }
        match self.files.lock() {
            Ok(lock) => self.read_locked(&lock),
            // Somebody who may only look: it is not kept aside, and it may be whole the next moment.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::PermissionDenied => {
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

    fn summary<'a>(&self, lock: &Lock, line: &'a [u8]) -> Result<Summary<'a>, Error> {
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

fn lease(ask: &Ask<'_>, claim: &Claim, nonce: Nonce, tier: Tier, placement: Placement) -> Lease {
    let Placement { gpus, exclusive, notes, why: _ } = placement;
    Lease {
        key: claim.key.clone(),
        grant: Grant { nonce, tier, compute: ask.request.compute, gpus, notes },
        state: State::Reserving,
        owner: ask.request.owner.clone(),
        exclusive,
        bundle: claim.bundle.clone(),
        maker: claim.maker,
        pid_file: claim.pid_file.clone(),
        init: None,
        cgroup: None,
        created: host::boottime(),
        wall: host::wall(),
        request: ask.request.text.clone(),
        trouble: None,
        kept: None,
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
