//! Reserve, make the grant's files, edit `config.json`; undo everything if any step fails.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fgpu_allocator::{Claim, Key, Process};
use fgpu_spec::{Document, Error, Nonce};

use crate::config::Config;
use crate::events::refusals_of;
use crate::grant::Image;
use crate::layers::Layers;
use crate::watch::{Patience, Watch};
use crate::{bundle, foreign, grant, places, store};

pub use crate::layers::RootfsMount;

/// A container that is about to be created.
#[derive(Debug)]
pub struct Container<'a> {
    /// The runtime's or containerd's namespace: container ids are unique within it.
    pub namespace: &'a str,
    /// The container's id.
    pub id: &'a str,
    /// The bundle folder.
    pub bundle: &'a Path,
    /// The file that the runtime reads for the bundle's `config.json`, if it is another.
    pub config: Option<PathBuf>,
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

/// A container's grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Given {
    /// Which one it is.
    pub nonce: Nonce,
    /// Whether it was reserved now. One that was there is for whoever made it to give back: another front end, or a
    /// container that runs, if this create is the second of its name.
    pub is_new: bool,
}

/// Reserves what the bundle's annotations ask for and edits its `config.json`.
///
/// `None` means that the container asks for nothing: its `config.json` has not been touched. A bundle that
/// another front end has prepared already (its grant is alive) is left as it is and that grant returned.
///
/// `config` is what [`Config::load`] returned: a configuration that cannot be read is a refusal like any other, of
/// containers that would ask for something under some configuration.
///
/// # Errors
/// Every code of [`fgpu_spec::Code`]; nothing is reserved and nothing changed then.
pub fn prepare(config: Result<Config, Error>, container: &Container<'_>) -> Result<Option<Given>, Error> {
    let path = container.config.clone().unwrap_or_else(|| container.bundle.join("config.json"));
    let mut document = Document::parse(&bundle::read(&path)?)?;
    let write = |document: &Document| bundle::replace(&path, &document.to_string());
    let patience = Patience { longest: Duration::MAX, watch: Watch::default().engine() };
    edit(config, container, &mut document, &patience, || Ok(()), write)
}

/// [`prepare`] for a `config.json` that is not in its bundle (yet): `write` puts the edited document where it
/// belongs. A wait for room is as long as `patience` says, and each attempt, with what follows the one that succeeds, is made
/// under a new `guard`.
///
/// # Errors
/// As [`prepare`].
pub(crate) fn edit<Guard>(
    config: Result<Config, Error>,
    container: &Container<'_>,
    document: &mut Document,
    patience: &Patience,
    guard: impl FnMut() -> Result<Guard, Error>,
    write: impl FnOnce(&Document) -> Result<(), Error>,
) -> Result<Option<Given>, Error> {
    if config.is_err() && grant::asks_nothing(document) {
        return Ok(None);
    }
    let key = Key { namespace: container.namespace.into(), id: container.id.into() };
    refusals_of(config, &key, |config| edit_for(&key, config, container, document, patience, guard, write))
}

fn edit_for<Guard>(
    key: &Key,
    config: &Config,
    container: &Container<'_>,
    document: &mut Document,
    patience: &Patience,
    guard: impl FnMut() -> Result<Guard, Error>,
    write: impl FnOnce(&Document) -> Result<(), Error>,
) -> Result<Option<Given>, Error> {
    let Some(request) = grant::request(config, document)? else { return Ok(None) };
    let store = store(config)?;
    if let Some(nonce) = grant::written(&store, document, container.id, container.bundle)? {
        return Ok(Some(Given { nonce, is_new: false }));
    }
    foreign::refuse(config, &request, document, container.bundle)?;
    let claim = Claim {
        key: key.clone(),
        bundle: container.bundle.into(),
        maker: container.maker,
        pid_file: container.pid_file.clone(),
    };
    let (granted, _guard) = grant::reserve(config, &store, &request, &claim, patience, guard)?;
    let inject = || {
        let root = match container.rootfs {
            [] => document.root_path().map(|root| container.bundle.join(root)),
            _ => None,
        };
        let layers = match &root {
            Some(root) => Layers::of_directory(root),
            None => Layers::of_mounts(container.rootfs),
        };
        let mut plan = granted.plan(config, &store, &Image::of(document, layers.as_ref()))?;
        if !container.poststop {
            plan.poststop = None;
        }
        document.apply(&plan)?;
        write(document)?;
        // In a user namespace what we make would belong to nobody there.
        if let Some(root) = root.filter(|_| !document.has_user_namespace()) {
            places::make(&root, &plan.mounts);
        }
        Ok(())
    };
    match inject() {
        Ok(()) => Ok(Some(Given { nonce: granted.lease.grant.nonce, is_new: true })),
        Err(error) => Err(granted.undo(config, &store, error)),
    }
}
