//! A task of a job: the job's lease, and a mount namespace in which the share lies over the driver.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use fgpu_allocator::proc::{cgroups, parent};
use fgpu_allocator::{Anchor, Applicant, Job, Lease, Process, Store};
use fgpu_engine::config::Config;
use fgpu_engine::grant::Image;
use fgpu_engine::layers::Layers;
use fgpu_engine::prepare::{Delivery, Share, prepare};
use fgpu_engine::set_share;
use fgpu_engine::watch::{Patience, Watch};
use fgpu_spec::{Code, Document, Error, Gpu, Inventory};

use super::view;
use crate::output::Output;
use crate::run::enter_view;

/// What the plugin knows of the task's job.
#[derive(Debug, clap::Args)]
pub(super) struct Task {
    /// SLURM_JOB_ID
    #[arg(long)]
    job: u32,

    /// Whose job it is
    #[arg(long)]
    uid: u32,

    /// SLURM_SHARDS_ON_NODE, those of the step or of the batch script
    #[arg(long)]
    shards: u32,

    /// The GPUs on which they are, by Slurm's numbers: 0, or 0,1
    #[arg(long, value_delimiter = ',')]
    gpus: Vec<usize>,

    /// cap or share
    #[arg(long)]
    compute: Option<String>,
}

/// Brings the job into its share, and this process into the namespace for the task. Says on standard output
/// that it is `granted`, with the device nodes of its GPUs, and waits until standard input ends.
///
/// # Errors
/// Every code of [`Code`]. The task must not run then.
pub(super) fn run(config: &Config, inventory: &Inventory, task: &Task) -> Result<Output, Error> {
    let gpus = chosen(config, inventory, task)?;
    let annotations = annotations(config, task, &gpus)?;
    let parent = rustix::process::getppid().and_then(|pid| Process::of(pid.as_raw_nonzero().get()));
    let maker = parent.ok_or_else(|| Error::new(Code::Internal, "the task has ended"))?;
    refuse_job_container(task.job, maker.pid)?;
    let job = Job { id: task.job, cgroup: cgroup(task.job)? };
    let applicant = Applicant {
        key: job.key(),
        bundle: "/".into(),
        maker,
        pid_file: None,
        anchor: Some(Anchor::Job(job.clone())),
    };
    // A container whose spec is these annotations, and whose root is the host's.
    let mut document = Document::parse(&serde_json::json!({ "annotations": annotations }).to_string())?;
    let mut delivery = Entering { task: maker, job, annotations: &annotations, gpus: &gpus };
    prepare(Ok(config.clone()), &applicant, &mut document, &mut delivery)?;
    Ok(Output::default())
}

/// Refuses a task whose mounts are not slurmstepd's: a plugin of Slurm's (job_container/tmpfs,
/// namespace/linux) has given the job mounts of its own, and the share's files would be in those.
fn refuse_job_container(job: u32, pid: i32) -> Result<(), Error> {
    let stepd = parent(pid).map_err(|error| Error::io("read", Path::new("/proc"), &error))?;
    let namespace = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let (task, step) = (namespace(pid), stepd.and_then(namespace));
    if task.is_some() && task == step {
        return Ok(());
    }
    Err(Error::new(
        Code::Denied,
        format!(
            "job {job}: Slurm gives its tasks mounts of their own (JobContainerType, NamespaceType), which fgpu \
             cannot use yet"
        ),
    ))
}

/// The GPUs that Slurm has chosen.
fn chosen<'a>(config: &Config, inventory: &'a Inventory, task: &Task) -> Result<Vec<&'a Gpu>, Error> {
    let all = super::gpus(config, inventory)?;
    let find = |number: &usize| {
        all.get(*number).copied().ok_or_else(|| {
            let message = format!(
                "job {}: Slurm has chosen GPU {number}, and fgpu knows {} of Slurm's here: [slurm] gpus of the \
                 configuration must name those of gres.conf, in its order",
                task.job,
                all.len()
            );
            Error::new(Code::NoGpu, message)
        })
    };
    task.gpus.iter().map(find).collect()
}

/// The shards as annotations.
fn annotations(config: &Config, task: &Task, gpus: &[&Gpu]) -> Result<BTreeMap<String, String>, Error> {
    let whole = config.slurm.shards_per_gpu;
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    // Slurm says how many there are in all and not how many on each.
    let each = match count {
        1 if task.shards <= whole => task.shards,
        2.. if task.shards == whole.saturating_mul(count) => whole,
        _ => {
            let message = format!(
                "job {}: {} shards on {count} GPUs of {whole} shards cannot be told apart; ask for shards of one GPU, \
                 or set [slurm] shards-per-gpu as gres.conf counts",
                task.job, task.shards
            );
            return Err(Error::new(Code::InvalidRequest, message));
        }
    };
    let uuids: Vec<_> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
    let user = nix::unistd::User::from_uid(task.uid.into()).ok().flatten();
    let own = [
        ("fgpu/fraction", format!("{each}/{whole}")),
        ("fgpu/count", count.to_string()),
        ("fgpu/device", uuids.join(",")),
        ("fgpu/isolation", "quota".to_owned()),
        ("fgpu/policy", "pack".to_owned()),
        ("fgpu/wait", "0s".to_owned()),
        ("fgpu/owner", user.map_or_else(|| task.uid.to_string(), |user| user.name)),
    ];
    let compute = task.compute.iter().map(|compute| ("fgpu/compute", compute.clone()));
    Ok(own.into_iter().chain(compute).map(|(key, value)| (key.to_owned(), value)).collect())
}

/// The cgroup of the job: its slurmstepd is in it, or in one below (proctrack/cgroup).
fn cgroup(job: u32) -> Result<String, Error> {
    let lines = cgroups("self").map_err(|error| Error::io("read", Path::new("/proc/self/cgroup"), &error))?;
    let name = format!("job_{job}");
    let of = |path: &str| {
        let parts: Vec<_> = path.split('/').collect();
        let at = parts.iter().position(|part| *part == name)?;
        Some(parts[..=at].join("/"))
    };
    lines.iter().find_map(|line| of(&line.path)).ok_or_else(|| {
        let message = format!(
            "job {job}: Slurm has no cgroup for it, by which fgpu would know its end; set \
             ProctrackType=proctrack/cgroup in slurm.conf"
        );
        Error::new(Code::DriverError, message)
    })
}

/// The delivery into a namespace that the task enters.
struct Entering<'a> {
    task: Process,
    job: Job,
    annotations: &'a BTreeMap<String, String>,
    gpus: &'a [&'a Gpu],
}

impl Delivery for Entering<'_> {
    type Guard = ();

    fn patience(&mut self, _: &Store) -> Result<Option<Patience>, Error> {
        let watch = Watch::default().process(self.task, "the task");
        Ok(Some(Patience { longest: std::time::Duration::ZERO, watch }))
    }

    fn guard(&self) -> Result<(), Error> {
        Ok(())
    }

    fn deliver(&mut self, share: &Share<'_>, document: &mut Document, (): &()) -> Result<(), Error> {
        let store = share.store;
        let folder = store.container_dir(share.nonce());
        fgpu_engine::container_files::folder(&folder)?;
        let turn = view::turn(&folder)?;
        let ended = || Error::new(Code::Internal, "the job's share was given back meanwhile");
        // What the job's other tasks have made of it.
        let now = store.leases()?.into_iter().find(|lease| lease.grant.nonce == *share.nonce());
        let now = now.ok_or_else(ended)?;
        self.is_on_its_gpus(&now)?;
        self.grow(share, &now, document)?;
        if view::enter_anothers(&now, &folder)? {
            drop(turn);
        } else {
            let layers = Layers::of_directory(Path::new("/"));
            let image =
                Image { layers: layers.as_ref(), env: Vec::new(), cwd: "/".into(), may_remount: false };
            enter_view(share, &image)?;
            view::hide(&share.config.driver_root)?;
            if !store.activate(share.nonce(), Some(self.task), Some(self.job.cgroup.clone()))? {
                return Err(ended());
            }
        }
        let nodes: Vec<_> = self.gpus.iter().map(|gpu| format!("/dev/nvidia{}", gpu.minor)).collect();
        let mut out = std::io::stdout();
        let said = writeln!(out, "granted {}", nodes.join(" ")).and_then(|()| out.flush());
        said.map_err(|error| Error::io("write", Path::new("standard output"), &error))?;
        view::wait_for_task();
        Ok(())
    }
}

impl Entering<'_> {
    /// A job has one lease, so all its steps are on the same GPUs.
    fn is_on_its_gpus(&self, lease: &Lease) -> Result<(), Error> {
        let held: Vec<_> = lease.grant.gpus.iter().map(|share| &share.uuid).collect();
        if held.len() == self.gpus.len() && self.gpus.iter().all(|gpu| held.contains(&&gpu.uuid)) {
            return Ok(());
        }
        let message = format!("job {}: its share is on other GPUs than this step's shards", self.job.id);
        Err(Error::new(Code::Conflict, message))
    }

    /// Gives the job more if this step has more shards than those before it: the first step of a job that
    /// salloc has made may have a part of them. The turn is held, so no two steps grow it at once.
    fn grow(&self, share: &Share<'_>, lease: &Lease, document: &Document) -> Result<(), Error> {
        let asked =
            fgpu_engine::grant::request(share.config, document)?.map_or(0, |request| request.cores_ppm);
        if lease.grant.gpus.iter().all(|gpu| gpu.cores_ppm >= asked) {
            return Ok(());
        }
        let fraction = self.annotations.get_key_value("fgpu/fraction");
        let fraction = fraction.map(|(key, value)| (key.clone(), value.clone())).into_iter().collect();
        set_share(share.config, share.store, lease, &fraction).map(drop)
    }
}
