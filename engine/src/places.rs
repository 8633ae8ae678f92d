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
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mounts(root: &Path, destinations: &[&str]) -> Vec<Mount> {
        let file = root.join("source");
        fs::write(&file, "").unwrap();
        let mount = |destination: &&str| Mount {
            source: if destination.ends_with("folder") { root.to_owned() } else { file.clone() },
            destination: (*destination).to_owned(),
            writable: false,
            inherits: false,
        };
        destinations.iter().map(mount).collect()
    }

    #[test]
    fn missing_folders_are_made() {
        let host = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("usr/bin")).unwrap();
        fs::write(at("usr/bin/there"), "kept").unwrap();
        symlink("usr/bin", at("bin")).unwrap();
        let wanted = [
            "/usr/bin/there",
            "/bin/tool",
            "/run/fgpu/driver/lib",
            "/run/fgpu/limits",
            "/run/fgpu",
            "/run/a/folder",
            "/top",
        ];
        let mounts = mounts(host.path(), &wanted);
        // Twice: the second time everything is there.
        for _ in 0..2 {
            make(root.path(), &mounts);
            assert_eq!(fs::read_to_string(at("usr/bin/there")).unwrap(), "kept");
            for file in ["usr/bin/tool", "run/fgpu", "top"] {
                assert_eq!(fs::metadata(at(file)).unwrap().len(), 0, "{file}");
            }
            assert!(at("run/a/folder").is_dir());
            assert_eq!(fs::metadata(at("run/a")).unwrap().permissions().mode() & 0o7777, 0o755);
        }
    }

    #[test]
    fn nothing_is_made_outside_of_the_root_nor_through_what_is_no_folder() {
        let host = tempfile::tempdir().unwrap();
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        let outside = host.path().join("outside");
        fs::create_dir(&outside).unwrap();
        symlink(&outside, at("absolute")).unwrap();
        symlink("../../../../../../../../../..", at("up")).unwrap();
        symlink(outside.join("new"), at("dangling")).unwrap();
        symlink("/proc/self/root", at("magic")).unwrap();
        symlink("loop", at("loop")).unwrap();
        fs::write(at("file"), "").unwrap();
        let up = format!("/up{}/escaped", outside.display());
        let magic = format!("/magic{}/escaped", outside.display());
        let wanted =
            ["/absolute/escaped", &up, &magic, "/dangling", "/loop/x", "/file/x", "relative", "", "/"];
        let mut all = mounts(host.path(), &wanted);
        all.push(Mount {
            source: "/".into(),
            destination: "/../folder".into(),
            writable: false,
            inherits: false,
        });
        make(root.path(), &all);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        assert!(!outside.with_file_name("folder").exists());
        assert!(at("dangling").is_symlink() && at("file").is_file());
        assert!(at("folder").is_dir(), "the way up from the root leads into the root itself");
    }

    /// Another thread renames elsewhere all the time, and every path has `..` in it: the kernel gives up on
    /// such a path, and nothing may be left out because of that.
    #[test]
    fn renames_elsewhere_leave_nothing_out() {
        let host = tempfile::tempdir().unwrap();
        let busy = crate::openat2::busy::Busy::new();
        for round in 0..200 {
            let root = tempfile::tempdir().unwrap();
            let at = |path: &str| root.path().join(path);
            fs::create_dir_all(at("usr/lib")).unwrap();
            symlink("../../usr/../usr/lib", at("usr/lib64")).unwrap();
            let wanted =
                ["/usr/lib64/one", "/usr/lib64/../lib64/new/two", "/a/b/../../usr/lib64/../../a/folder"];
            fs::create_dir_all(at("a/b")).unwrap();
            make(root.path(), &mounts(host.path(), &wanted));
            for made in ["usr/lib/one", "usr/lib/new/two", "a/folder"] {
                assert!(at(made).exists(), "round {round}: {made}");
            }
        }
        assert!(busy.stop() > 0);
    }
}
