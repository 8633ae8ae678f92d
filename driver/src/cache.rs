//! The inventory on disk, and whether it is still true.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use fgpu_spec::{Code, Error, Inventory};

use crate::procfs::{boot_id, running_version};

/// The version of the file's format, [`Inventory::version`]. A file of another version is stale.
pub const FORMAT: u32 = 2;

/// The inventory's name in the state directory.
pub const FILE: &str = "inventory.json";

/// Held by the processes that found the inventory stale, so that one of them refreshes it and the others read
/// what it wrote. The refreshing process must not take it: its parent has it.
const LOCK: &str = "inventory.lock";

/// Held by the process that probes, so that no older probe overwrites a newer one.
#[cfg(feature = "nvml")]
pub(crate) const PROBE_LOCK: &str = "probe.lock";

/// The inventory of the driver under `root`: from `<state_dir>/inventory.json`, which is refreshed first when
/// it is stale. With a fresh file this costs three small reads and one `stat` per driver file.
///
/// `refresh` must write a new file with [`store`], in a process of its own: NVML may crash or hang with the
/// driver. However many containers start at once on a fresh boot, one of them calls it.
///
/// # Errors
/// `no-gpu` if no driver is loaded, what `refresh` returned, `driver-error` if the file is stale even after
/// it.
pub fn load(
    root: &Path,
    state_dir: &Path,
    refresh: &dyn Fn() -> Result<(), Error>,
) -> Result<Inventory, Error> {
    if let Some(inventory) = cached(root, state_dir)? {
        return Ok(inventory);
    }
    let _lock = lock(state_dir, LOCK)?;
    if let Some(inventory) = cached(root, state_dir)? {
        return Ok(inventory);
    }
    refresh()?;
    cached(root, state_dir)?.ok_or_else(|| {
        Error::new(
            Code::DriverError,
            format!(
                "{} is out of date though it was just refreshed: is the driver being installed? Try again, or run \
                 `fgpu inventory --refresh`",
                state_dir.join(FILE).display()
            ),
        )
    })
}

/// The inventory of the driver under `root` as it is on disk, or `None` if there is none or it is stale: it
/// is of another boot, another driver version, another root or another format, or a file of the driver is
/// gone. Changes nothing, so it needs no privilege.
///
/// # Errors
/// `no-gpu` if no driver is loaded; `driver-error` or `internal` if that cannot be told.
pub fn cached(root: &Path, state_dir: &Path) -> Result<Option<Inventory>, Error> {
    let driver_version = running_version(root)?;
    let path = state_dir.join(FILE);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", &path, &error)),
    };
    // What does not parse was written by another version of fgpu, or by no program of fgpu: write it anew.
    let Ok(inventory) = serde_json::from_slice::<Inventory>(&text) else { return Ok(None) };
    let fresh = inventory.version == FORMAT
        && inventory.root == root
        && inventory.driver_version == driver_version
        && inventory.boot_id == boot_id()?
        && inventory.files.iter().all(|file| file.host.symlink_metadata().is_ok());
    Ok(fresh.then_some(inventory))
}

/// Writes `<state_dir>/inventory.json` (mode 0644) for [`load`]. A reader sees the old file or the new one.
/// The directory is made when it is missing.
///
/// # Errors
/// `internal` with the path that cannot be written.
pub fn store(state_dir: &Path, inventory: &Inventory) -> Result<(), Error> {
    let text = serde_json::to_vec_pretty(inventory)
        .map_err(|error| Error::new(Code::Internal, format!("cannot encode the inventory: {error}")))?;
    write(state_dir, FILE, &text)
}

/// Writes a file of the state directory, which everybody may read.
pub(crate) fn write(state_dir: &Path, name: &str, text: &[u8]) -> Result<(), Error> {
    make_directory(state_dir)?;
    // One name per process: two that store at once do not write into each other's file.
    let temporary = state_dir.join(format!(".{name}.{}", std::process::id()));
    let written = write_new(&temporary, text).and_then(|()| fs::rename(&temporary, state_dir.join(name)));
    written.map_err(|error| {
        // The error to report is the first one; what is left behind is overwritten or harmless.
        let _ = fs::remove_file(&temporary);
        Error::io("write", &state_dir.join(name), &error)
    })
}

fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path)?;
    // The umask of a container engine may be 0077; everybody may read what the node has.
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text)
}

/// The stored inventory, fresh or not.
#[cfg(feature = "nvml")]
pub(crate) fn stored(state_dir: &Path) -> Option<Inventory> {
    serde_json::from_slice(&fs::read(state_dir.join(FILE)).ok()?).ok()
}

/// Removes the stored inventory.
#[cfg(feature = "nvml")]
pub(crate) fn forget(state_dir: &Path) -> Result<(), Error> {
    let path = state_dir.join(FILE);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", &path, &error)),
        _ => Ok(()),
    }
}

/// Waits for the lock called `name` and holds it until the file is closed. No child inherits it
/// (`O_CLOEXEC`), and the kernel frees it when its holder dies.
pub(crate) fn lock(state_dir: &Path, name: &str) -> Result<File, Error> {
    make_directory(state_dir)?;
    let path = state_dir.join(name);
    let open = || {
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
        file.lock()?;
        Ok(file)
    };
    open().map_err(|error| Error::io("lock", &path, &error))
}

fn make_directory(state_dir: &Path) -> Result<(), Error> {
    let make = || {
        // Whatever the umask of the first caller, everybody may look and only the owner may write.
        DirBuilder::new().recursive(true).mode(0o755).create(state_dir)?;
        fs::set_permissions(state_dir, Permissions::from_mode(0o755))
    };
    if state_dir.is_dir() { Ok(()) } else { make().map_err(|error| Error::io("create", state_dir, &error)) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::fake::{Root, inventory};

    fn never() -> Result<(), Error> {
        panic!("a fresh inventory was refreshed")
    }

    /// A root with a driver 550.163.01 and its inventory.
    fn node() -> (Root, Inventory) {
        let root = Root::with_driver("550.163.01");
        let inventory = inventory(&root, "550.163.01");
        (root, inventory)
    }

    #[test]
    fn a_fresh_inventory_is_read_and_nothing_else() {
        let (root, inventory) = node();
        let state = root.path().join("run/fgpu");
        store(&state, &inventory).unwrap();
        assert_eq!(load(root.path(), &state, &never).unwrap(), inventory);
        let mode = state.join(FILE).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        let names: Vec<_> = fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [FILE], "no temporary file and no lock is left by a fresh read");
    }

    #[test]
    fn every_kind_of_staleness_refreshes_once() {
        type Change = fn(&mut Inventory, &Root);
        let cases: [(&str, Change); 6] = [
            ("format", |inventory, _| inventory.version += 1),
            ("boot", |inventory, _| inventory.boot_id = "another".into()),
            ("driver", |inventory, _| inventory.driver_version = "550.54.15".into()),
            ("root", |inventory, _| inventory.root = "/elsewhere".into()),
            ("file", |inventory, root| inventory.files[0].host = root.path().join("usr/lib/gone")),
            ("link", |inventory, _| inventory.files[0].host = "/nowhere".into()),
        ];
        for (name, change) in cases {
            let (root, good) = node();
            let mut stale = good.clone();
            change(&mut stale, &root);
            store(root.path(), &stale).unwrap();
            assert_eq!(cached(root.path(), root.path()).unwrap(), None, "{name}");
            let calls = Cell::new(0);
            let refresh = || {
                calls.set(calls.get() + 1);
                store(root.path(), &good)
            };
            assert_eq!(load(root.path(), root.path(), &refresh).unwrap(), good, "{name}");
            assert_eq!(calls.get(), 1, "{name}");
        }
    }

    #[test]
    fn a_missing_or_broken_file_is_refreshed() {
        let (root, good) = node();
        let refresh = || store(root.path(), &good);
        assert_eq!(load(root.path(), root.path(), &refresh).unwrap(), good);
        for broken in ["", "{", "[]", "{\"version\":1}"] {
            fs::write(root.path().join(FILE), broken).unwrap();
            assert_eq!(load(root.path(), root.path(), &refresh).unwrap(), good, "{broken}");
        }
    }

    /// What 0.1.0 wrote is fresh for every later release, unless the format had to change: then it is made
    /// anew, as what a newer one wrote. Nothing in it is lost that a probe does not find again.
    #[test]
    fn a_release_reads_what_those_before_it_wrote() {
        let (root, good) = node();
        let text = include_str!("../testdata/0.1.0/inventory.json");
        let text = text.replace("ROOT", root.path().to_str().unwrap()).replace("BOOT", &boot_id().unwrap());
        fs::write(root.path().join(FILE), &text).unwrap();
        let read = cached(root.path(), root.path()).unwrap().expect("it is fresh");
        assert_eq!((read.gpus.len(), read.gpus[1].mig_profiles.len()), (2, 1));
        assert_eq!(read.gpus[0].context_memory, Some(314_572_800));
        let more =
            text.replacen("{", r#"{"newer":{"a":[1]},"#, 1).replacen(r#""index""#, r#""newer":7,"index""#, 1);
        fs::write(root.path().join(FILE), more).unwrap();
        assert_eq!(cached(root.path(), root.path()).unwrap(), Some(read), "unknown fields are read past");
        for newer in [
            text.replace(&format!(r#""version": {FORMAT}"#), &format!(r#""version": {}"#, FORMAT + 1)),
            format!(r#"{{"version": {}, "nodes": {{}}}}"#, FORMAT + 1),
        ] {
            assert_ne!(newer, text);
            fs::write(root.path().join(FILE), newer).unwrap();
            let refresh = || store(root.path(), &good);
            assert_eq!(load(root.path(), root.path(), &refresh).unwrap(), good);
        }
    }

    #[test]
    fn a_refresh_that_fails_or_does_not_help_is_an_error() {
        let (root, mut inventory) = node();
        let fail = || Err(Error::new(Code::GpuUnhealthy, "on fire"));
        assert_eq!(load(root.path(), root.path(), &fail).unwrap_err().code, Code::GpuUnhealthy);
        inventory.boot_id = "another".into();
        let useless = || store(root.path(), &inventory);
        assert_eq!(load(root.path(), root.path(), &useless).unwrap_err().code, Code::DriverError);
    }

    #[test]
    fn sixteen_at_once_make_one_refresh() {
        let (root, good) = node();
        let calls = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    let refresh = || {
                        calls.fetch_add(1, Ordering::SeqCst);
                        store(root.path(), &good)
                    };
                    assert_eq!(load(root.path(), root.path(), &refresh).unwrap(), good);
                });
            }
        });
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let (root, inventory) = node();
        root.write("file", b"");
        let error = store(&root.path().join("file/state"), &inventory).unwrap_err();
        assert_eq!(error.code, Code::Internal);
        assert!(error.message.contains("file/state"), "{error}");
    }
}
