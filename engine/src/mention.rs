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
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    /// Gives one byte at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(&mut buffer[..1])
        }
    }

    #[test]
    fn the_word_is_found_wherever_it_is_and_however_it_is_spelled() {
        for word in
            ["FgPu/fraction", r"\u0066gpu/fraction", r"\u0046\u0067\u0050\u0075", r"\\fgpu", r"fg\u0070u"]
        {
            for before in [0, 1, 8160, 8170, 8180, 8185, 8186, 8187, 8188, 8189, 8190, 8191, 8192, 20000] {
                let text = [&vec![b'f'; before][..], word.as_bytes()].concat();
                assert!(contains(&mut &text[..], &[WORD]).unwrap(), "{word} after {before} bytes");
                assert!(
                    contains(&mut Slow(&text), &["longer", WORD]).unwrap(),
                    "{word} after {before} bytes"
                );
            }
        }
        for text in [
            "",
            "f",
            "fgp",
            "fgpfgp u",
            r"\u0066",
            r"\u006",
            r"\u0166gpu",
            r#"{"annotations":{"gpu/x":"1"}}"#,
        ] {
            assert!(!contains(&mut text.as_bytes(), &[WORD]).unwrap(), "{text}");
            assert!(!contains(&mut Slow(text.as_bytes()), &[WORD]).unwrap(), "{text}");
        }
    }

    #[test]
    fn an_unreadable_file_has_no_answer() {
        let bundle = tempfile::tempdir().unwrap();
        let spec = bundle.path().join("config.json");
        assert_eq!(of_fgpu(&spec), None);
        assert_eq!(of_fgpu(bundle.path()), None);
        std::fs::write(&spec, b"{\xff").unwrap();
        assert_eq!(of_fgpu(&spec), Some(false));
        std::fs::write(&spec, b"{\xff fgpu").unwrap();
        assert_eq!(of_fgpu(&spec), Some(true));
        std::fs::remove_file(&spec).unwrap();
        mknodat(CWD, &spec, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(of_fgpu(&spec), None);
    }

    #[test]
    fn other_systems_words_count_where_the_configuration_speaks_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let spec = folder.path().join("config.json");
        for (annotations, opted_in) in [
            (r#"{"gpu-fraction":"0.5"}"#, true),
            (r#"{"volcano.sh/vgpu-memory":"1000"}"#, true),
            (r#"{"cuda\u002Eshares":"1"}"#, true),
            (r#"{"com.example/cpu":"1"}"#, false),
        ] {
            std::fs::write(&spec, format!("{{\"annotations\":{annotations}}}")).unwrap();
            let under = |text: &str| {
                let config = folder.path().join("config.toml");
                std::fs::write(&config, text).unwrap();
                under(&Config::load_from(&config), &spec)
            };
            assert_eq!(under("policy = \"pack\""), Some(false), "{annotations}");
            assert_eq!(under("aliases = [\"kai\"]"), Some(opted_in), "{annotations}");
            assert_eq!(under("aliasses = [\"kai\"]"), Some(opted_in), "{annotations}");
        }
    }
}
