//! Backend.AI: resource slots. `cuda.shares` are the administrator's units of GPUs, `cuda.device` whole GPUs.

use super::{Translation, Words, conflict, gpus};
use crate::Error;
use crate::request::key::Key;

const SHARES: &str = "cuda.shares";
const DEVICES: &str = "cuda.device";

pub(super) const KEYS: &[&str] = &[SHARES, DEVICES];

pub(super) fn translate(words: &Words<'_>, translation: &mut Translation) -> Result<(), Error> {
    // A slot of 0 is one that is not asked for. What else is wrong with a number of units is told in our
    // words.
    let zero = |text: &String| text.bytes().all(|byte| matches!(byte, b'0' | b'.')) && text.contains('0');
    let shares = words.get(SHARES, |text| Ok(text.to_owned()))?.filter(|(text, _)| !zero(text));
    let devices = words.get(DEVICES, |text| gpus(text, 0))?.filter(|(number, _)| *number > 0);
    if let (Some((_, one)), Some((_, other))) = (&shares, &devices) {
        return Err(conflict(one, other));
    }
    if let Some((value, written)) = shares {
        translation.put(Key::Units, value, &written)?;
    }
    if let Some((number, written)) = devices {
        translation.put(Key::Count, number.to_string(), &written)?;
    }
    Ok(())
}
