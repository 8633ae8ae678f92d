//! What every front end does between the annotations of a container and the edits that give it its share:
//! request → inventory → lease → files → plan. How the plan is carried out is the front end's own.

use std::time::{Duration, Instant};

use std::path::{Path, PathBuf};

use fgpu_allocator::{Applicant, Key, Lease, Store};
use fgpu_spec::{
    Code, Compute, Document, Error, Inventory, Isolation, Nonce, Plan, Request, Tier, Vocabulary,
};

use fgpu_wire::ledger;

use crate::config::Config;
use crate::driver_step::{self, SetUp};
use crate::joint::Joint;
use crate::layers::Layers;
use crate::layout::Layout;
use crate::own::Own;
use crate::plan::{Files, How, Quota};
use crate::sealed;
use crate::wait::{self, Ask};
use crate::watch::Patience;
use crate::{board, container_files, give_back, plan, podman, programs};

/// What the container asks for, if anything. A pause container asks for nothing, whatever its pod asks for.
///
/// # Errors
/// The annotations are wrong, or the configuration forbids what they ask.
pub fn request(config: &Config, document: &Document) -> Result<Option<Request>, Error> {
    let mut annotations = document.annotations();
    if fgpu_spec::is_sandbox(&annotations) {
        return Ok(None);
    }
    let devices = document.cdi_devices()?;
    if !devices.is_empty() && podman::may_be_of_an_image(&annotations) {
        tracing::warn!("annotations are not heard: this Podman takes an image's for the container's");
        annotations.clear();
    }
    let name = fgpu_spec::container_name(&annotations);
    let name = name.as_deref();
    let mut asked = Request::with_devices(&annotations, &devices, name, &config.defaults())?;
    if asked.is_none() && config.accept_env && !fgpu_spec::opts_out(&annotations, name) {
        // Only without an annotation or a device: the container's own request outranks its image's.
        asked = Request::parse(&fgpu_spec::annotations_from_env(&document.env()), None, &config.defaults())?;
    }
    // What a pod's containers have together is not one container's to lower.
    let is_limited = config.aliases.contains(&Vocabulary::Nvidia)
        && !(devices.is_empty() && fgpu_spec::is_pod_wide(&annotations, &config.aliases));
    asked.map(|asked| if is_limited { asked.within_env(&document.env()) } else { Ok(asked) }).transpose()
}

/// Whether the container asks for something: under the node's configuration, or under some where that cannot
/// be read.
pub fn asks(config: &Result<Config, Error>, document: &Document) -> bool {
    match config {
        Ok(config) => !matches!(request(config, document), Ok(None)) || uses_claim(document),
        Err(_) => {
            let open = Config { accept_env: true, aliases: Vocabulary::ALL.to_vec(), ..Config::default() };
            !matches!(request(&open, document), Ok(None)) || uses_claim(document)
        }
    }
}

fn uses_claim(document: &Document) -> bool {
    !matches!(document.claims().as_deref(), Ok([]))
}

/// The grant that a front end has written into this very container's annotations, if it is alive. An
/// annotation alone proves nothing, any user can write one: the lease must be this container's. It stays in a
/// bundle that is used again, so it may be of a former life. Another container has it by now, or will.
///
/// # Errors
/// The leases cannot be read.
pub fn written(store: &Store, document: &Document, id: &str, bundle: &Path) -> Result<Option<Nonce>, Error> {
    let Some(nonce) = document.grant() else { return Ok(None) };
    let ours = |lease: &Lease| lease.grant.nonce == nonce && lease.key.id == id && lease.bundle == bundle;
    match store.leases()?.iter().find(|lease| ours(lease)) {
        Some(lease) if store.is_in_use(lease)? => Ok(Some(nonce)),
        _ => Ok(None),
    }
}

/// The grant of a lease that is tied to something, if another front end has brought this container into it.
///
/// # Errors
/// The leases cannot be read.
pub fn joined(store: &Store, document: &Document, key: &Key) -> Result<Option<Nonce>, Error> {
    let Some(nonce) = document.grant() else { return Ok(None) };
    let is_its = |lease: &Lease| lease.grant.nonce == nonce && lease.key == *key;
    Ok(store.leases()?.iter().any(is_its).then_some(nonce))
}

/// What a plan has to know of a container.
#[derive(Debug)]
pub struct Image<'a> {
    /// Its root, as far as it can be looked into.
    pub layers: Option<&'a Layers>,
    /// The environment that it starts with.
    pub env: Vec<String>,
    /// Where its first process starts: what a relative path of its environment counts from.
    pub cwd: String,
    /// Whether it may change mounts ([`Document::may_remount`]).
    pub may_remount: bool,
}

impl<'a> Image<'a> {
    /// The container of this `config.json`.
    pub fn of(document: &Document, layers: Option<&'a Layers>) -> Self {
        Self { layers, env: document.env(), cwd: document.cwd(), may_remount: document.may_remount() }
    }
}

/// A lease and the inventory that it was taken from.
#[derive(Debug)]
pub struct Granted {
    /// The GPUs among which it was chosen.
    pub inventory: Inventory,
    /// What is written down.
    pub lease: Lease,
    /// Whether it must be the driver that limits the memory.
    pub insists: bool,
}

/// Takes what the request asks for and waits for room as long as `patience` says. Each attempt is made under
/// a new `guard`; the one of the attempt that succeeded is returned.
///
/// # Errors
/// Those of the inventory and of [`Store::reserve`], and `timed-out`; there is no lease then.
pub fn reserve<Guard>(
    config: &Config,
    store: &Store,
    request: &Request,
    applicant: &Applicant,
    patience: &Patience,
    mut guard: impl FnMut() -> Result<Guard, Error>,
) -> Result<(Granted, Guard), Error> {
    let inventory = fgpu_driver::load(&config.driver_root, &config.state_dir, &programs::refresh_inventory)?;
    let tiers = tiers(request, &inventory)?;
    // What is seen of the GPUs may change while it waits.
    let rules = || {
        driver_step::look_at_gpus(config);
        config.rules()
    };
    let ask = Ask { inventory: &inventory, rules: &rules, request, tiers: &tiers };
    let started = Instant::now();
    // The room may be taken by what no lease holds any more: that is looked into before the request waits.
    let mut looked = !tiers.contains(&Tier::Mig);
    let mut places = 0;
    while places < MOST_PLACES {
        let left = request.wait.min(patience.longest).saturating_sub(started.elapsed());
        let wait = if looked { left } else { Duration::ZERO };
        let (lease, guard) = match wait::until_room(store, &ask, applicant, wait, &patience.watch, &mut guard)
        {
            Err(error) if !looked && is_short(&error) => {
                looked = true;
                driver_step::make_room(config, store)?;
                continue;
            }
            result => result?,
        };
        let nonce = lease.grant.nonce;
        match driver_step::set_up(config, store, lease) {
            Ok(SetUp::Done(lease)) => {
                let insists = request.isolation == Isolation::Driver;
                return Ok((Granted { inventory, lease: *lease, insists }, guard));
            }
            Ok(SetUp::PlaceTaken) => give_up(config, store, &nonce)?,
            Err(error) => return Err(undo(config, store, &nonce, error)),
        }
        places += 1;
    }
    Err(Error::new(
        Code::NoMigPlacement,
        format!(
            "{}: {MOST_PLACES} places were taken one after the other before a slice was made there: somebody else \
             makes MIG instances on this node; try again",
            request.text
        ),
    ))
}

/// How many places are tried before a request is refused. Each time the instances that are there have been
/// looked at.
const MOST_PLACES: u32 = 16;

/// Whether there is no room now.
fn is_short(error: &Error) -> bool {
    matches!(error.code, Code::NoCapacity | Code::Fragmented | Code::NoMigPlacement)
}

impl Granted {
    /// The lease of a claim that one more container joins.
    ///
    /// # Errors
    /// Those of the inventory.
    pub fn joined(config: &Config, lease: Lease) -> Result<Self, Error> {
        let inventory =
            fgpu_driver::load(&config.driver_root, &config.state_dir, &programs::refresh_inventory)?;
        Ok(Self { inventory, lease, insists: false })
    }

    /// Makes the grant's files and the plan for a container. The containers of a claim share the files, which
    /// the first of them makes.
    ///
    /// # Errors
    /// A file cannot be made, or the node lacks what the container needs. What is half made goes with the
    /// lease, that of a claim with the next container's plan.
    pub fn plan(&self, config: &Config, store: &Store, image: &Image<'_>) -> Result<Plan, Error> {
        let grant = &self.lease.grant;
        let layout = Layout::read(image.layers, &image.env, &image.cwd)?;
        let folder = store.container_dir(&grant.nonce);
        // Also where nothing is limited: a trace of the grant that a lost allocator file leaves.
        container_files::folder(&folder)?;
        let is_shared = self.lease.anchor.is_some();
        let joint = is_shared.then(|| Joint::enter(&folder)).transpose()?;
        let header = grant.tier.is_interposed().then(|| ledger::encode(&grant.nonce.0));
        // At most a folder for each file; the quota libraries are in one.
        let files = self.inventory.files.len() + config.driver_extra.len() + 1;
        let is_made = joint.as_ref().is_some_and(Joint::is_made);
        let own = match is_made {
            true => Own::open(&folder)?,
            false => Own::mount(&folder, header.as_ref().map(|header| &header[..]), files)?,
        };
        let quota = header.map(|_| self.quota(config, &folder, &own, is_made)).transpose()?;
        let how = How { insists: self.insists, may_remount: image.may_remount, is_shared };
        let plan = plan::plan(config, &self.inventory, grant, &layout, Files { folder, own, quota }, how)?;
        joint.map(Joint::made).transpose()?;
        Ok(plan)
    }

    /// What the quota libraries need, made in the grant's folder unless it `is_made`.
    fn quota(&self, config: &Config, folder: &Path, own: &Own, is_made: bool) -> Result<Quota, Error> {
        let grant = &self.lease.grant;
        let sealed = sealed::libraries(&config.library_dir, &config.state_dir)?;
        if !is_made {
            container_files::create(folder, grant, &self.inventory, &sealed.seal, config.reserve_memory)?;
        }
        let uuids = grant.gpus.iter().map(|gpu| &gpu.uuid);
        let known = uuids.filter_map(|uuid| self.inventory.gpus.iter().find(|gpu| gpu.uuid == *uuid));
        let minors: Vec<u32> = known.map(|gpu| gpu.minor).collect();
        let places = board::take(&config.state_dir, &grant.nonce, &minors)?;
        let boards: Vec<PathBuf> = places.iter().map(|place| place.board.clone()).collect();
        let turns = match (boards.is_empty(), is_made) {
            (true, _) => None,
            (false, true) => Some(own.boards()),
            (false, false) => Some(own.show_boards(&boards)?),
        };
        Ok(Quota { sealed, turns, places })
    }

    /// Gives the lease back because of `error`, which is returned with what went wrong with that, too.
    pub fn undo(&self, config: &Config, store: &Store, error: Error) -> Error {
        undo(config, store, &self.lease.grant.nonce, error)
    }
}

/// Gives back what was just reserved. What others have joined meanwhile stays.
fn give_up(config: &Config, store: &Store, nonce: &Nonce) -> Result<(), Error> {
    let unjoined = store.release_unjoined(nonce)?;
    unjoined.map_or(Ok(()), |lease| driver_step::ended(config, store, &lease))?;
    give_back(config, store, nonce)
}

fn undo(config: &Config, store: &Store, nonce: &Nonce, mut error: Error) -> Error {
    if let Err(second) = give_up(config, store, nonce) {
        error.message.push_str(&format!("; and its lease {nonce} stays until fgpu gc: {second}"));
    }
    error
}

/// The tiers that could serve a request on this node, the strongest first.
///
/// # Errors
/// `denied` when the request insists on a tier that the node cannot give.
pub fn tiers(request: &Request, inventory: &Inventory) -> Result<Vec<Tier>, Error> {
    match request.isolation {
        Isolation::Mig => Ok(vec![Tier::Mig]),
        Isolation::Quota => Ok(vec![Tier::Quota]),
        Isolation::None => Ok(vec![Tier::None]),
        Isolation::Auto => {
            // A slice has its SMs to itself: no more, and no less. A request that books none has what there
            // is.
            let can_be = request.compute == Compute::Cap || request.is_unbooked();
            let sliced = can_be && inventory.gpus.iter().any(|gpu| gpu.mig_enabled);
            // The last one serves any GPU that is not in MIG mode, be it with the driver's help or without.
            let last = if inventory.driver_limits { Tier::Driver } else { Tier::Quota };
            Ok(if sliced { vec![Tier::Mig, last] } else { vec![last] })
        }
        Isolation::Driver if inventory.driver_limits => Ok(vec![Tier::Driver]),
        Isolation::Driver => Err(Error::new(
            Code::Denied,
            format!(
                "{}: the driver's own memory limits need driver r615 or newer and cgroup v2 at /sys/fs/cgroup, and this \
                 node (driver {}) does not have them; use fgpu/isolation=quota",
                request.text, inventory.driver_version
            ),
        )),
    }
}

#[cfg(test)]
mod tests;
