//! youki's parser: clap, with its defaults.
//!
//! `--name value` and `--name=value`, names in full; letters may stand together, with a value at the end
//! (`-dbDIR`, `-b=DIR`). Options may stand behind the id, global ones only before the command. An option that
//! is given twice is an error, and so is a value in the next word that begins with a dash.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::{Given, Parsed, Unclear, Verb};
use crate::runtime::options::{Opt, Tables, Value};

pub(super) fn parse<'a>(words: &[&'a OsStr], tables: &Tables) -> Result<Parsed<'a>, Unclear> {
    let mut reader = Reader { words, at: 0, options: Vec::new(), tells: false };
    reader.options(tables.global)?;
    let at = reader.at;
    let Some(word) = words.get(at).filter(|_| !reader.tells) else { return Ok(Parsed::other(at)) };
    if *word == "--" {
        return Err(Unclear("-- stands before the command".into()));
    }
    let verb = match Verb::of(word) {
        Verb::Other => return Ok(Parsed::other(at)),
        Verb::Restore => return Err(Unclear("youki has no restore".into())),
        verb => verb,
    };
    reader.at += 1;
    let mut positional = Vec::new();
    loop {
        reader.options(tables.of(verb))?;
        match words.get(reader.at) {
            _ if reader.tells => return Ok(Parsed::other(at)),
            None => break,
            Some(word) if *word == "--" => {
                positional.extend_from_slice(&words[reader.at + 1..]);
                break;
            }
            Some(word) => positional.push(*word),
        }
        reader.at += 1;
    }
    Ok(Parsed { verb, at, options: reader.options, positional })
}

struct Reader<'a, 'b> {
    words: &'b [&'a OsStr],
    at: usize,
    options: Vec<Given<'a>>,
    tells: bool,
}

impl<'a> Reader<'a, '_> {
    /// Options up to the next word that is none, or `--`.
    fn options(&mut self, table: &'static [Opt]) -> Result<(), Unclear> {
        while let Some(word) = self.words.get(self.at).copied() {
            let bytes: &'a [u8] = word.as_bytes();
            if self.tells || matches!(bytes, b"-" | b"--") || !bytes.starts_with(b"-") {
                break;
            }
            self.at += 1;
            match bytes.strip_prefix(b"--") {
                Some(name) => self.long(name, table)?,
                None => self.letters(&bytes[1..], table)?,
            }
        }
        Ok(())
    }

    fn long(&mut self, text: &'a [u8], table: &'static [Opt]) -> Result<(), Unclear> {
        let (name, value) = match text.iter().position(|&byte| byte == b'=') {
            Some(at) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        };
        let found = table.iter().find(|option| option.long.as_bytes() == name);
        let option = found.ok_or_else(|| {
            Unclear(format!("the option --{} is not known", OsStr::from_bytes(name).display()))
        })?;
        self.add(option, value)
    }

    fn letters(&mut self, text: &'a [u8], table: &'static [Opt]) -> Result<(), Unclear> {
        for (at, letter) in text.iter().enumerate() {
            let found = table.iter().find(|option| option.short == Some(*letter));
            let option =
                found.ok_or_else(|| Unclear(format!("the option -{} is not known", char::from(*letter))))?;
            let rest = &text[at + 1..];
            if option.value == Value::Needed {
                let rest = rest.strip_prefix(b"=").or((!rest.is_empty()).then_some(rest));
                return self.add(option, rest);
            }
            self.add(option, None)?;
            if self.tells {
                break;
            }
        }
        Ok(())
    }

    /// Takes an option, with the value that its own word has.
    fn add(&mut self, option: &'static Opt, value: Option<&'a [u8]>) -> Result<(), Unclear> {
        let wrong = |why: &str| Err(Unclear(format!("the option --{} {why}", option.long)));
        let value = match (option.value, value) {
            (Value::Needed, Some([])) => return wrong("has an empty value"),
            (Value::Needed, Some(value)) => Some(OsStr::from_bytes(value)),
            (Value::Needed, None) => match self.words.get(self.at) {
                Some(word) if *word == "-" || !word.as_bytes().starts_with(b"-") => {
                    self.at += 1;
                    if word.is_empty() {
                        return wrong("has an empty value");
                    }
                    Some(*word)
                }
                _ => return wrong("lacks its value"),
            },
            (_, Some(_)) => return wrong("takes no value"),
            (_, None) => None,
        };
        self.tells |= option.value == Value::Tells;
        // Of `log` the last one counts (`overrides_with`).
        if option.long != "log" && self.options.iter().any(|(other, _)| other.long == option.long) {
            return wrong("is given twice");
        }
        self.options.push((option, value));
        Ok(())
    }
}
