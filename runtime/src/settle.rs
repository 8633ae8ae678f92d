//! What becomes of a lease when the real runtime has ended: its container runs and the lease learns its init,
//! or there is no container and it ends. How the runtime ended says only what is likely: one that was killed
//! may have made it.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use fgpu_allocator::{Lease, Process, Store};
use fgpu_engine::child::Ended;
use fgpu_engine::config::Config;
use fgpu_engine::runtime::command_line::Verb;
use fgpu_engine::runtime::{Kind, bundle};
use fgpu_engine::{Given, activate, container_files, give_back, store};
use fgpu_spec::{Code, Error};
use serde::Deserialize;

use crate::Call;

/// After the real runtime, which was told to write the init's pid to `pid_file`.
///
/// # Errors
/// The state directory cannot be read or written; or the container's init is not to be found, and the lease
/// stays.
pub(crate) fn settle(
    call: &Call<'_>,
    config: &Config,
    ended: Ended,
    given: Given,
    pid_file: &Path,
) -> Result<(), Error> {
    let lives_on = call.line.verb == Verb::Create || call.line.detach;
    if !(given.is_new || ended.success() && lives_on) {
        return Ok(());
    }
    // As nearly all are.
    if ended.success()
        && lives_on
        && let Some(pid) = std::fs::read_to_string(pid_file).ok().and_then(|text| text.trim().parse().ok())
    {
        return activate(&given.nonce, pid);
    }
    let store = store(config)?;
    let Some(lease) = store.leases()?.into_iter().find(|lease| lease.grant.nonce == given.nonce) else {
        return Ok(());
    };
    // It was in the foreground, and has deleted its container.
    if ended.success() && !lives_on {
        return give_back(config, &store, &given.nonce);
    }
    // What cannot be told now the reconciler looks at again.
    if let Some(init) = recorded(&store, &lease)? {
        return activate(&given.nonce, init.pid);
    }
    match ended {
        Ended::Exited(0) if was_recorded(&store, &lease) => Ok(()),
        Ended::Exited(0) => match asked(call) {
            Answer::Init(pid) => activate(&given.nonce, pid),
            Answer::Ended => Ok(()),
            Answer::None => keep(call, &store, &lease),
        },
        Ended::Exited(_) => give_back(config, &store, &given.nonce),
        Ended::Killed(_) => match asked(call) {
            Answer::Init(pid) => activate(&given.nonce, pid),
            Answer::Ended | Answer::None => give_back(config, &store, &given.nonce),
        },
    }
}

/// There is no container for what was given: the lease ends, if it is this create's own.
pub(crate) fn give_up(config: &Config, given: Given) -> Result<(), Error> {
    if given.is_new { give_back(config, &store(config)?, &given.nonce) } else { Ok(()) }
}

fn recorded(store: &Store, lease: &Lease) -> Result<Option<Process>, Error> {
    let failed =
        |error| Error::io("read the container's init from", &store.pid_file(&lease.grant.nonce), &error);
    store.recorded_init(lease).map_err(failed)
}

/// Whether the runtime has written down an init, which has ended since.
fn was_recorded(store: &Store, lease: &Lease) -> bool {
    let own = store.pid_file(&lease.grant.nonce);
    let written = |path: &Path| path.metadata().is_ok_and(|file| file.is_file() && file.len() > 0);
    written(&own) || lease.pid_file.as_deref().is_some_and(written)
}

/// The runtime says that it made a container, and neither wrote down its init nor says which it is. A share
/// that may be in use is not freed by us: the deletion of the container frees it, or a person does.
fn keep(call: &Call<'_>, store: &Store, lease: &Lease) -> Result<(), Error> {
    let path = store.pid_file(&lease.grant.nonce);
    container_files::folder(&store.container_dir(&lease.grant.nonce))?;
    std::fs::write(&path, "unknown\n").map_err(|error| Error::io("write", &path, &error))?;
    Err(Error::new(
        Code::Internal,
        format!(
            "{} made {} and does not say which process it is; its share stays until {} delete {}, or fgpu release --force {}",
            call.runtime.path.display(),
            lease.key.short(),
            call.runtime.path.display(),
            call.line.id,
            lease.grant.nonce
        ),
    ))
}

enum Answer {
    /// This is the container's init.
    Init(i32),
    /// The container has ended.
    Ended,
    /// It does not know the container, or says nothing of its init.
    None,
}

/// Asks the runtime itself: `state ID`, which every OCI runtime has (OCI runtime-spec, runtime.md, "Query
/// State").
fn asked(call: &Call<'_>) -> Answer {
    #[derive(Deserialize)]
    struct State {
        status: String,
        #[serde(default)]
        pid: i32,
    }
    let global = &call.words[..call.line.at];
    let words = global.iter().cloned().chain(["state".into(), OsString::from(&call.line.id)]);
    let mut command = Command::new(&call.runtime.path);
    // From where it looked for its state directory when it made the container.
    let folder = match call.runtime.kind {
        Kind::Crun => bundle(call.line, call.environment),
        _ => call.environment.folder.clone(),
    };
    let output = command.args(words).current_dir(folder).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let state = output.ok().and_then(|output| serde_json::from_slice::<State>(&output.stdout).ok());
    match state {
        Some(State { status, .. }) if status == "stopped" => Answer::Ended,
        Some(State { pid, .. }) if pid > 0 => Answer::Init(pid),
        _ => Answer::None,
    }
}
