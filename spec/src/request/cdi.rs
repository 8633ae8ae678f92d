//! Names of CDI devices: `--device fgpu.dev/gpu=0.25` asks for what `fgpu/fraction=0.25` does.
//!
//! | name | asks for |
//! |---|---|
//! | `0.25`, `1` | `fraction` |
//! | `1-3` | `fraction=1/3` |
//! | `4Gi` | `memory` |
//! | `units-2` | `units` |
//! | `mig-auto`, `mig-1g.10gb`, `mig-1g.10gb.me` | `mig`; a profile's `+` is a `.` |
//! | `2x0.5` | two GPUs, of each what is behind the `x` |
//!
//! A name has letters, digits, `_`, `-`, `.` and `:` (Container Device Interface, SPEC.md "CDI JSON
//! Specification"), so there is no `/`, `+` or `%` in it. Docker splits at commas.

use super::key::Key;
use crate::{Code, Error, Inventory, escape_for_display};

/// The kind of our devices.
pub const CDI_KIND: &str = "fgpu.dev/gpu";
/// The kind of the devices of Kubernetes' claims, which the node's DRA driver makes.
pub const CLAIM_KIND: &str = "fgpu.dev/claim";

/// Whole GPUs that one name asks for, and fractions of several.
const SEVERAL: [&str; 4] = ["2x0.5", "2x1", "4x1", "8x1"];
/// The most units that have names: `docker info` lists each name.
const MOST_UNITS: u32 = 16;
/// The largest memory that has a name where no GPU is known, in GiB.
const MOST_GIB: u64 = 128;

/// A device as a person asks for it.
pub(super) fn written(name: &str) -> String {
    format!("--device {CDI_KIND}={}", escape_for_display(name))
}

/// What a name asks for. The values are checked like those of annotations.
pub(super) fn keys(name: &str) -> Vec<(Key, String)> {
    let (count, amount) = match name.split_once('x') {
        Some((count, amount)) if !count.is_empty() && count.bytes().all(|byte| byte.is_ascii_digit()) => {
            (Some((Key::Count, count.to_owned())), amount)
        }
        _ => (None, name),
    };
    let amount = if let Some(units) = amount.strip_prefix("units-") {
        (Key::Units, units.to_owned())
    } else if let Some(profile) = amount.strip_prefix("mig-") {
        (Key::Mig, profile_of(profile))
    } else if amount.ends_with(|last: char| last.is_ascii_alphabetic()) {
        (Key::Memory, amount.to_owned())
    } else {
        (Key::Fraction, amount.replacen('-', "/", 1))
    };
    count.into_iter().chain([amount]).collect()
}

/// `1g.10gb.me.all` is the profile `1g.10gb+me.all`: behind the memory stands what the slice has besides.
fn profile_of(name: &str) -> String {
    match name.match_indices("gb.").next() {
        Some((at, _)) => format!("{}+{}", &name[..at + 2], &name[at + 3..]),
        None => name.to_owned(),
    }
}

/// Two devices of ours, which are two requests.
pub(super) fn contradiction(one: &str, other: &str) -> Error {
    Error::new(
        Code::Conflict,
        format!(
            "{} and {} contradict each other: a container has one request; ask for several GPUs with a name like \
             {CDI_KIND}=2x0.5",
            written(one),
            written(other)
        ),
    )
}

/// The names that a node's CDI file has, each once. Without an inventory they are those that need none, so
/// that a container is told that there is no GPU, and not that there is no device.
pub fn cdi_names(inventory: Option<&Inventory>, units_per_gpu: Option<u32>) -> Vec<String> {
    let twentieths = (1..=20).map(|twentieths: u32| {
        let hundredths = twentieths * 5;
        let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    });
    let parts = [2, 3, 4, 8].map(|parts| format!("1-{parts}"));
    let gpus = inventory.map(|inventory| &*inventory.gpus).unwrap_or_default();
    let largest = gpus.iter().map(|gpu| gpu.total_memory >> 30).max().unwrap_or(MOST_GIB);
    let sizes = (0..u64::BITS).map(|power| 1 << power).take_while(|gib| *gib <= largest);
    let units = units_per_gpu.unwrap_or(0).min(MOST_UNITS);
    let mut profiles: Vec<&str> =
        gpus.iter().flat_map(|gpu| &gpu.mig_profiles).map(|profile| profile.name.as_str()).collect();
    profiles.sort_unstable();
    profiles.dedup();
    twentieths
        .chain(parts)
        .chain(sizes.map(|gib: u64| format!("{gib}Gi")))
        .chain((1..=units).map(|units| format!("units-{units}")))
        .chain(SEVERAL.map(str::to_owned))
        .chain(
            std::iter::once("auto")
                .chain(profiles)
                .map(|profile| format!("mig-{}", profile.replace('+', "."))),
        )
        .collect()
}

#[cfg(test)]
mod tests;
