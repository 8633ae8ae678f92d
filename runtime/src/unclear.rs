//! A command line that has no meaning here.
//!
//! Most of them the real runtime refuses as well. But it may be newer than we are, and know an option that we
//! do not: then a container with an `fgpu/` annotation would run without its share. So it is refused, if any
//! bundle that the words can mean asks for something; all others are the real runtime's business.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use fgpu_engine::bundle;
use fgpu_engine::config::Config;
use fgpu_engine::grant::asks;
use fgpu_engine::runtime::command_line::{Unclear, might_make};
use fgpu_engine::runtime::{Environment, Runtime};
use fgpu_spec::{Code, Document, Error};

/// Whether the words may make a container that asks for a share.
///
/// # Errors
/// `internal`, if they may.
pub(crate) fn check(
    runtime: &Runtime,
    words: &[OsString],
    environment: &Environment,
    why: &Unclear,
) -> Result<(), Error> {
    if !might_make(words) {
        return Ok(());
    }
    match files(words, environment).into_iter().find(|path| asks_in(path)) {
        None => Ok(()),
        Some(path) => Err(Error::new(
            Code::Internal,
            format!(
                "{} asks for a GPU, but what {} would make of its command line cannot be told: {}; write its options in \
                 full and before the container's id",
                path.display(),
                runtime.path.display(),
                why.0
            ),
        )),
    }
}

/// The files that the words can mean by a container's config.json.
fn files(words: &[OsString], environment: &Environment) -> BTreeSet<PathBuf> {
    let mut files = BTreeSet::from([environment.folder.join("config.json")]);
    for word in words {
        for text in values(word.as_bytes()) {
            let path = environment.folder.join(OsStr::from_bytes(text));
            files.insert(path.join("config.json"));
            files.insert(path);
        }
    }
    files
}

/// A word, and what of it may be an option's value: `--bundle=DIR`, `-bDIR`, `-dbDIR`.
fn values(word: &[u8]) -> Vec<&[u8]> {
    let mut values = vec![word];
    if word.starts_with(b"-") {
        values.extend(word.iter().position(|&byte| byte == b'=').map(|at| &word[at + 1..]));
        values.extend((2..word.len().min(8)).map(|at| &word[at..]));
    }
    values
}

/// Whether a file is a spec that asks for something under some configuration, which includes one that is not
/// to be read.
fn asks_in(path: &Path) -> bool {
    if !path.is_file() {
        return false;
    }
    // What is no spec can be any file.
    let document = bundle::read(path).and_then(|text| Document::parse(&text));
    document.is_ok_and(|document| asks(&Config::load(), &document))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_of_a_bundle_is_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let bundle = folder.path().join("b");
        std::fs::create_dir(&bundle).unwrap();
        let spec = r#"{"annotations":{"fgpu/fraction":"0.25"}}"#;
        std::fs::write(bundle.join("config.json"), spec).unwrap();
        let environment = |folder: &Path| Environment { xdg: None, root: true, folder: folder.into() };
        let runtime = Runtime { path: "/usr/bin/runc".into(), kind: fgpu_engine::runtime::Kind::Runc };
        let check = |line: &str, folder: &Path| {
            let words: Vec<_> = line.split(' ').map(OsString::from).collect();
            check(&runtime, &words, &environment(folder), &Unclear("so".into()))
        };
        let full = bundle.display();
        for line in ["create --new".to_owned(), "--new create c1".to_owned()] {
            assert_eq!(check(&line, &bundle).unwrap_err().code, Code::Internal, "{line}");
            assert!(check(&line, folder.path()).is_ok(), "{line}");
        }
        for line in [
            format!("create --new --bundle {full} c1"),
            format!("create --new --bundle={full} c1"),
            format!("run -xb{full} c1"),
            format!("create --new -b={full} c1"),
            format!("--new x restore --bundle {full} c1"),
            format!("create --config {full}/config.json --new c1"),
            "create --new --bundle b c1".to_owned(),
            "create -nb./b c1".to_owned(),
        ] {
            assert_eq!(check(&line, folder.path()).unwrap_err().code, Code::Internal, "{line}");
        }
        for line in [
            format!("exec --new --bundle {full} c1"),
            format!("delete --new --bundle {full} c1"),
            format!("--new kill {full} create"),
            "create --new c1".to_owned(),
        ] {
            assert!(check(&line, folder.path()).is_ok(), "{line}");
        }
    }
}
