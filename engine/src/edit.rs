//! A share by an edit of the container's spec, before the runtime reads it: behind the shim, `fgpu-runtime`
//! and `fgpu-hook precreate`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fgpu_allocator::{Applicant, Key, Process, Store};
use fgpu_spec::{Document, Error};

use crate::config::Config;
use crate::grant::Image;
use crate::layers::Layers;
use crate::prepare::{Delivery, Given, Share, prepare};
use crate::watch::{Patience, Watch};
use crate::{bundle, places};

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

/// [`prepare`] by an edit of the bundle's `config.json`, which is not touched where nothing is granted.
///
/// # Errors
/// As [`prepare`]; or `config.json` cannot be read.
pub fn prepare_bundle(
    config: Result<Config, Error>,
    container: &Container<'_>,
) -> Result<Option<Given>, Error> {
    let path = container.config.clone().unwrap_or_else(|| container.bundle.join("config.json"));
    let mut document = Document::parse(&bundle::read(&path)?)?;
    let applicant = Applicant {
        key: Key { namespace: container.namespace.into(), id: container.id.into() },
        bundle: container.bundle.into(),
        maker: container.maker,
        pid_file: container.pid_file.clone(),
        anchor: None,
    };
    let mut edit = Edit {
        bundle: container.bundle,
        rootfs: container.rootfs,
        poststop: container.poststop,
        patience: Some(Patience { longest: Duration::MAX, watch: Watch::default().engine() }),
        guard: || Ok(()),
        write: |document: &Document| bundle::replace(&path, &document.to_string()),
    };
    prepare(config, &applicant, &mut document, &mut edit)
}

/// The delivery by an edited spec.
pub struct Edit<'a, G, W> {
    /// The bundle folder.
    pub bundle: &'a Path,
    /// As [`Container::rootfs`].
    pub rootfs: &'a [RootfsMount],
    /// As [`Container::poststop`].
    pub poststop: bool,
    /// How long the request may wait.
    pub patience: Option<Patience>,
    /// Makes a guard ([`Delivery::guard`]).
    pub guard: G,
    /// Puts the edited document where the runtime reads it.
    pub write: W,
}

impl<G, W, Guard> Delivery for Edit<'_, G, W>
where
    G: Fn() -> Result<Guard, Error>,
    W: FnMut(&Document) -> Result<(), Error>,
{
    type Guard = Guard;

    fn patience(&mut self, _: &Store) -> Result<Option<Patience>, Error> {
        Ok(self.patience.take())
    }

    fn guard(&self) -> Result<Guard, Error> {
        (self.guard)()
    }

    fn deliver(&mut self, share: &Share<'_>, document: &mut Document, _: &Guard) -> Result<(), Error> {
        let root = match self.rootfs {
            [] => document.root_path().map(|root| self.bundle.join(root)),
            _ => None,
        };
        let layers = match &root {
            Some(root) => Layers::of_directory(root),
            None => Layers::of_mounts(self.rootfs),
        };
        let mut plan = share.plan(&Image::of(document, layers.as_ref()))?;
        if !self.poststop {
            plan.poststop = None;
        }
        document.apply(&plan)?;
        (self.write)(document)?;
        // In a user namespace what we make would have no owner there.
        if let Some(root) = root.filter(|_| !document.has_user_namespace()) {
            places::make(&root, &plan.mounts);
        }
        Ok(())
    }
}
