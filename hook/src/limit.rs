//! createRuntime of a container whose front end has edited its config.json: what had to wait for its cgroup.

use std::io::Read;
use std::time::Duration;

use fgpu_engine::config::Config;
use fgpu_engine::diagnostics::{self, Format, Sink};
use fgpu_spec::{Error, Nonce};

use crate::entry::{self, Stage};
use crate::report;
use crate::state;
use crate::stop::Deadline;

/// Has the driver hold the container whose state is on `input` to the memory of its grant, within `timeout`.
///
/// This changes the process, as [`create`](crate::create::create) does.
///
/// # Errors
/// `driver-error` if the driver does not and the request `insists` that it does: then there shall be no
/// container.
pub(crate) fn limit(input: impl Read, nonce: &Nonce, insists: bool, timeout: Duration) -> Result<(), Error> {
    set(input, nonce, insists, timeout).inspect_err(report::tell)
}

fn set(input: impl Read, nonce: &Nonce, insists: bool, timeout: Duration) -> Result<(), Error> {
    entry::enter(Stage::Create)?;
    Deadline::set(timeout, "fgpu: timed-out: the driver set no memory limit in time; see `dmesg`\n", 1)?;
    diagnostics::start(diagnostics::level(&Config::load()), Format::Text, Sink::journal());
    let state = state::read(input)?;
    fgpu_engine::limit(nonce, state::init(&state), insists)
}
