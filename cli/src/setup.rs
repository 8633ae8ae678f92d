//! `fgpu setup`: wires fgpu into a container engine or a scheduler, and out of it again.
//!
//! Each engine's part looks at the files there are and says what they shall be: a [`Plan`]. It is shown as a
//! diff and then carried out, or not. A plan that changes nothing is how a second run ends.

mod cdi;
mod change;
mod containerd;
mod crio;
mod diff;
mod docker;
mod file;
mod hooks;
mod json;
mod made;
mod podman;
mod program;
mod slurm;
mod toml;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use fgpu_spec::Error;

use crate::output::Output;
use change::Change;
pub(crate) use file::System;
pub(crate) use program::PATIENCE;
pub(crate) use slurm::has as slurm_has;

/// What `fgpu setup` is told.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The container engine, or the scheduler
    engine: Name,

    /// Show what would be changed, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Take out again what was put in, and nothing else
    #[arg(long)]
    undo: bool,

    /// Go through fgpu-runtime. Docker and containerd then use it instead of the shim; Podman and CRI-O get a
    /// runtime named fgpu beside the hook
    #[arg(long, conflicts_with = "undo")]
    runtime: bool,

    /// The node's root directory, to set up an image of a node; its programs are expected in /usr/bin
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Name {
    /// A runtime `fgpu` in /etc/docker/daemon.json, and `features.cdi` for Docker 25 to 28.1
    Docker,
    /// A runtime `fgpu` for Kubernetes in /etc/containerd/config.toml
    Containerd,
    /// The hook for containers with an annotation
    Podman,
    /// The hook for pods with an annotation
    Crio,
    /// CDI devices, for `--device fgpu.dev/gpu=0.25`, in /etc/cdi
    Cdi,
    /// Shards and the plugin that makes them a limit, in /etc/slurm
    Slurm,
}

/// What is asked of an engine's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Do { runtime: bool },
    Undo,
}

/// What an engine's part answers.
struct Plan {
    /// In the order in which they are made.
    changes: Vec<Change>,
    warnings: Vec<String>,
    /// What the administrator does next.
    next: Vec<String>,
}

/// Shows the changes, and makes them unless it is a dry run.
///
/// # Errors
/// `internal` if a file cannot be read or understood, and then nothing was changed; or if one cannot be
/// written. What was written before that is named, and a further run goes on from there.
pub(crate) fn run(arguments: &Arguments) -> Result<Output, Error> {
    let system = System::new(arguments.root.as_deref())?;
    let wish = if arguments.undo { Wish::Undo } else { Wish::Do { runtime: arguments.runtime } };
    let plan = plan(&system, arguments.engine, wish)?;
    let changes: Vec<_> = plan.changes.iter().filter(|change| !change.is_empty()).collect();
    let mut output = Output { warnings: plan.warnings, ..Output::default() };
    if changes.is_empty() {
        output.text = match wish {
            Wish::Undo => "Nothing of ours is there; nothing was changed.\n".into(),
            Wish::Do { .. } => "It is set up already; nothing was changed.\n".into(),
        };
        return Ok(output);
    }
    output.text = changes.iter().map(|change| change.diff(&system)).collect();
    output.text.push('\n');
    if arguments.dry_run {
        output.text += "Nothing was changed (--dry-run).\n";
        return Ok(output);
    }
    for change in changes {
        if let Err(error) = change.apply(&system) {
            output.failure = Some(error);
            return Ok(output);
        }
        let done = if change.after.is_some() { "wrote" } else { "removed" };
        output.text += &format!("{done} {}\n", system.shown(&change.path));
    }
    // An undo has nothing to try, only something to restart.
    let next = plan.next.iter().filter(|line| wish != Wish::Undo || line.starts_with("systemctl"));
    let next: String = next.map(|line| format!("  {line}\n")).collect();
    if !next.is_empty() {
        output.text += &format!("\nNext:\n{next}");
    }
    Ok(output)
}

fn plan(system: &System, engine: Name, wish: Wish) -> Result<Plan, Error> {
    match engine {
        Name::Docker => docker::plan(system, wish),
        Name::Containerd => containerd::plan(system, wish),
        Name::Podman => hooks::plan(system, &podman::ENGINE, wish),
        Name::Crio => hooks::plan(system, &crio::ENGINE, wish),
        Name::Cdi => cdi::plan(system, wish),
        Name::Slurm => slurm::plan(system, wish),
    }
}

/// Whether an engine is wired to fgpu.
///
/// # Errors
/// Why a setup would be refused.
pub(crate) fn is_done(system: &System, engine: Name) -> Result<bool, Error> {
    match engine {
        // Without `features.cdi` the runtime works all the same.
        Name::Docker => docker::has_runtime(system),
        _ => Ok(plan(system, engine, Wish::Do { runtime: false })?.changes.iter().all(Change::is_empty)),
    }
}

/// A warning for each program that is not where the configuration will say that it is.
fn missing(system: &System, programs: &[&str]) -> Vec<String> {
    let paths = programs.iter().map(|name| system.program(name));
    paths
        .filter(|path| !system.has(path))
        .map(|path| format!("{} is not there", system.shown(&path)))
        .collect()
}
