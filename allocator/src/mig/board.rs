//! What lies on a GPU in MIG mode, and what the driver would make there besides.

use fgpu_spec::{Gpu, MigInstance, MigPlacement, MigProfile};

use crate::Rules;
use crate::ratio::{WHOLE, ppm};

/// What lies on a GPU in MIG mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Where.
    pub placement: MigPlacement,
    /// Its profile's id.
    pub profile: u32,
    /// Whether it can be had.
    pub holder: SlotHolder,
}

/// The holder of a place on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlotHolder {
    /// A lease.
    Lease,
    /// No lease: an instance of ours that is kept for the next request.
    Kept,
    /// The administrator. We may use this instance, and it is not in use now.
    Idle(MigInstance),
    /// The administrator.
    Other,
}

impl SlotHolder {
    pub(super) fn is_free(&self, rules: &Rules) -> bool {
        match self {
            Self::Kept => true,
            Self::Idle(_) => rules.mig_use_existing,
            Self::Lease | Self::Other => false,
        }
    }
}

/// A GPU's profiles and what lies on it.
#[derive(Debug, Clone)]
pub struct Board<'a> {
    profiles: &'a [MigProfile],
    slots: Vec<Slot>,
}

impl<'a> Board<'a> {
    /// The board of a GPU with these profiles.
    pub fn new(profiles: &'a [MigProfile], slots: Vec<Slot>) -> Self {
        Self { profiles, slots }
    }

    /// What lies on it.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Puts something on it.
    pub fn put(&mut self, slot: Slot) {
        self.slots.push(slot);
    }

    /// Takes what lies there away.
    pub fn take(&mut self, placement: MigPlacement) {
        self.slots.retain(|slot| slot.placement != placement);
    }

    fn slices_of(&self, profile: u32) -> u32 {
        self.profiles.iter().find(|known| known.id == profile).map_or(0, |known| known.slices)
    }

    pub(super) fn slices_left(&self) -> u32 {
        let held: u32 = self.slots.iter().map(|slot| self.slices_of(slot.profile)).sum();
        whole(self.profiles).map_or(0, |whole| whole.slices).saturating_sub(held)
    }

    /// Whether the driver would make an instance of `profile` there.
    pub fn has_room(&self, profile: &MigProfile, placement: MigPlacement) -> bool {
        let same = self.slots.iter().filter(|slot| slot.profile == profile.id).count();
        same < profile.most as usize
            && profile.slices <= self.slices_left()
            && !self.slots.iter().any(|slot| slot.placement.overlaps(placement))
    }

    /// Every placement that is free now.
    pub fn open(&self) -> Vec<(&'a MigProfile, MigPlacement)> {
        let all = self
            .profiles
            .iter()
            .flat_map(|profile| profile.placements.iter().map(move |&placement| (profile, placement)));
        all.filter(|(profile, placement)| self.has_room(profile, *placement)).collect()
    }

    /// The free placement of `profile` that costs later requests the least of those that are `allowed`, and how
    /// many placements it takes from them. Profiles that differ in their attributes only (`+me`) count once. Of equals the first.
    pub fn best(
        &self,
        profile: &MigProfile,
        allowed: impl Fn(MigPlacement) -> bool,
    ) -> Option<(MigPlacement, usize)> {
        let open = self.open();
        let left = self.slices_left();
        let lost = |placement: MigPlacement| {
            let goes = |&&(other, at): &&(&MigProfile, MigPlacement)| {
                at.overlaps(placement) || other.slices + profile.slices > left
            };
            let kind = |(other, at): &(&MigProfile, MigPlacement)| (other.slices, at.start, at.size);
            let mut lost: Vec<_> = open.iter().filter(goes).map(kind).collect();
            lost.sort_unstable();
            lost.dedup();
            lost.len()
        };
        let mine = open.iter().filter(|(other, at)| other.id == profile.id && allowed(*at));
        mine.map(|&(_, placement)| (placement, lost(placement))).min_by_key(|&(_, lost)| lost)
    }

    /// The placements of `profile`, the one first that an empty GPU with nothing but slices of it would give
    /// next: what is given out in this order leaves the most for others.
    pub fn order(profiles: &'a [MigProfile], profile: &MigProfile) -> Vec<MigPlacement> {
        let mut order = Vec::new();
        let mut board = Self::new(profiles, Vec::new());
        while let Some((placement, _)) = board.best(profile, |_| true) {
            board.put(Slot { placement, profile: profile.id, holder: SlotHolder::Lease });
            order.push(placement);
        }
        let rest = profile.placements.iter().filter(|placement| !order.contains(placement));
        let rest: Vec<_> = rest.copied().collect();
        order.extend(rest);
        order
    }

    /// Memory slices that something lies on.
    pub(super) fn taken(&self) -> u32 {
        self.slots.iter().map(|slot| slot.placement.size).sum()
    }
}

/// The profile that takes the whole GPU.
pub(crate) fn whole(profiles: &[MigProfile]) -> Option<&MigProfile> {
    profiles.iter().max_by_key(|profile| (profile.slices, size(profile)))
}

/// Memory slices of an instance.
pub(super) fn size(profile: &MigProfile) -> u32 {
    profile.placements.first().map_or(0, |placement| placement.size)
}

/// What a slice is of its GPU's multiprocessors, in ppm: of those that MIG can give.
pub(crate) fn cores_ppm(profiles: &[MigProfile], profile: &MigProfile) -> u32 {
    let all = whole(profiles).map_or(0, |whole| whole.multiprocessors);
    ppm(profile.multiprocessors.into(), all.into()).min(WHOLE)
}

/// How many instances of a profile an empty GPU has room for. The administrator's do not go by themselves,
/// but they may serve as they are.
pub(crate) fn most_on(gpu: &Gpu, profile: &MigProfile) -> usize {
    let mut board = Board::new(&gpu.mig_profiles, Vec::new());
    while let Some((placement, _)) = board.best(profile, |_| true) {
        board.put(Slot { placement, profile: profile.id, holder: SlotHolder::Lease });
    }
    board.slots().len()
}
