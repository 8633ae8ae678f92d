//! Reserve, make the grant's files, edit `config.json`; undo everything if any step fails.

use std::fs::Permissions;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use fgpu_allocator::{Claim, Key, Lease, Process, Store};
use fgpu_spec::{Code, Document, Error, Isolation, Nonce, Request, Tier};

use crate::config::Config;
use crate::layers::Layers;
use crate::layout::Layout;
use crate::{container_files, plan, programs, wait};

pub use crate::layers::RootfsMount;

/// The largest `config.json` that is read, bytes. The kernel's own limit on what a container is made of
/// (arguments and environment, 128 KiB each string) is far below.
const CONFIG_LIMIT: u64 = 16 << 20;

/// A container that is about to be created.
#[derive(Debug)]
pub struct Container<'a> {
    /// The runtime's or containerd's namespace: container ids are unique within it.
    pub namespace: &'a str,
    /// The container's id.
    pub id: &'a str,
    /// The bundle folder.
    pub bundle: &'a Path,
    /// The root's mounts as containerd gives them; empty if the root is mounted already.
    pub rootfs: &'a [RootfsMount],
    /// The process that creates the container: while it lives, a lease without an init lives.
    pub maker: Process,
    /// Where the runtime will write the init's pid: a pid file, or runc's or crun's state file.
    pub pid_file: Option<PathBuf>,
    /// Whether the runtime shall call the poststop hook. A front end that watches the container until its end
    /// releases without it, and sooner.
    pub poststop: bool,
}

/// Reserves what the bundle's annotations ask for and edits its `config.json`.
///
/// `None` means that the container asks for nothing: its `config.json` has not been touched. A bundle that
/// another front end has prepared already (its grant is alive) is left as it is and its nonce returned.
///
/// # Errors
/// Every code of [`fgpu_spec::Code`]; nothing is reserved and nothing changed then.
pub fn prepare(container: &Container<'_>) -> Result<Option<Nonce>, Error> {
    let path = container.bundle.join("config.json");
    let text = read(&path)?;
    let mut document = Document::parse(&text)?;
    let config = Config::load()?;
    let Some(request) = request(&config, &document, &document.annotations())? else { return Ok(None) };
    let store = Store::open(&config.state_dir)?;
    if let Some(nonce) = document.grant() {
        let ours = |lease: &Lease| {
            lease.grant.nonce == nonce && lease.key.id == container.id && lease.bundle == container.bundle
        };
        if store.leases()?.iter().any(ours) {
            return Ok(Some(nonce));
        }
    }
    let inventory = fgpu_driver::load(&config.driver_root, &config.state_dir, &programs::refresh_inventory)?;
    let tier = tier(&request, &inventory.driver_version)?;
    let claim = Claim {
        key: Key { namespace: container.namespace.into(), id: container.id.into() },
        bundle: container.bundle.into(),
        maker: container.maker,
        pid_file: container.pid_file.clone(),
    };
    let rules = config.rules();
    let lease = wait::until_room(&config.state_dir, request.wait, || {
        store.reserve(&inventory, &rules, &request, tier, &claim)
    })?;
    let nonce = lease.grant.nonce;
    let mut inject = || {
        let files = store.container_dir(&nonce);
        if tier != Tier::None {
            container_files::create(&files, &lease.grant, &inventory)?;
        }
        let layers = match container.rootfs {
            [] => document.root_path().and_then(|root| Layers::of_directory(&container.bundle.join(root))),
            mounts => Layers::of_mounts(mounts),
        };
        let layout = Layout::read(layers.as_ref());
        let mut plan = plan::plan(&config, &inventory, &lease.grant, &layout, &files)?;
        if !container.poststop {
            plan.poststop = None;
        }
        document.apply(&plan)?;
        replace(&path, &document.to_string())
    };
    match inject() {
        Ok(()) => Ok(Some(nonce)),
        Err(error) => Err(undo(&store, &nonce, error)),
    }
}

/// What the container asks for, if anything. A pause container asks for nothing, whatever its pod asks for.
fn request(
    config: &Config,
    document: &Document,
    annotations: &std::collections::BTreeMap<String, String>,
) -> Result<Option<Request>, Error> {
    if fgpu_spec::is_sandbox(annotations) {
        return Ok(None);
    }
    let name = fgpu_spec::container_name(annotations);
    let asked = Request::parse(annotations, name, &config.defaults())?;
    if asked.is_some() || !config.accept_env {
        return Ok(asked);
    }
    // Only where no annotation asks: whoever starts the container outranks whoever made its image.
    Request::parse(&fgpu_spec::annotations_from_env(&document.env()), None, &config.defaults())
}

/// The strongest tier that a node with this `driver` version can give the request.
///
/// # Errors
/// `no-mig-placement` or `denied` when the request insists on a tier that it cannot give.
pub fn tier(request: &Request, driver: &str) -> Result<Tier, Error> {
    if request.mig.is_some() || request.isolation == Isolation::Mig {
        return Err(Error::new(
            Code::NoMigPlacement,
            format!(
                "{}: this version of fgpu makes no MIG instances; ask for fgpu/fraction or fgpu/memory",
                request.text
            ),
        ));
    }
    match request.isolation {
        Isolation::Auto | Isolation::Quota => Ok(Tier::Quota),
        Isolation::None => Ok(Tier::None),
        Isolation::Driver => Err(Error::new(
            Code::Denied,
            format!(
                "{}: this version of fgpu does not set the driver's own memory limits (and they need driver r615 \
                 or newer, this node has {driver}); use fgpu/isolation=quota",
                request.text
            ),
        )),
        Isolation::Mig => unreachable!("refused above"),
    }
}

fn undo(store: &Store, nonce: &Nonce, mut error: Error) -> Error {
    if let Err(second) = store.release(nonce) {
        error.message.push_str(&format!("; and its lease {nonce} stays until fgpu gc: {}", second));
    }
    error
}

fn read(path: &Path) -> Result<String, Error> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| Error::io("open", path, &error))?;
    file.take(CONFIG_LIMIT + 1).read_to_string(&mut text).map_err(|error| Error::io("read", path, &error))?;
    if text.len() as u64 > CONFIG_LIMIT {
        return Err(Error::new(Code::Internal, format!("{} is larger than 16 MiB", path.display())));
    }
    Ok(text)
}

/// Replaces a file at once: a reader sees the old text or the new one. Mode and owner stay.
fn replace(path: &Path, text: &str) -> Result<(), Error> {
    let temporary = path.with_extension("json.fgpu");
    let write = || -> std::io::Result<()> {
        let old = std::fs::metadata(path)?;
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
        std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid()))?;
        std::fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        // The first error is the one to tell; a temporary file that stays is replaced by the next attempt.
        let _ = std::fs::remove_file(&temporary);
        Error::io("replace", path, &error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_keeps_the_mode_and_survives_a_leftover() {
        let bundle = tempfile::tempdir().unwrap();
        let path = bundle.path().join("config.json");
        std::fs::write(&path, "old").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        std::fs::write(bundle.path().join("config.json.fgpu"), "half").unwrap();
        replace(&path, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        assert_eq!(std::fs::read_dir(bundle.path()).unwrap().count(), 1);
    }
}
