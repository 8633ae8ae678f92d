//! KAI Scheduler and Run:ai: a fraction of the memory, or MiB, of one GPU or several, for one container of a
//! pod.

use super::{Translation, Words, fraction, gpus, mebibytes, whole};
use crate::request::key::Key;
use crate::{Code, Error};

const FRACTION: &str = "gpu-fraction";
const MEMORY: &str = "gpu-memory";
const CORES: &str = "gpu-sm-percentage";
const COUNT: &str = "gpu-fraction-num-devices";
const CONTAINER: &str = "gpu-fraction-container-name";

pub(super) const KEYS: &[&str] = &[FRACTION, MEMORY, CORES, COUNT, CONTAINER];

pub(super) fn translate(
    words: &Words<'_>,
    container: Option<&str>,
    translation: &mut Translation,
) -> Result<(), Error> {
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

fn without_amount(written: &str) -> Error {
    let message = format!("{written} does not say how much of a GPU it asks for; add {FRACTION} or {MEMORY}");
    Error::new(Code::InvalidRequest, message)
}
