//! Writes the part of a simulated library that is only names: a program that asks for a function which is not
//! simulated must be told so by the function, not by the loader.
//!
//! The names come from a list, `names.txt`: what NVIDIA's library of the same version exports (`nm -D`). The
//! crate's sources are searched for those that are simulated; each of the others gets a function that answers
//! "not supported".

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// What a build script asks for.
pub struct Exports<'a> {
    /// How the library calls itself (`DT_SONAME`).
    pub soname: &'a str,
    /// First letters of every exported name.
    pub prefix: &'a str,
    /// Whether to write a table `EXPORTS` of names and addresses too.
    pub table: bool,
    /// Folders with the sources, below the crate's.
    pub sources: &'a [&'a str],
}

impl Exports<'_> {
    /// Writes `exports.rs` into `OUT_DIR` and tells cargo how to link the library.
    ///
    /// # Errors
    /// What reading the sources or writing the file answers.
    pub fn generate(&self) -> io::Result<()> {
        for folder in self.sources {
            println!("cargo::rerun-if-changed={folder}");
        }
        println!("cargo::rerun-if-changed=names.txt");
        // No start files and no libc: whatever libc the process has is used, without asking for a version.
        // Symbolic: the library's references to its own functions must not lead into a library that wraps it.
        for argument in
            ["-nostdlib", "-nostartfiles", "-Wl,-Bsymbolic", "-Wl,-z,nodelete", "-Wl,-z,relro,-z,now"]
        {
            println!("cargo::rustc-cdylib-link-arg={argument}");
        }
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{}", self.soname);
        println!("cargo::rustc-cdylib-link-arg=-Wl,--no-as-needed,{}", libc_by_name()?.display());

        let names = fs::read_to_string("names.txt")?;
        let mut sources = Vec::new();
        for folder in self.sources {
            find_sources(Path::new(folder), &mut sources)?;
        }
        let mut simulated = BTreeSet::new();
        for source in sources {
            simulated.extend(self.defined_in(&fs::read_to_string(source)?));
        }
        let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("exports.rs");
        fs::write(out, self.write(&names, &simulated))
    }

    /// The functions that a source defines: `fn <name>(…`, or `<name>(…) =>` as a row of a macro.
    fn defined_in(&self, source: &str) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut position = 0;
        for line in source.split_inclusive('\n') {
            let start = position + (line.len() - line.trim_start().len());
            position += line.len();
            let (rest, is_row) = match line.split_once("extern \"C\" fn ") {
                Some((before, _)) => (&source[position - line.len() + before.len() + 14..], false),
                None => (&source[start..], true),
            };
            let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let is_function = name.starts_with(self.prefix) && rest[name.len()..].starts_with('(');
            if is_function && (!is_row || after_brackets(&rest[name.len()..]).starts_with("=>")) {
                found.insert(name);
            }
        }
        found
    }

    fn write(&self, names: &str, simulated: &BTreeSet<String>) -> String {
        let listed: BTreeSet<&str> = names.lines().filter(|name| !name.is_empty()).collect();
        let mut code = String::new();
        for name in listed.iter().filter(|name| !simulated.contains(**name)) {
            let _ = writeln!(
                code,
                "#[unsafe(no_mangle)]\nextern \"C\" fn {name}() -> u32 {{ crate::not_simulated(\"{name}\") }}"
            );
        }
        if self.table {
            let all: BTreeSet<&str> =
                listed.iter().copied().chain(simulated.iter().map(String::as_str)).collect();
            let _ = writeln!(code, "mod addresses {{ unsafe extern \"C\" {{");
            for name in &all {
                let _ = writeln!(code, "pub(super) fn {name}();");
            }
            let _ = writeln!(code, "}} }}");
            let _ = writeln!(code, "/// Every exported function, sorted by name.");
            let _ = writeln!(code, "pub(crate) static EXPORTS: &[Export] = &[");
            for name in &all {
                let _ = writeln!(code, "Export {{ name: \"{name}\", address: addresses::{name} }},");
            }
            let _ = writeln!(code, "];");
        }
        code
    }
}

/// What follows the bracket that closes the one at the start, without white space.
fn after_brackets(text: &str) -> &str {
    let mut depth = 0;
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text[i + 1..].trim_start();
        }
    }
    ""
}

fn find_sources(folder: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            find_sources(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

/// Makes an empty library whose name is the C library's. Linked against it, ours need `libc.so.6`, as
/// NVIDIA's do, but no version of any of its symbols. Without the need the loader of a program that is linked
/// against libcuda relocates ours before the C library, whose `memcpy` and its like cannot be resolved by
/// then.
fn libc_by_name() -> io::Result<PathBuf> {
    let folder = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?;
    let stub = PathBuf::from(folder).join("libc-by-name.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-nostdlib", "-Wl,-soname,libc.so.6", "-x", "c", "/dev/null", "-o"]).arg(&stub);
    match cc.status()? {
        status if status.success() => Ok(stub),
        status => Err(io::Error::other(format!("cc: {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPORTS: Exports<'_> =
        Exports { soname: "libx.so.1", prefix: "nvml", table: false, sources: &["src"] };

    #[test]
    fn functions_and_macro_rows_count_as_simulated() {
        let source = "pub unsafe extern \"C\" fn nvmlInit(a: u8) {}\n    nvmlGetX(\n  u32,\n ) => |d| nvmlGetY(d),\n\
                      // nvmlGetZ(x)\n nvmlGetZ(x);\nfn helper() {}\n";
        assert_eq!(EXPORTS.defined_in(source), BTreeSet::from(["nvmlInit".into(), "nvmlGetX".into()]));
    }

    #[test]
    fn only_what_is_not_simulated_is_stubbed() {
        let code = EXPORTS.write("nvmlA\nnvmlB\n", &BTreeSet::from(["nvmlA".into()]));
        assert!(!code.contains("nvmlA") && code.contains("fn nvmlB()"), "{code}");
    }
}
