//! What a command line means to the runtime that is given it.
//!
//! Each runtime's own parser decides, so each has a grammar here: Go's flag package with what urfave/cli v1
//! and v3 make of it (`go.rs`), GNU argp (`argp.rs`) and clap (`clap.rs`). A runtime whose parser is not
//! known is read by all of them, and a line that means different things to them has no meaning here.

mod argp;
mod clap;
mod go;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::options::{CRUN, Opt, RUNC, Tables, YOUKI};

/// What the caller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// `create`: the container outlives the command.
    Create,
    /// `run`: the container outlives the command only with `--detach`.
    Run,
    /// `restore`: the container outlives the command only with `--detach`.
    Restore,
    /// `delete`.
    Delete,
    /// `update`.
    Update,
    /// Anything else is the real runtime's business.
    Other,
}

impl Verb {
    fn of(word: &OsStr) -> Self {
        match word.to_str() {
            Some("create") => Self::Create,
            Some("run") => Self::Run,
            Some("restore") => Self::Restore,
            Some("delete") => Self::Delete,
            Some("update") => Self::Update,
            _ => Self::Other,
        }
    }

    /// Whether a container is made.
    pub fn makes(self) -> bool {
        matches!(self, Self::Create | Self::Run | Self::Restore)
    }
}

/// The parts of a command line that are of use here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// The command.
    pub verb: Verb,
    /// The verb's place among the words.
    pub at: usize,
    /// The container's; empty if the verb is [`Verb::Other`].
    pub id: String,
    /// `--bundle`, as it was given.
    pub bundle: Option<PathBuf>,
    /// crun's `--config`: another file than the bundle's config.json.
    pub config: Option<PathBuf>,
    /// `--pid-file`, as it was given.
    pub pid_file: Option<PathBuf>,
    /// `--detach`: the runtime ends before its container.
    pub detach: bool,
    /// `--root`, as it was given.
    pub root: Option<PathBuf>,
}

/// Why a command line has no meaning here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unclear(pub String);

/// How a runtime reads its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grammar {
    /// runc up to 1.5: urfave/cli v1.
    GoV1,
    /// runc after its change to urfave/cli v3.
    GoV3,
    /// crun.
    Argp,
    /// youki.
    Clap,
}

impl Grammar {
    fn tables(self) -> &'static Tables {
        match self {
            Self::GoV1 | Self::GoV3 => &RUNC,
            Self::Argp => &CRUN,
            Self::Clap => &YOUKI,
        }
    }

    fn parse<'a>(self, words: &[&'a OsStr]) -> Result<Parsed<'a>, Unclear> {
        match self {
            Self::GoV1 => go::parse_v1(words, self.tables()),
            Self::GoV3 => go::parse_v3(words, self.tables()),
            Self::Argp => argp::parse(words, self.tables()),
            Self::Clap => clap::parse(words, self.tables()),
        }
    }
}

/// An option that was given, by its long name, and its value.
type Given<'a> = (&'static Opt, Option<&'a OsStr>);

/// What a grammar makes of the words. Of a command that does not concern us only the verb is told.
#[derive(Debug)]
struct Parsed<'a> {
    verb: Verb,
    at: usize,
    options: Vec<Given<'a>>,
    positional: Vec<&'a OsStr>,
}

impl<'a> Parsed<'a> {
    fn other(at: usize) -> Self {
        Self { verb: Verb::Other, at, options: Vec::new(), positional: Vec::new() }
    }

    /// The value of an option's last occurrence.
    fn value(&self, long: &str) -> Option<&'a OsStr> {
        self.options.iter().rev().find(|(option, _)| option.long == long).and_then(|(_, value)| *value)
    }

    fn path(&self, long: &str) -> Option<PathBuf> {
        // All of them take an empty one for none.
        self.value(long).filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    fn is_set(&self, long: &str) -> bool {
        let last = self.options.iter().rev().find(|(option, _)| option.long == long);
        last.is_some_and(|(_, value)| value.is_none_or(|value| go::is_true(value) != Some(false)))
    }

    fn meaning(self) -> Result<CommandLine, Unclear> {
        let id = match (self.verb, &self.positional[..]) {
            (Verb::Other, _) => String::new(),
            (_, [id]) => match id.to_str() {
                Some(id) if !id.is_empty() => id.to_owned(),
                _ => return Err(Unclear(format!("{id:?} is no container's id"))),
            },
            (_, []) => return Err(Unclear("it names no container".into())),
            (_, [_, second, ..]) => {
                return Err(Unclear(format!("{second:?} stands where no second container's id may")));
            }
        };
        Ok(CommandLine {
            verb: self.verb,
            at: self.at,
            id,
            bundle: self.path("bundle"),
            config: self.path("config"),
            pid_file: self.path("pid-file"),
            detach: self.is_set("detach"),
            root: self.path("root"),
        })
    }
}

/// What the words mean to a runtime that reads them in one of these ways.
///
/// # Errors
/// None of them accepts the words, or two of them find different meanings.
pub fn read(words: &[OsString], grammars: &[Grammar]) -> Result<CommandLine, Unclear> {
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let mut found: Option<CommandLine> = None;
    let mut refused = None;
    for grammar in grammars {
        match grammar.parse(&words).and_then(Parsed::meaning) {
            Ok(meaning) => match &found {
                Some(other) if *other != meaning => {
                    return Err(Unclear("it has different meanings to different runtimes".into()));
                }
                _ => found = Some(meaning),
            },
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    found.ok_or_else(|| refused.unwrap_or_else(|| Unclear("no runtime reads it".into())))
}

/// The first word that names a command which concerns us, and whether a container is made by it. For a line
/// that has no meaning: what it would be, were each word before it an option or an option's value.
pub fn might_make(words: &[OsString]) -> bool {
    let known = |word: &&OsString| {
        RUNC.commands.iter().any(|name| word.as_os_str() == *name) || Verb::of(word) != Verb::Other
    };
    words.iter().find(known).is_some_and(|word| Verb::of(word).makes())
}
