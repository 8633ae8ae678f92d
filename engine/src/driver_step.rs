//! The part of a grant that the driver has: made after the lease is written, undone before the lease goes.
//!
//! NVML is loaded by the `fgpu` program only (a crash or a hang in the driver is its own), so each step is a
//! process, and it is told no more than a grant: what is to be done is in the lease, and what was done is
//! written there.
//!
//! | step | when | waits |
//! |---|---|---|
//! | `fgpu driver set-up NONCE` | after the reservation; for a memory limit, when there is a cgroup ([`limit`]) | the container's create does |
//! | `fgpu driver tear-down NONCE` | after the lease has come to its end | none: it goes on by itself |
//! | `fgpu driver look` | a request finds no room | that request does, once |
//! | `fgpu driver health` | a request is decided, and the last look is ten seconds old | none |
//!
//! What is killed on the way is finished by `fgpu gc`, or by the next request that finds no room.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fgpu_allocator::{Lease, State, Store};
use fgpu_spec::{Code, Error, Nonce};

use crate::config::Config;
use crate::{child, programs};

/// The exit status by which a set-up says that the place which the lease has is not free, though it was
/// thought to be. What is there has been written down, so the next reservation knows.
pub const PLACE_TAKEN: u8 = 75;

/// What came of a set-up.
#[derive(Debug)]
pub enum SetUp {
    /// The lease with what the driver made for it.
    Done(Box<Lease>),
    /// The place is taken by an instance that is not ours.
    PlaceTaken,
}

fn command(config: &Config, words: &[&str]) -> Result<Command, Error> {
    let mut command = Command::new(programs::sibling("fgpu")?);
    command
        .arg("driver")
        .arg("--state-dir")
        .arg(&config.state_dir)
        .arg("--root")
        .arg(&config.driver_root)
        .args(words)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .current_dir("/");
    Ok(command)
}

fn run(config: &Config, words: &[&str]) -> Result<Output, Error> {
    let _step = tracing::debug_span!("driver", words = words.join(" ")).entered();
    let mut command = command(config, words)?;
    child::notice_ends();
    command
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| Error::io("run", Path::new(command.get_program()), &e))
}

fn told(step: &str, output: &Output) -> Error {
    Error::of_program(&format!("fgpu driver {step}"), output)
}

/// Has the driver make what a lease is for, and waits for it. A lease without such a part comes back as it
/// is.
///
/// # Errors
/// What the driver answers. The lease is still there; what was made goes with it.
pub fn set_up(config: &Config, store: &Store, lease: Lease) -> Result<SetUp, Error> {
    // What a container has joined was set up for it.
    if !lease.grant.gpus.iter().any(|gpu| gpu.mig.is_some()) || !lease.joined.is_empty() {
        return Ok(SetUp::Done(Box::new(lease)));
    }
    let nonce = lease.grant.nonce;
    let output = run(config, &["set-up", &nonce.to_string()])?;
    if output.status.code() == Some(PLACE_TAKEN.into()) {
        return Ok(SetUp::PlaceTaken);
    }
    if !output.status.success() {
        return Err(told("set-up", &output));
    }
    let now = store.leases()?.into_iter().find(|lease| lease.grant.nonce == nonce);
    let ended = || Error::new(Code::Internal, format!("the lease {nonce} was released while it was set up"));
    now.filter(|lease| lease.state.is_held()).map(|lease| SetUp::Done(Box::new(lease))).ok_or_else(ended)
}

/// Has the driver hold a lease of the `driver` tier to its memory, in the cgroup that is written down in it.
/// Where it does not, the lease becomes one of the `quota` tier, unless its request `insists`: what the
/// container gets is the same otherwise.
///
/// # Errors
/// The step cannot be run, or the driver refuses and the request insists.
pub fn limit(config: &Config, store: &Store, nonce: &Nonce, insists: bool) -> Result<(), Error> {
    let output = run(config, &["set-up", &nonce.to_string()])?;
    if output.status.success() {
        return Ok(());
    }
    let error = told("set-up", &output);
    if insists {
        return Err(error);
    }
    store.driver_part().downgrade_to_quota(
        nonce,
        &format!("the quota libraries alone hold the memory limit: {}", error.message),
    )?;
    Ok(())
}

/// Sees to the driver's part of a lease that has come to its end: it is kept for the next request, or undone
/// by a process of its own, which is not waited for. Does nothing for a lease without such a part.
///
/// # Errors
/// It could not be started; `fgpu gc` does it.
pub fn ended(config: &Config, store: &Store, lease: &Lease) -> Result<(), Error> {
    if lease.state != State::Releasing {
        return Ok(());
    }
    let nonce = &lease.grant.nonce;
    if keep(config, store, nonce)? {
        return Ok(());
    }
    let mut command = command(config, &["tear-down", &nonce.to_string()])?;
    // A signal for this process group is not for it. The process that adopts it reaps it.
    command.stderr(Stdio::null()).process_group(0).spawn().map(drop).map_err(|error| {
        let mut error = Error::io("run", Path::new(command.get_program()), &error);
        error.message.push_str(&format!("; what the driver holds for {nonce} stays until fgpu gc"));
        error
    })
}

/// Starts a look at how the GPUs are and which processes use them, if the last one is old. It is not waited
/// for: what it sees counts for later requests. If it cannot be started, what was seen last counts.
pub fn look_at_gpus(config: &Config) {
    if fgpu_driver::health::is_stale(&config.state_dir)
        && let Ok(mut command) = command(config, &["health"])
    {
        let _ = command.stderr(Stdio::null()).process_group(0).spawn();
    }
}

/// Keeps what the driver made for a lease that has ended, if the configuration says so and no request waits:
/// it may lie where a waiter wants another slice.
fn keep(config: &Config, store: &Store, nonce: &Nonce) -> Result<bool, Error> {
    Ok(!config.mig_keep.is_zero()
        && store.queue().waiters()?.is_empty()
        && store.driver_part().keep(nonce)?)
}

/// What [`finish`] did.
#[derive(Debug, Default)]
pub struct Finished {
    /// The leases that were made for instances of ours whose own leases were lost.
    pub adopted: Vec<Lease>,
    /// What could not be undone.
    pub failed: Vec<Error>,
}

/// Finishes what is left to undo, waiting for it: the leases that had come to their end, those that have been
/// kept long enough, and the instances of ours that no lease holds.
///
/// # Errors
/// The state directory cannot be read or written.
pub fn finish(config: &Config, store: &Store) -> Result<Finished, Error> {
    let longest = u64::try_from(config.mig_keep.as_nanos()).unwrap_or(u64::MAX);
    let mut finished = Finished::default();
    // Of containers that were killed together with their front ends. Before any keeping ends: it must not
    // begin anew.
    for lease in store.driver_part().releasing()?.iter().filter(|lease| lease.trouble.is_none()) {
        keep(config, store, &lease.grant.nonce)?;
    }
    store.driver_part().end_keeping(longest)?;
    for lease in store.driver_part().releasing()? {
        finished.failed.extend(tear_down(config, &lease.grant.nonce)?);
    }
    // Without an inventory there are no GPUs of which something could be known.
    if let Ok(Some(inventory)) = fgpu_driver::cached(&config.driver_root, &config.state_dir) {
        finished.adopted = store.slices().adopt_orphans(&inventory)?;
    }
    for lease in &finished.adopted {
        finished.failed.extend(tear_down(config, &lease.grant.nonce)?);
    }
    Ok(finished)
}

fn tear_down(config: &Config, nonce: &Nonce) -> Result<Option<Error>, Error> {
    let output = run(config, &["tear-down", &nonce.to_string()])?;
    Ok((!output.status.success()).then(|| told("tear-down", &output)))
}

/// Makes what room there is for a request that found none: ends the keeping of instances, finishes what is
/// left to undo, and looks which instances there are that are not ours. What no lease holds is the
/// reconciler's.
///
/// # Errors
/// The state directory or the driver cannot be asked. An instance that cannot be destroyed is no error: its
/// holder is in the lease, and so in the refusal.
pub fn make_room(config: &Config, store: &Store) -> Result<(), Error> {
    store.driver_part().end_keeping(0)?;
    for lease in store.driver_part().releasing()? {
        tear_down(config, &lease.grant.nonce)?;
    }
    let output = run(config, &["look"])?;
    if output.status.success() { Ok(()) } else { Err(told("look", &output)) }
}
