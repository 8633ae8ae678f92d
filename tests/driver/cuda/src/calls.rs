//! Counts the calls of the process, where the node has a file for that (`sim_node::calls`).
//!
//! A function's first call decides: a log that starts later counts what starts after that.

use alloc::string::String;
use core::sync::atomic::{AtomicUsize, Ordering};

use sim_node::calls::{Calls, Entry};
use sim_node::locate::FOLDER;
use sim_node::lock::Mutex;

pub(crate) use sim_node::calls::Kind;

use crate::{current, driver};

/// Of a counter: not called yet, and called where nobody counts.
const NEW: usize = 0;
const NOT_COUNTED: usize = 1;

/// The counter of a function.
pub(crate) struct Counter {
    name: &'static str,
    /// [`NEW`], [`NOT_COUNTED`], or where its entry is.
    entry: AtomicUsize,
}

impl Counter {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, entry: AtomicUsize::new(NEW) }
    }

    fn entry(&self) -> Option<&'static Entry> {
        let known = match self.entry.load(Ordering::Acquire) {
            NEW => {
                let entry = log().and_then(|log| log.take(self.name, Kind::Simulated));
                let address = entry.map_or(NOT_COUNTED, |entry| (&raw const *entry).addr());
                self.entry.store(address, Ordering::Release);
                return entry;
            }
            NOT_COUNTED => return None,
            known => known,
        };
        // SAFETY: an entry of the log, which is never unmapped.
        Some(unsafe { &*(known as *const Entry) })
    }
}

/// The node's log, if it had one when this was first asked.
fn log() -> Option<Calls> {
    static LOG: Mutex<Option<Option<Calls>>> = Mutex::new(None);
    *LOG.lock().get_or_insert_with(|| {
        let path = driver::root()?.join(&(String::from(FOLDER) + "/calls"));
        Calls::map(&path, true)
    })
}

/// Calls, counts it, and notes whether it took device memory.
pub(crate) fn counted(counter: &'static Counter, call: impl FnOnce() -> u32) -> u32 {
    let Some(entry) = counter.entry() else { return call() };
    current::take_charged();
    let result = call();
    entry.calls.fetch_add(1, Ordering::Relaxed);
    if current::take_charged() {
        entry.charges.fetch_add(1, Ordering::Relaxed);
    }
    result
}

/// Notes something that happens rarely.
pub(crate) fn note(name: &str, kind: Kind) {
    if cfg!(feature = "trace") {
        use core::fmt::Write;
        let _ = writeln!(sim_node::sys::Stderr, "sim-cuda: {name} is {kind:?}");
    }
    let Some(log) = log() else { return };
    let known = log.entries().find(|entry| entry.name() == Some((name, kind)));
    if let Some(entry) = known.or_else(|| log.take(name, kind)) {
        entry.calls.fetch_add(1, Ordering::Relaxed);
    }
}
