//! Places for the mounts, made before the runtime makes them.
//!
//! Where a mount's destination is missing a runtime makes an empty file or folder for it. It takes runc 0.1
//! ms for each, in the time of a create; behind the shim we have that time, because the stock shim is still
//! starting. This is help and nothing else: what cannot be made here is left to the runtime, which does it in
//! its own way or says why not.
//!
//! The root may be of an image's making, and others may write to it: the kernel resolves every path below a
//! descriptor of the root and on its own mount alone (openat2(2), `RESOLVE_IN_ROOT`, `RESOLVE_NO_XDEV`).

use std::os::fd::OwnedFd;
use std::path::Path;

use fgpu_spec::Mount;
use fgpu_wire::FOLDER_PATH;
use rustix::fs::{Mode, OFlags, ResolveFlags, fchmod, mkdirat, open, openat};
use rustix::io::{Errno, Result};

use crate::openat2::openat2;

const RESOLVE: ResolveFlags =
    ResolveFlags::IN_ROOT.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);
const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);
/// Not following a link, nor opening what was made in the meantime.
const NEW: OFlags = OFlags::CREATE.union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Makes what is missing of the mounts' destinations below `root`, as far as that can be done.
pub(crate) fn make<'a>(root: &Path, mounts: impl IntoIterator<Item = &'a Mount>) {
    let Ok(root) = open(root, FOLDER | OFlags::PATH, Mode::empty()) else { return };
    // What lies in the grant's folder has its place there, and not in the image.
    let in_folder = |mount: &&Mount| {
        mount.destination != FOLDER_PATH && Path::new(&mount.destination).starts_with(FOLDER_PATH)
    };
    for mount in mounts.into_iter().filter(|mount| !in_folder(mount)) {
        let _ = place(&root, mount);
    }
}

fn place(root: &OwnedFd, mount: &Mount) -> Result<()> {
    let path = &*mount.destination;
    let (Some((parent, name)), Err(Errno::NOENT)) =
        (path.rsplit_once('/'), openat2(root, path, OFlags::PATH, Mode::empty(), RESOLVE))
    else {
        return Ok(());
    };
    let parent = folder(root, parent)?;
    if mount.source.is_dir() {
        new_folder(&parent, name).map(drop)
    } else {
        openat(&parent, name, NEW, Mode::from_raw_mode(0o644)).map(drop)
    }
}

/// Opens a folder, and makes it and its parents if they are missing.
fn folder(root: &OwnedFd, path: &str) -> Result<OwnedFd> {
    let path = if path.is_empty() { "/" } else { path };
    match openat2(root, path, FOLDER, Mode::empty(), RESOLVE) {
        Err(Errno::NOENT) => {}
        found => return found,
    }
    let (parent, name) = path.rsplit_once('/').ok_or(Errno::NOENT)?;
    new_folder(&folder(root, parent)?, name)
}

/// With the mode that it says: every user of the container looks for libraries there, whatever umask the
/// engine has.
fn new_folder(parent: &OwnedFd, name: &str) -> Result<OwnedFd> {
    let mode = Mode::from_raw_mode(0o755);
    mkdirat(parent, name, mode)?;
    let made = openat2(parent, name, FOLDER, Mode::empty(), RESOLVE | ResolveFlags::NO_SYMLINKS)?;
    fchmod(&made, mode)?;
    Ok(made)
}

#[cfg(test)]
mod tests;
