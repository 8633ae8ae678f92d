//! What every front end does between the annotations of a container and the edits that give it its share:
//! request → inventory → lease → files → plan. How the plan is carried out is the front end's own.

use std::time::Duration;

use std::path::Path;

use fgpu_allocator::{Claim, Lease, Store};
use fgpu_spec::{Code, Document, Error, Inventory, Isolation, Nonce, Plan, Request, Tier};

use crate::config::Config;
use crate::layers::Layers;
use crate::layout::Layout;
use crate::wait::{self, Ask};
use crate::{container_files, plan, programs};

/// What the container asks for, if anything. A pause container asks for nothing, whatever its pod asks for.
///
/// # Errors
/// The annotations are wrong, or the configuration forbids what they ask.
pub(crate) fn request(config: &Config, document: &Document) -> Result<Option<Request>, Error> {
    let annotations = document.annotations();
    if fgpu_spec::is_sandbox(&annotations) {
        return Ok(None);
    }
    let name = fgpu_spec::container_name(&annotations);
    let asked = Request::parse(&annotations, name, &config.defaults())?;
    if asked.is_some() || !config.accept_env {
        return Ok(asked);
    }
    // Only where no annotation asks: whoever starts the container outranks whoever made its image.
    Request::parse(&fgpu_spec::annotations_from_env(&document.env()), None, &config.defaults())
}

/// The grant that a front end has written into this very container's annotations, if it is alive. An annotation
/// alone proves nothing, anybody can write one: the lease must be this container's.
///
/// # Errors
/// The leases cannot be read.
pub(crate) fn written(
    store: &Store,
    document: &Document,
    id: &str,
    bundle: &Path,
) -> Result<Option<Nonce>, Error> {
    let Some(nonce) = document.grant() else { return Ok(None) };
    let ours = |lease: &Lease| lease.grant.nonce == nonce && lease.key.id == id && lease.bundle == bundle;
    Ok(store.leases()?.iter().any(ours).then_some(nonce))
}

/// A lease and the inventory that it was taken from.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) inventory: Inventory,
    pub(crate) lease: Lease,
}

/// Takes what the request asks for and waits at most `longest` for room. Each attempt is made under a new `guard`; the
/// one of the attempt that succeeded is returned.
///
/// # Errors
/// Those of the inventory and of [`Store::reserve`], and `timed-out`; there is no lease then.
pub(crate) fn reserve<Guard>(
    config: &Config,
    store: &Store,
    request: &Request,
    claim: &Claim,
    longest: Duration,
    guard: impl FnMut() -> Result<Guard, Error>,
) -> Result<(Granted, Guard), Error> {
    let inventory = fgpu_driver::load(&config.driver_root, &config.state_dir, &programs::refresh_inventory)?;
    let tier = tier(request, &inventory.driver_version)?;
    let rules = config.rules();
    let ask = Ask { inventory: &inventory, rules: &rules, request, tier };
    let (lease, guard) = wait::until_room(store, &ask, claim, request.wait.min(longest), guard)?;
    Ok((Granted { inventory, lease }, guard))
}

impl Granted {
    /// Makes the grant's files and the plan for an image with these layers.
    ///
    /// # Errors
    /// A file cannot be made, or the node lacks what the container needs. What is half made goes with the lease.
    pub(crate) fn plan(
        &self,
        config: &Config,
        store: &Store,
        layers: Option<&Layers>,
    ) -> Result<Plan, Error> {
        let files = store.container_dir(&self.lease.grant.nonce);
        if self.lease.grant.tier != Tier::None {
            container_files::create(&files, &self.lease.grant, &self.inventory)?;
        }
        plan::plan(config, &self.inventory, &self.lease.grant, &Layout::read(layers), &files)
    }

    /// Gives the lease back because of `error`, which is returned with what went wrong with that, too.
    pub(crate) fn undo(&self, store: &Store, mut error: Error) -> Error {
        let nonce = &self.lease.grant.nonce;
        if let Err(second) = store.release(nonce) {
            error.message.push_str(&format!("; and its lease {nonce} stays until fgpu gc: {second}"));
        }
        error
    }
}

/// The strongest tier that a node with this `driver` version can give the request.
///
/// # Errors
/// `no-mig-placement` or `denied` when the request insists on a tier that it cannot give.
pub fn tier(request: &Request, driver: &str) -> Result<Tier, Error> {
    if request.mig.is_some() || request.isolation == Isolation::Mig {
        return Err(Error::new(
            Code::NoMigPlacement,
            format!(
                "{}: this version of fgpu makes no MIG instances; ask for fgpu/fraction or fgpu/memory",
                request.text
            ),
        ));
    }
    match request.isolation {
        Isolation::Auto | Isolation::Quota => Ok(Tier::Quota),
        Isolation::None => Ok(Tier::None),
        Isolation::Driver => Err(Error::new(
            Code::Denied,
            format!(
                "{}: this version of fgpu does not set the driver's own memory limits (and they need driver r615 \
                 or newer, this node has {driver}); use fgpu/isolation=quota",
                request.text
            ),
        )),
        Isolation::Mig => unreachable!("refused above"),
    }
}
