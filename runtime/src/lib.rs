//! `fgpu-runtime`: an OCI runtime in front of the real one.
//!
//! On `create`, `run` and `restore` it prepares the bundle before the real runtime reads it, on `delete` it
//! releases after the real runtime succeeded, and after an `update` it opens the GPU again, which crun
//! closes. Everything else *becomes* the real runtime by `execve`.
//!
//! ```text
//! words ─ command_line.rs: what they mean to this runtime ─┬─ nothing that we know ─ unclear.rs: refuse, or become it
//!                                                          ├─ create, run, restore ─ prepare ─ run it ─ settle
//!                                                          ├─ delete, of what holds a lease ─ run it ─ release
//!                                                          ├─ update, of what holds a lease ─ run it ─ reopen
//!                                                          └─ other, or not ours ─ become it
//! ```
//!
//! A lease must know its container's init, whatever is killed when. So the real runtime is told to write it
//! to a file of ours (`--pid-file`), unless its caller names one. Where it writes its own state is not
//! certain, and only a second source.

#![deny(unsafe_code, clippy::print_stderr)]

use std::ffi::OsString;
use std::path::PathBuf;

use fgpu_allocator::{Key, Process};
use fgpu_engine::child::{self, Bond, Ended};
use fgpu_engine::config::Config;
use fgpu_engine::config::LogLevel;
use fgpu_engine::diagnostics;
use fgpu_engine::runtime::command_line::{CommandLine, Verb};
use fgpu_engine::runtime::{Environment, Log, Runtime, bundle};
use fgpu_engine::{
    Container, container_files, mention, prepare_bundle, release_deleted, reopen_container, say, store,
};
use fgpu_spec::Error;

mod settle;
mod unclear;

/// Runs the command line (without `argv[0]`) and says how the real runtime ended.
///
/// # Errors
/// Why the container is refused; it is also in the log file that the caller asked for with `--log`.
pub fn run(command_line: &[OsString]) -> Result<Ended, Error> {
    serve(command_line).inspect_err(|error| Log::of(command_line).error(error))
}

/// A command of the real runtime that is done here, too.
#[derive(Debug)]
struct Call<'a> {
    runtime: &'a Runtime,
    words: &'a [OsString],
    line: &'a CommandLine,
    environment: &'a Environment,
}

fn serve(words: &[OsString]) -> Result<Ended, Error> {
    // Whatever is wrong with the configuration, a container that runs can be stopped and deleted.
    let config = Config::load();
    let runtimes = config.as_ref().map_or_else(|_| Config::runtimes(), |config| config.runtimes.clone());
    let runtime = &Runtime::find(&runtimes)?;
    let environment = &Environment::own();
    let line = match runtime.read(words) {
        Ok(line) => line,
        Err(why) => {
            unclear::check(runtime, words, environment, &why)?;
            return Err(become_runtime(runtime, words));
        }
    };
    let call = Call { runtime, words, line: &line, environment };
    match line.verb {
        verb if verb.makes() => call.make(config),
        Verb::Delete => call.holding(config, |key, ended| match ended.success() {
            true => release_deleted(key),
            false => Ok(()),
        }),
        // One that fails may have done a part of it.
        Verb::Update => call.holding(config, |key, _| reopen_container(&key.namespace, &key.id)),
        _ => Err(become_runtime(runtime, words)),
    }
}

impl Call<'_> {
    /// Tells of each step where the runtime tells of its own. `--debug` stands before the command, with each
    /// runtime.
    fn diagnose(&self, level: LogLevel) {
        let asked = self.words[..self.line.at].iter().any(|word| word == "--debug");
        let log = Log::of(self.words);
        diagnostics::start(if asked { LogLevel::Debug } else { level }, log.format(), log.sink());
    }

    /// Has the real runtime do it, and then does something for the container's lease. For a container that
    /// holds nothing, it must not be noticeable that we were there.
    fn holding(
        &self,
        config: Result<Config, Error>,
        then: impl FnOnce(&Key, Ended) -> Result<(), Error>,
    ) -> Result<Ended, Error> {
        let &Self { runtime, words, line, environment } = self;
        let level = diagnostics::level(&config);
        let state_dir = config.map_or_else(|_| Config::state_dir(), |config| config.state_dir);
        let key = Key { namespace: runtime.namespace(line, environment), id: line.id.clone() };
        if !fgpu_allocator::may_hold(&state_dir, &key) {
            return Err(become_runtime(runtime, words));
        }
        self.diagnose(level);
        let ended = run_real(runtime, words)?;
        tell(words, then(&key, ended));
        Ok(ended)
    }

    fn make(&self, config: Result<Config, Error>) -> Result<Ended, Error> {
        let &Self { runtime, words, line, environment } = self;
        // Whatever else is wrong with it is for the runtime to say.
        let spec = runtime.config(line, environment);
        if mention::under(&config, &spec) != Some(true) {
            return Err(become_runtime(runtime, words));
        }
        self.diagnose(diagnostics::level(&config));
        let theirs = match runtime.pid_file(line, environment) {
            Ok(path) => path,
            Err(why) => {
                unclear::check(runtime, words, environment, &why)?;
                return Err(become_runtime(runtime, words));
            }
        };
        // One that is no file, or another process's, cannot be read again: `--pid-file /dev/stdout`.
        let is_file = |path: &&PathBuf| path.metadata().map_or(true, |file| file.is_file());
        let is_own = |path: &&PathBuf| !path.starts_with("/dev") && !path.starts_with("/proc");
        let readable = theirs.as_ref().filter(is_own).filter(is_file);
        let namespace = runtime.namespace(line, environment);
        let container = Container {
            namespace: &namespace,
            id: &line.id,
            bundle: &bundle(line, environment),
            config: Some(spec),
            rootfs: &[],
            maker: Process::current()?,
            pid_file: readable.cloned().or_else(|| runtime.state_file(line, environment)),
            poststop: true,
        };
        let own = config.clone();
        let (Some(given), Ok(config)) = (prepare_bundle(config, &container)?, own) else {
            return Err(become_runtime(runtime, words));
        };
        let run = || {
            let store = store(&config)?;
            let own = store.pid_file(&given.nonce);
            let mut words = words.to_vec();
            if theirs.is_none() {
                container_files::folder(&store.container_dir(&given.nonce))?;
                let behind = line.at + 1;
                words.splice(behind..behind, ["--pid-file".into(), own.clone().into_os_string()]);
            }
            Ok((run_real(runtime, &words)?, readable.cloned().unwrap_or(own)))
        };
        match run() {
            Ok((ended, pid_file)) => {
                tell(words, settle::settle(self, &config, ended, given, &pid_file));
                Ok(ended)
            }
            Err(error) => {
                tell(words, settle::give_up(&config, given));
                Err(error)
            }
        }
    }
}

/// Runs the real runtime to its end. It dies with us: one that went on alone would make a container whose
/// lease names a maker that is dead.
fn run_real(runtime: &Runtime, words: &[OsString]) -> Result<Ended, Error> {
    let program = runtime.path.as_os_str();
    let command: Vec<_> = std::iter::once(program).chain(words.iter().map(OsString::as_os_str)).collect();
    child::run(&command, &Bond { dies_with_us: true, cgroup: None }, |_| {})
}

/// Replaces this process; comes back only with the reason why it could not.
fn become_runtime(runtime: &Runtime, words: &[OsString]) -> Error {
    Error::io("run", &runtime.path, &child::become_this(&runtime.path, words))
}

/// Says what went wrong after the real runtime has done its work. Its end is the caller's answer whatever
/// becomes of the lease: the reconciler finds an init that was not recorded, and a lease that was not
/// released.
fn tell(words: &[OsString], result: Result<(), Error>) {
    if let Err(error) = result {
        say(&error);
        Log::of(words).error(&error);
    }
}
