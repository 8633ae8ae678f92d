//! From the annotations of a container to its share: the one way, of every front end.
//!
//! ```text
//! annotations ─ request ─ has it a grant already? ─ does it bring a driver? ─ reserve ─ deliver ─ the caller activates
//!                                                                                 │
//!                                                      the delivery fails: the lease is given back
//! claim ─ has it a grant already? ─ does it bring a driver? ─ join ─ deliver
//! ```
//!
//! What differs between front ends is a [`Delivery`]: an edit of the spec ([`crate::edit`]), mounts in a
//! container that exists already (fgpu-hook), a view of the host's own root (`fgpu run`).

use fgpu_allocator::{Applicant, Store};
use fgpu_spec::{Code, Document, Error, Nonce, Plan, Request, Tier};
use tracing::{debug, debug_span};

use crate::config::Config;
use crate::events::refusals_of;
use crate::grant::{Granted, Image};
use crate::runtime::is_host_root;
use crate::watch::Patience;
use crate::{claims, driver_step, foreign, grant, pods, store};

/// How a front end brings a share into its container.
pub trait Delivery {
    /// What is held from before the reservation until the share is delivered, so that both are undone
    /// together.
    type Guard;

    /// Called once the container is known to ask for a share. Returns how long the request may wait for room,
    /// and the processes that the wait is for; `None` if the container has its share by another way, and is
    /// to be left alone.
    ///
    /// # Errors
    /// There is no container for a share. Nothing is reserved then.
    fn patience(&mut self, store: &Store) -> Result<Option<Patience>, Error>;

    /// A new guard, for one attempt to reserve.
    ///
    /// # Errors
    /// The kernel does not let us.
    fn guard(&self) -> Result<Self::Guard, Error>;

    /// Brings what was reserved into the container.
    ///
    /// # Errors
    /// It cannot be brought in. The delivery has undone its own part; the lease is given back by the caller.
    fn deliver(
        &mut self,
        share: &Share<'_>,
        document: &mut Document,
        guard: &Self::Guard,
    ) -> Result<(), Error>;
}

/// A share that is reserved and not yet in its container.
#[derive(Debug)]
pub struct Share<'a> {
    /// The node's configuration.
    pub config: &'a Config,
    /// The node's leases.
    pub store: &'a Store,
    granted: &'a Granted,
}

impl Share<'_> {
    /// Makes the grant's files and the plan for a container.
    ///
    /// # Errors
    /// A file cannot be made, or the node lacks what the container needs. What is half made goes with the
    /// lease.
    pub fn plan(&self, image: &Image<'_>) -> Result<Plan, Error> {
        self.granted.plan(self.config, self.store, image)
    }

    /// Which grant it is.
    pub fn nonce(&self) -> &Nonce {
        &self.granted.lease.grant.nonce
    }

    /// Whether other containers have it, too, by a claim.
    pub fn is_shared(&self) -> bool {
        self.granted.lease.anchor.is_some()
    }

    /// Whether the driver is to limit the container, by its cgroup.
    pub fn has_driver_limit(&self) -> bool {
        self.granted.lease.grant.tier == Tier::Driver
    }

    /// Has the driver limit the container, whose cgroup is in the lease by now. Does nothing in other tiers
    /// than `driver`.
    ///
    /// # Errors
    /// The driver refuses, and the request insists on its limit.
    pub fn limit(&self) -> Result<(), Error> {
        match self.has_driver_limit() {
            true => driver_step::limit(self.config, self.store, self.nonce(), self.granted.insists),
            false => Ok(()),
        }
    }
}

/// A container's grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    /// Which one it is.
    pub nonce: Nonce,
    /// Whether it was reserved now. Another front end has made one that was there before, or it is that of a
    /// container that runs, if this create is the second of its name: it is not this caller's to give back.
    pub is_new: bool,
}

/// Reserves what the annotations of a container ask for and delivers it.
///
/// `None` means that the container asks for nothing, or has its share by another way: it was left alone.
/// `config` is what [`Config::load`] returned: a configuration that cannot be read is a refusal like any
/// other, of containers that would ask for something under some configuration.
///
/// # Errors
/// Every code of [`fgpu_spec::Code`]; nothing is reserved then, and what was delivered is undone.
pub fn prepare<D: Delivery>(
    config: Result<Config, Error>,
    applicant: &Applicant,
    document: &mut Document,
    delivery: &mut D,
) -> Result<Option<Given>, Error> {
    let _step = debug_span!("prepare", container = %applicant.key.short()).entered();
    if config.is_err() && !grant::asks(&config, document) {
        return Ok(None);
    }
    refusals_of(config, &applicant.key, |config| {
        let (request, claim) = (grant::request(config, document)?, claims::of(document)?);
        match (request, claim) {
            (None, None) => {
                debug!("asks for nothing");
                Ok(None)
            }
            (Some(request), None) => {
                debug!("asks for {}", request.text);
                give(config, &request, applicant, document, delivery)
            }
            (None, Some(claim)) => {
                debug!("uses claim {claim}");
                join(config, &claim, applicant, document, delivery)
            }
            (Some(request), Some(_)) => Err(Error::new(
                Code::Conflict,
                format!("{}: the container has a GPU by a claim already; ask in one way", request.text),
            )),
        }
    })
}

/// Brings the container into the lease of its claim. The lease stays whatever becomes of the container.
fn join<D: Delivery>(
    config: &Config,
    claim: &str,
    applicant: &Applicant,
    document: &mut Document,
    delivery: &mut D,
) -> Result<Option<Given>, Error> {
    let store = &store(config)?;
    let lease = claims::joined(config, store, claim, document)?;
    let nonce = lease.grant.nonce;
    if grant::joined(store, document, &lease.key)?.is_some() {
        debug!("has grant {nonce} already");
        return Ok(Some(Given { nonce, is_new: false }));
    }
    foreign::refuse(config, &lease.request, document, &applicant.bundle)?;
    let Some(patience) = delivery.patience(store)? else { return Ok(None) };
    let granted = Granted::joined(config, lease)?;
    let guard = delivery.guard()?;
    patience.watch.check()?;
    delivery.deliver(&Share { config, store, granted: &granted }, document, &guard)?;
    Ok(Some(Given { nonce, is_new: false }))
}

fn give<D: Delivery>(
    config: &Config,
    request: &Request,
    applicant: &Applicant,
    document: &mut Document,
    delivery: &mut D,
) -> Result<Option<Given>, Error> {
    writable(config, request)?;
    let store = &store(config)?;
    let applicant = &*pods::applicant(config, document, applicant)?;
    let written = match applicant.anchor {
        Some(_) => grant::joined(store, document, &applicant.key)?,
        None => grant::written(store, document, &applicant.key.id, &applicant.bundle)?,
    };
    if let Some(nonce) = written {
        debug!("has grant {nonce} already");
        return Ok(Some(Given { nonce, is_new: false }));
    }
    foreign::refuse(config, &request.text, document, &applicant.bundle)?;
    let Some(patience) = delivery.patience(store)? else { return Ok(None) };
    let step = debug_span!("reserve").entered();
    let (granted, guard) = grant::reserve(config, store, request, applicant, &patience, || delivery.guard())?;
    drop(step);
    let share = Share { config, store, granted: &granted };
    let _step = debug_span!("deliver").entered();
    // A container that ended while its request waited gets no share.
    let delivered = patience.watch.check().and_then(|()| delivery.deliver(&share, document, &guard));
    match delivered {
        Ok(()) => Ok(Some(Given { nonce: *share.nonce(), is_new: true })),
        Err(error) => Err(granted.undo(config, store, error)),
    }
}

/// A rootless engine cannot share the node's GPUs: their leases are the host root's.
fn writable(config: &Config, request: &Request) -> Result<(), Error> {
    let state_dir = &config.state_dir;
    let nearest = state_dir.ancestors().find(|path| path.exists()).unwrap_or(state_dir);
    let access = rustix::fs::accessat(
        rustix::fs::CWD,
        nearest,
        rustix::fs::Access::WRITE_OK,
        rustix::fs::AtFlags::EACCESS,
    );
    if is_host_root() || access.is_ok() {
        return Ok(());
    }
    Err(Error::new(
        Code::Denied,
        format!(
            "{}: this container engine is rootless and cannot write {}, where the node's leases are; run the container \
             as root (sudo podman run …)",
            request.text,
            state_dir.display()
        ),
    ))
}
