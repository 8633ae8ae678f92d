//! A cluster of Slurm in the environment, by `inside/slurm`: Debian's slurmctld, two nodes, and munge.

use crate::command::{Output, run, wait_until};
use serde_json::Value;

/// The node with two GPUs, and the one with one.
pub const NODES: [&str; 2] = ["n1", "n2"];

/// The cluster; it ends when this is dropped.
#[derive(Debug)]
pub struct Cluster(());

impl Cluster {
    /// Starts it, and waits until its nodes are idle.
    #[track_caller]
    pub fn start() -> Self {
        let cluster = Self(());
        run(["/lab/slurm", "start"]).ok();
        cluster
    }

    /// Runs a command on a node, as root.
    #[track_caller]
    pub fn on(&self, node: &str, words: &[&str]) -> Output {
        run([&["/lab/slurm", "run", node], words].concat())
    }

    /// What `fgpu status` says on a node.
    #[track_caller]
    pub fn status(&self, node: &str) -> Value {
        serde_json::from_str(self.on(node, &["fgpu", "status", "--json"]).ok()).expect("it is JSON")
    }

    /// The leases of jobs on a node: their names and the memory that they have of their GPU.
    #[track_caller]
    pub fn leases(&self, node: &str) -> Vec<(String, u64)> {
        let status = self.status(node);
        let leases = status["leases"].as_array().expect("a list");
        let of = |lease: &Value| {
            let memory = lease["gpus"][0]["memory"].as_u64().expect("a number");
            (lease["name"].as_str().unwrap_or_default().to_owned(), memory)
        };
        leases.iter().map(of).collect()
    }

    /// Runs `srun` as alice.
    #[track_caller]
    pub fn srun(&self, words: &[&str]) -> Output {
        alice(&[&["srun"], words].concat())
    }

    /// Runs `salloc` as alice.
    #[track_caller]
    pub fn salloc(&self, words: &[&str]) -> Output {
        alice(&[&["salloc"], words].concat())
    }

    /// Submits a script as alice, and returns the job's number.
    #[track_caller]
    pub fn sbatch(&self, options: &[&str], script: &str) -> String {
        let script = format!("--wrap={script}");
        let output = alice(&[&["sbatch", "--parsable"], options, &[&script]].concat());
        output.ok().to_owned()
    }

    /// The state of a job and why it is in it, `RUNNING None`; empty when it is gone.
    #[track_caller]
    pub fn state(&self, job: &str) -> String {
        run(["squeue", "-h", "-j", job, "-o", "%T %r"]).stdout.trim().to_owned()
    }

    /// Waits until a job is in this state.
    #[track_caller]
    pub fn until(&self, job: &str, state: &str) {
        wait_until(&format!("job {job} to be {state}"), || self.state(job) == state);
    }

    /// Waits until no job is left.
    #[track_caller]
    pub fn until_empty(&self) {
        wait_until("the end of all jobs", || run(["squeue", "-h"]).ok().is_empty());
    }

    /// Makes sure that each node takes jobs.
    #[track_caller]
    pub fn assert_up(&self) {
        let states = run(["sinfo", "-h", "-N", "-o", "%t"]);
        assert!(
            states.ok().lines().all(|state| ["idle", "mix", "alloc"].contains(&state)),
            "{}",
            states.story()
        );
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = run(["/lab/slurm", "stop"]);
    }
}

/// Runs a command as alice, in a directory that she may write to.
#[track_caller]
fn alice(words: &[&str]) -> Output {
    let user = ["runuser", "-u", "alice", "--", "env", "-C", "/home/alice"];
    run([&user[..], words].concat())
}
