//! Whether a bundle can concern us at all. Most containers of a node have nothing to do with a GPU, and for
//! those not even a process is started.

use std::fs::File;
use std::io::Read;
use std::path::Path;

const WORD: &[u8] = b"fgpu";

/// Whether `config.json` has the word `fgpu` in it, in upper or lower case: an annotation's prefix, or the
/// `FGPU_` of the environment variables that `accept-env` allows. A file that cannot be read may have it; the
/// engine is the one to say what is wrong with it.
pub(crate) fn of_fgpu(bundle: &Path) -> bool {
    match File::open(bundle.join("config.json")) {
        Ok(mut file) => contains(&mut file).unwrap_or(true),
        Err(_) => true,
    }
}

fn contains(reader: &mut impl Read) -> std::io::Result<bool> {
    let mut buffer = [0; 4096];
    let mut kept = 0;
    loop {
        let count = reader.read(&mut buffer[kept..])?;
        if count == 0 {
            return Ok(false);
        }
        let filled = kept + count;
        if buffer[..filled].windows(WORD.len()).any(|window| window.eq_ignore_ascii_case(WORD)) {
            return Ok(true);
        }
        // The word may lie across two reads.
        kept = filled.min(WORD.len() - 1);
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
            assert!(contains(&mut &text[..]).unwrap(), "after {before} bytes");
            assert!(contains(&mut Slow(&text)).unwrap(), "after {before} bytes");
        }
        for text in ["", "f", "fgp", "fgpfgp u", "{\"annotations\":{\"gpu/fraction\":\"1\"}}"] {
            assert!(!contains(&mut text.as_bytes()).unwrap());
            assert!(!contains(&mut Slow(text.as_bytes())).unwrap());
        }
    }

    #[test]
    fn a_bundle_without_a_config_is_for_the_engine() {
        let bundle = tempfile::tempdir().unwrap();
        assert!(of_fgpu(bundle.path()));
        std::fs::write(bundle.path().join("config.json"), "{}").unwrap();
        assert!(!of_fgpu(bundle.path()));
    }
}
