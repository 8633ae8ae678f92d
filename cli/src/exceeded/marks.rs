//! `<state-dir>/exceeded.json`: which containers are above their share, for readers while the watcher runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use fgpu_allocator::Process;
use fgpu_spec::{Error, Nonce};
use serde::{Deserialize, Serialize};

/// A container above its share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// RFC 3339, UTC.
    pub(crate) since: String,
    /// Bytes of each GPU of its grant, when it was seen.
    pub(crate) used_memory: Vec<u64>,
    /// Whether its processes were killed for it.
    pub(crate) stopped: bool,
}

impl Mark {
    /// One of now.
    pub(super) fn new(used_memory: Vec<u64>, stopped: bool) -> Self {
        let since = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        Self { since, used_memory, stopped }
    }
}

#[derive(Serialize, Deserialize)]
struct File {
    /// The process that writes it: once it has ended, the marks are out of date.
    watcher: Process,
    /// By the grant.
    exceeded: BTreeMap<String, Mark>,
}

fn place(state_dir: &Path) -> PathBuf {
    state_dir.join("exceeded.json")
}

/// Replaces the file.
///
/// # Errors
/// It cannot be written.
pub(super) fn write(state_dir: &Path, marks: &BTreeMap<Nonce, Mark>) -> Result<(), Error> {
    let exceeded = marks.iter().map(|(nonce, mark)| (nonce.to_string(), mark.clone())).collect();
    let (path, new) = (place(state_dir), state_dir.join("exceeded.json.new"));
    // Strings, numbers and lists of them can always be encoded.
    let text = serde_json::to_string(&File { watcher: Process::current()?, exceeded }).unwrap_or_default();
    fs::write(&new, text + "\n")
        .and_then(|()| fs::rename(&new, &path))
        .map_err(|error| Error::io("write", &path, &error))
}

/// Removes the file: the watcher ends.
pub(super) fn remove(state_dir: &Path) {
    // What a dead watcher left says nothing.
    let _ = fs::remove_file(place(state_dir));
}

/// The containers that are above their share, by their grant; none if no watcher runs.
pub(crate) fn read(state_dir: &Path) -> BTreeMap<Nonce, Mark> {
    let text = fs::read_to_string(place(state_dir)).unwrap_or_default();
    let Ok(file) = serde_json::from_str::<File>(&text) else { return BTreeMap::new() };
    if !file.watcher.is_alive() {
        return BTreeMap::new();
    }
    file.exceeded.into_iter().filter_map(|(nonce, mark)| Some((nonce.parse().ok()?, mark))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_counts_while_its_watcher_lives() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path()).is_empty());
        let marks = BTreeMap::from([(Nonce([7; 16]), Mark::new(vec![1, 2], true))]);
        write(folder.path(), &marks).unwrap();
        assert_eq!(read(folder.path()), marks);
        let text = fs::read_to_string(place(folder.path())).unwrap();
        let start = format!("\"start\":{}", Process::current().unwrap().start);
        fs::write(place(folder.path()), text.replace(&start, "\"start\":1")).unwrap();
        assert!(read(folder.path()).is_empty(), "another process has its pid");
        fs::write(place(folder.path()), "{").unwrap();
        assert!(read(folder.path()).is_empty());
        remove(folder.path());
        assert!(!place(folder.path()).exists());
    }
}
