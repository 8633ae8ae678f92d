//! Slurm: this node's GPUs as shards in slurm.conf and gres.conf, and the plugin in plugstack.conf
//! (docs/slurm.md).
//!
//! gres.conf and plugstack.conf get a drop-in each. slurm.conf has one line for a node, which is changed in
//! place. The line as it was stays above it as a comment, from which an undo takes it.

mod conf;

use fgpu_engine::config::{self, Config};
use fgpu_spec::Error;

use super::change::Change;
use super::file::System;
use super::{Plan, Wish, made};

pub(crate) use conf::has;

const SLURM: &str = "/etc/slurm/slurm.conf";
const CGROUP: &str = "/etc/slurm/cgroup.conf";
/// Each file, and where a drop-in of ours for it is.
const GRES: [&str; 2] = ["/etc/slurm/gres.conf", "/etc/slurm/gres.conf.d/50-fgpu.conf"];
const PLUGSTACK: [&str; 2] = ["/etc/slurm/plugstack.conf", "/etc/slurm/plugstack.conf.d/50-fgpu.conf"];
const TITLE: &str = "# Written by `fgpu setup slurm`.\n";

/// What the files shall be.
///
/// # Errors
/// `internal` if there is no slurm.conf, or a file cannot be read.
pub(super) fn plan(system: &System, wish: Wish) -> Result<Plan, Error> {
    let Some(slurm) = system.read(SLURM)? else {
        return Err(system.wrong(SLURM, 0, "there is no configuration of Slurm here"));
    };
    let mut warnings = Vec::new();
    let change = |path: &str, before, after| Change { path: path.into(), before, after, ..Change::default() };
    let mut changes = Vec::new();
    let is_undo = wish == Wish::Undo;
    let devices = devices(system)?;
    let shards = Config::load_from(&system.place(config::PATH))?.slurm.shards_per_gpu;
    let pristine = conf::undone(&slurm, &mut warnings);
    if is_undo || devices.is_empty() {
        changes.push(change(SLURM, Some(slurm), Some(pristine)));
    } else {
        let node = conf::Node { name: node(system)?, gpus: devices.len(), shards };
        let edited = conf::edited(&pristine, &node, &mut warnings);
        changes.push(change(SLURM, Some(slurm), Some(edited)));
    }
    // The drop-in goes before what reads it, and after that again when it is taken out.
    let gres = dropped_in(system, GRES, "Include", |own| {
        let is_named = |name: &str| conf::has(own, "Name", |value| value.eq_ignore_ascii_case(name));
        if devices.is_empty() || is_named("shard") || is_undo {
            return Ok(None);
        }
        let of_gpus = !is_named("gpu") && !conf::has(own, "AutoDetect", |value| value != "off");
        let node = node(system)?;
        let gpu =
            devices.iter().filter(|_| of_gpus).map(|path| format!("NodeName={node} Name=gpu File={path}\n"));
        let shard =
            devices.iter().map(|path| format!("NodeName={node} Name=shard Count={shards} File={path}\n"));
        Ok(Some(gpu.chain(shard).collect()))
    })?;
    let plugstack = dropped_in(system, PLUGSTACK, "include", |_| {
        Ok((!is_undo).then(|| format!("required {}\n", plugin(system))))
    })?;
    changes.extend(gres.into_iter().chain(plugstack));
    if is_undo {
        changes.reverse();
    } else {
        warnings.extend(unfit(system)?);
        warnings.extend(super::missing(system, &["fgpu"]));
        if devices.is_empty() {
            warnings.push(
                "there is no GPU in /dev: the plugin alone is set up, as for a node where jobs are submitted"
                    .into(),
            );
        }
    }
    let restart = "systemctl restart slurmctld slurmd";
    let next = match wish {
        Wish::Undo => vec![format!("{restart} && fgpu slurm hold --undo")],
        Wish::Do { .. } => {
            vec![
                restart.to_owned(),
                format!("srun --gres=shard:{} nvidia-smi    # a quarter of a GPU", shards / 4),
            ]
        }
    };
    Ok(Plan { changes, warnings, next })
}

/// Changes of a drop-in and of the file that is to read it. `content` is told what the file has besides;
/// without a content both are taken out.
fn dropped_in(
    system: &System,
    [file, own]: [&str; 2],
    include: &str,
    content: impl Fn(&str) -> Result<Option<String>, Error>,
) -> Result<[Change; 2], Error> {
    let before = system.read(file)?;
    let rest = conf::without_marked(before.as_deref().unwrap_or_default());
    let content = content(&rest)?.map(|content| format!("{TITLE}{content}"));
    let folder = own.rsplit_once('/').map_or("", |(folder, _)| folder);
    let is_read = rest.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next().is_some_and(|word| word.eq_ignore_ascii_case("include"))
            && words.next().is_some_and(|path| {
                path == own || path == format!("{folder}/*.conf") || path == format!("{folder}/*")
            })
    });
    let after = match &content {
        Some(_) if !is_read => Some(conf::with_line(&rest, &format!("{include} {own}"))),
        // A file that we made has nothing else.
        _ if rest.is_empty() && (before.is_none() || made::read(system)?.contains(file)) => None,
        _ => Some(rest),
    };
    let drop_in = Change { path: own.into(), before: system.read(own)?, after: content, ..Change::default() };
    Ok([drop_in, Change { path: file.into(), before, after, ..Change::default() }])
}

/// Settings without which a share is not held, that the administrator decides.
fn unfit(system: &System) -> Result<Vec<String>, Error> {
    let slurm = system.read(SLURM)?.unwrap_or_default();
    let cgroup = system.read(CGROUP)?.unwrap_or_default();
    let mut found = Vec::new();
    if conf::has(&slurm, "ProctrackType", |value| value != "proctrack/cgroup") {
        found.push(format!(
            "{}: fgpu needs ProctrackType=proctrack/cgroup, by which it knows the end of a job",
            system.shown(SLURM)
        ));
    }
    if !conf::has(&slurm, "TaskPlugin", |value| value.contains("task/cgroup"))
        || !conf::has(&cgroup, "ConstrainDevices", |value| value.eq_ignore_ascii_case("yes"))
    {
        found.push(format!(
            "a job can open other jobs' GPUs without TaskPlugin=task/cgroup in {} and ConstrainDevices=yes in {}",
            system.shown(SLURM),
            system.shown(CGROUP)
        ));
    }
    Ok(found)
}

/// The plugin's words in plugstack.conf.
fn plugin(system: &System) -> String {
    let program = system.program("fgpu");
    let prefix = program.strip_suffix("/bin/fgpu").unwrap_or("/usr");
    let named = if program == "/usr/bin/fgpu" { String::new() } else { format!(" fgpu={program}") };
    format!("{prefix}/lib/fgpu/slurm/fgpu.so{named}")
}

/// The device nodes of the node's GPUs.
fn devices(system: &System) -> Result<Vec<String>, Error> {
    let listed = std::fs::read_dir(system.place("/dev")).into_iter().flatten().flatten();
    let number = |name: String| name.strip_prefix("nvidia")?.parse::<u32>().ok();
    let mut numbers: Vec<_> =
        listed.filter_map(|entry| number(entry.file_name().into_string().ok()?)).collect();
    numbers.sort_unstable();
    let all = numbers.into_iter().map(|number| format!("/dev/nvidia{number}")).collect();
    let named = Config::load_from(&system.place(config::PATH))?.slurm.gpus;
    let named: Vec<_> = named.iter().map(|path| path.display().to_string()).collect();
    Ok(if named.is_empty() { all } else { named })
}

/// The node's name, without its domain.
fn node(system: &System) -> Result<String, Error> {
    let own = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    let name = match system.is_this_node() {
        true => own(),
        false => system.read("/etc/hostname")?.unwrap_or_default(),
    };
    Ok(name.trim().split('.').next().unwrap_or_default().to_owned())
}
