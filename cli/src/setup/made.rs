//! What `fgpu setup` made and may leave empty: files and folders that were not there before. An undo removes
//! these once they are empty, and leaves what was there, an empty folder and a daemon.json of `{}` among it.
//!
//! The record has a path a line, or a path, `#` and a member that was set in that file. It goes with the last
//! of them.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use fgpu_spec::Error;

use super::file::System;

/// The record.
const PATH: &str = "/etc/fgpu/setup.made";
const TITLE: &str = "# What `fgpu setup` made, and `fgpu setup ENGINE --undo` removes once it is empty.\n";

/// What was made.
///
/// # Errors
/// `internal` if the record cannot be read.
pub(super) fn read(system: &System) -> Result<BTreeSet<String>, Error> {
    let text = system.read(PATH)?.unwrap_or_default();
    let paths = text.lines().filter(|line| line.starts_with('/') && !line.contains("/.."));
    Ok(paths.map(str::to_owned).collect())
}

/// What is not there yet of `path` and the folders above it, below /etc.
pub(super) fn missing(system: &System, path: &str) -> Vec<String> {
    let above = Path::new(path).ancestors().filter_map(Path::to_str);
    above.filter(|path| path.starts_with("/etc/") && !system.has(path)).map(str::to_owned).collect()
}

/// Records what has been made.
///
/// # Errors
/// `internal` if the record cannot be read or written.
pub(super) fn add(system: &System, made: Vec<String>) -> Result<(), Error> {
    if made.is_empty() {
        return Ok(());
    }
    let mut paths = read(system)?;
    paths.extend(made);
    paths.extend(missing(system, PATH).into_iter().filter(|path| path != PATH));
    store(system, &paths)
}

/// Forgets what was taken out again.
///
/// # Errors
/// `internal` if the record cannot be read or written.
pub(super) fn remove(system: &System, entry: &str) -> Result<(), Error> {
    let mut entries = read(system)?;
    if entries.remove(entry) {
        store(system, &entries)?;
        sweep(system)?;
    }
    Ok(())
}

/// Removes the folders that were made and are empty, and forgets what is not there any more.
///
/// # Errors
/// `internal` if the record cannot be read or written.
pub(super) fn sweep(system: &System) -> Result<(), Error> {
    let mut paths = read(system)?;
    if paths.is_empty() {
        return Ok(());
    }
    let before = paths.clone();
    let folder = Path::new(PATH).parent().and_then(Path::to_str).unwrap_or_default();
    // The deepest first. It fails for a file, and for a folder that is not empty, and then that stays.
    for path in before.iter().rev() {
        let _ = fs::remove_dir(system.place(path));
    }
    paths.retain(|path| system.has(path.split('#').next().unwrap_or(path)));
    if paths.iter().any(|path| path != folder) {
        return if paths == before { Ok(()) } else { store(system, &paths) };
    }
    let place = system.place(PATH);
    match fs::remove_file(&place) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::io("remove", &place, &error)),
        _ => {}
    }
    if paths.contains(folder) {
        let _ = fs::remove_dir(system.place(folder));
    }
    Ok(())
}

fn store(system: &System, paths: &BTreeSet<String>) -> Result<(), Error> {
    let lines: String = paths.iter().map(|path| format!("{path}\n")).collect();
    system.write(PATH, &format!("{TITLE}{lines}"))
}
