//! `fgpu-sim calls`: which functions of libcuda the programs of a node called, and how often.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result};
use sim_node::calls::{Calls, Kind, MAGIC, SIZE};
use sim_node::locate::FOLDER;

/// Counts from now on, from zero. A program that runs already goes on counting into the file before.
pub(crate) fn start(root: &Path) -> Result<()> {
    let path = root.join(FOLDER).join("calls");
    let new = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&new)?;
        file.write_all(&MAGIC.to_ne_bytes())?;
        file.set_len(SIZE as u64)?;
        // Any user of a container counts.
        file.set_permissions(Permissions::from_mode(0o666))?;
        fs::rename(&new, &path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Prints a line for each function: what it is, its name, its calls, and how many of these took device
/// memory.
pub(crate) fn show(root: &Path) -> Result<()> {
    let path = root.join(FOLDER).join("calls");
    let calls = Calls::map(&CString::new(path.as_os_str().as_bytes())?, false);
    let calls = calls.with_context(|| format!("{} is no log of calls: start one", path.display()))?;
    let mut sums: BTreeMap<(&str, String), (u64, u64)> = BTreeMap::new();
    for entry in calls.entries() {
        let Some((name, kind)) = entry.name() else { continue };
        let kind = match kind {
            Kind::Simulated => "call",
            Kind::Missing => "missing",
            Kind::Unknown => "unknown",
        };
        let sum = sums.entry((kind, name.to_owned())).or_default();
        sum.0 += entry.calls.load(Ordering::Relaxed);
        sum.1 += entry.charges.load(Ordering::Relaxed);
    }
    for ((kind, name), (count, charges)) in sums {
        println!("{kind} {name} {count} {charges}");
    }
    Ok(())
}
