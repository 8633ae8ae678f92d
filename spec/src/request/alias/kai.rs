//! KAI Scheduler and Run:ai: a fraction of the memory, or MiB, of one GPU or several, for one container of a
//! pod. And kai-gpu-fractioning's words, which name the container: a limit of its memory.

use super::{Translation, Words, fraction, gpus, mebibytes, whole};
use crate::request::key::Key;
use crate::{Code, Error};

const FRACTION: &str = "gpu-fraction";
const MEMORY: &str = "gpu-memory";
const CORES: &str = "gpu-sm-percentage";
const COUNT: &str = "gpu-fraction-num-devices";
const CONTAINER: &str = "gpu-fraction-container-name";

/// What kai-gpu-fractioning's keys of a container begin with, now and in its first versions. `.request` and
/// `.limit` follow: what is counted and what is enforced.
pub(super) const OF_CONTAINER: [(&str, &str); 2] =
    [("nvidia.com/container.", ".gpu-memory"), ("nvidia.com/gpu-memory.container.", "")];
/// How containers share the SM time there: no part of it is promised in either way.
const MODES: [&str; 2] = ["time-slicing", "sm-sharing"];

/// Whether an annotation is one of kai-gpu-fractioning's for this container.
pub(super) fn names(key: &str, container: &str) -> bool {
    OF_CONTAINER.iter().any(|(head, _)| {
        key.strip_prefix(head)
            .and_then(|rest| rest.strip_prefix(container))
            .is_some_and(|rest| rest.starts_with('.'))
    })
}

pub(super) const KEYS: &[&str] = &[FRACTION, MEMORY, CORES, COUNT, CONTAINER];

pub(super) fn translate(
    words: &Words<'_>,
    container: Option<&str>,
    translation: &mut Translation,
) -> Result<(), Error> {
    if let Some(container) = container {
        of_container(words, container, translation)?;
    }
    let named = words.get(CONTAINER, |name| Ok(name.to_owned()))?;
    if let (Some((name, _)), Some(container)) = (named, container)
        && name != container
    {
        return Ok(());
    }
    let fraction = words.get(FRACTION, fraction)?;
    let memory = words.get(MEMORY, |text| mebibytes(text, 1))?;
    let cores = words.get(CORES, |text| whole(text, 1, 100, "a percentage"))?;
    let count = words.get(COUNT, |text| gpus(text, 1))?;
    let amount = fraction.is_some() || memory.is_some();
    if let Some((_, alone)) = cores.as_ref().filter(|_| !amount) {
        return Err(without_amount(alone));
    }
    if let Some((_, alone)) = count.as_ref().map(|(number, written)| (number, written)).filter(|_| !amount) {
        return Err(without_amount(alone));
    }
    if let Some((value, written)) = fraction {
        let key = if cores.is_some() { Key::MemoryShare } else { Key::Fraction };
        translation.put(key, value, &written)?;
    }
    if let Some((value, written)) = memory {
        translation.put(Key::Memory, format!("{value}Mi"), &written)?;
    }
    if let Some((value, written)) = cores {
        translation.put(Key::Cores, format!("{value}%"), &written)?;
    }
    if let Some((value, written)) = count {
        translation.put(Key::Count, value.to_string(), &written)?;
    }
    Ok(())
}

/// The limit of one container's memory, or what it asks for if it has none.
fn of_container(words: &Words<'_>, container: &str, translation: &mut Translation) -> Result<(), Error> {
    for (head, tail) in OF_CONTAINER {
        let key = |what: &str| format!("{head}{container}{tail}.{what}");
        let limit = words.get(&key("limit"), quantity)?;
        let request = words.get(&key("request"), quantity)?;
        if let (Some((limit, one)), Some((request, other))) = (&limit, &request)
            && limit < request
        {
            let message = format!("{one} is less than {other}");
            return Err(Error::new(Code::Conflict, message));
        }
        if let Some((mebibytes, written)) = limit.or(request) {
            translation.put(Key::Memory, format!("{mebibytes}Mi"), &written)?;
        }
    }
    let mode = |text: &str| match MODES.contains(&text) {
        true => Ok(()),
        false => Err(format!("is no mode; there are {}", MODES.join(" and "))),
    };
    words.get(&format!("{}{container}.gpu-compute.mode", OF_CONTAINER[0].0), mode)?;
    Ok(())
}

/// A quantity of Kubernetes as MiB, at least one.
fn quantity(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u128); 9] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("", 1),
    ];
    let number = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
    let bytes = number.and_then(|(digits, bytes)| {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u64>().ok().filter(|_| plain).map(|number| u128::from(number) * bytes)
    });
    let mebibytes = bytes.and_then(|bytes| u64::try_from(bytes >> 20).ok());
    mebibytes.filter(|&number| number > 0).ok_or_else(|| "is no quantity of at least 1Mi".to_owned())
}

fn without_amount(written: &str) -> Error {
    let message = format!("{written} does not say how much of a GPU it asks for; add {FRACTION} or {MEMORY}");
    Error::new(Code::InvalidRequest, message)
}
