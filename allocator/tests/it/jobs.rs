//! Leases of jobs of Slurm: one for all tasks of a job, until its cgroup has no process.

use fgpu_allocator::{Anchor, Applicant, Job, Lease, Process, Rules, Shards, State, Ticket};
use fgpu_spec::{Code, Error, Tier};

use crate::node::{Node, applicant, fraction, inventory, reserve};

fn task(id: u32, maker: Process) -> Applicant {
    let job = Job { id, cgroup: format!("/slurm/uid_1000/job_{id}") };
    Applicant { key: job.key(), anchor: Some(Anchor::Job(job)), ..applicant("", maker) }
}

fn take(node: &Node, ppm: u32, task: &Applicant) -> Result<Lease, Error> {
    node.store.reserve(&inventory(1), &Rules::default(), &fraction(ppm), &[Tier::Quota], task)
}

fn shards() -> Shards {
    Shards { node: "n1".into() }
}

#[test]
fn a_jobs_lease_is_all_its_tasks_and_ends_with_the_last() {
    let node = Node::new();
    let maker = node.spawn();
    let lease = take(&node, 250_000, &task(7, maker)).unwrap();
    assert_eq!((lease.state, lease.key.clone()), (State::Claimed, Job::key_of(7)));
    assert_eq!(take(&node, 250_000, &task(7, node.spawn())).unwrap(), lease, "a second task");
    assert!(
        node.store.is_in_use(&lease).unwrap(),
        "no process is in the cgroup yet, and the first task lives"
    );
    node.populate("slurm/uid_1000/job_7", true);
    node.kill(maker);
    assert_eq!(node.store.reconcile().unwrap(), []);
    assert_eq!(node.store.release_dead(&lease.key).unwrap(), [], "another step runs");
    node.populate("slurm/uid_1000/job_7", false);
    let ended = node.store.release_dead(&lease.key).unwrap();
    assert_eq!(ended.iter().map(|lease| lease.grant.nonce).collect::<Vec<_>>(), [lease.grant.nonce]);
    assert_eq!(node.store.leases().unwrap(), []);
}

/// One task stands for all that are in its mount namespace: the file does not grow with a job of thousands.
#[test]
fn one_of_its_tasks_that_run_is_written_down() {
    let node = Node::new();
    let lease = take(&node, 250_000, &task(7, node.spawn())).unwrap();
    node.populate("slurm/uid_1000/job_7", true);
    let cgroup = "/slurm/uid_1000/job_7".to_owned();
    for _ in 0..3 {
        let first = node.spawn();
        assert!(node.store.activate(&lease.grant.nonce, Some(first), Some(cgroup.clone())).unwrap());
        let joined = node.store.leases().unwrap().remove(0).joined;
        assert_eq!(joined.iter().map(|one| one.init).collect::<Vec<_>>(), [first]);
        node.kill(first);
    }
}

/// Slurm's GPUs serve jobs alone, and a job goes before requests that wait.
#[test]
fn slurms_gpus_are_for_jobs_alone() {
    let node = Node::new();
    let gpus = [inventory(1).gpus[0].uuid.clone()];
    assert_eq!(node.store.hold_for_jobs(&shards(), &gpus).unwrap(), [""; 0]);
    assert_eq!(node.store.hold_for_jobs(&shards(), &gpus).unwrap(), [""; 0], "again");
    let refused = reserve(&node.store, 1, 100_000, &applicant("web", node.spawn())).unwrap_err();
    assert_eq!(refused.code, Code::NoCapacity);
    assert!(refused.message.contains("held by slurm/n1"), "{refused}");
    let waiting = applicant("waits", node.spawn());
    let mut ticket = Ticket::new(waiting.maker);
    let request = fraction(900_000);
    let rules = Rules::default();
    let mut turn =
        || node.store.reserve_or_wait(&inventory(1), &rules, &request, &[Tier::Quota], &waiting, &mut ticket);
    turn().unwrap();
    turn().unwrap();
    for id in 1..=4 {
        take(&node, 250_000, &task(id, node.spawn())).unwrap();
    }
    assert_eq!(take(&node, 10_000, &task(5, node.spawn())).unwrap_err().code, Code::NoCapacity);
    let grown = |id, ppm| {
        let leases = node.store.leases().unwrap();
        let lease = leases.iter().find(|lease| lease.key == Job::key_of(id)).unwrap();
        node.store.resize(&inventory(1), &rules, &fraction(ppm), &lease.grant.nonce, |_, _| {})
    };
    assert_eq!(grown(1, 300_000).unwrap_err().code, Code::NoCapacity);
    grown(2, 200_000).unwrap().unwrap();
    let more = grown(1, 300_000).unwrap().unwrap();
    assert_eq!(more.grant.gpus[0].cores_ppm, 300_000, "neither the pool nor who waits is in the way");
    let claims = fgpu_allocator::Pool { name: "n1".into() };
    assert_eq!(node.store.hold_for_claims(&claims, &gpus).unwrap(), gpus, "jobs are no claims");
    node.store.hold_for_jobs(&shards(), &[]).unwrap();
    assert_eq!(node.store.leases().unwrap().len(), 5, "the jobs' and the other pool");
}
