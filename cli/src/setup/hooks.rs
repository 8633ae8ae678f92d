//! Podman and CRI-O: the files of hooks.d, the directories that the engine reads them from, and a drop-in of
//! ours that names one more directory where that is needed.
//!
//! Where other systems' words are understood (`aliases` in the node's configuration), two more files of ours
//! call the hook for them, beside the package's.
//!
//! Normally nothing is needed: the package puts the files into `/usr/share/containers/oci/hooks.d`, and both
//! engines read that and nothing else as long as `hooks_dir` is not configured. Each configuration file that
//! sets it replaces the list.

use std::path::Path;

use ::toml::de::DeValue;
use fgpu_engine::config::{self, Config};
use fgpu_spec::{Error, Vocabulary};

use super::change::Change;
use super::file::System;
use super::toml::File;
use super::{Plan, Wish};

/// Our drop-in for CRI-O.
pub(super) const CRIO_DROP_IN: &str = "/etc/crio/crio.conf.d/50-fgpu.conf";
/// Our drop-in for Podman.
pub(super) const PODMAN_DROP_IN: &str = "/etc/containers/containers.conf.d/50-fgpu.conf";
/// Where both engines look by default, and where a package puts its files.
const SHARED: &str = "/usr/share/containers/oci/hooks.d";
/// Where an administrator puts files. Neither engine reads it unless told (Podman 5.4 and 5.8, CRI-O 1.37).
const OWN: &str = "/etc/containers/oci/hooks.d";
/// The files, by name.
const FILES: [(&str, &str); 2] = [
    ("fgpu.json", include_str!("../../../packaging/hooks.d/fgpu.json")),
    ("fgpu-poststop.json", include_str!("../../../packaging/hooks.d/fgpu-poststop.json")),
];

/// The same for other systems' annotations.
const ALIAS_FILES: [&str; 2] = ["fgpu-aliases.json", "fgpu-aliases-poststop.json"];
/// The pattern of annotations in the files, as JSON has it.
const PATTERN: &str = r#""^([^/]+\\.)?fgpu/""#;

/// What differs between the engines.
pub(super) struct Engine {
    /// The argument of `fgpu setup`.
    pub(super) name: &'static str,
    /// Configuration files, each overriding those before.
    pub(super) files: &'static [&'static str],
    /// Drop-ins, which come after them.
    pub(super) drop_ins: DropIns,
    /// Ours among them.
    pub(super) own: &'static str,
    /// The table of `hooks_dir`.
    pub(super) table: &'static [&'static str],
    /// The table of a runtime `fgpu`, given the path of `fgpu-runtime` and room for warnings.
    pub(super) runtime: fn(&System, &str, &mut Vec<String>) -> Result<String, Error>,
    /// The drop-in of the other engine, which may need the same files.
    pub(super) other: &'static str,
    /// What to do then.
    pub(super) next: &'static [&'static str],
}

/// Which drop-ins an engine reads.
pub(super) enum DropIns {
    /// Those in a directory whose names end so.
    In(&'static str, &'static str),
    /// Every file in a directory and below it, whatever its name.
    Below(&'static str),
}

impl Engine {
    /// The configuration files of others, in the order in which the engine reads them.
    ///
    /// # Errors
    /// `internal` if a directory cannot be read.
    pub(super) fn read_files(&self, system: &System) -> Result<Vec<String>, Error> {
        let drop_ins = match self.drop_ins {
            DropIns::In(directory, suffix) => system.list(directory, suffix)?,
            DropIns::Below(directory) => system.walk(directory)?,
        };
        let files = self.files.iter().map(|&path| path.to_owned()).chain(drop_ins);
        Ok(files.filter(|path| path != self.own).collect())
    }

    /// Whether a drop-in comes after ours.
    fn is_after_own(&self, path: &str) -> bool {
        !self.files.contains(&path) && Path::new(path) > Path::new(self.own)
    }
}

/// What the hook files and our drop-in shall be.
///
/// # Errors
/// `internal` if a configuration file cannot be read, or undoes what is needed.
pub(super) fn plan(system: &System, engine: &Engine, wish: Wish) -> Result<Plan, Error> {
    let before = system.read(engine.own)?;
    let title = format!("# Written by `fgpu setup {0}`, removed by `fgpu setup {0} --undo`.\n", engine.name);
    if before.as_ref().is_some_and(|text| !text.starts_with(&title)) {
        let reason = format!("it was not written by `fgpu setup {}`; move it away", engine.name);
        return Err(system.wrong(engine.own, 1, &reason));
    }
    let drop_in =
        |after| Change { path: engine.own.into(), before: before.clone(), after, ..Change::default() };
    let runtime = match wish {
        Wish::Do { runtime } => {
            runtime || before.as_ref().is_some_and(|text| text.contains("/fgpu-runtime\""))
        }
        Wish::Undo => {
            let mut changes = vec![drop_in(None)];
            if !system.has(engine.other) {
                changes.extend(files(system, |_| None)?);
                changes.extend(alias_files(system, &[])?);
            }
            return Ok(Plan { changes, warnings: Vec::new(), next: next(engine) });
        }
    };

    let aliases = Config::load_from(&system.place(config::PATH))?.aliases;
    let read = Directories::read(system, engine)?;
    let mut changes = Vec::new();
    let mut hooks_dir = None;
    let packaged = read.names.iter().any(|name| name != OWN && system.has(&format!("{name}/{}", FILES[0].0)));
    if !packaged {
        changes.extend(files(system, |text| Some(with_program(system, text)))?);
    }
    changes.extend(alias_files(system, &aliases)?);
    let needed = !packaged || aliases.iter().any(|vocabulary| !vocabulary.keys().is_empty());
    if needed && !read.names.iter().any(|name| name == OWN) {
        if let Some((path, line)) = &read.after_ours {
            let reason =
                format!("hooks_dir is set here, after {}; add \"{OWN}\" to it", system.shown(engine.own));
            return Err(system.wrong(path, *line, &reason));
        }
        hooks_dir = Some([&read.names[..], &[OWN.into()]].concat());
    }
    let mut text = title;
    if let Some(names) = &hooks_dir {
        text += &format!(
            "\n# What was read before, and the directory of fgpu.json.\n[{}]\nhooks_dir = {}\n",
            engine.table.join("."),
            super::toml::list(names)
        );
    }
    let program = system.program("fgpu-runtime");
    let needed: &[&str] = if runtime { &["fgpu-hook", "fgpu-runtime"] } else { &["fgpu-hook"] };
    let mut warnings = super::missing(system, needed);
    if runtime {
        text += &format!("\n{}", (engine.runtime)(system, &program, &mut warnings)?);
    }
    changes.push(drop_in((hooks_dir.is_some() || runtime).then_some(text)));
    Ok(Plan { changes, warnings, next: next(engine) })
}

fn next(engine: &Engine) -> Vec<String> {
    engine.next.iter().map(|&line| line.to_owned()).collect()
}

/// The changes that give each file in our directory the text that `after` makes of the packaged one.
fn files(system: &System, after: impl Fn(&str) -> Option<String>) -> Result<Vec<Change>, Error> {
    let change = |(name, text): &(&str, &str)| {
        let path = format!("{OWN}/{name}");
        Ok(Change { before: system.read(&path)?, after: after(text), path, ..Change::default() })
    };
    FILES.iter().map(change).collect()
}

/// A packaged file with the hook where the node has it.
fn with_program(system: &System, text: &str) -> String {
    text.replace("/usr/bin/fgpu-hook", &system.program("fgpu-hook"))
}

/// The changes that make the files for these vocabularies, or none for none.
fn alias_files(system: &System, aliases: &[Vocabulary]) -> Result<Vec<Change>, Error> {
    let mut keys: Vec<&str> = aliases.iter().flat_map(|vocabulary| vocabulary.keys()).copied().collect();
    keys.sort_unstable();
    keys.dedup();
    // Of the characters that mean something in a pattern, keys have the dot; `\\` is JSON's.
    let escape = |keys: Vec<&str>| keys.join("|").replace('.', r"\\.");
    let heads: Vec<&str> = aliases.iter().flat_map(|vocabulary| vocabulary.heads()).collect();
    let heads = if heads.is_empty() { String::new() } else { format!("|^({})", escape(heads)) };
    let pattern = format!(r#""^({})${heads}""#, escape(keys.clone()));
    let change = |(name, (_, text)): (&str, (&str, &str))| {
        let path = format!("{OWN}/{name}");
        let after = (!keys.is_empty()).then(|| with_program(system, text).replace(PATTERN, &pattern));
        Ok(Change { before: system.read(&path)?, after, path, ..Change::default() })
    };
    ALIAS_FILES.into_iter().zip(FILES).map(change).collect()
}

/// The directories that an engine reads hooks from, as if our drop-in were not there.
struct Directories {
    names: Vec<String>,
    /// Whether a file that overrides ours sets them, and its line.
    after_ours: Option<(String, usize)>,
}

impl Directories {
    fn read(system: &System, engine: &Engine) -> Result<Self, Error> {
        let mut found = Self { names: vec![SHARED.into()], after_ours: None };
        for path in engine.read_files(system)? {
            let Some(text) = system.read(&path)? else { continue };
            let file = File::parse(system, &path, &text)?;
            let Some(set) = file.find(&[engine.table, &["hooks_dir"]].concat()) else { continue };
            let (names, appends) = names(set.value)
                .ok_or_else(|| system.wrong(&path, set.line, "hooks_dir is no list of strings"))?;
            if appends {
                found.names.extend(names);
            } else {
                found.names = names;
                found.after_ours = engine.is_after_own(&path).then_some((path, set.line));
            }
        }
        Ok(found)
    }
}

/// The strings of a list, and whether it has containers.conf(5)'s `{append = true}` as well.
fn names(value: &DeValue<'_>) -> Option<(Vec<String>, bool)> {
    let (mut names, mut appends) = (Vec::new(), false);
    for item in value.as_array()? {
        match item.get_ref() {
            DeValue::String(name) => names.push(name.to_string()),
            other => appends = other.get("append")?.get_ref().as_bool()?,
        }
    }
    Some((names, appends))
}
