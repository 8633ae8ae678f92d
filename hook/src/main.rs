//! The OCI hook.
//!
//! ```text
//! fgpu-hook createRuntime|prestart [--timeout SECONDS]   state on stdin; gives the container its share
//! fgpu-hook createRuntime --device NAME                  the same, as a CDI device has it
//! fgpu-hook createRuntime --claim UID/REQUEST            the same, with the share that a claim has already
//! fgpu-hook poststop [NONCE]                             state on stdin; gives it back
//! fgpu-hook limit NONCE [--insist]                       state on stdin; the driver's part of a grant, at createRuntime
//! fgpu-hook precreate [--timeout SECONDS]                spec on stdin, edited spec on stdout (Podman)
//! ```
//!
//! `--timeout` must be shorter than the `timeout` of the hook's definition, if that has one: there the
//! runtime kills the hook.
//!
//! poststop always exits 0, see [`poststop::poststop`].

#![deny(unsafe_code, clippy::print_stderr)]

mod attach;
mod create;
mod entry;
mod file_system;
mod limit;
mod mounts;
mod parameters;
mod poststop;
mod precreate;
mod report;
mod resolve;
mod source;
mod state;
mod stop;
mod sys;
mod target;
mod ungranted;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use fgpu_engine::say;
use fgpu_spec::Nonce;

use crate::create::{Called, DEFAULT_TIMEOUT, create};
use crate::limit::limit;
use crate::precreate::precreate;

const USAGE: &str = "usage: fgpu-hook createRuntime|prestart|precreate [--timeout SECONDS]\n       \
                     fgpu-hook createRuntime --device NAME\n       \
                     fgpu-hook createRuntime --claim UID/REQUEST\n       \
                     fgpu-hook poststop [NONCE]\n       \
                     fgpu-hook limit NONCE [--insist]";

/// The time that the driver has for a memory limit; the hook's definition gives more.
const LIMIT: Duration = Duration::from_secs(50);

// musl's own allocator is slow: it costs a create 0.4 ms.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let input = std::io::stdin;
    let result = match words[..] {
        ["createRuntime", "--device", name] => create(input().lock(), &Called::Device(name)),
        ["createRuntime", "--claim", name] => create(input().lock(), &Called::Claim(name)),
        [stage @ ("createRuntime" | "prestart" | "precreate"), ref options @ ..] => match timeout(options) {
            Some(timeout) if stage == "precreate" => {
                precreate(input().lock(), std::io::stdout().lock(), timeout)
            }
            Some(timeout) => create(input().lock(), &Called::Stage(timeout)),
            None => return usage(),
        },
        ["limit", nonce, ref options @ ..] if matches!(options, [] | ["--insist"]) => match nonce.parse() {
            Ok(nonce) => limit(input().lock(), &nonce, !options.is_empty(), LIMIT),
            Err(()) => return usage(),
        },
        ["poststop"] => return poststop(None),
        ["poststop", nonce] => match nonce.parse::<Nonce>() {
            Ok(nonce) => return poststop(Some(nonce)),
            Err(()) => {
                drain();
                say(format_args!("fgpu-hook: {nonce:?} is no grant"));
                return ExitCode::SUCCESS;
            }
        },
        _ => return usage(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(error);
            ExitCode::FAILURE
        }
    }
}

fn timeout(options: &[&str]) -> Option<Duration> {
    match options {
        [] => Some(DEFAULT_TIMEOUT),
        ["--timeout", seconds] => {
            seconds.parse().ok().filter(|seconds| (1..=86400).contains(seconds)).map(Duration::from_secs)
        }
        _ => None,
    }
}

fn usage() -> ExitCode {
    drain();
    say(USAGE);
    ExitCode::from(2)
}

fn poststop(grant: Option<Nonce>) -> ExitCode {
    let input = std::io::stdin().lock();
    match grant {
        // A person who releases a grant by hand has no state to type.
        Some(_) if input.is_terminal() => poststop::poststop(std::io::empty(), grant),
        _ => poststop::poststop(input, grant),
    }
    ExitCode::SUCCESS
}

/// Reads what is on standard input where it says nothing that the arguments do not: a runtime that writes it
/// must not meet a closed pipe, or it is killed by SIGPIPE (crun 1.21). Whether all of it could be read
/// changes nothing.
fn drain() {
    let mut state = std::io::stdin().lock();
    if !state.is_terminal() {
        let _ = std::io::copy(&mut state, &mut std::io::sink());
    }
}
