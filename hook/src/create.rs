//! createRuntime and prestart: the share of a container whose spec can no longer be changed.
//!
//! At createRuntime and prestart the runtime has read `config.json` and made the container's namespaces; its
//! init waits for the hooks before it changes its root. So the plan that the other front ends write into the
//! spec is carried out here: mounts are made on the host, attached in the container's mount namespace, and
//! its device cgroup is opened.
//!
//! ```text
//! stdin ─ state ─ bundle/config.json ─ annotations ─ lease ─ plan      (as every front end does it: engine/src/grant.rs)
//!                                                             │
//!   entry     no environment, no descriptors, few capabilities│
//!   target    pid ─ pidfd, start time, mount namespace, root  │
//!   source    detached mounts of files and device nodes  ◄────┘      on the host
//!   resolve   destinations below the root's descriptor               in the container's mount namespace
//!   attach    move_mount, verify; undo
//!   devices   the device cgroup
//!   activate  the lease learns the init: the hook's own end no longer ends it
//! ```
//!
//! What a container's root holds is written by strangers, and may change while we look (a shared volume). So:
//!
//! - nothing in it is a source, nothing in it is run or read but its library layout (`layers.rs`, links resolved within it);
//! - every path in it is resolved by the kernel below a descriptor of the root; what was opened is judged by its
//!   descriptor and mounted on by that descriptor;
//! - placeholders are made in the root itself and on file systems that are the container's alone, never in a volume;
//! - nothing is mounted on a mount that shares its events with the host, nor on procfs or sysfs, but for
//!   `/proc/driver/nvidia/params`.
//!
//! The key of a lease is (bundle, id): the state does not say which runtime's it is, and a bundle is one
//! container's. Killed at any instruction the hook leaves a lease whose maker is dead, mounts that end with
//! the container's namespace, and a device rule that ends with its cgroup.
//!
//! Needs Linux 5.12 (`mount_setattr`).

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fgpu_allocator::{Applicant, Process, Store};
use fgpu_engine::config::Config;
use fgpu_engine::diagnostics::{self, Format, Sink};
use fgpu_engine::grant::Image;
use fgpu_engine::layers::Layers;
use fgpu_engine::prepare::{Delivery, Share, prepare};
use fgpu_engine::signals::HeldSignals;
use fgpu_engine::watch::{Patience, Watch};
use fgpu_engine::{bundle, cgroup_of, devices};
use fgpu_spec::{CDI_KIND, CLAIM_KIND, Code, Document, Error, escape_for_display};
use fgpu_wire::LIMITS_PATH;
use rustix::fs::{OFlags, fstat, stat};

use crate::attach::Attached;
use crate::entry::{self, Stage};
use crate::state;
use crate::stop::{Deadline, WORK};
use crate::target::Target;
use crate::{parameters, report, resolve, source, ungranted};

/// The time that a hook takes at most, unless it is told. It is short because a definition may give a hook
/// little, and one that ends by itself says why.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// What the hook runs for.
pub(crate) enum Called<'a> {
    /// A hook's file, for this long. It must be shorter than the limit in the hook's definition, after which
    /// the runtime kills the hook; `fgpu/wait` ends 5 s before it.
    Stage(Duration),
    /// A CDI device of this name, for [`DEFAULT_TIMEOUT`] besides the longest wait of the node: its hooks
    /// have no limit of their own.
    Device(&'a str),
    /// The device of a claim, `UID/REQUEST`, for [`DEFAULT_TIMEOUT`].
    Claim(&'a str),
}

/// createRuntime and prestart: gives the container whose state is on `input` its share.
///
/// A container without an `fgpu/` annotation, a sandbox, and one that has its share already are left alone.
///
/// This changes the process: its environment, descriptors, capabilities and signals. Call it first and once.
///
/// # Errors
/// Every code of [`fgpu_spec::Code`]. What was done is undone. The error has been told already where engines
/// look for it other than on standard error.
pub(crate) fn create(input: impl Read, called: &Called<'_>) -> Result<(), Error> {
    give(input, called).inspect_err(report::tell)
}

fn give(input: impl Read, called: &Called<'_>) -> Result<(), Error> {
    const LAST_WORDS: &str = "fgpu: timed-out: the hook's own time limit passed; try again\n";
    entry::enter(Stage::Create)?;
    let timeout = match called {
        Called::Stage(timeout) => *timeout,
        Called::Device(_) | Called::Claim(_) => DEFAULT_TIMEOUT,
    };
    let mut deadline = Deadline::set(timeout, LAST_WORDS, 1)?;
    let config = Config::load();
    if let Called::Device(_) = called {
        let wait = config.as_ref().map_or(Duration::ZERO, |config| config.wait_max);
        deadline = Deadline::set(timeout + wait, LAST_WORDS, 1)?;
    }
    diagnostics::start(diagnostics::level(&config), Format::Text, Sink::journal());
    let state = state::read(input)?;
    let mut document = Document::parse(&bundle::read(&state.bundle().join("config.json"))?)?;
    // Every front end reads there which devices a container has.
    let (kind, name, there) = match called {
        Called::Stage(_) => (CDI_KIND, "", Vec::new()),
        Called::Device(name) => (CDI_KIND, *name, document.cdi_devices()?),
        Called::Claim(name) => (CLAIM_KIND, *name, document.claims()?),
    };
    if !matches!(called, Called::Stage(_)) && !there.iter().any(|device| device == name) {
        return Err(Error::new(
            Code::Internal,
            format!(
                "{kind}={}: the container's config.json does not have the hook of this device",
                escape_for_display(name)
            ),
        ));
    }
    let applicant = Applicant {
        key: state::key(&state)?,
        bundle: state.bundle().clone(),
        maker: Process::current()?,
        pid_file: None,
        anchor: None,
    };
    let mut delivery = Live {
        pid: state::init(&state),
        rootfs: document.root_path().map(|root| state.bundle().join(root)),
        applicant: &applicant,
        deadline,
        target: None,
    };
    prepare(config, &applicant, &mut document, &mut delivery).map(|_| ())
}

/// The delivery into a container that exists.
struct Live<'a> {
    /// The container's init.
    pid: i32,
    /// Its root file system on the host.
    rootfs: Option<PathBuf>,
    applicant: &'a Applicant,
    deadline: Deadline,
    /// The container, once it is known that it asks for a share.
    target: Option<Target>,
}

impl Delivery for Live<'_> {
    type Guard = HeldSignals;

    fn patience(&mut self, store: &Store) -> Result<Option<Patience>, Error> {
        let rootfs = self.rootfs.as_deref().ok_or_else(|| bundle::no_root(&self.applicant.bundle))?;
        let target = self.target.insert(Target::open(self.pid, rootfs)?);
        // createRuntime and prestart may both be configured: the other stage has given the share.
        if store
            .leases()?
            .iter()
            .any(|lease| lease.key == self.applicant.key && lease.init == Some(target.init))
        {
            return Ok(None);
        }
        // The kernel ends no hook with its container, and an engine ends no runtime with itself.
        let watch = Watch::default().process(target.init, "the container's init").runtime();
        Ok(Some(Patience { longest: self.deadline.left(WORK), watch }))
    }

    fn guard(&self) -> Result<HeldSignals, Error> {
        HeldSignals::new()
    }

    fn deliver(
        &mut self,
        share: &Share<'_>,
        document: &mut Document,
        held: &HeldSignals,
    ) -> Result<(), Error> {
        match &mut self.target {
            Some(target) => inject(share, target, document, held),
            None => Ok(()),
        }
    }
}

/// Brings what was granted into the container.
fn inject(
    share: &Share<'_>,
    target: &mut Target,
    document: &Document,
    held: &HeldSignals,
) -> Result<(), Error> {
    let folder = share.store.container_dir(share.nonce());
    if share.is_shared() && has_share(target, &folder) {
        return Ok(());
    }
    let layers = Layers::of_descriptor(&target.root);
    let plan = share.plan(&Image::of(document, layers.as_ref()))?;
    held.check()?;
    let parameters = parameters::make(&share.config.driver_root, &folder)?;
    let sources = source::open_all(&plan, parameters)?;
    target.check()?;
    let ungranted = ungranted::of_spec(&document.to_string(), &plan);
    let beyond = document.ungranted_rule(&plan)?;
    let attached = Attached::attach(target, sources, &ungranted, held)?;
    // What is taken away is not given back: after an error from here on there is no container.
    let narrowed = beyond.map_or(Ok(()), |rule| devices::narrow(target.init.pid, &plan, &rule));
    let opened = match narrowed.and_then(|()| devices::open(target.init.pid, &plan.nodes)) {
        Ok(opened) => opened,
        Err(error) => return Err(undo_mounts(attached, target, error)),
    };
    let finish = || {
        target.check()?;
        held.check()?;
        share.store.activate(share.nonce(), Some(target.init), cgroup_of(target.init.pid))?;
        share.limit()
    };
    finish().map_err(|mut error: Error| {
        if let Err(second) = opened.undo() {
            error.message.push_str(&format!("; and its devices stay allowed: {}", second.message));
        }
        undo_mounts(attached, target, error)
    })
}

/// Whether the container has what is in the grant's folder already: an engine may list a claim's device twice.
fn has_share(target: &Target, folder: &Path) -> bool {
    let inside = resolve::open(&target.root, Path::new(LIMITS_PATH.trim_start_matches('/')), OFlags::PATH);
    match (inside.and_then(fstat), stat(folder.join("limits"))) {
        (Ok(inside), Ok(own)) => (inside.st_dev, inside.st_ino) == (own.st_dev, own.st_ino),
        _ => false,
    }
}

fn undo_mounts(attached: Attached, target: &mut Target, mut error: Error) -> Error {
    if let Err(second) = attached.undo(target) {
        error
            .message
            .push_str(&format!("; and its mounts stay until its namespace ends: {}", second.message));
    }
    error
}
