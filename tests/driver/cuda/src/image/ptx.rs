//! PTX, which a driver compiles. As much code is assumed as there is text.

use alloc::ffi::CString;

use super::{Code, Kernel, Names};

/// Reads a text that may end with NULs.
pub(super) fn read(text: &[u8]) -> Option<Code> {
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    let text = core::str::from_utf8(&text[..end]).ok()?;
    if !text.contains(".version") {
        return None;
    }
    let mut names = Names::default();
    let mut data = 0;
    for line in text.lines().map(str::trim) {
        if let Some((_, after)) = line.split_once(".entry ") {
            names.kernels.insert(word(after)?, Kernel { shared: 0, constant: 0, registers: 32 });
        } else if (line.contains(".global ") || line.contains(".const ")) && !line.starts_with("//") {
            let (name, size) = variable(line)?;
            data += size;
            names.variables.insert(name, size);
        }
    }
    Some(Code { data, text: text.len() as u64, names: Some(names), is_hidden: false })
}

/// The name that a text begins with.
fn word(text: &str) -> Option<CString> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
    let end = text.find(|c| !is_of_name(c)).unwrap_or(text.len());
    CString::new(&text[..end]).ok()
}

/// `.visible .global .align 8 .b8 NAME[COUNT] = …;`
fn variable(line: &str) -> Option<(CString, u64)> {
    let declared = line.split(['=', ';']).next()?.trim();
    let (types, name) = declared.rsplit_once(' ')?;
    let bits: u64 =
        types.rsplit_once('.')?.1.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse().ok()?;
    let counts = name.split('[').skip(1).map(|count| count.trim_end_matches(']').parse::<u64>().unwrap_or(1));
    Some((word(name)?, bits.div_ceil(8) * counts.product::<u64>().max(1)))
}
