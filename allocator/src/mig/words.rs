//! The note of a grant of slices, and why a slice is where it is.

use fgpu_spec::{Gpu, MigProfile, MigStage, Request};

use super::board::{cores_ppm, whole};
use crate::place::in_bytes;
use crate::words::{mib, percent};

/// What a slice is, what of it was not asked for, and where the instance comes from: `MIG 2g.20gb of GPU 0:
/// 20096 MiB and 32 of 132 SMs, 0 MiB and 0% more than asked`.
pub(super) fn note(
    gpu: &Gpu,
    profile: &MigProfile,
    stage: MigStage,
    request: &Request,
    usable: u64,
) -> String {
    let all = whole(&gpu.mig_profiles).map_or(0, |whole| whole.multiprocessors);
    let mut text = format!(
        "MIG {} of GPU {} is {} and {} of {all} SMs ({})",
        profile.name,
        gpu.index,
        mib(profile.memory),
        profile.multiprocessors,
        percent(cores_ppm(&gpu.mig_profiles, profile)),
    );
    if request.mig.as_deref().is_none_or(|name| name == "auto") {
        text += &beside_asked(gpu, profile, request, usable);
    }
    match stage {
        MigStage::Borrowed => text + ", an instance of the administrator's",
        MigStage::Made => text + ", an instance that was kept",
        MigStage::Planned | MigStage::Creating | MigStage::Destroying => text,
    }
}

/// Why a slice is there and not elsewhere, as half a sentence.
pub(super) fn why(stage: MigStage, lost: usize) -> String {
    match stage {
        MigStage::Borrowed => "an instance of the administrator's is free".into(),
        MigStage::Made => "an instance that was kept is free".into(),
        MigStage::Planned | MigStage::Creating | MigStage::Destroying => {
            format!("it lies where it takes the fewest placements ({lost}) from later requests")
        }
    }
}

/// `: 19968 MiB and 12% more than asked`
fn beside_asked(gpu: &Gpu, profile: &MigProfile, request: &Request, usable: u64) -> String {
    let asked_memory = in_bytes(request.memory, usable);
    let cores = cores_ppm(&gpu.mig_profiles, profile);
    let memory = difference(profile.memory, asked_memory, |bytes| mib(bytes & !((1 << 20) - 1)));
    let cores = difference(cores.into(), request.cores_ppm.into(), |ppm| {
        percent(u32::try_from(ppm).unwrap_or(u32::MAX))
    });
    format!("; memory: {memory}, SMs: {cores} than asked")
}

fn difference(got: u64, asked: u64, in_words: impl Fn(u64) -> String) -> String {
    match got >= asked {
        true => format!("{} more", in_words(got - asked)),
        false => format!("{} less", in_words(asked - got)),
    }
}
