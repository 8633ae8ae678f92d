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
    for word in ["FgPu/fraction", r"\u0066gpu/fraction", r"\u0046\u0067\u0050\u0075", r"\\fgpu", r"fg\u0070u"]
    {
        for before in [0, 1, 8160, 8170, 8180, 8185, 8186, 8187, 8188, 8189, 8190, 8191, 8192, 20000] {
            let text = [&vec![b'f'; before][..], word.as_bytes()].concat();
            assert!(contains(&mut &text[..], &[WORD]).unwrap(), "{word} after {before} bytes");
            assert!(contains(&mut Slow(&text), &["longer", WORD]).unwrap(), "{word} after {before} bytes");
        }
    }
    for text in
        ["", "f", "fgp", "fgpfgp u", r"\u0066", r"\u006", r"\u0166gpu", r#"{"annotations":{"gpu/x":"1"}}"#]
    {
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
