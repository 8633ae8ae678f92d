//! runc's parsers: Go's flag package behind urfave/cli v1 (runc 1.0 to 1.5), and urfave/cli v3 (after).
//!
//! One dash or two, `-name value` or `-name=value`, and nothing shorter than a name. v1 moves the options of
//! a command before its other words (`reorderArgs`) and then reads them up to the first word that is none; v3
//! takes them wherever they stand, the global ones behind the command too.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::{Given, Parsed, Unclear, Verb};
use crate::runtime::options::{Opt, Tables, Value};

/// `strconv.ParseBool`.
pub(super) fn is_true(text: &OsStr) -> Option<bool> {
    match text.to_str()? {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn find(table: &[&'static [Opt]], name: &[u8]) -> Option<&'static Opt> {
    let is = |option: &&Opt| {
        option.long.as_bytes() == name || option.short.is_some_and(|short| name == [short].as_slice())
    };
    table.iter().flat_map(|part| part.iter()).find(is)
}

fn unknown(word: &OsStr) -> Unclear {
    Unclear(format!("the option {} is not known", word.display()))
}

fn needs_value(word: &OsStr) -> Unclear {
    Unclear(format!("the option {} lacks its value", word.display()))
}

/// An option's name, and its value behind `=`.
type Split<'a> = (&'a [u8], Option<&'a OsStr>);

/// A word's name and value, if it is an option: `flag.parseOne`.
fn split(word: &OsStr) -> Result<Option<Split<'_>>, Unclear> {
    let bytes = word.as_bytes();
    let Some(name) = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-")) else { return Ok(None) };
    match name {
        [] => Ok(None),
        [b'-' | b'=', ..] => Err(unknown(word)),
        _ => Ok(Some(match name.iter().position(|&byte| byte == b'=') {
            Some(at) => (&name[..at], Some(OsStr::from_bytes(&name[at + 1..]))),
            None => (name, None),
        })),
    }
}

/// The options at the head of `words`, and how many words they are; a `--` behind them counts.
fn head<'a>(words: &[&'a OsStr], table: &'static [Opt]) -> Result<(Vec<Given<'a>>, usize), Unclear> {
    let mut options = Vec::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if *word == "--" {
            return Ok((options, at + 1));
        }
        let Some((name, value)) = split(word)? else { break };
        let option = find(&[table], name).ok_or_else(|| unknown(word))?;
        at += 1;
        let value = match (option.value, value) {
            (Value::Needed, None) => {
                at += 1;
                Some(*words.get(at - 1).ok_or_else(|| needs_value(word))?)
            }
            (Value::Needed, given) => given,
            (_, Some(given)) if is_true(given).is_none() => return Err(unknown(word)),
            (_, given) => given,
        };
        // An option's two names in one line are an error (`normalizeFlags`).
        let long = name == option.long.as_bytes();
        if option.short.is_some() && words[..at - 1].iter().any(|word| other_name(word, option, long)) {
            return Err(Unclear(format!("{} is given in two ways", option.long)));
        }
        options.push((option, value));
    }
    Ok((options, at))
}

fn other_name(word: &OsStr, option: &Opt, long: bool) -> bool {
    let Ok(Some((name, _))) = split(word) else { return false };
    if long {
        option.short.is_some_and(|short| name == [short].as_slice())
    } else {
        name == option.long.as_bytes()
    }
}

fn tells(options: &[Given<'_>]) -> bool {
    let yes = |value: &Option<&OsStr>| value.is_none_or(|value| is_true(value) == Some(true));
    options.iter().any(|(option, value)| option.value == Value::Tells && yes(value))
}

pub(super) fn parse_v1<'a>(words: &[&'a OsStr], tables: &Tables) -> Result<Parsed<'a>, Unclear> {
    let (mut options, at) = head(words, tables.global)?;
    let Some(word) = words.get(at).filter(|_| !tells(&options)) else { return Ok(Parsed::other(at)) };
    let verb = Verb::of(word);
    if verb == Verb::Other {
        return Ok(Parsed::other(at));
    }
    let table = tables.of(verb);
    let own = reorder(&words[at + 1..], table);
    let (given, length) = head(&own, table)?;
    if tells(&given) {
        return Ok(Parsed::other(at));
    }
    options.extend(given);
    Ok(Parsed { verb, at, options, positional: own[length..].to_vec() })
}

/// `reorderArgs` of urfave/cli 1.22: options before the rest, each with the word behind it, which may be its
/// value.
fn reorder<'a>(words: &[&'a OsStr], table: &'static [Opt]) -> Vec<&'a OsStr> {
    let is_option =
        |word: &OsStr| matches!(split(word), Ok(Some((name, _))) if find(&[table], name).is_some());
    let (mut options, mut rest) = (Vec::new(), Vec::new());
    let mut may_be_value = false;
    for (at, word) in words.iter().enumerate() {
        if may_be_value && !is_option(word) {
            may_be_value = false;
            options.push(*word);
        } else if *word == "--" {
            rest.insert(0, *word);
            rest.extend_from_slice(&words[at + 1..]);
            break;
        } else if is_option(word) {
            options.push(*word);
            may_be_value = !word.as_bytes().contains(&b'=');
        } else {
            rest.push(*word);
        }
    }
    options.extend(rest);
    options
}

pub(super) fn parse_v3<'a>(words: &[&'a OsStr], tables: &Tables) -> Result<Parsed<'a>, Unclear> {
    let is_command = |word: &OsStr| tables.commands.iter().any(|name| word == *name);
    let (mut options, positional, at) = anywhere(words, &[tables.global], is_command)?;
    // It is a command only as the first of the words that are no options.
    let verb = match positional[..] {
        [] if at < words.len() && !tells(&options) => Verb::of(words[at]),
        _ => Verb::Other,
    };
    if verb == Verb::Other {
        return Ok(Parsed::other(at));
    }
    let is_help = |word: &OsStr| word == "help" || word == "h";
    let (given, positional, end) = anywhere(&words[at + 1..], &[tables.of(verb), tables.global], is_help)?;
    if tells(&given) || at + 1 + end < words.len() {
        return Ok(Parsed::other(at));
    }
    options.extend(given);
    Ok(Parsed { verb, at, options, positional })
}

/// `parseFlags` of urfave/cli v3: options wherever they stand, the other words, and where the first command
/// is.
fn anywhere<'a>(
    words: &[&'a OsStr],
    table: &[&'static [Opt]],
    is_command: impl Fn(&OsStr) -> bool,
) -> Result<(Vec<Given<'a>>, Vec<&'a OsStr>, usize), Unclear> {
    let (mut options, mut positional) = (Vec::new(), Vec::new());
    let mut at = 0;
    while let Some(word) = words.get(at) {
        let bytes = word.as_bytes();
        if bytes != bytes.trim_ascii() || bytes == b"-" {
            return Err(Unclear(format!("the word {word:?} is read by none alike")));
        }
        if bytes == b"--"
            || matches!(bytes, [b'-', second, ..] if !second.is_ascii_alphabetic() && *second != b'-')
        {
            positional.extend_from_slice(&words[at + usize::from(bytes == b"--")..]);
            return Ok((options, positional, words.len()));
        }
        let Some((name, value)) = split(word)? else {
            if is_command(word) {
                return Ok((options, positional, at));
            }
            positional.push(*word);
            at += 1;
            continue;
        };
        let option = find(table, name).ok_or_else(|| unknown(word))?;
        at += 1;
        let value = match (option.value, value) {
            (Value::Needed, None) => {
                at += 1;
                Some(*words.get(at - 1).ok_or_else(|| needs_value(word))?)
            }
            (Value::Needed, given) => given,
            (_, Some(given)) if given.is_empty() => None,
            (_, Some(given)) if is_true(given).is_none() => return Err(unknown(word)),
            (_, given) => given,
        };
        options.push((option, value));
    }
    Ok((options, positional, at))
}
