//! `fgpu.so`, a plugin for Slurm's SPANK (spank(7)).
//!
//! It is loaded by srun, sbatch and salloc, where it adds `--fgpu-compute`; by slurmd, at whose start it has
//! the node's GPUs held for jobs; by the process of each step, slurmstepd; and at the end of each job. A task
//! of a job with shards is put into the job's share before it gives up root:
//!
//! ```text
//! slurmstepd ─ fork ─ task_init_privileged ─ task_init ─ execve
//!                      │ fgpu slurm task      │ says a refusal, on the job's standard error
//!                      └ setns
//! ```
//!
//! `fgpu`, a process of its own, does the work: nothing here is slow, and nothing here can end slurmd. A job
//! without shards is not touched. Of our functions `task_init` alone fails for Slurm, which ends one task: a
//! failure elsewhere would drain the node.

mod fgpu;
mod spank;

use std::ffi::{CStr, c_char, c_int, c_long};
use std::os::fd::AsFd;
use std::sync::Mutex;

use nix::sched::{CloneFlags, setns};
use nix::unistd::{AccessFlags, access};

use crate::spank::{Context, Spank, SpankHandle, Step};

/// What is read by Slurm's loader.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is Slurm's")]
pub static plugin_name: [c_char; 5] = text(b"fgpu\0");
/// As [`plugin_name`].
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is Slurm's")]
pub static plugin_type: [c_char; 6] = text(b"spank\0");
/// The release for which this plugin is, 0xMMmmpp: Slurm refuses one for another. Set by [`know_release`].
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is Slurm's")]
pub static mut plugin_version: u32 = 0;
/// As [`plugin_name`].
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "the name is Slurm's")]
pub static spank_plugin_version: u32 = 1;

const fn text<const N: usize>(bytes: &[u8; N]) -> [c_char; N] {
    let mut text = [0; N];
    let mut at = 0;
    while at < N {
        text[at] = bytes[at] as c_char;
        at += 1;
    }
    text
}

/// Slurm's releases by the number of their API, which grows by one with each (`API_CURRENT` in its META).
/// They have the same functions and structures of SPANK, as far as these are used here.
const RELEASES: [(c_long, u32); 8] = [
    (38, 0x16_05_00),
    (39, 0x17_02_00),
    (40, 0x17_0b_00),
    (41, 0x18_05_00),
    (42, 0x18_0b_00),
    (43, 0x19_05_00),
    (44, 0x19_0b_00),
    (45, 0x1a_05_00),
];

/// Run by the dynamic loader, before Slurm reads [`plugin_version`].
#[used]
#[unsafe(link_section = ".init_array")]
static KNOW_RELEASE: extern "C" fn() = know_release;

extern "C" fn know_release() {
    let api = spank::api_version() >> 16;
    let release = RELEASES.iter().find(|(number, _)| *number == api);
    // SAFETY: the loader runs this once, and nobody reads it before.
    unsafe { plugin_version = release.map_or(0, |(_, version)| *version) };
}

/// The outcome of the first call, for the second. Each task is a process of its own.
static TASK: Mutex<Task> = Mutex::new(Task::Untouched);

enum Task {
    Untouched,
    /// It is in the share, whose GPUs have these nodes.
    Granted(Vec<String>),
    Refused(String),
}

fn set(task: Task) {
    if let Ok(mut now) = TASK.lock() {
        *now = task;
    }
}

/// All contexts: the option is made known; slurmd holds its GPUs.
///
/// # Safety
/// As Slurm calls it: the handle is valid during the call, `words` has `count` strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init(
    handle: SpankHandle,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    // SAFETY: Slurm's.
    let (spank, program) = unsafe { (Spank::new(handle), program(count, words)) };
    match spank::context() {
        Context::Submit | Context::Step => spank.register_option(),
        Context::Daemon => {
            if let Err(error) = fgpu::call(&program, &["slurm", "hold"]) {
                spank::log(&format!("fgpu: the GPUs are not held for jobs yet: {error}"));
            }
        }
        Context::Other => {}
    }
    0
}

/// slurmstepd, in the process of a task that is root still.
///
/// # Safety
/// As [`slurm_spank_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init_privileged(
    handle: SpankHandle,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    // SAFETY: Slurm's.
    let (spank, program) = unsafe { (Spank::new(handle), program(count, words)) };
    if let Some(shards) = spank.env(c"SLURM_SHARDS_ON_NODE") {
        set(match enter(&spank, &program, &shards) {
            Ok(nodes) => Task::Granted(nodes),
            Err(why) => Task::Refused(why),
        });
    }
    0
}

/// Has the job's share made, and takes this process into its mount namespace.
fn enter(spank: &Spank, program: &str, shards: &str) -> Result<Vec<String>, String> {
    let variable = match spank.step() {
        Step::OfJob => c"SLURM_JOB_GPUS",
        Step::Own => c"SLURM_STEP_GPUS",
    };
    let gpus = spank.env(variable).or_else(|| spank.env(c"SLURM_JOB_GPUS"));
    let gpus = gpus.ok_or(
        "fgpu: driver-error: Slurm does not say on which GPU the shards are; gres.conf needs File= for each GPU",
    )?;
    let (job, uid) = (spank.job().to_string(), spank.uid().to_string());
    let mut words = vec!["slurm", "task", "--job", &job, "--uid", &uid, "--shards", shards, "--gpus", &gpus];
    let compute = spank.option();
    if let Some(compute) = &compute {
        words.extend(["--compute", compute]);
    }
    let granted = fgpu::ask(program, &words)?;
    let failed = |doing: &str, error: String| format!("fgpu: internal: cannot {doing}: {error}");
    let namespace =
        granted.namespace().map_err(|error| failed("open the share's mounts", error.to_string()))?;
    let cwd = std::env::current_dir();
    setns(namespace.as_fd(), CloneFlags::CLONE_NEWNS)
        .map_err(|errno| failed("enter the share's mounts", errno.to_string()))?;
    // Slurm goes to the job's directory again, as its user.
    let _ = cwd.and_then(std::env::set_current_dir);
    Ok(granted.nodes())
}

/// slurmstepd, in the process of a task that is its user by now, with the job's standard error.
///
/// # Safety
/// As [`slurm_spank_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init(
    handle: SpankHandle,
    _: c_int,
    _: *const *const c_char,
) -> c_int {
    // SAFETY: Slurm's.
    let spank = unsafe { Spank::new(handle) };
    // The lock is poisoned by a panic in the first call: then there is no share.
    let Ok(task) = TASK.lock() else { return -1 };
    let refused = match &*task {
        Task::Untouched => return 0,
        Task::Granted(nodes) => not_open(nodes),
        Task::Refused(why) => Some(why.clone()),
    };
    if let Some(why) = refused {
        eprintln!("{why}");
        return -1;
    }
    if let Task::Granted(nodes) = &*task {
        // Slurm counts the node's GPUs, and the share shows its own.
        let own: Vec<_> = (0..nodes.len()).map(|number| number.to_string()).collect();
        for name in [c"CUDA_VISIBLE_DEVICES", c"GPU_DEVICE_ORDINAL"] {
            if spank.env(name).is_some() {
                spank.set_env(name, &own.join(","));
            }
        }
    }
    0
}

/// Why the task may not open its GPUs, if so. Slurm confines it to the GPU that it has chosen
/// (ConstrainDevices), which is another one where its numbers and ours mean different GPUs.
fn not_open(nodes: &[String]) -> Option<String> {
    let node =
        nodes.iter().find(|node| access(node.as_str(), AccessFlags::R_OK | AccessFlags::W_OK).is_err())?;
    Some(format!(
        "fgpu: driver-error: the job may not open {node}: Slurm has chosen another GPU, if [slurm] gpus in \
         /etc/fgpu/config.toml is not in the order of gres.conf, or the node is not its user's"
    ))
}

/// slurmd, at the end of a job.
///
/// # Safety
/// As [`slurm_spank_init`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_job_epilog(
    handle: SpankHandle,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    // SAFETY: Slurm's.
    let (spank, program) = unsafe { (Spank::new(handle), program(count, words)) };
    // The reconciler frees a share that stays.
    if let Err(error) = fgpu::call(&program, &["slurm", "end", &spank.job().to_string()]) {
        spank::log(&format!("fgpu: the job's share stays until fgpu gc: {error}"));
    }
    0
}

/// `fgpu=PATH` of the line in plugstack.conf.
///
/// # Safety
/// `words` has `count` strings.
unsafe fn program(count: c_int, words: *const *const c_char) -> String {
    let words = (0..usize::try_from(count).unwrap_or(0)).map(|at| {
        // SAFETY: the caller's.
        let word = unsafe { CStr::from_ptr(*words.add(at)) };
        word.to_string_lossy().into_owned()
    });
    let named = words.filter_map(|word| word.strip_prefix("fgpu=").map(str::to_owned)).next_back();
    named.unwrap_or_else(|| "/usr/bin/fgpu".to_owned())
}
