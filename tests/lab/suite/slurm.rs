//! Slurm: the SPANK plugin of packaging/slurm makes shards a limit. Debian's Slurm is 24.11 in trixie and 26.05
//! in forky.
//!
//! Slurm's cgroup/v2 refuses a machine whose controllers are v1's, so it runs over v1.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use fgpu_lab::command::{run, shell, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::node;
use fgpu_lab::slurm::{Cluster, NODES};

use crate::limit::assert_filled;

pub(crate) const TESTS: &[Test] = &[
    Test::once("slurm::a_job_has_the_share_of_its_shards", a_job_has_the_share_of_its_shards),
    Test::once("slurm::the_fifth_of_five_quarters_waits", the_fifth_of_five_quarters_waits),
    Test::once("slurm::all_steps_of_a_job_have_one_share", all_steps_of_a_job_have_one_share),
    Test::once("slurm::tasks_that_start_at_once_have_one_view", tasks_that_start_at_once_have_one_view),
    Test::once("slurm::a_job_of_salloc_gets_what_its_steps_ask", a_job_of_salloc_gets_what_its_steps_ask),
    Test::once("slurm::an_array_of_a_hundred", an_array_of_a_hundred),
    Test::once("slurm::nothing_is_left", nothing_is_left),
    Test::once("slurm::a_user_gets_not_around_it", a_user_gets_not_around_it),
    Test::once("slurm::a_job_without_shards_is_untouched", a_job_without_shards_is_untouched),
    Test::once("slurm::what_fails_refuses_the_task_and_drains_nothing", what_fails_refuses_the_task),
    Test::once("slurm::its_gpus_are_for_jobs_alone", its_gpus_are_for_jobs_alone),
];

const ALLOC: &str = "/opt/programs/alloc";

/// The cluster, where Slurm can run. The programs of the images run on its nodes.
fn cluster() -> Option<Cluster> {
    let environment = std::env::var("FGPU_LAB_ENVIRONMENT").expect("boot sets it");
    if !environment.ends_with("v1") {
        return None;
    }
    if !Path::new(ALLOC).exists() {
        run(["tar", "-C", "/", "-xf", "/opt/images/debian13.tar", "./opt/programs"]).ok();
    }
    Some(Cluster::start())
}

/// A quarter of the GPUs, bytes: all nodes have the same.
fn quarter() -> u64 {
    node::gpus()[0].share(250_000)
}

/// The mounts of a node, and the folders of its leases. The GPUs' boards stay.
fn traces(cluster: &Cluster, node: &str) -> BTreeSet<String> {
    let script = "cut -d' ' -f5,9- /proc/self/mountinfo; ls /run/fgpu/containers 2>/dev/null; true";
    let all = cluster.on(node, &["sh", "-c", script]);
    all.ok().lines().filter(|line| !line.starts_with("/run/fgpu/board/")).map(str::to_owned).collect()
}

/// Waits until nobody holds anything. An epilog runs after its job's client has the answer.
#[track_caller]
fn until_free(cluster: &Cluster, node: &str) {
    cluster.until_empty();
    wait_until("the end of all leases", || {
        cluster.on(node, &["fgpu", "gc", "--quiet"]).ok();
        cluster.leases(node).is_empty()
    });
}

/// A node that has had a job, and what there is on it.
#[track_caller]
fn used(cluster: &Cluster, node: &str) -> BTreeSet<String> {
    cluster.srun(&["-w", node, "--gres=shard:1", "true"]).ok();
    until_free(cluster, node);
    traces(cluster, node)
}

/// Makes sure that a node is as it was.
#[track_caller]
fn assert_nothing_left(cluster: &Cluster, node: &str, before: &BTreeSet<String>) {
    until_free(cluster, node);
    assert_eq!(traces(cluster, node), *before);
    cluster.assert_up();
}

fn a_job_has_the_share_of_its_shards() {
    let Some(cluster) = cluster() else { return };
    let srun = |words: &[&str]| cluster.srun(&[&["-w", "n1", "--gres=shard:25"], words].concat());
    let before = used(&cluster, "n1");
    let smi = srun(&["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]);
    assert_eq!(smi.ok(), (quarter() >> 20).to_string(), "one GPU, and a quarter of it: {}", smi.story());
    assert_filled(srun(&[ALLOC, "fill"]).ok(), quarter());
    assert_eq!(srun(&["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]).ok(), "0");
    // The other GPU is 100 shards; this job's are on the second then.
    until_free(&cluster, "n1");
    let first = cluster.sbatch(&["-w", "n1", "--gres=shard:90"], "sleep 1000");
    cluster.until(&first, "RUNNING None");
    let second = srun(&["sh", "-c", &format!("echo $SLURM_STEP_GPUS $CUDA_VISIBLE_DEVICES; {ALLOC} fill")]);
    let numbers = second.ok().lines().next().unwrap_or_default();
    assert!(numbers.ends_with(" 0"), "its own GPUs are counted from 0: {}", second.story());
    assert_filled(second.ok(), quarter());
    run(["scancel", &first]).ok();
    let version = "/opt/programs/cudart-12.9";
    let cudart = srun(&[version, "info", "fill"]);
    assert!(cudart.ok().contains("fill"), "{}", cudart.story());
    for compute in ["cap", "share"] {
        until_free(&cluster, "n1");
        let option = format!("--fgpu-compute={compute}");
        let job = cluster.sbatch(&["-w", "n1", "--gres=shard:25", &option], "sleep 1000");
        wait_until("its lease", || !cluster.leases("n1").is_empty());
        assert_eq!(cluster.status("n1")["leases"][0]["compute"], compute);
        run(["scancel", &job]).ok();
    }
    let refused = srun(&["--fgpu-compute=off", "true"]);
    assert!(refused.refused().contains("fgpu-compute"), "{}", refused.story());
    assert_nothing_left(&cluster, "n1", &before);
}

fn the_fifth_of_five_quarters_waits() {
    let Some(cluster) = cluster() else { return };
    let jobs: Vec<_> =
        (0..5).map(|_| cluster.sbatch(&["-w", "n2", "--gres=shard:25"], "sleep 1000")).collect();
    for job in &jobs[..4] {
        cluster.until(job, "RUNNING None");
    }
    cluster.until(&jobs[4], "PENDING Resources");
    wait_until("four leases", || cluster.leases("n2").len() == 4);
    let names: Vec<_> = jobs[..4].iter().map(|job| (format!("slurm/{job}"), quarter())).collect();
    let mut leases = cluster.leases("n2");
    leases.sort();
    assert_eq!(leases, names);
    assert_eq!(cluster.status("n2")["leases"][0]["owner"], "alice");
    run(["scancel", &jobs[0]]).ok();
    cluster.until(&jobs[4], "RUNNING None");
    wait_until("its lease", || {
        cluster.leases("n2").iter().any(|(name, _)| *name == format!("slurm/{}", jobs[4]))
    });
    assert_eq!(cluster.leases("n2").len(), 4);
    run(["scancel", "-u", "alice"]).ok();
    cluster.until_empty();
    wait_until("their end", || cluster.leases("n2").is_empty());
}

/// The steps share the job's lease, whether they run one after the other or at once.
fn all_steps_of_a_job_have_one_share() {
    let Some(cluster) = cluster() else { return };
    let half = quarter() / 2;
    let more = half + half / 2;
    let script = format!(
        "exec >/home/alice/out 2>&1; srun --exact -n1 {ALLOC} take {more}; srun --exact -n1 {ALLOC} take {more}; \
         srun --exact -n1 --gres=shard:10 sh -c 'sleep 5 | {ALLOC} take {half} hold' & sleep 2; \
         srun --exact -n1 --gres=shard:15 {ALLOC} take {more} take {}; wait",
        half / 2
    );
    let _ = fs::remove_file("/home/alice/out");
    let job = cluster.sbatch(&["-w", "n2", "-n4", "--gres=shard:25"], &script);
    cluster.until(&job, "RUNNING None");
    let mut most = 0;
    wait_until("the job to end", || {
        most = most.max(cluster.leases("n2").len());
        cluster.state(&job).is_empty()
    });
    let out = fs::read_to_string("/home/alice/out").unwrap_or_default();
    assert_eq!(most, 1, "{out}");
    let lines: Vec<_> = out.lines().filter(|line| line.starts_with("take ")).collect();
    assert_eq!(
        lines[..2],
        [format!("take bytes={more} error=0"), format!("take bytes={more} error=0")],
        "{out}"
    );
    assert!(lines.contains(&format!("take bytes={more} error=2").as_str()), "{out}");
    assert!(lines.contains(&format!("take bytes={} error=0", half / 2).as_str()), "{out}");
}

/// What one of them mounts, the others see, as without fgpu.
fn tasks_that_start_at_once_have_one_view() {
    let Some(cluster) = cluster() else { return };
    let before = used(&cluster, "n2");
    let script = "readlink /proc/self/ns/mnt; nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits; sleep 1";
    let said = cluster.srun(&["-w", "n2", "-n8", "--gres=shard:25", "sh", "-c", script]);
    let lines: BTreeSet<_> = said.ok().lines().collect();
    assert_eq!(said.ok().lines().count(), 16, "{}", said.story());
    assert!(lines.len() == 2 && lines.contains(&*(quarter() >> 20).to_string()), "{lines:?}");
    assert_nothing_left(&cluster, "n2", &before);
}

/// Slurm tells a step how many shards it has itself, and not how many its job has.
fn a_job_of_salloc_gets_what_its_steps_ask() {
    let Some(cluster) = cluster() else { return };
    let before = used(&cluster, "n2");
    let info = |shards: u64| {
        let memory = node::gpus()[0].share(shards * 10_000);
        format!("info free={memory} total={memory} device={memory}")
    };
    let script = format!("for n in 10 25 5; do srun --gres=shard:$n {ALLOC} info; done");
    let said = cluster.salloc(&["-w", "n2", "--gres=shard:25", "sh", "-c", &script]);
    assert_eq!(said.ok().lines().collect::<Vec<_>>(), [info(10), info(25), info(25)], "{}", said.story());
    assert_nothing_left(&cluster, "n2", &before);
}

fn an_array_of_a_hundred() {
    let Some(cluster) = cluster() else { return };
    let folder = "/home/alice/array";
    let _ = fs::remove_dir_all(folder);
    run(["install", "-d", "-o", "alice", folder]).ok();
    let before = NODES.map(|node| used(&cluster, node));
    let tenth = node::gpus()[0].share(100_000);
    let options = ["--array=1-100", "--gres=shard:10", "-o", "/home/alice/array/%a"];
    cluster.sbatch(&options, &format!("{ALLOC} info"));
    cluster.until_empty();
    let said = format!("info free={tenth} total={tenth} device={tenth}");
    for number in 1..=100 {
        let out = fs::read_to_string(format!("{folder}/{number}")).unwrap_or_default();
        assert_eq!(out.trim(), said, "{number}");
    }
    for (node, before) in NODES.iter().zip(&before) {
        assert_nothing_left(&cluster, node, before);
    }
}

fn nothing_is_left() {
    let Some(cluster) = cluster() else { return };
    let before = used(&cluster, "n2");
    let start = |options: &[&str]| {
        let job = cluster.sbatch(&[&["-w", "n2", "--gres=shard:25"], options].concat(), "srun sleep 1000");
        cluster.until(&job, "RUNNING None");
        wait_until("its lease", || !cluster.leases("n2").is_empty());
        job
    };
    // The time limit, in minutes, passes meanwhile.
    let late = start(&["-t", "1"]);
    let job = start(&[]);
    run(["scancel", &job]).ok();
    wait_until("the other's end", || cluster.state(&job).is_empty() && cluster.leases("n2").len() == 1);

    // A slurmstepd that is killed, of the step and of the batch script.
    let job = start(&[]);
    wait_until("its step", || stepds(&job).len() >= 2);
    for pid in stepds(&job) {
        // One may end with another.
        run(["kill", "-KILL", &pid]);
    }
    run(["scancel", &job]).ok();
    wait_until("the killed one's end", || {
        cluster.state(&job).is_empty() && {
            cluster.on("n2", &["fgpu", "gc", "--quiet"]).ok();
            cluster.leases("n2").len() == 1
        }
    });

    // A slurmd that is killed: the job keeps its share, and the next slurmd ends it.
    let job = start(&[]);
    let slurmd = shell("pgrep -f '^slurmd -N n2'");
    for pid in slurmd.ok().split_whitespace() {
        run(["kill", "-KILL", pid]).ok();
    }
    cluster.on("n2", &["fgpu", "gc", "--quiet"]).ok();
    assert!(cluster.leases("n2").iter().any(|(name, _)| *name == format!("slurm/{job}")));
    cluster.on("n2", &["slurmd", "-N", "n2"]).ok();
    run(["scancel", &job]).ok();
    wait_until("its end", || cluster.state(&job).is_empty());
    wait_until("the time limit", || cluster.state(&late).is_empty());
    assert_nothing_left(&cluster, "n2", &before);

    // A node that goes away in the middle and comes back: as the end of a machine, its state is gone with it.
    let job = start(&[]);
    run(["/lab/slurm", "node", "n2", "stop"]).ok();
    run(["/lab/slurm", "node", "n2", "start"]).ok();
    run(["scancel", &job]).ok();
    wait_until("its end", || cluster.state(&job).is_empty());
    wait_until("the node", || shell("sinfo -h -n n2 -o %t").ok() == "idle");
    assert_eq!(cluster.leases("n2"), []);
    assert_filled(cluster.srun(&["-w", "n2", "--gres=shard:25", ALLOC, "fill"]).ok(), quarter());
}

/// The processes of slurmstepd for a job.
fn stepds(job: &str) -> Vec<String> {
    let found = shell(&format!("pgrep -f '^slurmstepd: \\[{job}\\.(batch|0)'"));
    found.stdout.split_whitespace().map(str::to_owned).collect()
}

/// A user sets Slurm's variables, unmounts in a user namespace, enters other namespaces, and calls the plugin's
/// program.
fn a_user_gets_not_around_it() {
    let Some(cluster) = cluster() else { return };
    let before = used(&cluster, "n1");
    let quarters = |script: &str| {
        let out =
            cluster.srun(&["-w", "n1", "--gres=shard:25", "sh", "-c", &format!("{script} {ALLOC} fill")]);
        assert_filled(out.ok(), quarter());
    };
    quarters("export SLURM_SHARDS_ON_NODE=100 SLURM_STEP_GPUS=1 CUDA_VISIBLE_DEVICES=0;");
    quarters("LD_LIBRARY_PATH=/opt/fgpu-sim/usr/lib/x86_64-linux-gnu LD_PRELOAD=");
    // All that can be unmounted; what came with the namespace is locked.
    let all = "for m in $(cut -d' ' -f5 /proc/self/mountinfo | tac); do umount $m; done 2>/dev/null;";
    let inside = format!("{all} exec {ALLOC} fill");
    let out = cluster.srun(&[
        "-w",
        "n1",
        "--gres=shard:25",
        "unshare",
        "--user",
        "--map-root-user",
        "--mount",
        "sh",
        "-c",
        &inside,
    ]);
    assert_filled(out.ok(), quarter());
    for denied in [
        "nsenter -t 1 -m true",
        "fgpu slurm hold --undo",
        "fgpu slurm task --job 1 --uid 0 --shards 100 --gpus 0",
    ] {
        cluster.srun(&["-w", "n1", "--gres=shard:25", "sh", "-c", denied]).refused();
    }
    // The environment of srun itself.
    let words =
        ["env", "SLURM_SHARDS_ON_NODE=100", "SLURM_STEP_GPUS=1", "SLURM_JOB_GPUS=1", "srun", "-w", "n1"];
    let out =
        run([&["runuser", "-u", "alice", "--"], &words[..], &["--gres=shard:25", ALLOC, "fill"]].concat());
    assert_filled(out.ok(), quarter());
    assert_nothing_left(&cluster, "n1", &before);
}

/// Its environment is byte for byte what Slurm makes it, and its mounts are the node's.
fn a_job_without_shards_is_untouched() {
    let Some(cluster) = cluster() else { return };
    let look = || {
        let script = "env -0 | sort -z | tr '\\0' '\\n'; readlink /proc/self/ns/*; cat /proc/self/mountinfo";
        let out = cluster.srun(&["-w", "n1", "sh", "-c", script]);
        // Numbers that are others for each job and each process.
        let own = ["SLURM_JOB", "SLURM_STEP", "SLURM_TASK_PID", "SLURM_SRUN", "SLURM_LAUNCH_NODE", "SRUN_"];
        let stays = |line: &&str| !own.iter().any(|name| line.starts_with(name)) || line.contains("NAME");
        let same: Vec<_> = out.ok().lines().filter(stays).map(str::to_owned).collect();
        let names: Vec<_> = out
            .ok()
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(name, _)| name.to_owned())
            .collect();
        (same, names)
    };
    let with = look();
    run(["cp", "/etc/slurm/plugstack.conf", "/tmp/plugstack"]).ok();
    run(["sed", "-i", "/fgpu/d", "/etc/slurm/plugstack.conf"]).ok();
    let without = look();
    run(["cp", "/tmp/plugstack", "/etc/slurm/plugstack.conf"]).ok();
    assert_eq!(with, without);
    assert!(with.0.len() > 40, "{with:?}");
}

/// Each failure is told in the job's output, and the node takes the next job.
fn what_fails_refuses_the_task() {
    let Some(cluster) = cluster() else { return };
    let asked = ["-w", "n2", "--gres=shard:25"];
    cluster.srun(&[&asked[..], &["true"]].concat()).ok();
    let fgpu = "/usr/bin/fgpu";
    run(["mv", fgpu, "/tmp/fgpu"]).ok();
    let real = Restored;
    let script = |text: &str| {
        fs::write(fgpu, text).expect("/usr/bin is ours");
        run(["chmod", "755", fgpu]).ok();
    };
    let refused = |why: &str| {
        let srun = cluster.srun(&[&asked[..], &["echo", "it runs"]].concat());
        assert!(srun.refused().contains(why) && srun.stdout.is_empty(), "{}", srun.story());
        let job = cluster.sbatch(&[&asked[..], &["-o", "/home/alice/refused"]].concat(), "echo it runs");
        wait_until("its end", || cluster.state(&job).is_empty());
        let out = fs::read_to_string("/home/alice/refused").unwrap_or_default();
        assert!(out.contains(why) && !out.contains("it runs"), "{out}");
        cluster.assert_up();
    };
    refused("cannot run /usr/bin/fgpu");
    script("#!/bin/sh\nkill -KILL $$\n");
    refused("ended with signal: 9");
    script("#!/bin/sh\necho nonsense\n");
    refused("says nothing of a grant");
    script("#!/bin/sh\necho fgpu: no-capacity: there is none >&2\nexit 1\n");
    refused("fgpu: no-capacity: there is none");
    drop(real);
    cluster
        .on(
            "n2",
            &[
                "sh",
                "-c",
                "cp /run/fgpu/allocations.json /tmp/whole; echo damaged >/run/fgpu/allocations.json",
            ],
        )
        .ok();
    refused("state-corrupt");
    cluster.on("n2", &["cp", "/tmp/whole", "/run/fgpu/allocations.json"]).ok();
    assert_filled(cluster.srun(&[&asked[..], &[ALLOC, "fill"]].concat()).ok(), quarter());
}

/// The real program comes back when this is dropped.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = fs::remove_file("/usr/bin/fgpu");
        let _ = run(["mv", "/tmp/fgpu", "/usr/bin/fgpu"]);
    }
}

/// The node's own containers and runs get nothing of Slurm's GPUs.
fn its_gpus_are_for_jobs_alone() {
    let Some(cluster) = cluster() else { return };
    let refused = cluster.on("n2", &["fgpu", "run", "-p", "0.1", "true"]);
    assert!(refused.refused().contains("slurm/n2"), "{}", refused.story());
    let status = cluster.on("n2", &["fgpu", "status"]);
    assert!(status.ok().contains("for jobs of Slurm alone"), "{}", status.story());
    cluster.on("n2", &["fgpu", "slurm", "hold", "--undo"]).ok();
    cluster.on("n2", &["fgpu", "run", "-p", "0.1", "true"]).ok();
}
