//! The `fgpu` command: looks at the node, explains what a request would get, gives back what is not used.
//!
//! A library, so that man pages and completions are made from the command's own definitions ([`command`]).

mod arguments;
mod bar;
mod cdi;
mod changes;
mod doctor;
mod driver;
mod events;
mod exceeded;
mod explain;
mod find;
mod inventory;
mod metrics;
mod node;
mod output;
mod overlooked;
mod quantity;
mod queue;
mod release;
mod resize;
mod run;
mod screen;
mod setup;
mod share;
mod slurm;
mod status;
mod table;
mod used;
mod version;
mod wait;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use fgpu_engine::config::LogLevel;
use fgpu_engine::config::{self, Config};
use fgpu_engine::diagnostics::{self, Format, Sink};
use fgpu_spec::Error;

use crate::arguments::{Arguments, Command, LogFormat};
use crate::node::Node;
use crate::output::Output;
use crate::release::Tell;
use crate::status::Order;

/// The definition of the command line, for man pages and completions.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    output::finish(run(&Arguments::parse()))
}

/// Tells of each step on standard error, if the caller asked for it.
fn diagnose(arguments: &Arguments, path: Option<&Path>) {
    let format = match arguments.log_format {
        LogFormat::Text => Format::Text,
        LogFormat::Json => Format::Json,
    };
    let level = match arguments.debug {
        true => LogLevel::Debug,
        false => diagnostics::level(&Config::load_from(path.unwrap_or(Path::new(config::PATH)))),
    };
    diagnostics::start(level, format, Sink::Stderr);
}

fn run(arguments: &Arguments) -> Result<Output, Error> {
    let path = arguments.config.as_deref();
    diagnose(arguments, path);
    let node = || Node::configured(path);
    match &arguments.command {
        // An engine is set up on a node whose configuration may be wrong or missing, and that is a thing to
        // be found.
        Command::Setup(arguments) => setup::run(arguments),
        Command::Doctor(doctor) => doctor::run(path, doctor),
        // The caller of these has read the configuration, and says where to work.
        Command::Driver(arguments) => driver::run(arguments),
        Command::HoldContext { libcuda } => inventory::hold(libcuda),
        Command::WatchExceeded => exceeded::watch(&node()?),
        // Ends as the command did.
        Command::Run(arguments) => run::run(&node()?, arguments)?.relay(),
        Command::Status { watch: Some(interval), .. } => status::watch(&node()?, Order::Age, *interval),
        Command::Status { json, .. } => status::run(&node()?, *json),
        Command::Top { interval } => status::watch(&node()?, Order::Use, *interval),
        Command::Explain { json, container: Some(what), .. } => explain::container(&node()?, what, *json),
        Command::Explain { json, annotations, .. } => explain::run(&node()?, annotations, *json),
        Command::Inventory { refresh, json } => inventory::run(&node()?, *refresh, *json),
        Command::Cdi { write } => cdi::run(node(), *write),
        Command::Metrics(arguments) => metrics::run(&node()?, arguments),
        Command::Events(arguments) => events::run(&node()?, arguments),
        Command::Wait(arguments) => wait::run(&node()?, arguments),
        Command::Resize(arguments) => resize::run(&node()?, arguments),
        Command::Slurm(arguments) => slurm::run(&node()?, arguments),
        Command::Release { force, what } => release::run(&node()?.config, what, *force),
        Command::Gc { rebuild: true, force, .. } => release::rebuild(&node()?.config, *force),
        Command::Gc { json: true, .. } => release::gc(&node()?.config, Tell::Json),
        Command::Gc { quiet: true, .. } => release::gc(&node()?.config, Tell::Quietly),
        Command::Gc { .. } => release::gc(&node()?.config, Tell::Text),
    }
}
