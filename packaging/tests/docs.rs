//! The documentation says what the programs do: generated pages are as the generator writes them, lists are
//! complete, links lead somewhere. That its code blocks run is tested in the lab (tests/lab/suite/docs.rs).

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml's allow-unwrap-in-tests does not reach the helpers of a test"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fgpu_engine::config::Config;
use fgpu_packaging::{annotations, completions, config, man};
use fgpu_spec::Code;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    fs::read_to_string(top().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn generated_pages_are_up_to_date() {
    for (name, page) in [(annotations::PAGE, annotations::page()), (config::PAGE, config::page())] {
        assert!(read(&format!("docs/{name}")) == page, "docs/{name} is not what `make docs` writes");
    }
}

#[test]
fn every_error_code_has_a_section() {
    let page = read("docs/troubleshooting.md");
    let sections =
        page.lines().filter_map(|line| line.strip_prefix("## ")).take_while(|name| !name.contains(' '));
    assert_eq!(sections.collect::<Vec<_>>(), Code::ALL.map(Code::as_str));
}

#[test]
fn readme_names_every_annotation() {
    let readme = read("README.md");
    for reference in fgpu_spec::key_reference() {
        assert!(readme.contains(&format!("`{}`", reference.key)), "{}", reference.key);
    }
}

/// The shipped file with every setting taken out of its comment.
fn uncommented() -> String {
    let is_setting = |rest: &str| {
        rest.starts_with('[') || rest.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '))
    };
    let line = |line: &str| match line.strip_prefix('#') {
        Some(rest) if is_setting(rest) => format!("{rest}\n"),
        _ => format!("{line}\n"),
    };
    config::FILE.lines().map(line).collect()
}

fn load(text: &str) -> Result<Config, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    fs::write(&path, text).unwrap();
    Config::load_from(&path).map_err(|error| error.message)
}

#[test]
fn the_shipped_configuration_changes_nothing_and_names_every_key() {
    assert_eq!(load(config::FILE), Ok(Config::default()));
    let all = uncommented();
    assert!(load(&all).is_ok(), "{:?}\n{all}", load(&all));
    // For a key that it does not know the parser names all that it knows, table by table.
    let settings = config::settings();
    let tables: BTreeSet<_> = settings.iter().map(|setting| setting.table.as_str()).collect();
    for table in &tables {
        let error = load(&format!("{table}\nno-such-key = 1\n")).unwrap_err();
        let known: BTreeSet<_> = error.split('`').skip(3).step_by(2).map(str::to_owned).collect();
        assert!(!known.is_empty(), "{error}");
        let here = settings.iter().filter(|setting| setting.table == *table);
        let shipped: BTreeSet<_> = here.map(|setting| setting.key.clone()).collect();
        // A table is shown by its keys.
        let is_table = |key: &str| tables.iter().any(|name| name.trim_start_matches('[').starts_with(key));
        let missing: Vec<_> = known.difference(&shipped).filter(|key| !is_table(key)).collect();
        assert_eq!(missing, Vec::<&String>::new(), "not in packaging/config.toml, table {table:?}");
    }
}

/// Every page that people read in the checkout.
fn pages() -> Vec<PathBuf> {
    let listed = |folder: &str| fs::read_dir(top().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let readmes = listed("tests").map(|folder| folder.join("README.md")).filter(|page| page.exists());
    let is_page = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    listed("").chain(listed("docs")).filter(is_page).chain(readmes).collect()
}

#[test]
fn links_lead_somewhere() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.contains("://") && !target.starts_with('#')) {
            let path = page.parent().unwrap().join(target.split('#').next().unwrap());
            assert!(path.exists(), "{}: {target}", page.display());
        }
    }
}

/// The name of a file is what a change makes wrong first.
#[test]
fn files_that_are_named_exist() {
    let is_path = |word: &str| word.chars().all(|char| char.is_ascii_alphanumeric() || "/._-".contains(char));
    let mut named = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for word in text.split('`').skip(1).step_by(2).filter(|word| is_path(word)) {
            let Some((folder, _)) = word.split_once('/') else { continue };
            // What a build makes need not be there, and what is in no folder of ours is on another machine.
            if ["", "..", ".lab", "target"].contains(&folder) {
                continue;
            }
            let places = [top(), page.parent().unwrap().to_owned()];
            if places.iter().any(|place| place.join(folder).is_dir()) {
                named += 1;
                assert!(places.iter().any(|place| place.join(word).exists()), "{}: {word}", page.display());
            }
        }
    }
    assert!(named > 50, "{named}");
}

#[test]
fn the_labs_readme_says_what_every_file_of_its_suite_shows() {
    let readme = read("tests/lab/README.md");
    for entry in fs::read_dir(top().join("tests/lab/suite")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        // A folder belongs to the file of its name.
        if entry.file_type().unwrap().is_dir() {
            assert!(entry.path().with_extension("rs").exists(), "{name}");
            continue;
        }
        assert!(name == "main.rs" || readme.contains(&format!("| `suite/{name}` |")), "{name}");
    }
}

/// What `man` and `apropos` need of a page.
#[test]
fn man_pages_are_well_formed() {
    let pages = man::pages(&fgpu::command()).unwrap();
    let names: BTreeSet<_> =
        pages.iter().map(|(path, _)| path.rsplit('/').next().unwrap().to_owned()).collect();
    assert_eq!(names.len(), pages.len());
    for name in ["fgpu.1", "fgpu-run.1", "fgpu-setup.1", "fgpu-config.5", "fgpu-annotations.7", "fgpu-hook.8"]
    {
        assert!(names.contains(name), "{name} of {names:?}");
    }
    for (path, text) in &pages {
        let name = path.rsplit('/').next().unwrap();
        let (title, section) = name.rsplit_once('.').unwrap();
        let head = text.lines().find(|line| line.starts_with(".TH ")).unwrap_or_else(|| panic!("{path}"));
        assert!(head.starts_with(&format!(".TH {title} {section} ")), "{path}: {head}");
        assert!(text.contains("NAME\n") && text.contains(title), "{path}");
        assert!(text.contains(".SH \"SEE ALSO\"") || text.contains(".SH SEE ALSO"), "{path}");
    }
}

/// Programs of ours alone are no words for people.
#[test]
fn completions_know_every_command_and_no_hidden_one() {
    let command = fgpu::command();
    for (path, script) in completions::scripts(&command) {
        for inner in command.get_subcommands() {
            let name = inner.get_name();
            let offered = script.contains(&format!("fgpu__subcmd__{})", name.replace('-', "__subcmd__")))
                || script.contains(&format!("'{name}:"))
                || script.contains(&format!("-a \"{name}\""));
            assert_eq!(offered, !inner.is_hide_set(), "{path}: {name}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let (_, bash) = &completions::scripts(&command)[0];
    fs::write(folder.path().join("fgpu"), bash).unwrap();
    let parsed = Command::new("bash").arg("-n").arg(folder.path().join("fgpu")).output().unwrap();
    assert!(parsed.status.success(), "{}", String::from_utf8_lossy(&parsed.stderr));
}
