//! `containerd-shim-fgpu-v2`: the stock containerd-shim-runc-v2 with a relay in front of it.
//!
//! containerd runs this program as it would run the stock shim. On `start` it starts the stock shim and a
//! relay, a small process that hands ttrpc frames through between containerd and the stock shim. Of all
//! requests it follows three: before `Create` reaches the stock shim the share is reserved and the bundle
//! edited, and after `Delete` (or as soon as the container's processes have ended) the share is given back.
//! See ARCHITECTURE.md.

#![deny(unsafe_code, clippy::print_stderr)]

mod address;
mod answer;
mod delete;
mod frame;
mod invocation;
mod job;
mod log;
mod relay;
mod request;
mod rpc;
mod start;
mod stock;
mod sys;

use std::process::ExitCode;

use invocation::{Action, Invocation};

// musl's own allocator is slow. Its lock is free in a fork of the relay, which has one thread; the tests have
// more.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    let invocation = Invocation { args: std::env::args_os().skip(1).collect() };
    let result = match invocation.action() {
        Action::Start => start::run(&invocation),
        Action::Delete => delete::run(&invocation),
        Action::Relay => relay::run(&invocation).map(|()| 0),
        Action::Other => stock::exec(&invocation).map(|()| 0),
    };
    match result {
        Ok(status) => std::process::exit(status),
        Err(error) => {
            fgpu_engine::say(format_args!("containerd-shim-fgpu-v2: {}", fgpu_spec::chain(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}
