//! createRuntime of a container that may change mounts, whose front end has edited its config.json: attaches what the spec could
//! not say how to mount ([`super::shield`]).

use std::io::Read;
use std::time::Duration;

use fgpu_spec::{Code, Document, Error, Nonce, Tier};

use super::attach::Attached;
use super::entry::{self, Stage};
use super::state::State;
use super::stop::Deadline;
use super::target::Target;
use super::{report, source};
use crate::config::Config;
use crate::grant::{Granted, Image};
use crate::held::Held;
use crate::layers::Layers;
use crate::{bundle, store};

/// Attaches the shielded files of a grant in the container whose state is on `input`, and has the driver hold it to its memory if
/// the grant is of the `driver` tier, within `timeout`.
///
/// This changes the process, as [`create`](super::create) does.
///
/// # Errors
/// What [`create`](super::create) says of mounts, and [`limit`](super::limit) of the driver. Nothing is attached then, and there
/// shall be no container.
pub fn attach(input: impl Read, nonce: &Nonce, insists: bool, timeout: Duration) -> Result<(), Error> {
    give(input, nonce, insists, timeout).inspect_err(report::tell)
}

fn give(input: impl Read, nonce: &Nonce, insists: bool, timeout: Duration) -> Result<(), Error> {
    entry::enter(Stage::Create)?;
    Deadline::set(timeout, "fgpu: timed-out: the hook's own time limit passed; try again\n", 1)?;
    let state = State::read(input)?;
    let config = Config::load()?;
    let store = store(&config)?;
    let lease = store.leases()?.into_iter().find(|lease| lease.grant.nonce == *nonce);
    let lease = lease.ok_or_else(|| {
        Error::new(
            Code::Internal,
            format!("grant {nonce} of this container is not among the leases any more"),
        )
    })?;
    let tier = lease.grant.tier;
    let document = Document::parse(&bundle::read(&state.bundle.join("config.json"))?)?;
    let rootfs = bundle::rootfs(&document, &state.bundle)?;
    let held = Held::new()?;
    let mut target = Target::open(state.pid, &rootfs)?;
    let layers = Layers::of_descriptor(&target.root);
    let image = Image::of(&document, layers.as_ref());
    let plan = Granted::of(&config, lease)?.plan_again(&config, &store, &image)?;
    let sources = source::shielded(&config, &plan.shielded)?;
    target.check()?;
    Attached::attach(&mut target, sources, &[], &held)?;
    drop(held);
    match tier {
        Tier::Driver => crate::lifecycle::limit(nonce, state.pid, insists),
        _ => Ok(()),
    }
}
