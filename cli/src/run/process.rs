//! A share for a plain process, without a container.
//!
//! The process gets what a container gets, on the host's own root: this process takes a mount namespace of
//! its own, in which the quota libraries lie over the driver's, and starts the command in it. Nothing of the
//! host is written to but the state directory. The command's processes are in a cgroup of their own, so that
//! the share is free when the last of them has ended: what the command leaves behind is ended with it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fgpu_allocator::{Applicant, Key, Process, Store};
use fgpu_engine::child::{self, Bond, Ended};
use fgpu_engine::config::Config;
use fgpu_engine::grant::Image;
use fgpu_engine::layers::Layers;
use fgpu_engine::prepare::{Delivery, Share, prepare};
use fgpu_engine::watch::{Patience, Watch};
use fgpu_engine::{RUN_NAMESPACE, give_back, say, store};
use fgpu_spec::{Code, Document, Error, Request};

use super::cgroup::Cgroup;
use super::{leftovers, view};

/// Runs a command with the share that these annotations ask for, to its end, and gives the share back.
///
/// A command that cannot be executed has ended with 127, or 126, as a shell says it; why is on stderr.
///
/// Waits for room as long as `fgpu/wait` says. A signal that ends this process before the command runs leaves
/// a lease whose maker is dead; killed later, the command goes on and keeps the share until the reconciler
/// finds it gone.
///
/// # Errors
/// Every code of [`Code`], `denied` for a user other than root; the command has not run then.
pub(crate) fn run(
    config: &Config,
    annotations: &BTreeMap<String, String>,
    command: &[OsString],
) -> Result<Ended, Error> {
    let request = Request::parse(annotations, None, &config.defaults())?.ok_or_else(nothing_asked)?;
    let [program, ..] = command else {
        return Err(Error::new(Code::InvalidRequest, "no command is given: fgpu run -p 0.5 -- COMMAND"));
    };
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::new(
            Code::Denied,
            format!("{}: only root may make the mounts of a run; use sudo fgpu run …", request.text),
        ));
    }
    let own = Process::current()?;
    let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    let applicant = Applicant {
        key: Key { namespace: RUN_NAMESPACE.into(), id: format!("{}-{name}", own.pid) },
        bundle: std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/")),
        maker: own,
        pid_file: None,
        anchor: None,
    };
    // A container whose spec is these annotations, and whose root is the host's.
    let mut document = Document::parse(&serde_json::json!({ "annotations": annotations }).to_string())?;
    let mut running = Running { command, ended: None };
    let given = prepare(Ok(config.clone()), &applicant, &mut document, &mut running)?;
    // The command has run: its end is the caller's answer, whatever becomes of the lease. The reconciler
    // finds it.
    if let Some(given) = given
        && let Err(error) = give_back(config, &store(config)?, &given.nonce)
    {
        say(format_args!("fgpu: warning: the share is not given back until fgpu gc: {error}"));
    }
    match running.ended {
        Some(Ok(ended)) => Ok(ended),
        Some(Err(error)) => {
            let (code, status) = not_run(&error);
            say(Error { code, ..Error::io("run", Path::new(program), &error) });
            Ok(Ended::Exited(status))
        }
        None => Err(nothing_asked()),
    }
}

fn nothing_asked() -> Error {
    Error::new(Code::InvalidRequest, "nothing is asked for; for half a GPU say: fgpu run -p 0.5 -- COMMAND")
}

/// The code, and the exit status, of a command that could not be executed (env(1), POSIX `env`, EXIT STATUS).
fn not_run(error: &io::Error) -> (Code, i32) {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => (Code::InvalidRequest, 127),
        io::ErrorKind::PermissionDenied | io::ErrorKind::IsADirectory => (Code::InvalidRequest, 126),
        _ => (Code::Internal, 126),
    }
}

/// The delivery by a command that runs with the share, to its end.
struct Running<'a> {
    command: &'a [OsString],
    /// How it ended, or why it could not be executed.
    ended: Option<io::Result<Ended>>,
}

impl Delivery for Running<'_> {
    type Guard = ();

    fn patience(&mut self, _: &Store) -> Result<Option<Patience>, Error> {
        Ok(Some(Patience { longest: Duration::MAX, watch: Watch::default() }))
    }

    fn guard(&self) -> Result<(), Error> {
        Ok(())
    }

    fn deliver(&mut self, share: &Share<'_>, _: &mut Document, (): &()) -> Result<(), Error> {
        self.ended = Some(start(share, self.command)?);
        Ok(())
    }
}

/// Makes the share's files, and a mount namespace of this process in which they lie over the driver's.
///
/// # Errors
/// As [`Share::plan`]; the kernel refuses. This process is in a half-made namespace then.
pub(crate) fn enter_view(share: &Share<'_>, image: &Image<'_>) -> Result<(), Error> {
    let plan = share.plan(image)?;
    let stage = share.store.container_dir(share.nonce()).join("stage");
    let _held = leftovers::hold(&share.config.state_dir)?;
    view::enter(share.config, &plan, &stage)
}

/// Makes the view and the cgroup, and runs the command in them to its end. The inner error is why it could
/// not be executed.
fn start(share: &Share<'_>, command: &[OsString]) -> Result<io::Result<Ended>, Error> {
    let store = share.store;
    let nonce = share.nonce();
    let layers = Layers::of_directory(Path::new("/"));
    let cwd = std::env::current_dir().unwrap_or_default().to_string_lossy().into_owned();
    let env: Vec<String> = std::env::vars_os()
        .filter_map(|(name, value)| Some(format!("{}={}", name.to_str()?, value.to_str()?)))
        .collect();
    enter_view(share, &Image { layers: layers.as_ref(), env, cwd, may_remount: false })?;
    let cgroup = Cgroup::make(nonce);
    let path = || cgroup.as_ref().map(|cgroup| cgroup.path().to_owned());
    if share.has_driver_limit() {
        store.activate(nonce, None, path())?;
        share.limit()?;
    }
    let bond = Bond { dies_with_us: false, cgroup: cgroup.as_ref().map(Cgroup::members) };
    let ended = child::try_run(command, &bond, |pid| {
        // Without it the lease is ours as long as we live, which is as long as the command does.
        if let Err(error) = store.activate(nonce, Process::of(pid), path()) {
            say(format_args!(
                "fgpu: warning: the command is not written down as the holder of its share: {error}"
            ));
        }
    });
    drop(cgroup);
    ended
}
