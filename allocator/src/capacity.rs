//! What the leases take of each GPU. Never stored: always added up from the leases.

use std::collections::HashMap;
use std::ops::{Add, Sub};
use std::path::PathBuf;

use fgpu_spec::{Gpu, Inventory, MigSlice, escape_for_display};

use crate::image::{Damage, Image, Part, Summary, quoted};
use crate::names::called;
use crate::ratio::{WHOLE, ppm};
use crate::{Key, Lease, Rules, Slot, SlotHolder, State};

/// What leases hold of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Device memory in bytes.
    pub memory: u64,
    /// SM time in ppm.
    pub cores_ppm: u32,
    /// How many leases there are on it.
    pub leases: u32,
    /// Whether one of them wants it for itself.
    pub exclusive: bool,
}

impl Add for Held {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            memory: self.memory.saturating_add(more.memory),
            cores_ppm: self.cores_ppm.saturating_add(more.cores_ppm),
            leases: self.leases + more.leases,
            exclusive: self.exclusive | more.exclusive,
        }
    }
}

impl Sub for Held {
    type Output = Self;

    /// `less` must be a part of it.
    fn sub(self, less: Self) -> Self {
        Self {
            memory: self.memory.saturating_sub(less.memory),
            cores_ppm: self.cores_ppm.saturating_sub(less.cores_ppm),
            leases: self.leases.saturating_sub(less.leases),
            // There is no other that could want it for itself.
            exclusive: self.exclusive && !less.exclusive,
        }
    }
}

/// The holder of a share of a GPU, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The container.
    pub key: Key,
    /// Its bundle, by which its name is found.
    pub bundle: PathBuf,
    /// What its anchor is called, if it has one.
    pub name: Option<String>,
    /// Device memory in bytes.
    pub memory: u64,
    /// SM time in ppm.
    pub cores_ppm: u32,
    /// Whether it wants the GPU for itself.
    pub exclusive: bool,
    /// The slice that it is.
    pub mig: Option<MigSlice>,
    /// How far the lease has come.
    pub state: State,
    /// Why it has not ended yet.
    pub trouble: Option<String>,
}

impl Holder {
    /// Whether it holds the GPU for what another scheduler sends.
    pub fn is_pool(&self) -> bool {
        self.key.is_pools()
    }

    /// What people call it. Reads files of its engine: for messages alone, and not under the lock.
    pub(crate) fn called(&self) -> String {
        self.name.clone().unwrap_or_else(|| called(&self.key, Some(&self.bundle)))
    }
}

/// The sum of all leases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Per GPU, in the inventory's order.
    pub(crate) held: Vec<Held>,
    /// The slices of leases per GPU, in the inventory's order.
    pub(crate) slots: Vec<Vec<Slot>>,
    /// What the owner holds, in ppm of whole GPUs.
    pub(crate) owner_ppm: u64,
    /// Whether one of the leases that have not ended is of the container asked about.
    pub(crate) same_key: bool,
}

impl Sums {
    /// With the instances that no lease made, per GPU. Where a lease is, either it uses that instance, or
    /// what was seen is not so any more.
    pub(crate) fn with(mut self, foreign: &[Vec<Slot>]) -> Self {
        for (slots, foreign) in self.slots.iter_mut().zip(foreign) {
            let leased = slots.len();
            for slot in foreign {
                if !slots[..leased].iter().any(|leased| leased.placement.overlaps(slot.placement)) {
                    slots.push(slot.clone());
                }
            }
        }
        self
    }
}

/// Adds up the leases of these lines; `owner` is whose cap will be asked for, `key` ([`crate::image::key_head`]) the
/// container whose other leases are looked for. A lease on a GPU that is not in the inventory (it fell off
/// the bus) takes nothing of the others.
pub(crate) fn sum<'a>(
    lines: impl Iterator<Item = &'a [u8]>,
    inventory: &Inventory,
    rules: &Rules,
    owner: Option<&str>,
    key: Option<&[u8]>,
) -> Result<Sums, Damage> {
    let uuids: Vec<_> = inventory.gpus.iter().map(|gpu| quoted(&gpu.uuid)).collect();
    let places: HashMap<&[u8], usize> = uuids.iter().map(Vec::as_slice).zip(0..).collect();
    let owner = owner.map(quoted);
    let mut sums = Sums {
        held: vec![Held::default(); uuids.len()],
        slots: vec![Vec::new(); uuids.len()],
        owner_ppm: 0,
        same_key: false,
    };
    for line in lines {
        let summary = Summary::scan(line)?;
        let kept = summary.state == br#""kept""#;
        let ended = kept || summary.state == br#""releasing""#;
        sums.same_key |= !ended && key.is_some_and(|key| summary.rest.starts_with(key));
        let counts = !kept && owner.is_some() && summary.owner == owner.as_deref();
        for part in &summary.gpus {
            let Some(&at) = places.get(part.uuid) else { continue };
            if let Some(slice) = &part.slice {
                let holder =
                    if kept && slice.stage == br#""made""# { SlotHolder::Kept } else { SlotHolder::Lease };
                sums.slots[at].push(Slot { placement: slice.placement, profile: slice.profile, holder });
            }
            if kept {
                continue;
            }
            sums.held[at] = sums.held[at] + of(part, summary.exclusive);
            if counts {
                let gpu = &inventory.gpus[at];
                sums.owner_ppm += worth(gpu, rules, part.memory, part.cores_ppm, summary.exclusive);
            }
        }
    }
    Ok(sums)
}

/// What each lease holds of one GPU; alike ones once.
pub(crate) fn leases_on(image: &Image, uuid: &str) -> Result<Vec<Held>, Damage> {
    let uuid = quoted(uuid);
    let mut leases = Vec::new();
    for line in image.lines() {
        let summary = Summary::scan(line)?;
        for part in summary.gpus.iter().filter(|part| part.uuid == uuid) {
            let held = of(part, summary.exclusive);
            if !leases.contains(&held) {
                leases.push(held);
            }
        }
    }
    Ok(leases)
}

fn of(part: &Part<'_>, exclusive: bool) -> Held {
    Held { memory: part.memory, cores_ppm: part.cores_ppm, leases: 1, exclusive }
}

/// What a share is worth in ppm of the GPU.
pub(crate) fn worth(gpu: &Gpu, rules: &Rules, memory: u64, cores_ppm: u32, exclusive: bool) -> u64 {
    if exclusive {
        return u64::from(WHOLE);
    }
    u64::from(ppm(memory, gpu.usable_memory(rules.reserve_memory)).max(cores_ppm))
}

/// The holders of each GPU and what they hold, in the inventory's order.
pub(crate) fn holders(leases: &[Lease], inventory: &Inventory) -> Vec<Vec<Holder>> {
    let of = |gpu: &Gpu| {
        let shares = leases.iter().flat_map(|lease| lease.grant.gpus.iter().map(move |share| (lease, share)));
        let here = shares.filter(|(_, share)| share.uuid == gpu.uuid);
        here.map(|(lease, share)| Holder {
            key: lease.key.clone(),
            bundle: lease.bundle.clone(),
            name: lease.anchor.as_ref().map(|anchor| escape_for_display(&anchor.name())),
            memory: share.memory,
            cores_ppm: share.cores_ppm,
            exclusive: lease.exclusive,
            mig: share.mig.clone(),
            state: lease.state,
            trouble: lease.trouble.clone(),
        })
        .collect()
    };
    inventory.gpus.iter().map(of).collect()
}
