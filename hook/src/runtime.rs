//! `fgpu-runtime`: an OCI runtime in front of the real one.
//!
//! On `create`, `run` and `restore` it prepares the bundle before the real runtime reads it, on `delete` it
//! releases after the real runtime succeeded. Everything else *becomes* the real runtime by `execve`.

mod arguments;
mod log;

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use fgpu_allocator::Process;
use fgpu_spec::{Code, Error};

use crate::child::{self, Bond, Ended};
use crate::config::Config;
use crate::{Container, Given, activate, prepare, release, release_container, say};
use arguments::{Arguments, Verb};

/// Runs the command line (without `argv[0]`) and says how the real runtime ended.
///
/// # Errors
/// Why the container is refused; it is also in the log file that the caller asked for with `--log`.
pub fn run(command_line: &[OsString]) -> Result<Ended, Error> {
    let arguments = Arguments::parse(command_line);
    serve(&arguments, command_line).inspect_err(|error| log::error(&arguments, error))
}

/// Writes an error into the log file that a runtime was given with this command line (without `argv[0]`), if any, and if
/// it says where that is: a relative path counts from the runtime's working directory.
pub(crate) fn log_for(command_line: &[OsString], error: &Error) {
    let arguments = Arguments::parse(command_line);
    if arguments.log.as_deref().is_some_and(Path::is_absolute) {
        log::error(&arguments, error);
    }
}

fn serve(arguments: &Arguments, command_line: &[OsString]) -> Result<Ended, Error> {
    // Whatever is wrong with the configuration, a container that runs can be stopped and deleted.
    let config = Config::load();
    let runtimes = config.as_ref().map_or_else(|_| Config::runtimes(), |config| config.runtimes.clone());
    let real = real_runtime(&runtimes)?;
    match (arguments.verb, &arguments.id) {
        (Verb::Create | Verb::Run, Some(id)) => make(config, arguments, id, &real, command_line),
        (Verb::Delete, Some(id)) => {
            let ended = run_real(&real, command_line)?;
            if ended.success() {
                tell(arguments, release_container(&namespace(arguments, &real), id));
            }
            Ok(ended)
        }
        _ => Err(become_runtime(&real, command_line)),
    }
}

fn make(
    config: Result<Config, Error>,
    arguments: &Arguments,
    id: &str,
    real: &Path,
    command_line: &[OsString],
) -> Result<Ended, Error> {
    let bundle = std::path::absolute(arguments.bundle.as_deref().unwrap_or(Path::new(".")))
        .map_err(|error| Error::io("find the bundle", Path::new("."), &error))?;
    let namespace = namespace(arguments, real);
    let state_file = arguments.pid_file.clone().unwrap_or_else(|| state_file(arguments, real, id));
    let pid_file = std::path::absolute(&state_file).unwrap_or(state_file);
    let maker = Process::current()?;
    let given = prepare(
        config,
        &Container {
            namespace: &namespace,
            id,
            bundle: &bundle,
            rootfs: &[],
            maker,
            pid_file: Some(pid_file.clone()),
            poststop: true,
        },
    )?;
    let Some(given) = given else {
        return Err(become_runtime(real, command_line));
    };
    let ended = match run_real(real, command_line) {
        Ok(ended) => ended,
        Err(error) => {
            tell(arguments, give_up(given));
            return Err(error);
        }
    };
    tell(arguments, settle(&ended, arguments, given, &pid_file));
    Ok(ended)
}

/// Runs the real runtime to its end. It dies with us: one that went on alone would make a container whose lease names a
/// maker that is dead.
fn run_real(real: &Path, command_line: &[OsString]) -> Result<Ended, Error> {
    let command: Vec<_> =
        std::iter::once(real.as_os_str()).chain(command_line.iter().map(OsString::as_os_str)).collect();
    child::run(&command, &Bond { dies_with_us: true, cgroup: None }, |_| {})
}

/// Replaces this process; comes back only with the reason why it could not.
fn become_runtime(real: &Path, command_line: &[OsString]) -> Error {
    Error::io("run", real, &Command::new(real).args(command_line).exec())
}

/// Says what went wrong after the real runtime has done its work. Its end is the caller's answer whatever becomes of
/// the lease: the reconciler finds an init that was not recorded, and a lease that was not released.
fn tell(arguments: &Arguments, result: Result<(), Error>) {
    if let Err(error) = result {
        say(&error);
        log::error(arguments, &error);
    }
}

/// After the real runtime: a created container's lease learns its init, any other ends.
fn settle(ended: &Ended, arguments: &Arguments, given: Given, pid_file: &Path) -> Result<(), Error> {
    let lives_on = arguments.verb == Verb::Create || arguments.detach;
    if !(ended.success() && lives_on) {
        return give_up(given);
    }
    // Without a pid file the lease stays tied to the runtime's state file, which the reconciler reads by itself.
    match std::fs::read_to_string(pid_file).ok().and_then(|text| text.trim().parse().ok()) {
        Some(pid) => activate(&given.nonce, pid),
        None => Ok(()),
    }
}

/// There is no container for what was given: the lease ends, if it is this create's own.
fn give_up(given: Given) -> Result<(), Error> {
    if given.is_new { release(&given.nonce) } else { Ok(()) }
}

/// The first of the configured runtimes that is there and is not this program.
fn real_runtime(names: &[PathBuf]) -> Result<PathBuf, Error> {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|stat| (stat.dev(), stat.ino()));
    let own = identity(Path::new("/proc/self/exe"));
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    let candidates = names.iter().flat_map(|name| {
        let directories = std::env::split_paths(&path).collect::<Vec<_>>();
        // `join` with an absolute name is that name.
        directories.into_iter().map(move |directory| directory.join(name))
    });
    let usable = |path: &PathBuf| path.is_absolute() && identity(path).is_some_and(|id| Some(id) != own);
    candidates.into_iter().find(usable).ok_or_else(|| {
        let names: Vec<_> = names.iter().map(|name| name.display().to_string()).collect();
        let message = format!(
            "none of the runtimes {} is in PATH; see runtimes in {}",
            names.join(", "),
            crate::config::PATH
        );
        Error::new(Code::Internal, message)
    })
}

/// The real runtime's state directory: `--root`, or its own default for root.
fn root(arguments: &Arguments, real: &Path) -> PathBuf {
    let default = if is_crun(real) { "/run/crun" } else { "/run/runc" };
    arguments.root.clone().unwrap_or_else(|| default.into())
}

fn is_crun(real: &Path) -> bool {
    real.file_name().is_some_and(|name| name.to_string_lossy().contains("crun"))
}

/// Container ids are unique below one `--root`, so that names the namespace: `docker/runtime-runc/moby`.
fn namespace(arguments: &Arguments, real: &Path) -> String {
    let root = root(arguments, real).display().to_string();
    let short = root.strip_prefix("/var/run/").or_else(|| root.strip_prefix("/run/")).unwrap_or(&root);
    short.trim_end_matches('/').to_owned()
}

fn state_file(arguments: &Arguments, real: &Path, id: &str) -> PathBuf {
    let name = if is_crun(real) { "status" } else { "state.json" };
    root(arguments, real).join(id).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Arguments {
        Arguments::parse(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_namespace_is_the_state_directory() {
        let runc = Path::new("/usr/bin/runc");
        let docker = parse(&["--root", "/var/run/docker/runtime-fgpu/moby", "create", "a"]);
        assert_eq!(namespace(&docker, runc), "docker/runtime-fgpu/moby");
        assert_eq!(namespace(&parse(&["create", "a"]), runc), "runc");
        assert_eq!(namespace(&parse(&["create", "a"]), Path::new("/usr/bin/crun")), "crun");
        assert_eq!(namespace(&parse(&["--root", "/srv/x/", "create", "a"]), runc), "/srv/x");
    }

    #[test]
    fn the_real_runtime_is_found_in_order_and_is_never_ourselves() {
        let own = std::fs::read_link("/proc/self/exe").unwrap();
        assert_eq!(real_runtime(&[own, "/bin/sh".into()]).unwrap(), Path::new("/bin/sh"));
        let error = real_runtime(&["no-such-runtime".into()]).unwrap_err();
        assert!(error.message.contains("no-such-runtime"), "{error}");
    }
}
