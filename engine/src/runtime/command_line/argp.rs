//! crun's parser: GNU argp with `ARGP_IN_ORDER`, so options end at the first word that is none.
//!
//! `--name value`, `--name=value` and every beginning of a name that only one option has; letters may stand
//! together, and a value may follow its letter at once (`-dbDIR`).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::{Given, Parsed, Unclear, Verb};
use crate::runtime::options::{Opt, Tables, Value};

/// The options at the head, how many words they are, and whether one of them ends the program with a word of
/// help.
struct Head<'a> {
    options: Vec<Given<'a>>,
    length: usize,
    tells: bool,
}

pub(super) fn parse<'a>(words: &[&'a OsStr], tables: &Tables) -> Result<Parsed<'a>, Unclear> {
    let global = head(words, tables.global)?;
    let at = global.length;
    let Some(word) = words.get(at).filter(|_| !global.tells) else { return Ok(Parsed::other(at)) };
    let verb = Verb::of(word);
    if verb == Verb::Other {
        return Ok(Parsed::other(at));
    }
    let own = head(&words[at + 1..], tables.of(verb))?;
    if own.tells {
        return Ok(Parsed::other(at));
    }
    let options = [global.options, own.options].concat();
    let mut positional = words[at + 1 + own.length..].to_vec();
    // crun's restore lets a second word stand there, and ignores it.
    if verb == Verb::Restore && positional.len() == 2 {
        positional.pop();
    }
    Ok(Parsed { verb, at, options, positional })
}

fn head<'a>(words: &[&'a OsStr], table: &'static [Opt]) -> Result<Head<'a>, Unclear> {
    let mut head = Head { options: Vec::new(), length: 0, tells: false };
    while let Some(word) = words.get(head.length) {
        let bytes: &'a [u8] = word.as_bytes();
        if bytes == b"-" || !bytes.starts_with(b"-") {
            break;
        }
        head.length += 1;
        match bytes.strip_prefix(b"--") {
            Some([]) => break,
            Some(name) => long(&mut head, words, name, table)?,
            None => letters(&mut head, words, &bytes[1..], table)?,
        }
        // argp prints and exits while it reads.
        if head.tells {
            break;
        }
    }
    Ok(head)
}

/// The word behind an option, which is its value.
fn next<'a>(head: &mut Head<'a>, words: &[&'a OsStr], option: &Opt) -> Result<&'a OsStr, Unclear> {
    let value = words.get(head.length).copied();
    head.length += 1;
    value.ok_or_else(|| Unclear(format!("the option --{} lacks its value", option.long)))
}

fn long<'a>(
    head: &mut Head<'a>,
    words: &[&'a OsStr],
    text: &'a [u8],
    table: &'static [Opt],
) -> Result<(), Unclear> {
    let unknown = || Unclear(format!("the option --{} is not known", OsStr::from_bytes(text).display()));
    let (name, value) = match text.iter().position(|&byte| byte == b'=') {
        Some(at) => (&text[..at], Some(OsStr::from_bytes(&text[at + 1..]))),
        None => (text, None),
    };
    let begin = |option: &&Opt| !option.long.is_empty() && option.long.as_bytes().starts_with(name);
    let mut matching = table.iter().filter(begin);
    let option = match table.iter().find(|option| !name.is_empty() && option.long.as_bytes() == name) {
        Some(exact) => exact,
        None => match (matching.next(), matching.next()) {
            (Some(only), None) => only,
            _ => return Err(unknown()),
        },
    };
    let value = match (option.value, value) {
        (Value::None | Value::Tells, Some(_)) => return Err(unknown()),
        (Value::Needed, None) => Some(next(head, words, option)?),
        (_, value) => value,
    };
    head.tells |= option.value == Value::Tells;
    head.options.push((option, value));
    Ok(())
}

fn letters<'a>(
    head: &mut Head<'a>,
    words: &[&'a OsStr],
    text: &'a [u8],
    table: &'static [Opt],
) -> Result<(), Unclear> {
    for (at, letter) in text.iter().enumerate() {
        let found = table.iter().find(|option| option.short == Some(*letter));
        let option =
            found.ok_or_else(|| Unclear(format!("the option -{} is not known", char::from(*letter))))?;
        if option.value == Value::Needed {
            let rest = OsStr::from_bytes(&text[at + 1..]);
            let value = if rest.is_empty() { next(head, words, option)? } else { rest };
            head.options.push((option, Some(value)));
            return Ok(());
        }
        head.options.push((option, None));
        if option.value == Value::Tells {
            head.tells = true;
            return Ok(());
        }
    }
    Ok(())
}
