//! The command line: every word of it, and what `--help` says. Man pages and completions are made from the
//! same definitions.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::{doctor, driver, events, find, metrics, resize, run, setup, share, slurm, status, wait};

const EXAMPLES: &str = "\
A container asks for a share with annotations:
  docker run --runtime=fgpu --annotation fgpu/fraction=0.25 IMAGE nvidia-smi

Examples:
  fgpu status                        who holds what; --watch draws it again and again
  fgpu explain fraction=0.25         what such a container would get now, and why not
  fgpu explain memory=8Gi cores=30% model=a100
  fgpu explain --container web       why this container has no GPU
  fgpu events --since 1d             who held what, and who was refused
  fgpu doctor                        what is in the way, and the commands that mend it
  fgpu inventory --refresh           after GPUs or driver files were changed on a running node

Exit codes:
  0  done; for `explain`: the request would be granted
  1  refused or failed: stderr has one line `fgpu: CODE: MESSAGE`; the codes never change
  2  wrong usage
  3  `doctor` found warnings and no errors";

/// A fraction of an NVIDIA GPU for a container.
///
/// Shares are granted by the container runtime when a container is created. This command shows them, and
/// helps when something is in the way. Everybody may look; what changes something needs root.
#[derive(Debug, Parser)]
#[command(name = "fgpu", version, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Arguments {
    /// Read this configuration instead of /etc/fgpu/config.toml, to try one out
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Tell each step on standard error, and how long it took
    #[arg(long, global = true)]
    pub(crate) debug: bool,

    /// The form of what --debug and log-level tell
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The forms that runc has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command with a share of a GPU, without a container
    ///
    /// The command sees this host, with its share in place of the GPUs. The share is given back when it ends,
    /// and what it leaves behind in the background is ended with it. Needs root.
    #[command(after_help = RUN_EXAMPLES)]
    Run(run::Arguments),

    /// Show what of each GPU is granted, and to whom
    #[command(after_help = STATUS_JSON)]
    Status {
        /// Print JSON
        #[arg(long, conflicts_with = "watch")]
        json: bool,

        /// Show it again and again, every so many seconds
        #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2",
              value_parser = status::interval)]
        watch: Option<Duration>,
    },

    /// Watch who uses what, the largest use first
    ///
    /// What `fgpu status` shows, drawn again and again. q or Ctrl-C ends it.
    Top {
        /// How often, in seconds
        #[arg(long, short = 'd', value_name = "SECONDS", default_value = "1", value_parser = status::interval)]
        interval: Duration,
    },

    /// Say what a container with these annotations would get now, or why nothing
    ///
    /// Nothing is reserved: another container may be faster. A wait that the request asks for is not waited.
    #[command(after_help = explain_help())]
    Explain {
        /// Print JSON
        #[arg(long)]
        json: bool,

        /// Say instead why this running container has no share, or which it has: its name or the beginning of
        /// its id
        #[arg(long, value_name = "NAME", conflicts_with = "annotations")]
        container: Option<String>,

        /// Annotations, with or without `fgpu/`: `fraction=0.25`, `fgpu/memory=4Gi`
        #[arg(required_unless_present = "container", value_name = "KEY=VALUE", value_parser = share::annotation)]
        annotations: Vec<(String, String)>,
    },

    /// Show the GPUs and driver files that fgpu knows of
    ///
    /// The answer is kept in the state directory and found to be stale by itself when the node boots or the
    /// driver changes. GPUs in error are left out, with a warning.
    #[command(after_help = INVENTORY_JSON)]
    Inventory {
        /// Ask the driver anew (needs root)
        #[arg(long)]
        refresh: bool,

        /// Print JSON
        #[arg(long)]
        json: bool,
    },

    /// Print the CDI file: devices by which Docker, Podman and containerd know shares
    ///
    /// fgpu-cdi.service writes it to /run/cdi/fgpu.json at boot, and it is written anew when the GPUs change.
    /// Then `docker run --device fgpu.dev/gpu=0.25` needs no other set-up.
    Cdi {
        /// Write it to /run/cdi/fgpu.json (needs root)
        #[arg(long)]
        write: bool,
    },

    /// Show who held which GPU, when and how much, and who was refused
    ///
    /// Every grant, change, end and refusal is recorded in /var/log/fgpu/events.jsonl, and what is turned
    /// over there is read, too. Times are UTC. `journalctl -t fgpu` has the same.
    #[command(after_help = EVENTS_EXAMPLES)]
    Events(events::Arguments),

    /// Print who has which part of which GPU as metrics, for Prometheus
    ///
    /// In text format 0.0.4. Nothing is changed and no driver is loaded. `systemctl enable --now
    /// fgpu-metrics.socket` serves them at 127.0.0.1:9974/metrics, `fgpu-textfile.timer` writes them for
    /// node_exporter.
    #[command(after_help = METRICS_EXAMPLES)]
    Metrics(metrics::Arguments),

    /// Sleep until a container with these annotations would be granted its share, or until containers have
    /// given theirs back
    ///
    /// Nothing is reserved and no place in the queue is taken: another container may be faster. To queue up,
    /// ask with the annotation fgpu/wait, or fgpu run --wait. A container that has ended counts as gone even
    /// if nobody has freed its share yet. With --timeout the error is `timed-out` and says what was missing.
    #[command(after_help = WAIT_EXAMPLES)]
    Wait(wait::Arguments),

    /// Give a running container another share of the GPUs that it has
    ///
    /// Its processes are held to it from their next call. What is not named stays. A share below what is in
    /// use ends nobody: there is no memory for the container until it uses less.
    ///
    /// It lasts until the container ends. One that starts again (`docker restart`) asks for what its
    /// annotations say.
    Resize(resize::Arguments),

    /// End a container's wait for room, or give back what it holds though nobody said that it ended
    ///
    /// One that waits leaves the queue, and its create fails with `cancelled`; a ticket of `fgpu status
    /// --json` names it, too. To give back by hand is not needed in normal life: the runtime releases, and
    /// `fgpu gc` finds what it missed.
    Release {
        /// Even if the container still runs. What it has allocated is then granted a second time
        #[arg(long)]
        force: bool,

        #[arg(value_name = "CONTAINER", help = find::HELP)]
        what: String,
    },

    /// Give back the shares of containers that are gone
    ///
    /// A timer does this every minute, and so does every request that falls short. A share is given back when
    /// its processes are proven gone, never because of its age. That there was nothing to do is no failure.
    ///
    /// By hand it also opens the devices of running containers again that an update of their resources has
    /// closed (crun).
    #[command(after_help = GC_JSON)]
    Gc {
        /// Print JSON
        #[arg(long, conflicts_with_all = ["rebuild", "quiet"])]
        json: bool,

        /// Say only what was released
        #[arg(long, short, conflicts_with = "rebuild")]
        quiet: bool,

        /// Make an allocator file that failed its check (state-corrupt) anew from what of it can be proven
        #[arg(long)]
        rebuild: bool,

        /// Even if grants that containers may still use are forgotten. They are then granted a second time
        #[arg(long, requires = "rebuild")]
        force: bool,
    },

    /// Find out why containers do not get their share, and what to do about it
    ///
    /// Looks at the driver, its device nodes, the kernel, the container engines and their versions, fgpu's
    /// own files, and others that hand out the same GPUs. Nothing is changed. Root sees more.
    #[command(after_help = DOCTOR_HELP)]
    Doctor(doctor::Arguments),

    /// Watch for containers that use more device memory than their share, until no container has one
    ///
    /// Asks the driver once a second, which knows what a program uses that goes around the limit. What is
    /// found is an event `exceeded`, a mark in `fgpu status`, and with act = "stop" in [exceeded] of the
    /// configuration the end of the container. systemd starts it: systemctl enable --now fgpu-watch.path. MIG
    /// slices and GPUs under MPS are not judged.
    WatchExceeded,

    /// Make or undo the driver's part of a grant; the front ends run it
    #[command(hide = true)]
    Driver(driver::Arguments),

    /// Give the tasks of a job of Slurm their share; the SPANK plugin runs it
    #[command(hide = true)]
    Slurm(slurm::Arguments),

    /// Wire fgpu into a container engine or into Slurm, or out of it again
    ///
    /// Every change is shown as a diff. What else is in the files stays as it is, comments and order
    /// included. Running it again changes nothing. Nothing is restarted; the command that does it is printed.
    #[command(after_help = SETUP_EXAMPLES)]
    Setup(setup::Arguments),

    /// Hold a CUDA context until standard input ends; for `fgpu inventory --refresh`, which looks what it
    /// takes
    #[command(hide = true, name = crate::inventory::HOLD)]
    HoldContext {
        /// The driver's libcuda
        libcuda: PathBuf,
    },
}

const SETUP_EXAMPLES: &str = "\
Examples:
  fgpu setup docker --dry-run        what would be changed
  fgpu setup docker                  then `docker run --runtime=fgpu --annotation fgpu/fraction=0.25 …`
  fgpu setup crio                    then pods with the annotation fgpu/fraction
  fgpu setup slurm                   then `srun --gres=shard:25 …`: a quarter of a GPU
  fgpu setup docker --undo

A file that cannot be understood is an error that names its line, and nothing is changed.";

const DOCTOR_HELP: &str = "\
Examples:
  fgpu doctor
  fgpu doctor --report > report.txt  for a bug report; look through it before you send it
  fgpu doctor --root /host           from a debugging pod

Exit codes:
  0  nothing is wrong
  1  there are errors: containers do not get their share, or it is not held
  3  there are warnings only

JSON: { schema, findings: [{ check, severity: \"error\"|\"warning\", what, mend: [] }], fine: [] }
The names in `check` never change.";

const EVENTS_EXAMPLES: &str = "\
Examples:
  fgpu events --since 1d
  fgpu events --gpu 0 --event granted,released
  fgpu events --follow -n 10         the last ten, and what comes
  fgpu events --json --event refused | jq -r .message

Events:
  granted     a container has a share
  resized     it has another one; DETAIL says which it had before
  released    it gave it back; HELD says how long it had it
  reconciled  the same, but nobody said so: its processes were found gone
  lost        given up by `fgpu gc --rebuild --force`
  refused     a container was told no; DETAIL says why
  exceeded    it uses more than its share, as the driver counts; DETAIL says how much

JSON: one object per line; docs/json.md of the documentation lists the fields.";

const METRICS_EXAMPLES: &str = "\
Examples:
  fgpu metrics | grep ^fgpu_gpu_memory
  fgpu metrics --textfile /var/lib/prometheus/node-exporter/fgpu.prom
  fgpu metrics --dcgm-mapping /run/fgpu-dcgm    with dcgm-exporter --hpc-job-mapping-dir /run/fgpu-dcgm

docs/metrics.md of the documentation lists all of them, with alert rules and dashboards.";

const WAIT_EXAMPLES: &str = "\
Examples:
  fgpu wait fraction=0.5 && start-job
  fgpu wait --timeout 10m count=2 memory=40Gi
  fgpu wait 3f1c0a9b2d11             until this container's share is free";

const RUN_EXAMPLES: &str = "\
Examples:
  fgpu run -p 0.5 -- python train.py
  fgpu run -n 2 -m 8Gi --wait 2m -- ./job
  fgpu run -p 25% -a model=h100 nvidia-smi

The exit code is the command's; 127 if there is no such command, 126 if it cannot be executed, and 1 if it got no share,
each with `fgpu: CODE: MESSAGE` on stderr.";

const STATUS_JSON: &str = "\
Examples:
  fgpu status
  fgpu status --watch                every two seconds; `fgpu top` sorts by use
  fgpu status --json | jq '.leases[] | {name, owner, gpus}'

Names and images come from the files of the container's engine, which mostly only root may read. Colours are for
terminals; NO_COLOR=1 turns them off. With --json all amounts are exact: docs/json.md of the documentation lists the fields.";

const GC_JSON: &str = "\
JSON: { schema, released: [{ namespace, container, grant, owner, request }] }";

const EXPLAIN_JSON: &str = "\
fgpu explain --container NAME: a key that is written otherwise (fgpu.fraction, FGPU/fraction), a label in place of an annotation, or an
annotation on a container that was started without fgpu asks for nothing, and nothing else says so.
JSON: { schema, container, request: null or text, why: null or text, mend: null or text }

JSON: { schema, granted, request, tier, compute, error: null or { code, message }, why: null or text, notes, wasted, gpus: [{ index,
  uuid, model, mig_enabled, granted, reason: null or text, usable_memory, free_memory, foreign_memory, free_cores_ppm, asked_memory,
  asked_cores_ppm, left_memory, left_cores_ppm: null unless granted }] }
Memory is in bytes, cores in parts per million of one GPU.";

/// What may be asked for, from the grammar's own reference.
fn explain_help() -> String {
    let line = |key: fgpu_spec::KeyReference| {
        let sentence = key.meaning.split_inclusive(". ").next().unwrap_or_default().trim_end();
        format!("  {:<16} {}\n      {sentence}\n", key.key, key.examples.join("  "))
    };
    let keys: String = fgpu_spec::key_reference().map(line).collect();
    format!("Annotations, with examples:\n{keys}\n{EXPLAIN_JSON}")
}

const INVENTORY_JSON: &str = "\
JSON: the file inventory.json of the state directory: { schema, version, boot_id, root, driver_version, cuda_version, driver_limits,
  gpus: [{ uuid, index, minor, model, pci, numa, total_memory, reserved_memory, mig_enabled, context_memory }],
  topology: [one line per GPU with its links to those before it, as in nvidia-smi topo -m: \"NV18+NODE SYS\"],
  files: [{ kind: \"library\"|\"program\"|\"other\", name, host }] }
Memory is in bytes; context_memory is what a CUDA context takes, absent if it could not be measured; cuda_version 12040 is
CUDA 12.4, 0 is unknown.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }
}
