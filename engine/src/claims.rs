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

use fgpu_allocator::{Anchor, Lease, ResourceClaim, Store};
use fgpu_spec::{
    Code, Compute, Document, Error, Inventory, Isolation, Nonce, PodOf, Request, Tier, escape_for_display,
};

use crate::config::Config;
use crate::driver_step;
use crate::events::refusals_of;
use crate::lifecycle::{ended, store};
use crate::programs;

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
    /// UUIDs of the GPUs, as the containers shall see them.
    pub gpus: Vec<String>,
    /// Device memory of each in bytes, a multiple of 1 MiB.
    pub memory: u64,
    /// SM time of each in parts per million; 0 books none ([`Request::is_unbooked`]).
    pub cores_ppm: u32,
    /// How the SM time is meant, if the claim says so.
    pub compute: Option<Compute>,
    /// The tier that the claim insists on.
    pub isolation: Isolation,
    /// Whom it counts against.
    pub owner: Option<String>,
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
        let mut words = BTreeMap::from([
            ("fgpu/count", self.gpus.len().to_string()),
            ("fgpu/memory", format!("{}Mi", self.memory >> 20)),
            ("fgpu/device", self.gpus.join(",")),
            // Which GPUs has been decided.
            ("fgpu/policy", "pack".to_owned()),
            ("fgpu/isolation", word(&self.isolation)),
        ]);
        if self.cores_ppm > 0 {
            words
                .insert("fgpu/cores", format!("{}.{:04}%", self.cores_ppm / 10_000, self.cores_ppm % 10_000));
        }
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
        Ok(Request { text: format!("{}: {}", Anchor::Claim(self.claim()).words(), request.text), ..request })
    }
}

/// A value of an enum as the annotations have it.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Reserves what a claim was given. Idempotent: the lease that is there is returned, with the pods of `asked`.
///
/// # Errors
/// Those of the inventory and of [`Store::reserve_claim`]; `denied` for a tier that a claim cannot have.
pub fn prepare(config: &Config, asked: &Asked) -> Result<Lease, Error> {
    let claim = asked.claim();
    refusals_of(Ok(config.clone()), &claim.key(), |config| {
        let request = asked.request(config)?;
        let inventory = inventory(config)?;
        driver_step::look_at_gpus(config);
        store(config)?.reserve_claim(&inventory, &config.rules(), &request, tiers(&request)?, &claim)
    })
}

/// The GPUs of this node, which are looked at anew if they are not known.
///
/// # Errors
/// `no-gpu`, or they cannot be looked at.
pub fn inventory(config: &Config) -> Result<Inventory, Error> {
    fgpu_driver::load(&config.driver_root, &config.state_dir, &programs::refresh_inventory)
}

/// The tiers of a claim. The driver limits a cgroup and makes slices of its own choice; a claim has neither.
fn tiers(request: &Request) -> Result<&'static [Tier], Error> {
    match request.isolation {
        Isolation::Auto | Isolation::Quota => Ok(&[Tier::Quota]),
        Isolation::None => Ok(&[Tier::None]),
        Isolation::Mig | Isolation::Driver => Err(Error::new(
            Code::Denied,
            format!("{}: a claim can have isolation auto, quota or none", request.text),
        )),
    }
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
/// The state directory cannot be read or written.
pub fn release(config: &Config, uid: &str) -> Result<usize, Error> {
    let store = store(config)?;
    let released = store.release_claim(uid)?;
    ended(config, &store, &released)?;
    Ok(released.len())
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

/// The claim that a container uses, `UID/REQUEST`, if any.
///
/// # Errors
/// `conflict` for several.
pub(crate) fn of(document: &Document) -> Result<Option<String>, Error> {
    let mut names = document.claims()?;
    names.dedup();
    match &names[..] {
        [] => Ok(None),
        [_] => Ok(names.pop()),
        [..] => Err(Error::new(
            Code::Conflict,
            "the container uses several requests of claims for GPUs: its share has one limit, so name one request; ask for \
             several equal GPUs with `count` in it"
                .to_owned(),
        )),
    }
}

/// The lease that a container may join: that of the claim `name`, if the container's pod is one of the claim's.
///
/// # Errors
/// `denied` if it is not; `internal` if the claim is not prepared on this node.
pub(crate) fn joined(store: &Store, name: &str, document: &Document) -> Result<Lease, Error> {
    let shown = escape_for_display(name);
    let key = ResourceClaim::key_of(name);
    let lease = store.leases()?.into_iter().find(|lease| lease.key == key && lease.state.is_held());
    let Some(lease) = lease else {
        return Err(Error::new(
            Code::Internal,
            format!(
                "claim {shown} is not prepared on this node: fgpu-dra prepares it when its pod comes here"
            ),
        ));
    };
    let words = lease.anchor.as_ref().map_or(shown, Anchor::words);
    let Some(PodOf { uid: pod, .. }) = PodOf::of(&document.annotations()) else {
        return Err(Error::new(Code::Denied, format!("{words}: only containers of its pods may use it")));
    };
    match &lease.anchor {
        Some(Anchor::Claim(claim)) if claim.pods.contains(&pod) => Ok(lease),
        _ => Err(Error::new(
            Code::Denied,
            format!("{words}: it is not reserved for the pod with uid {}", escape_for_display(&pod)),
        )),
    }
}
