//! `fgpu-sim`: a simulated NVIDIA driver for a machine that has no GPU.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod calls;
mod faults;
mod install;
mod preset;
mod proc_tree;
mod status;
mod toml_node;

/// A simulated NVIDIA driver: libraries, device nodes and a /proc tree, for tests without a GPU.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a complete driver root.
    ///
    /// A second install replaces the first; programs that use the node go on with what they had.
    Install {
        /// The TOML file that describes the node.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Where the driver root goes.
        #[arg(long, value_name = "DIR")]
        root: PathBuf,
        /// A real nvidia-smi (tests/driver/fetch-nvidia-smi gets one); its version must be the node's.
        #[arg(long, value_name = "FILE")]
        nvidia_smi: Option<PathBuf>,
        /// Where libsim_cuda.so and libsim_nvml.so are, if not beside this program.
        #[arg(long, value_name = "DIR")]
        libraries: Option<PathBuf>,
    },
    /// Show the GPUs and who uses them.
    Status {
        /// The driver root.
        #[arg(long, value_name = "DIR")]
        root: PathBuf,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show which functions of libcuda were called since the log was started, and how often.
    ///
    /// Lines `call NAME CALLS CHARGES`: how often, and how often that took device memory. Lines `missing NAME
    /// CALLS 0`: it is not simulated, or a slot of a private table that nobody has described. Lines `unknown
    /// NAME CALLS 0`: somebody asked for a name (`NAME:VERSION`) or a table that does not exist.
    Calls {
        /// The driver root.
        #[arg(long, value_name = "DIR")]
        root: PathBuf,
        /// Start a log, or start it anew. What runs already is not counted in it.
        #[arg(long)]
        start: bool,
    },
    /// Inject faults; 0 takes one back.
    Set {
        /// The driver root.
        #[arg(long, value_name = "DIR")]
        root: PathBuf,
        /// The GPU, by its index on the node. Needed for all faults but nvml-init and cuda-init.
        #[arg(long, value_name = "INDEX")]
        gpu: Option<usize>,
        /// Faults: nvml-init, cuda-init, nvml-device, cuda-alloc, cuda-launch (the code that calls answer),
        /// nvml-delay-us, cuda-alloc-delay-us (microseconds).
        #[arg(value_name = "FAULT=NUMBER", required = true)]
        faults: Vec<faults::Setting>,
    },
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Install { config, root, nvidia_smi, libraries } => {
            let node = toml_node::read(&config)?;
            install::install(&node, &root, libraries.as_deref(), nvidia_smi.as_deref())
        }
        Command::Status { root, json } => status::show(&root, json),
        Command::Calls { root, start: true } => calls::start(&root),
        Command::Calls { root, start: false } => calls::show(&root),
        Command::Set { root, gpu, faults } => faults::set(&root, gpu, &faults),
    }
}
