//! What of a runc or crun command line concerns us.
//!
//! Both take `[global options] verb [options] ID`; runc's parser ends the options at the first word that is none,
//! so the id of `create`, `run`, `restore` and `delete` is the last word. Words that we do not know go on as they are.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What the caller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// `create`: the container outlives the command.
    Create,
    /// `run` or `restore`: it does so only with `--detach`.
    Run,
    /// `delete`.
    Delete,
    /// Anything else is the real runtime's business.
    Other,
}

/// The parts of a command line that are of use here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    pub(super) verb: Verb,
    pub(super) id: Option<String>,
    pub(super) bundle: Option<PathBuf>,
    pub(super) pid_file: Option<PathBuf>,
    pub(super) detach: bool,
    pub(super) root: Option<PathBuf>,
    pub(super) log: Option<PathBuf>,
    pub(super) log_json: bool,
}

/// Global options that take a value (runc 1.0 to 1.4, crun 1.8 to 1.28, youki); others are switches.
const GLOBAL_WITH_VALUE: [&str; 8] =
    ["root", "log", "log-format", "log-level", "criu", "rootless", "cgroup-manager", "l"];

impl Arguments {
    pub(super) fn parse(words: &[OsString]) -> Self {
        let at = verb_position(words);
        let (global, rest) = words.split_at(at);
        let verb = match rest.first().and_then(|word| word.to_str()) {
            Some("create") => Verb::Create,
            Some("run" | "restore") => Verb::Run,
            Some("delete") => Verb::Delete,
            _ => Verb::Other,
        };
        let own = rest.get(1..).unwrap_or_default();
        let id = own.last().and_then(|word| word.to_str()).filter(|word| !word.starts_with('-'));
        Self {
            verb,
            id: id.map(str::to_owned),
            bundle: value(own, &["bundle", "b"]).map(PathBuf::from),
            pid_file: value(own, &["pid-file"]).map(PathBuf::from),
            // Go's parser takes `--detach=true` as well, and in several spellings.
            detach: own.iter().filter_map(|word| option_name(word)).any(|option| {
                let name = option.split(|&byte| byte == b'=').next().unwrap_or_default();
                matches!(name, b"detach" | b"d")
                    && !matches!(option.get(name.len()..), Some(b"=false" | b"=0"))
            }),
            root: value(global, &["root"]).map(PathBuf::from),
            log: value(global, &["log"]).map(PathBuf::from),
            log_json: value(global, &["log-format"]).is_some_and(|format| format == "json"),
        }
    }
}

fn verb_position(words: &[OsString]) -> usize {
    let mut at = 0;
    while let Some(name) = words.get(at).and_then(|word| option_name(word)) {
        let takes_value = GLOBAL_WITH_VALUE.iter().any(|known| known.as_bytes() == name);
        at += if takes_value { 2 } else { 1 };
    }
    at.min(words.len())
}

/// The name of an option without its dashes; Go's flag parser takes one dash or two. `--name=value` is a name
/// of its own here and matches no option that takes its value from the next word.
fn option_name(word: &OsStr) -> Option<&[u8]> {
    let bytes = word.as_bytes();
    let name = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-"))?;
    (!name.is_empty()).then_some(name)
}

/// The value of the last occurrence of an option, as `--name value` or `--name=value`.
fn value<'a>(words: &'a [OsString], names: &[&str]) -> Option<&'a OsStr> {
    let mut found = None;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(option) = option_name(word) else { continue };
        for name in names {
            if option == name.as_bytes() {
                found = words.next().map(OsString::as_os_str).or(found);
                break;
            }
            if let Some(rest) = option.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
            {
                found = Some(OsStr::from_bytes(rest));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Arguments {
        Arguments::parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn containerds_create() {
        let arguments = parse(
            "--root /run/docker/runtime-runc/moby --log /b/log.json --log-format json --systemd-cgroup create \
             --bundle /b --pid-file /b/init.pid --console-socket /tmp/pty.sock c1",
        );
        assert_eq!(arguments.verb, Verb::Create);
        assert_eq!(arguments.id.as_deref(), Some("c1"));
        assert_eq!(arguments.bundle, Some("/b".into()));
        assert_eq!(arguments.pid_file, Some("/b/init.pid".into()));
        assert_eq!(arguments.root, Some("/run/docker/runtime-runc/moby".into()));
        assert_eq!(arguments.log, Some("/b/log.json".into()));
        assert!(arguments.log_json && !arguments.detach);
    }

    #[test]
    fn conmons_and_a_persons_forms() {
        let arguments = parse("--root=/r --log=/l run -d -b /b c1");
        assert_eq!((arguments.verb, arguments.detach), (Verb::Run, true));
        assert_eq!(arguments.bundle, Some("/b".into()));
        assert_eq!(arguments.root, Some("/r".into()));
        assert!(!arguments.log_json);
        for (line, detach) in [
            ("run --detach=true c1", true),
            ("run -d=1 c1", true),
            ("run --detach=false c1", false),
            ("run c1", false),
        ] {
            assert_eq!(parse(line).detach, detach, "{line}");
        }
        let arguments = parse("-root /r delete --force c1");
        assert_eq!((arguments.verb, arguments.id.as_deref()), (Verb::Delete, Some("c1")));
    }

    #[test]
    fn what_is_not_ours_is_other() {
        for line in
            ["", "features", "--version", "--root /r state c1", "--root", "exec c1 create", "--root /r"]
        {
            assert_eq!(parse(line).verb, Verb::Other, "{line}");
        }
    }

    #[test]
    fn an_option_in_the_place_of_the_id_is_no_id() {
        assert_eq!(parse("create --help").id, None);
        assert_eq!(parse("create").id, None);
    }
}
