//! Whether a bundle can concern us at all. Most containers of a node have nothing to do with a GPU, and for
//! those not even a process is started.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

const WORD: &str = "fgpu";
/// What opens other systems' words in the node's configuration.
const ALIASES: &str = "aliases";

/// Whether `config.json` has the word `fgpu` in it, in upper or lower case: an annotation's prefix, or the
/// `FGPU_` of the environment variables that `accept-env` allows; or what other systems' annotations have in common, if
/// the node's configuration speaks of them. A file that cannot be read may have it; the engine is the one to say what is
/// wrong with it.
pub(crate) fn of_fgpu(bundle: &Path) -> bool {
    asks(&bundle.join("config.json"), Path::new(fgpu_hook::config::PATH))
}

fn asks(spec: &Path, config: &Path) -> bool {
    has(spec, &[WORD], true) || has(config, &[ALIASES], false) && has(spec, &fgpu_spec::ALIAS_MARKS, true)
}

/// Whether a file has one of the words; `missing` if there is no such file.
fn has(path: &Path, words: &[&str], missing: bool) -> bool {
    match File::open(path) {
        Ok(mut file) => contains(&mut file, words).unwrap_or(true),
        Err(error) => missing || error.kind() != ErrorKind::NotFound,
    }
}

fn contains(reader: &mut impl Read, words: &[&str]) -> std::io::Result<bool> {
    let longest = words.iter().map(|word| word.len()).max().unwrap_or(0);
    let mut buffer = [0; 4096];
    let mut kept = 0;
    loop {
        let count = reader.read(&mut buffer[kept..])?;
        if count == 0 {
            return Ok(false);
        }
        let filled = kept + count;
        let found = |word: &&str| {
            buffer[..filled].windows(word.len()).any(|window| window.eq_ignore_ascii_case(word.as_bytes()))
        };
        if words.iter().any(found) {
            return Ok(true);
        }
        // A word may lie across two reads.
        kept = filled.min(longest - 1);
        buffer.copy_within(filled - kept..filled, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(&mut buffer[..1])
        }
    }

    #[test]
    fn the_word_is_found_wherever_it_is() {
        for before in [0, 1, 4090, 4093, 4094, 4095, 4096, 9000] {
            let text = [&vec![b'f'; before][..], b"FgPu/fraction"].concat();
            assert!(contains(&mut &text[..], &[WORD]).unwrap(), "after {before} bytes");
            assert!(contains(&mut Slow(&text), &["longer", WORD]).unwrap(), "after {before} bytes");
        }
        for text in ["", "f", "fgp", "fgpfgp u", "{\"annotations\":{\"gpu/fraction\":\"1\"}}"] {
            assert!(!contains(&mut text.as_bytes(), &[WORD]).unwrap());
            assert!(!contains(&mut Slow(text.as_bytes()), &[WORD]).unwrap());
        }
    }

    #[test]
    fn a_bundle_without_a_config_is_for_the_engine() {
        let bundle = tempfile::tempdir().unwrap();
        assert!(of_fgpu(bundle.path()));
        std::fs::write(bundle.path().join("config.json"), "{}").unwrap();
        assert!(!of_fgpu(bundle.path()));
    }

    #[test]
    fn other_systems_words_count_where_the_configuration_speaks_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let (spec, config) = (folder.path().join("config.json"), folder.path().join("config.toml"));
        for (annotations, opted_in) in [
            (r#"{"gpu-fraction":"0.5"}"#, true),
            (r#"{"volcano.sh/vgpu-memory":"1000"}"#, true),
            (r#"{"cuda.shares":"1"}"#, true),
            (r#"{"com.example/cpu":"1"}"#, false),
        ] {
            std::fs::write(&spec, format!("{{\"annotations\":{annotations}}}")).unwrap();
            let _ = std::fs::remove_file(&config);
            assert!(!asks(&spec, &config), "{annotations}");
            std::fs::write(&config, "policy = \"pack\"\n").unwrap();
            assert!(!asks(&spec, &config), "{annotations}");
            std::fs::write(&config, "aliases = [\"kai\"]\n").unwrap();
            assert_eq!(asks(&spec, &config), opted_in, "{annotations}");
        }
    }
}
