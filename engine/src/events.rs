//! The record of who held which GPU, when and how much: a line in `<log-dir>/events.jsonl` and an entry in
//! systemd's journal for every grant, end of a grant, resize and refusal, and a count of each for `fgpu metrics`.
//!
//! It is written between a container's create and its answer, by whichever program did the thing. So nothing
//! here waits or fails: a disk that is full, a directory that cannot be written and a journal that does not
//! listen cost the record and never the container. The journal gets a datagram of its own protocol, sent
//! without blocking; the crates for it (tracing-journald, systemd) block when the journal's queue is full.
//!
//! docs/json.md has the fields. What a field means never changes within a [`SCHEMA`]; new ones may come.

pub mod counters;
mod file;
pub(crate) mod journal;
mod read;
mod record;

use std::path::{Path, PathBuf};

use fgpu_allocator::{Change, Key, Lease, Observer};
use fgpu_spec::Error;

use crate::config::Config;
use counters::Counters;
use file::Log;
pub use read::Lines;
use record::Record;
pub use record::{Kind, SCHEMA};

/// The current file in `log-dir`; older ones are `events.jsonl.1` (the latest) to `events.jsonl.3`.
pub const FILE: &str = file::NAME;

/// Where systemd's journal takes entries (systemd.io, "Native Journal Protocol").
pub(crate) const JOURNAL: &str = "/run/systemd/journal/socket";

/// Keeps the record.
#[derive(Debug)]
pub struct Events {
    log: Log,
    journal: PathBuf,
    counters: Counters,
}

impl Events {
    /// The record that the node's configuration names.
    pub fn of(config: &Config) -> Self {
        Self::at(&config.log_dir, Path::new(JOURNAL), &config.state_dir)
    }

    fn at(directory: &Path, journal: &Path, state_dir: &Path) -> Self {
        Self { log: Log::new(directory), journal: journal.to_owned(), counters: Counters::of(state_dir) }
    }

    /// Records that a container was refused a share. `container` is `None` if it was not known yet which it
    /// is.
    pub fn refused(&self, container: Option<&Key>, error: &Error) {
        self.write(&Record::refused(container, error));
    }

    /// Records that a container uses so many bytes of each GPU of its share, and whether it was stopped for
    /// that.
    pub fn exceeded(&self, lease: &Lease, used: &[u64], stopped: bool) {
        self.write(&Record::exceeded(lease, used, stopped));
    }

    fn write(&self, record: &Record<'_>) {
        // What cannot be recorded here may be there. Recording is best effort and must not delay a
        // container's start.
        tracing::info!("{}", record.message());
        let _ = journal::send(&self.journal, record);
        let _ = self.log.append(&record.line());
        let _ = self.counters.add(record.event, record.code);
    }
}

/// Does what gives a container its share, with the node's configuration. A refusal is recorded, that for want
/// of a configuration that can be read as well.
///
/// # Errors
/// The configuration is wrong, and what `give` says.
pub(crate) fn refusals_of<T>(
    config: Result<Config, Error>,
    container: &Key,
    give: impl FnOnce(&Config) -> Result<T, Error>,
) -> Result<T, Error> {
    let events = match &config {
        Ok(config) => Events::of(config),
        Err(_) => Events::of(&Config::default()),
    };
    config.and_then(|config| give(&config)).inspect_err(|error| events.refused(Some(container), error))
}

impl Observer for Events {
    fn observe(&self, change: Change<'_>) {
        self.write(&Record::of(change));
    }
}

#[cfg(test)]
mod tests;
