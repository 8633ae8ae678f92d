//! HAMi, and Volcano's vGPU, which is HAMi's under other names: so many GPUs, of each so many MiB or percent
//! of the memory and so many percent of the cores.

use super::{Translation, Words, gpus, mebibytes, whole};
use crate::Error;
use crate::request::key::Key;
use crate::request::number::Reason;

/// The names of one of the two.
pub(super) struct Names {
    count: &'static str,
    memory: &'static str,
    memory_percent: &'static str,
    cores: &'static str,
    mode: &'static str,
    /// What may serve and what not, by UUID.
    devices: (&'static str, &'static str),
    /// All of them, and the filters.
    pub(super) keys: &'static [&'static str],
}

const USE_MODEL: &str = "nvidia.com/use-gputype";
const NOT_MODEL: &str = "nvidia.com/nouse-gputype";
const USE_DEVICE: &str = "nvidia.com/use-gpuuuid";
const NOT_DEVICE: &str = "nvidia.com/nouse-gpuuuid";
const POLICY: &str = "hami.io/gpu-scheduler-policy";
const VOLCANO_USE_DEVICE: &str = "volcano.sh/vgpu-use-gpuuuid";
const VOLCANO_NOT_DEVICE: &str = "volcano.sh/vgpu-nouse-gpuuuid";

/// HAMi's own.
pub(super) const HAMI: Names = Names {
    count: "nvidia.com/gpu",
    memory: "nvidia.com/gpumem",
    memory_percent: "nvidia.com/gpumem-percentage",
    cores: "nvidia.com/gpucores",
    mode: "nvidia.com/vgpu-mode",
    devices: (USE_DEVICE, NOT_DEVICE),
    keys: &[
        "nvidia.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
        "nvidia.com/vgpu-mode",
        USE_MODEL,
        NOT_MODEL,
        USE_DEVICE,
        NOT_DEVICE,
        POLICY,
    ],
};

/// Volcano's. It reads HAMi's filter of models, too.
pub(super) const VOLCANO: Names = Names {
    count: "volcano.sh/vgpu-number",
    memory: "volcano.sh/vgpu-memory",
    memory_percent: "volcano.sh/vgpu-memory-percentage",
    cores: "volcano.sh/vgpu-cores",
    mode: "volcano.sh/vgpu-mode",
    devices: (VOLCANO_USE_DEVICE, VOLCANO_NOT_DEVICE),
    keys: &[
        "volcano.sh/vgpu-number",
        "volcano.sh/vgpu-memory",
        "volcano.sh/vgpu-memory-percentage",
        "volcano.sh/vgpu-cores",
        "volcano.sh/vgpu-mode",
        USE_MODEL,
        NOT_MODEL,
        VOLCANO_USE_DEVICE,
        VOLCANO_NOT_DEVICE,
    ],
};

pub(super) fn translate(
    words: &Words<'_>,
    names: &Names,
    translation: &mut Translation,
) -> Result<(), Error> {
    amount(words, names, translation)?;
    if let Some((value, written)) = words.get(names.mode, mode)? {
        translation.put(Key::Isolation, value, &written)?;
    }
    if names.keys.contains(&POLICY)
        && let Some((value, written)) = words.get(POLICY, policy)?
    {
        translation.put(Key::Policy, value, &written)?;
    }
    filter(words, names.devices, Key::Device, device, translation)?;
    filter(words, (USE_MODEL, NOT_MODEL), Key::Model, model, translation)
}

fn amount(words: &Words<'_>, names: &Names, translation: &mut Translation) -> Result<(), Error> {
    let count = words.get(names.count, |text| gpus(text, 0))?;
    // 0 is what a resource that is not asked for is, in Kubernetes.
    let memory = words.get(names.memory, |text| mebibytes(text, 0))?.filter(|(number, _)| *number > 0);
    let percent = words.get(names.memory_percent, |text| whole(text, 1, 100, "a percentage"))?;
    let cores = words.get(names.cores, |text| whole(text, 0, 100, "a percentage"))?;
    if matches!(count, Some((0, _))) {
        return Ok(());
    }
    let first = [&count, &memory, &percent, &cores].into_iter().flatten().next();
    let Some(first) = first.map(|(_, written)| written.clone()) else { return Ok(()) };
    let whole_memory = memory.is_none() && percent.as_ref().is_none_or(|(number, _)| *number == 100);
    // No other container is let onto such a GPU, whatever memory is left.
    translation.alone |= match &cores {
        Some((percent, _)) => *percent == 100,
        None => whole_memory,
    };
    if let Some((number, written)) = &memory {
        translation.put(Key::Memory, format!("{number}Mi"), written)?;
    }
    if percent.is_some() || memory.is_none() {
        let (number, written) = percent.unwrap_or((100, first));
        translation.put(Key::MemoryShare, format!("{number}%"), &written)?;
    }
    if let Some((number, written)) = cores.filter(|(number, _)| *number > 0) {
        translation.put(Key::Cores, format!("{number}%"), &written)?;
    }
    if let Some((number, written)) = count {
        translation.put(Key::Count, number.to_string(), &written)?;
    }
    Ok(())
}

/// The tier; of several modes any will do.
fn mode(text: &str) -> Result<String, Reason> {
    let modes = choices(text, &[("hami-core", "quota"), ("mig", "mig")])?;
    let one = modes.iter().all(|mode| *mode == modes[0]);
    Ok(if one { modes[0] } else { "auto" }.to_owned())
}

/// How GPUs are chosen. `mutex` decides which GPUs may serve, whatever the others say of their order.
fn policy(text: &str) -> Result<String, Reason> {
    let policies = choices(
        text,
        &[
            ("binpack", "pack"),
            ("spread", "spread"),
            ("topology-aware", ""),
            ("numa", ""),
            ("mutex", "exclusive"),
        ],
    )?;
    let alone = policies.iter().find(|policy| **policy == "exclusive");
    let first = alone.or_else(|| policies.iter().find(|policy| !policy.is_empty()));
    Ok(first.copied().unwrap_or("pack").to_owned())
}

/// Their words in ours, at least one.
fn choices<'a>(text: &str, words: &[(&str, &'a str)]) -> Result<Vec<&'a str>, Reason> {
    let ours = |one: &str| words.iter().find(|(theirs, _)| *theirs == one.trim()).map(|(_, ours)| *ours);
    text.split(',').map(ours).collect::<Option<_>>().ok_or_else(|| {
        let theirs: Vec<_> = words.iter().map(|(theirs, _)| *theirs).collect();
        format!("is not one of the words that are understood here; write {}", theirs.join(", "))
    })
}

/// Two lists, of what may serve and what may not, as one of ours.
fn filter(
    words: &Words<'_>,
    (wanted, unwanted): (&str, &str),
    key: Key,
    entry: impl Fn(&str) -> Result<String, Reason>,
    translation: &mut Translation,
) -> Result<(), Error> {
    let list = |sign: &'static str| {
        let entry = &entry;
        move |text: &str| {
            let entries = text.split(',').map(str::trim).filter(|one| !one.is_empty());
            let ours: Vec<_> =
                entries.map(|one| entry(one).map(|one| format!("{sign}{one}"))).collect::<Result<_, _>>()?;
            if ours.is_empty() {
                Err("is empty; write entries with commas between".to_owned())
            } else {
                Ok(ours)
            }
        }
    };
    let lists = [words.get(wanted, list(""))?, words.get(unwanted, list("!"))?];
    let (values, written): (Vec<_>, Vec<_>) = lists.into_iter().flatten().unzip();
    if values.is_empty() {
        return Ok(());
    }
    translation.put(key, values.concat().join(","), &written.join(" "))
}

/// A UUID; an index of ours would be a UUID that no GPU has, there.
fn device(text: &str) -> Result<String, Reason> {
    if text.starts_with("GPU-") {
        Ok(text.to_owned())
    } else {
        Err("has an entry that is no UUID of a GPU; write UUIDs as `nvidia-smi -L` prints them".to_owned())
    }
}

/// A part of a model's name; HAMi's names of models are NVML's with `NVIDIA-` in front.
fn model(text: &str) -> Result<String, Reason> {
    let bare =
        text.get(..7).filter(|start| start.eq_ignore_ascii_case("nvidia-")).map_or(text, |_| &text[7..]);
    if bare.is_empty() || bare.starts_with('!') {
        return Err("has an entry that is part of no model's name".to_owned());
    }
    Ok(bare.to_owned())
}
