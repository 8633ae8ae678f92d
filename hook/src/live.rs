//! `fgpu-hook`: the share of a container whose spec can no longer be changed.
//!
//! At createRuntime and prestart the runtime has read `config.json` and made the container's namespaces; its init waits
//! for the hooks before it changes its root. So the plan that the other front ends write into the spec is carried out
//! here: mounts are made on the host, attached in the container's mount namespace, and its device cgroup is opened.
//!
//! ```text
//! stdin ─ state ─ bundle/config.json ─ annotations ─ lease ─ plan      (as every front end does it: grant.rs)
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
//! The key of a lease is (bundle, id): the state does not say which runtime's it is, and a bundle is one container's.
//! Killed at any instruction the hook leaves a lease whose maker is dead, mounts that end with the container's
//! namespace, and a device rule that ends with its cgroup.
//!
//! Needs Linux 5.12 (`mount_setattr`).

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use fgpu_allocator::{Claim, Key, Process, Store};
use fgpu_spec::{Code, Document, Error, Nonce, Tier};

use crate::config::Config;
use crate::events::refusals_of;
use crate::grant::{Granted, Image};
use crate::held::Held;
use crate::layers::Layers;
use crate::watch::{Patience, Watch};
use crate::{
    bundle, cgroup_of, devices, driver_step, ending, foreign, give_back, grant, lifecycle, release, say,
    store,
};
use attach::Attached;
use entry::Stage;
use state::State;
use stop::Deadline;
use target::Target;

mod attach;
mod entry;
mod file_system;
mod limit;
mod mounts;
mod parameters;
mod precreate;
mod report;
mod resolve;
mod source;
mod state;
mod stop;
mod sys;
mod target;
mod ungranted;

pub use limit::limit;
pub use precreate::precreate;

/// The time that a hook takes at most, unless it is told. It is short because a definition may give a hook little, and
/// one that ends by itself says why.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// What is kept of the hook's time for the work after a wait for room.
const WORK: Duration = Duration::from_secs(5);

/// The longest that poststop takes.
const POSTSTOP: Duration = Duration::from_secs(10);

/// createRuntime and prestart: gives the container whose state is on `input` its share, within `timeout`. It must be
/// shorter than the one in the hook's definition, after which the runtime kills the hook; `fgpu/wait` ends 5 s before
/// it.
///
/// A container without an `fgpu/` annotation, a sandbox, and one that has its share already are left alone.
///
/// This changes the process: its environment, descriptors, capabilities and signals. Call it first and once.
///
/// # Errors
/// Every code of [`fgpu_spec::Code`]. What was done is undone. The error has been told already where engines look for it
/// other than on standard error.
pub fn create(input: impl Read, timeout: Duration) -> Result<(), Error> {
    give(input, timeout).inspect_err(report::tell)
}

fn give(input: impl Read, timeout: Duration) -> Result<(), Error> {
    entry::enter(Stage::Create)?;
    let deadline =
        Deadline::set(timeout, "fgpu: timed-out: the hook's own time limit passed; try again\n", 1)?;
    let state = State::read(input)?;
    let key = key(&state)?;
    refusals_of(Config::load(), &key, |config| share(config, &key, state, deadline))
}

/// Gives the container of this state what it asks for, if anything.
fn share(config: &Config, key: &Key, state: State, deadline: Deadline) -> Result<(), Error> {
    let text = bundle::read(&state.bundle.join("config.json"))?;
    let document = Document::parse(&text)?;
    let Some(request) = grant::request(config, &document)? else { return Ok(()) };
    writable(&config.state_dir, &request.text)?;
    let store = store(config)?;
    if grant::written(&store, &document, &state.id, &state.bundle)?.is_some() {
        return Ok(());
    }
    let rootfs = bundle::rootfs(&document, &state.bundle)?;
    let mut target = Target::open(state.pid, &rootfs)?;
    // The other of the two stages was here: both may be configured.
    if store.leases()?.iter().any(|lease| lease.key == *key && lease.init == Some(target.init)) {
        return Ok(());
    }
    foreign::refuse(config, &request, &document, &state.bundle)?;
    let maker = Process::current()?;
    let claim = Claim { key: key.clone(), bundle: state.bundle, maker, pid_file: None };
    // Whoever ends the container does not end us: the kernel kills no hook with a container, an engine no runtime.
    let watch = Watch::default().process(target.init, "the container's init").runtime();
    let patience = Patience { longest: deadline.left(WORK), watch };
    let (granted, held) = grant::reserve(config, &store, &request, &claim, &patience, Held::new)?;
    patience.watch.check().map_err(|error| granted.undo(config, &store, error))?;
    inject(config, &store, &granted, &mut target, &document, &held)
        .map_err(|error| granted.undo(config, &store, error))
}

/// Brings what was granted into the container.
fn inject(
    config: &Config,
    store: &Store,
    granted: &Granted,
    target: &mut Target,
    document: &Document,
    held: &Held,
) -> Result<(), Error> {
    let layers = Layers::of_descriptor(&target.root);
    let plan = granted.plan(config, store, &Image::of(document, layers.as_ref()))?;
    held.check()?;
    let nonce = &granted.lease.grant.nonce;
    let parameters = parameters::make(&config.driver_root, &store.container_dir(nonce))?;
    let sources = source::open_all(&plan, parameters)?;
    target.check()?;
    let ungranted = ungranted::of_spec(&document.to_string(), &plan);
    let beyond = document.ungranted_rule(&plan)?;
    let attached = Attached::attach(target, sources, &ungranted, held)?;
    // What is taken away is not given back: whoever fails from here on has no container.
    let narrowed = beyond.map_or(Ok(()), |rule| devices::narrow(target.init.pid, &plan, &rule));
    let opened = match narrowed.and_then(|()| devices::open(target.init.pid, &plan.nodes)) {
        Ok(opened) => opened,
        Err(error) => return Err(undo_mounts(attached, target, error)),
    };
    let finish = || {
        target.check()?;
        held.check()?;
        store.activate(nonce, Some(target.init), cgroup_of(target.init.pid))?;
        if granted.lease.grant.tier == Tier::Driver {
            driver_step::limit(config, store, nonce, granted.insists)?;
        }
        Ok(())
    };
    finish().map_err(|mut error: Error| {
        if let Err(second) = opened.undo() {
            error.message.push_str(&format!("; and its devices stay allowed: {}", second.message));
        }
        undo_mounts(attached, target, error)
    })
}

fn undo_mounts(attached: Attached, target: &mut Target, mut error: Error) -> Error {
    if let Err(second) = attached.undo(target) {
        error
            .message
            .push_str(&format!("; and its mounts stay until its namespace ends: {}", second.message));
    }
    error
}

/// poststop: gives back what the container whose state is on `input` held. By `grant` if the front end that made the
/// container put it into the hook's arguments; else by the grant in its annotations if that is this container's; else by
/// its name, and then only a lease that nobody lives on: a new container of the same name keeps its own.
///
/// A hook that fails helps nobody: the runtime has forgotten the container by then and does not try again. So what could
/// not be done goes to standard error and the system's log, and is left to the reconciler. It takes 10 s at most, then
/// the process ends with status 0.
///
/// This changes the process, as [`create`] does.
pub fn poststop(mut input: impl Read, grant: Option<Nonce>) {
    let words = "fgpu: internal: poststop took too long; fgpu gc releases what it did not\n";
    let entered = entry::enter(Stage::Release).and_then(|()| Deadline::set(POSTSTOP, words, 0));
    let released = match grant {
        Some(nonce) => {
            let released = release(&nonce);
            // The state says nothing that the grant does not, but whoever writes it must not meet a closed pipe.
            let _ = std::io::copy(&mut input, &mut std::io::sink());
            entered.and(released)
        }
        None => entered.and_then(|_| State::read(input)).and_then(|state| release_by_state(&state)),
    };
    if let Err(error) = released {
        say(&error);
        report::tell(&error);
    }
}

/// Releases what the container of this state held.
fn release_by_state(state: &State) -> Result<(), Error> {
    let config = Config::load()?;
    let store = store(&config)?;
    // The engine may have removed the bundle already.
    let text = bundle::read(&state.bundle.join("config.json"));
    if let Ok(document) = text.and_then(|text| Document::parse(&text))
        && let Some(nonce) = grant::written(&store, &document, &state.id, &state.bundle)?
    {
        return give_back(&config, &store, &nonce);
    }
    let key = key(state)?;
    let mut released = store.release_dead(&key)?;
    if released.is_empty() {
        ending::wait(&store, &key)?;
        released = store.release_dead(&key)?;
    }
    lifecycle::ended(&config, &store, &released)
}

/// Leases that this hook makes are named after the bundle.
fn key(state: &State) -> Result<Key, Error> {
    let namespace = state.bundle.to_str().ok_or_else(|| {
        Error::new(Code::Internal, format!("the bundle's path {:?} is not UTF-8", state.bundle))
    })?;
    Ok(Key { namespace: namespace.into(), id: state.id.clone() })
}

/// A rootless engine cannot share the node's GPUs: their leases are the host root's.
fn writable(state_directory: &Path, request: &str) -> Result<(), Error> {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let fields: Vec<&str> = map.split_ascii_whitespace().collect();
    let root_of_host = rustix::process::geteuid().is_root() && fields == ["0", "0", "4294967295"];
    let nearest = state_directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let access = rustix::fs::accessat(
        rustix::fs::CWD,
        nearest,
        rustix::fs::Access::WRITE_OK,
        rustix::fs::AtFlags::EACCESS,
    );
    if root_of_host || access.is_ok() {
        return Ok(());
    }
    Err(Error::new(
        Code::Denied,
        format!(
            "{request}: this container engine is rootless and cannot write {}, where the node's leases are; run the \
             container as root (sudo podman run …)",
            state_directory.display()
        ),
    ))
}
