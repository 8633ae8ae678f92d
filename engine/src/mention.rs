//! Whether a container's `config.json` can concern us at all. Most containers of a node have nothing to do
//! with a GPU: what becomes of them is the real runtime's business, whatever it makes of their file.

use std::io::Read;
use std::path::Path;

use crate::bundle;
use crate::config::Config;

const WORD: &str = "fgpu";
/// A byte of JSON text is one byte, or `\u0066`.
const ESCAPE: usize = 6;

/// Whether a file has the word `fgpu` in it, in upper or lower case and however JSON spells it: an
/// annotation's prefix, or the `FGPU_` of the environment variables that `accept-env` allows; or what other
/// systems' annotations have in common, where the node's configuration speaks of them or cannot be read.
///
/// `None` if it cannot be told: the file is missing, may not be read, or is no regular file. One that is none
/// is not opened: what we took out of a pipe the runtime would not find there.
pub fn of_fgpu(spec: &Path) -> Option<bool> {
    asks(spec, || Config::load().map_or(true, |config| !config.aliases.is_empty()))
}

/// [`of_fgpu`] under a configuration that is there.
pub fn under<E>(config: &Result<Config, E>, spec: &Path) -> Option<bool> {
    asks(spec, || config.as_ref().map_or(true, |config| !config.aliases.is_empty()))
}

fn asks(spec: &Path, has_aliases: impl FnOnce() -> bool) -> Option<bool> {
    let has = |words: &[&str]| contains(&mut bundle::open(spec).ok()?, words).ok();
    Some(has(&[WORD])? || has(&fgpu_spec::ALIAS_MARKS)? && has_aliases())
}

fn contains(reader: &mut impl Read, words: &[&str]) -> std::io::Result<bool> {
    let longest = words.iter().map(|word| word.len()).max().unwrap_or(0) * ESCAPE;
    let mut buffer = [0; 8192];
    let mut kept = 0;
    loop {
        let count = match reader.read(&mut buffer[kept..]) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            count => count?,
        };
        if count == 0 {
            return Ok(false);
        }
        let filled = kept + count;
        if (0..filled).any(|at| words.iter().any(|word| begins(&buffer[at..filled], word))) {
            return Ok(true);
        }
        // A word may lie across two reads.
        kept = filled.min(longest.saturating_sub(1));
        buffer.copy_within(filled - kept..filled, 0);
    }
}

/// Whether a text begins with a word, in which each letter may be an escape. Where a string begins is not
/// looked at: what is found too often is read by a parser next.
fn begins(mut text: &[u8], word: &str) -> bool {
    word.bytes().all(|letter| match first(text) {
        Some((byte, rest)) => {
            text = rest;
            byte.eq_ignore_ascii_case(&letter)
        }
        None => false,
    })
}

/// The first byte that a JSON text means, and what follows it.
fn first(text: &[u8]) -> Option<(u8, &[u8])> {
    if let [b'\\', b'u', b'0', b'0', digits @ ..] = text
        && let Some((&[high, low], rest)) = digits.split_first_chunk()
        && let (Some(high), Some(low)) = (char::from(high).to_digit(16), char::from(low).to_digit(16))
    {
        return Some((u8::try_from(high * 16 + low).ok()?, rest));
    }
    text.split_first().map(|(&byte, rest)| (byte, rest))
}

#[cfg(test)]
mod tests;
