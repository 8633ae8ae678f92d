//! poststop: the end of a container's share.

use std::io::Read;
use std::time::Duration;

use fgpu_engine::config::Config;
use fgpu_engine::diagnostics::{self, Format, Sink};
use fgpu_engine::{bundle, ended, ending, give_back, grant, release, say, store};
use fgpu_spec::{Document, Error, Nonce};

use crate::entry::{self, Stage};
use crate::report;
use crate::state::{self, State};
use crate::stop::Deadline;

/// The longest that poststop takes.
const LONGEST: Duration = Duration::from_secs(10);

/// poststop: gives back what the container whose state is on `input` held. By `grant` if the front end that
/// made the container put it into the hook's arguments; else by the grant in its annotations if that is this
/// container's; else by its name, and then only a lease without a living holder: a new container of the same
/// name keeps its own.
///
/// To fail would be of no use: the runtime has forgotten the container by then and does not try again. So
/// what could not be done goes to standard error and the system's log, and is left to the reconciler. It
/// takes 10 s at most, then the process ends with status 0.
///
/// This changes the process, as [`create`](crate::create::create) does.
pub(crate) fn poststop(mut input: impl Read, grant: Option<Nonce>) {
    let words = "fgpu: internal: poststop took too long; fgpu gc releases what it did not\n";
    let entered = entry::enter(Stage::Release).and_then(|()| Deadline::set(LONGEST, words, 0));
    diagnostics::start(diagnostics::level(&Config::load()), Format::Text, Sink::journal());
    let released = match grant {
        Some(nonce) => {
            let released = release(&nonce);
            // The state says nothing that the grant does not, but its writer must not meet a closed pipe.
            let _ = std::io::copy(&mut input, &mut std::io::sink());
            entered.and(released)
        }
        None => entered.and_then(|_| state::read(input)).and_then(|state| release_by_state(&state)),
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
    let text = bundle::read(&state.bundle().join("config.json"));
    if let Ok(document) = text.and_then(|text| Document::parse(&text))
        && let Some(nonce) = grant::written(&store, &document, state.id(), state.bundle())?
    {
        return give_back(&config, &store, &nonce);
    }
    let key = state::key(state)?;
    let mut released = store.release_dead(&key)?;
    if released.is_empty() {
        ending::wait(&store, &key)?;
        released = store.release_dead(&key)?;
    }
    ended(&config, &store, &released)
}
