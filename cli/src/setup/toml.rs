//! TOML files: what is looked up in them with its line, and a block of ours at the end of a file that is not
//! ours. Nothing is printed anew, so comments, order and white space of the rest stay.

use ::toml::Spanned;
use ::toml::de::{DeTable, DeValue};
use ::toml::{Table, Value};
use fgpu_spec::Error;

use super::file::System;
use super::json::line;

/// A file that has been read.
pub(super) struct File<'t> {
    text: &'t str,
    tree: Spanned<DeTable<'t>>,
}

/// A value and the line of its key.
pub(super) struct Found<'f, 't> {
    pub(super) value: &'f DeValue<'t>,
    pub(super) line: usize,
}

impl<'t> File<'t> {
    /// Reads `text`, which is the file at `path`.
    ///
    /// # Errors
    /// It is no TOML; the message has the line.
    pub(super) fn parse(system: &System, path: &str, text: &'t str) -> Result<Self, Error> {
        let tree = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            system.wrong(path, line(text, at), &error.message().replace('\n', " "))
        })?;
        Ok(Self { text, tree })
    }

    /// What lies at the end of those keys.
    pub(super) fn find(&self, keys: &[&str]) -> Option<Found<'_, 't>> {
        let (last, tables) = keys.split_last()?;
        let mut table = self.tree.get_ref();
        for key in tables {
            table = entry(table, key)?.1.as_table()?;
        }
        let (at, value) = entry(table, last)?;
        Some(Found { value, line: line(self.text, at) })
    }
}

/// The offset of a key, and its value.
fn entry<'f, 't>(table: &'f DeTable<'t>, key: &str) -> Option<(usize, &'f DeValue<'t>)> {
    let (name, value) = table.iter().find(|(name, _)| name.get_ref() == key)?;
    Some((name.span().start, value.get_ref()))
}

/// The strings of a list; `None` if it is no list or has other things in it.
pub(super) fn strings(value: &DeValue<'_>) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect()
}

/// A list of strings as TOML.
pub(super) fn list(items: &[String]) -> String {
    Value::from(items.to_vec()).to_string()
}

/// The tables `header` and, for each table in it, `header.NAME`, as TOML.
pub(super) fn tables(header: &str, table: &Table) -> String {
    let (nested, plain): (Vec<_>, Vec<_>) = table.iter().partition(|(_, value)| value.is_table());
    let mut text = format!("[{header}]\n");
    for (key, value) in plain {
        text += &format!("{} = {value}\n", bare(key));
    }
    for (key, value) in nested {
        if let Value::Table(inner) = value {
            text += &tables(&format!("{header}.{}", bare(key)), inner);
        }
    }
    text
}

/// A key, quoted if it has to be.
fn bare(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !key.is_empty() && key.bytes().all(plain) { key.to_owned() } else { Value::from(key).to_string() }
}

/// What the first line of our block begins with.
const BEGIN: &str = "# fgpu begin";
/// The last line of our block.
const END: &str = "# fgpu end\n";

/// `text` with `block` between our marks at its end, behind an empty line.
pub(super) fn with_block(text: &str, block: &str, note: &str) -> String {
    let gap = match text {
        "" => "",
        text if text.ends_with('\n') => "\n",
        _ => "\n\n",
    };
    format!("{text}{gap}{BEGIN}: {note}\n{block}{END}")
}

/// `text` without our block, and the block; `None` if there is none. It gives back what [`with_block`] was
/// given, save that a text that had no line end has one.
///
/// # Errors
/// The line of a beginning that has no end.
pub(super) fn without_block(text: &str) -> Result<Option<(String, &str)>, usize> {
    let Some(start) =
        text.match_indices(BEGIN).map(|(at, _)| at).find(|&at| at == 0 || text[..at].ends_with('\n'))
    else {
        return Ok(None);
    };
    let length = text[start..].find(END).ok_or_else(|| line(text, start))? + END.len();
    let (before, block) = (&text[..start], &text[start..start + length]);
    // The empty line before it, but not the end of the line before that.
    let before = if before.ends_with("\n\n") { &before[..before.len() - 1] } else { before };
    Ok(Some((format!("{before}{}", &text[start + length..]), block)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_and_goes() {
        for text in ["", "a = 1\n", "a = 1\n\n", "# note\n[t]\nx = 1 # why\n"] {
            let with = with_block(text, "[fgpu]\n", "of ours");
            assert!(with.ends_with("# fgpu begin: of ours\n[fgpu]\n# fgpu end\n"), "{with}");
            let (without, block) = without_block(&with).unwrap().unwrap();
            assert_eq!(without, text);
            assert_eq!(block, "# fgpu begin: of ours\n[fgpu]\n# fgpu end\n");
            let more = with.clone() + "[later]\n";
            assert_eq!(without_block(&more).unwrap().unwrap().0, format!("{text}[later]\n"));
        }
        assert_eq!(without_block(&with_block("a = 1", "", "")).unwrap().unwrap().0, "a = 1\n");
        assert!(without_block("a = \"# fgpu begin\"\n").unwrap().is_none());
        assert_eq!(without_block("a = 1\n# fgpu begin: x\n[fgpu]\n"), Err(2));
    }

    #[test]
    fn tables_are_printed_with_their_names() {
        let table: Table = "b = \"x\"\na = [\"*.f/*\"]\n[o]\nS = true\n[o.\"p q\"]\ni = 1\n".parse().unwrap();
        let text = tables("t.\"u.v\".w", &table);
        let expected = "[t.\"u.v\".w]\na = [\"*.f/*\"]\nb = \"x\"\n[t.\"u.v\".w.o]\nS = true\n[t.\"u.v\".w.o.\"p q\"]\ni = 1\n";
        assert_eq!(text, expected);
    }
}
