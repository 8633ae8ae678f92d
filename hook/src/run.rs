//! `fgpu run`: a share for a plain process, without a container.
//!
//! The process gets what a container gets, on the host's own root: this process takes a mount namespace of its own, in
//! which the quota libraries lie over the driver's, and starts the command in it. Nothing of the host is written to
//! but the state directory. The command's processes are in a cgroup of their own, so that the share is free when
//! the last of them has ended: what the command leaves behind is ended with it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fgpu_allocator::{Claim, Key, Process, Store};
use fgpu_spec::{Code, Error, Request, Tier};

use crate::child::{self, Bond, Ended};
use crate::config::Config;
use crate::driver_step;
use crate::events::Events;
use crate::give_back;
use crate::grant::{self, Granted, Image};
use crate::layers::Layers;
use crate::say;
use crate::watch::{Patience, Watch};
use cgroup::Cgroup;

mod cgroup;
mod leftovers;
mod view;

pub use leftovers::clear as clear_leftovers;

/// Leases of plain processes are in this namespace.
pub(crate) const NAMESPACE: &str = "run";

/// Runs a command with the share that these annotations ask for, to its end, and gives the share back.
///
/// A command that cannot be executed has ended with 127, or 126, as a shell says it; why is on stderr.
///
/// Waits for room as long as `fgpu/wait` says. A signal that ends this process before the command runs leaves a lease
/// whose maker is dead; killed later, the command goes on and keeps the share until the reconciler finds it gone.
///
/// # Errors
/// Every code of [`Code`], `denied` for whoever is not root; the command has not run then.
pub fn run(
    config: &Config,
    annotations: &BTreeMap<String, String>,
    command: &[OsString],
) -> Result<Ended, Error> {
    let request = Request::parse(annotations, None, &config.defaults())?.ok_or_else(|| {
        Error::new(
            Code::InvalidRequest,
            "nothing is asked for; for half a GPU say: fgpu run -p 0.5 -- COMMAND",
        )
    })?;
    let [program, ..] = command else {
        return Err(Error::new(Code::InvalidRequest, "no command is given: fgpu run -p 0.5 -- COMMAND"));
    };
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::new(
            Code::Denied,
            format!("{}: only root may make the mounts of a run; use sudo fgpu run …", request.text),
        ));
    }
    let store = crate::store(config)?;
    let own = Process::current()?;
    let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let claim = Claim {
        key: Key { namespace: NAMESPACE.into(), id: format!("{}-{name}", own.pid) },
        bundle: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
        maker: own,
        pid_file: None,
    };
    let patience = Patience { longest: Duration::MAX, watch: Watch::default() };
    let (granted, ()) = grant::reserve(config, &store, &request, &claim, &patience, || Ok(()))
        .inspect_err(|error| Events::of(config).refused(Some(&claim.key), error))?;
    let ended =
        start(config, &store, &granted, command).map_err(|error| granted.undo(config, &store, error))?;
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => {
            let (code, status) = not_run(&error);
            let error = Error::io("run", Path::new(program), &error);
            say(granted.undo(config, &store, Error { code, ..error }));
            return Ok(Ended::Exited(status));
        }
    };
    // The command has run: its end is the caller's answer, whatever becomes of the lease. The reconciler finds it.
    if let Err(error) = give_back(config, &store, &granted.lease.grant.nonce) {
        say(format_args!("fgpu: warning: the share is not given back until fgpu gc: {error}"));
    }
    Ok(ended)
}

/// The code, and the exit status, of a command that could not be executed (env(1), POSIX `env`, EXIT STATUS).
fn not_run(error: &io::Error) -> (Code, i32) {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => (Code::InvalidRequest, 127),
        io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory => (Code::InvalidRequest, 126),
        _ => (Code::Internal, 126),
    }
}

/// Makes the view and the cgroup, and runs the command in them to its end. The inner error is why it could
/// not be executed.
fn start(
    config: &Config,
    store: &Store,
    granted: &Granted,
    command: &[OsString],
) -> Result<io::Result<Ended>, Error> {
    let nonce = &granted.lease.grant.nonce;
    let layers = Layers::of_directory(Path::new("/"));
    let cwd = std::env::current_dir().unwrap_or_default().to_string_lossy().into_owned();
    let env: Vec<String> = std::env::vars_os()
        .filter_map(|(name, value)| Some(format!("{}={}", name.to_str()?, value.to_str()?)))
        .collect();
    let plan =
        granted.plan(config, store, &Image { layers: layers.as_ref(), env, cwd, may_remount: false })?;
    let stage = store.container_dir(nonce).join("stage");
    let held = leftovers::hold(&config.state_dir)?;
    view::enter(config, &plan, &stage)?;
    drop(held);
    let cgroup = Cgroup::make(nonce);
    if granted.lease.grant.tier == Tier::Driver {
        store.activate(nonce, None, cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()))?;
        driver_step::limit(config, store, nonce, granted.insists)?;
    }
    let bond = Bond { dies_with_us: false, cgroup: cgroup.as_ref().map(Cgroup::members) };
    let ended = child::try_run(command, &bond, |pid| {
        let init = Process::of(pid);
        // Without it the lease is ours as long as we live, which is as long as the command does.
        if let Err(error) =
            store.activate(nonce, init, cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()))
        {
            say(format_args!(
                "fgpu: warning: the command is not written down as the holder of its share: {error}"
            ));
        }
    });
    drop(cgroup);
    ended
}
