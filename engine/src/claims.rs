//! Claims of Kubernetes: what the node's DRA driver reserves, and what their containers join.
//!
//! ```text
//! kubelet ─ NodePrepareResources ─ fgpu-dra ─ prepare ─ a lease that the claim holds, a CDI device
//! kubelet ─ CreateContainer with that device ─ runtime ─ fgpu-hook createRuntime --claim UID/REQUEST ─ join
//! kubelet ─ NodeUnprepareResources ─ fgpu-dra ─ release
//! ```
//!
//! A container joins the lease of one request of one claim. All that join share its limits and its ledger.

use std::collections::BTreeMap;

use fgpu_allocator::{Anchor, Board, Lease, Pool, ResourceClaim};
use fgpu_spec::{
    Code, Compute, Error, Filter, Inventory, Isolation, MigPlace, MigPlacement, MigProfile, Nonce, Request,
    Tier,
};

use crate::config::Config;
use crate::driver_step::{self, SetUp};
use crate::events::refusals_of;
use crate::lifecycle::{ended, store};
use crate::programs;

mod joining;

pub use joining::SOCKET;
pub(crate) use joining::{joined, of};

/// What a request of a claim has been given on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The claim's uid.
    pub uid: String,
    /// The claim's namespace.
    pub namespace: String,
    /// The claim's name.
    pub name: String,
    /// The request's name in the claim.
    pub request: String,
    /// The uids of the pods that may use it.
    pub pods: Vec<String>,
    /// What it has been given.
    pub share: Share,
    /// The same as the cluster says it. Another text is another share: it depends on the claim alone.
    pub words: String,
    /// How the SM time is meant, if the claim says so.
    pub compute: Option<Compute>,
    /// The tier that the claim insists on.
    pub isolation: Isolation,
    /// Whom it counts against.
    pub owner: Option<String>,
}

/// A share that the cluster's scheduler has given out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Share {
    /// A part of GPUs, the same of each.
    Part {
        /// Their UUIDs, as the containers shall see them.
        gpus: Vec<String>,
        /// Device memory of each in bytes, a multiple of 1 MiB.
        memory: u64,
        /// SM time of each in parts per million; 0 books none ([`Request::is_unbooked`]).
        cores_ppm: u32,
    },
    /// MIG slices.
    Slices {
        /// Their profile's name.
        profile: String,
        /// Where they lie.
        places: Vec<MigPlace>,
    },
}

/// What a claim holds on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The claim and the request.
    pub claim: ResourceClaim,
    /// Which grant it is.
    pub nonce: Nonce,
}

impl Asked {
    fn claim(&self) -> ResourceClaim {
        ResourceClaim {
            uid: self.uid.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            request: self.request.clone(),
            pods: self.pods.clone(),
        }
    }

    /// The same in the words of annotations, by whose rules it is judged.
    fn request(&self, config: &Config) -> Result<Request, Error> {
        let (count, gpus, amount, places) = match &self.share {
            Share::Part { gpus, memory, cores_ppm } => {
                let mut amount = vec![("fgpu/memory", format!("{}Mi", memory >> 20))];
                if *cores_ppm > 0 {
                    let percent = format!("{}.{:04}%", cores_ppm / 10_000, cores_ppm % 10_000);
                    amount.push(("fgpu/cores", percent));
                }
                (gpus.len(), gpus.clone(), amount, Vec::new())
            }
            Share::Slices { profile, places } => {
                let mut gpus: Vec<_> = places.iter().map(|place| place.gpu.clone()).collect();
                gpus.dedup();
                (places.len(), gpus, vec![("fgpu/mig", profile.clone())], places.clone())
            }
        };
        let mut words = BTreeMap::from([
            ("fgpu/count", count.to_string()),
            // Which GPUs has been decided.
            ("fgpu/policy", "pack".to_owned()),
            ("fgpu/isolation", word(&self.isolation)),
        ]);
        words.extend(amount);
        if let Some(compute) = &self.compute {
            words.insert("fgpu/compute", word(compute));
        }
        if let Some(owner) = &self.owner {
            words.insert("fgpu/owner", owner.clone());
        }
        let words = words.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let request = Request::parse(&words, None, &config.defaults())?.ok_or_else(|| {
            Error::new(Code::InvalidRequest, "a claim without an amount cannot be prepared".to_owned())
        })?;
        Ok(Request {
            text: format!("{}: {}", Anchor::Claim(self.claim()).words(), self.words),
            device: Filter { any: gpus, not: Vec::new() },
            places,
            ..request
        })
    }
}

/// A value of an enum as the annotations have it.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Reserves what a claim was given, and has the driver make its slices. Idempotent: the lease that is there is
/// returned, with the pods of `asked`.
///
/// # Errors
/// Those of the inventory, of [`fgpu_allocator::Store::reserve_claim`] and of the driver; `denied` for a tier that a claim
/// cannot have.
pub fn prepare(config: &Config, asked: &Asked) -> Result<Lease, Error> {
    let claim = asked.claim();
    refusals_of(Ok(config.clone()), &claim.key(), |config| {
        let request = asked.request(config)?;
        let inventory = inventory(config)?;
        driver_step::look_at_gpus(config);
        let (store, tiers) = (store(config)?, tiers(asked, &request)?);
        let reserve = || store.reserve_claim(&inventory, &config.rules(), &request, tiers, &claim);
        let lease = match reserve() {
            // The slice that lies there may be one that is kept, or on its way out.
            Err(error) if tiers == [Tier::Mig] && error.code == Code::NoMigPlacement => {
                driver_step::make_room(config, &store)?;
                reserve()?
            }
            reserved => reserved?,
        };
        let nonce = lease.grant.nonce;
        let error = match driver_step::set_up(config, &store, lease) {
            Ok(SetUp::Done(lease)) => return Ok(*lease),
            Ok(SetUp::PlaceTaken) => Error::new(
                Code::NoMigPlacement,
                format!("{}: a MIG instance that fgpu did not make lies there", request.text),
            ),
            Err(error) => error,
        };
        // It stays if a container has joined it meanwhile.
        let released = store.release_unjoined(&nonce)?;
        ended(config, &store, released.as_slice())?;
        Err(error)
    })
}

/// The GPUs of this node, which are looked at anew if they are not known.
///
/// # Errors
/// `no-gpu`, or they cannot be looked at.
pub fn inventory(config: &Config) -> Result<Inventory, Error> {
    fgpu_driver::load(&config.driver_root, &config.state_dir, &programs::refresh_inventory)
}

/// The tiers of a claim. The driver limits a cgroup, and a claim has none.
fn tiers(asked: &Asked, request: &Request) -> Result<&'static [Tier], Error> {
    let denied = |allowed: &str| {
        let message = format!("{}: this claim can have isolation {allowed}", request.text);
        Err(Error::new(Code::Denied, message))
    };
    match (&asked.share, asked.isolation) {
        (Share::Slices { .. }, Isolation::Auto | Isolation::Mig) => Ok(&[Tier::Mig]),
        (Share::Slices { .. }, _) => denied("auto or mig"),
        (Share::Part { .. }, Isolation::Auto | Isolation::Quota) => Ok(&[Tier::Quota]),
        (Share::Part { .. }, Isolation::None) => Ok(&[Tier::None]),
        (Share::Part { .. }, _) => denied("auto, quota or none"),
    }
}

/// The placements of a MIG profile in the order in which they are best given out ([`Board::order`]).
pub fn placements(profiles: &[MigProfile], profile: &MigProfile) -> Vec<MigPlacement> {
    Board::order(profiles, profile)
}

/// Keeps all but claims off these GPUs (UUIDs) of the node with this name, and lets go of others. Returns those
/// on which something else is still.
///
/// # Errors
/// The state directory cannot be read or written.
pub fn hold(config: &Config, node: &str, gpus: &[String]) -> Result<Vec<String>, Error> {
    Ok(store(config)?.hold_for_claims(&Pool { name: node.to_owned() }, gpus)?)
}

/// Sets which pods may use what this claim holds.
///
/// # Errors
/// The state directory cannot be read or written.
pub fn set_pods(config: &Config, uid: &str, pods: &[String]) -> Result<(), Error> {
    Ok(store(config)?.set_pods(uid, pods)?)
}

/// Gives back what this claim holds, and returns how many leases that were. Idempotent.
///
/// # Errors
/// The state directory cannot be read or written; `conflict` if a container of it may run: then what that has
/// joined stays.
pub fn release(config: &Config, uid: &str) -> Result<usize, Error> {
    let store = store(config)?;
    let released = store.release_claim(uid)?;
    ended(config, &store, &released)?;
    match held(config)?.iter().find(|held| held.claim.uid == uid) {
        None => Ok(released.len()),
        Some(Held { claim, .. }) => Err(Error::new(
            Code::Conflict,
            format!("a container of {} runs on this node", Anchor::Claim(claim.clone()).words()),
        )),
    }
}

/// Gives back one grant of a claim. `false` if it is gone already, or a container of it may run.
///
/// # Errors
/// The state directory cannot be read or written.
pub fn release_grant(config: &Config, nonce: &Nonce) -> Result<bool, Error> {
    let store = store(config)?;
    let released = store.release_unused(nonce)?;
    ended(config, &store, released.as_slice())?;
    Ok(released.is_some())
}

/// What claims hold on this node.
///
/// # Errors
/// The state directory cannot be read.
pub fn held(config: &Config) -> Result<Vec<Held>, Error> {
    let of = |lease: Lease| match lease.anchor {
        Some(Anchor::Claim(claim)) if lease.state.is_held() => Some(Held { claim, nonce: lease.grant.nonce }),
        _ => None,
    };
    Ok(store(config)?.leases()?.into_iter().filter_map(of).collect())
}
