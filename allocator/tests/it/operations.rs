//! The operations one by one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;

use fgpu_allocator::{Applicant, Change, Host, Lease, Observer, Process, Rules, State, Store, Verdict};
use fgpu_spec::{Code, Compute, Nonce, Policy, Request, Tier};

use crate::node::{Node, applicant, assert_no_overcommit, fraction, inventory, key, reserve};

fn mode(path: std::path::PathBuf) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_lease_lives_from_reserve_to_release() {
    let node = Node::new();
    assert_eq!(node.store.leases().unwrap(), []);
    let maker = node.spawn();
    let lease = reserve(&node.store, 1, 250_000, &applicant("a", maker)).unwrap();
    assert_eq!(lease.state, State::Reserving);
    assert_eq!((lease.key.clone(), lease.maker), (key("a"), maker));
    assert_eq!((lease.grant.tier, lease.grant.gpus[0].cores_ppm), (Tier::Quota, 250_000));
    assert_eq!(node.store.leases().unwrap(), [lease.clone()]);

    let (nonce, init) = (lease.grant.nonce, node.spawn());
    for _ in 0..2 {
        assert!(node.store.activate(&nonce, Some(init), Some("/docker/a".into())).unwrap());
        assert!(node.store.activate(&nonce, None, None).unwrap());
        let leases = node.store.leases().unwrap();
        assert_eq!(leases[0].state, State::Active);
        assert_eq!((leases[0].init, leases[0].cgroup.as_deref()), (Some(init), Some("/docker/a")));
    }
    node.make_folder(&lease);
    let released = node.store.release(&nonce).unwrap().unwrap();
    assert_eq!(released.grant, lease.grant);
    assert_eq!(node.folders(), [""; 0]);
    assert_eq!(node.store.release(&nonce).unwrap(), None);
    assert!(!node.store.activate(&nonce, Some(init), None).unwrap());
    assert_eq!(node.store.leases().unwrap(), []);
}

/// Writes down what it is told.
#[derive(Debug)]
struct Notes(mpsc::Sender<(&'static str, String)>);

impl Observer for Notes {
    fn observe(&self, change: Change<'_>) {
        let note = match change {
            Change::Granted(lease) => ("granted", lease.key.id.clone()),
            Change::Resized { before, after } => {
                assert_eq!(before.grant.nonce, after.grant.nonce);
                let cores = |lease: &Lease| lease.grant.gpus[0].cores_ppm;
                ("resized", format!("{} to {}", cores(before), cores(after)))
            }
            Change::Released(lease) => ("released", lease.key.id.clone()),
            Change::Reconciled(lease) => ("reconciled", lease.key.id.clone()),
            Change::Lost(nonce) => ("lost", nonce.to_string()),
        };
        self.0.send(note).unwrap();
    }
}

#[test]
fn an_observer_is_told_once_of_everything_that_happened_and_of_nothing_else() {
    let (sender, notes) = mpsc::channel();
    let mut node = Node::new();
    let host = Host { proc: node.path("proc"), cgroup: node.path("cgroup") };
    let store = Store::open_on(&node.path("state"), host).unwrap();
    node.store = store.observed_by(Box::new(Notes(sender)));
    let told = || notes.try_iter().collect::<Vec<_>>();
    let note = |word, id: &str| (word, id.to_owned());

    let lease = reserve(&node.store, 1, 600_000, &applicant("a", node.spawn())).unwrap();
    assert_eq!(told(), [note("granted", "a")]);
    let lives = node.spawn();
    node.store.activate(&lease.grant.nonce, Some(lives), None).unwrap();
    assert_eq!(reserve(&node.store, 1, 600_000, &applicant("b", lives)).unwrap_err().code, Code::NoCapacity);
    assert_eq!(node.store.stale().unwrap(), []);
    assert_eq!(told(), [], "a refusal is told by who asked");

    let (gpus, nonce) = (inventory(1), lease.grant.nonce);
    node.store.resize(&gpus, &Rules::default(), &fraction(300_000), &nonce, |_, _| {}).unwrap();
    assert_eq!(told(), [note("resized", "600000 to 300000")]);
    node.store.release(&nonce).unwrap();
    node.store.release(&nonce).unwrap();
    assert_eq!(told(), [note("released", "a")]);

    let dies = node.spawn();
    reserve(&node.store, 1, 600_000, &applicant("dead", dies)).unwrap();
    node.kill(dies);
    assert_eq!(node.store.stale().unwrap().len(), 1);
    assert_eq!(told(), [note("granted", "dead")], "looking frees nothing");
    reserve(&node.store, 1, 600_000, &applicant("c", lives)).unwrap();
    assert_eq!(told(), [note("reconciled", "dead"), note("granted", "c")]);
    node.store.release_key(&key("c")).unwrap();
    assert_eq!(told(), [note("released", "c")]);
}

#[test]
fn idempotent_calls_do_not_touch_the_file() {
    let node = Node::new();
    let lease = reserve(&node.store, 1, 250_000, &applicant("a", node.spawn())).unwrap();
    let init = Some(node.spawn());
    node.store.activate(&lease.grant.nonce, init, None).unwrap();
    let inode = || std::os::unix::fs::MetadataExt::ino(&fs::metadata(node.file()).unwrap());
    let before = inode();
    node.store.activate(&lease.grant.nonce, init, None).unwrap();
    node.store.release(&Nonce([9; 16])).unwrap();
    node.store.release_key(&key("other")).unwrap();
    node.store.reconcile().unwrap();
    assert_eq!(inode(), before);
}

#[test]
fn permissions_to_read_and_to_lock() {
    let node = Node::new();
    reserve(&node.store, 1, 250_000, &applicant("a", node.spawn())).unwrap();
    reserve(&node.store, 1, 250_000, &applicant("b", node.spawn())).unwrap();
    assert_eq!(mode(node.path("state")), 0o755);
    assert_eq!(mode(node.file()), 0o644);
    assert_eq!(mode(node.path("state/lock")), 0o600, "nobody but root may hold it up");
}

#[test]
fn a_late_release_of_a_former_life_frees_nothing() {
    let node = Node::new();
    let first = node.spawn();
    let old = reserve(&node.store, 1, 250_000, &applicant("a", first)).unwrap();
    node.kill(first);
    let new = reserve(&node.store, 1, 250_000, &applicant("a", node.spawn())).unwrap();
    assert_eq!(node.store.leases().unwrap(), [new.clone()], "a restarted container has one lease");
    assert_eq!(node.store.release(&old.grant.nonce).unwrap(), None);
    assert_eq!(node.store.leases().unwrap(), [new]);
}

#[test]
fn a_living_container_of_the_same_name_keeps_its_lease() {
    let node = Node::new();
    let old = reserve(&node.store, 1, 250_000, &applicant("a", node.spawn())).unwrap();
    let new = reserve(&node.store, 1, 250_000, &applicant("a", node.spawn())).unwrap();
    assert_eq!(node.store.leases().unwrap(), [old.clone(), new.clone()]);
    let other = reserve(&node.store, 1, 250_000, &applicant("ab", node.spawn())).unwrap();
    let has = || ["a", "ab", "b"].map(|id| node.store.has(&key(id)).unwrap());
    assert_eq!(has(), [true, true, false]);
    assert_eq!(node.store.release_key(&key("a")).unwrap(), [old, new]);
    assert_eq!(has(), [false, true, false]);
    assert_eq!(node.store.leases().unwrap(), [other]);
}

#[test]
fn releasing_the_dead_of_a_name_spares_its_living_and_every_other_name() {
    let node = Node::new();
    let (first, other) = (node.spawn(), node.spawn());
    let old = reserve(&node.store, 1, 250_000, &applicant("a", first)).unwrap();
    let new = reserve(&node.store, 1, 250_000, &applicant("a", node.spawn())).unwrap();
    let dead = reserve(&node.store, 1, 250_000, &applicant("ab", other)).unwrap();
    assert_eq!(node.store.release_dead(&key("a")).unwrap(), []);
    node.kill(first);
    node.kill(other);
    assert_eq!(node.store.release_dead(&key("a")).unwrap(), [old]);
    assert_eq!(node.store.release_dead(&key("a")).unwrap(), []);
    assert_eq!(node.store.leases().unwrap(), [new, dead]);
}

#[test]
fn a_reserve_that_falls_short_frees_the_dead_first() {
    let node = Node::new();
    let makers: Vec<_> = (0..4).map(|_| node.spawn()).collect();
    for (maker, id) in makers.iter().zip(["a", "b", "c", "d"]) {
        let lease = reserve(&node.store, 1, 250_000, &applicant(id, *maker)).unwrap();
        node.make_folder(&lease);
    }
    let error = reserve(&node.store, 1, 250_000, &applicant("e", node.spawn())).unwrap_err();
    assert_eq!(error.code, Code::NoCapacity);
    assert!(error.message.contains("held by moby/a (20480 MiB, 25%), moby/b"), "{error}");
    node.kill(makers[1]);
    reserve(&node.store, 1, 250_000, &applicant("e", node.spawn())).unwrap();
    let ids: Vec<_> = node.store.leases().unwrap().into_iter().map(|lease| lease.key.id).collect();
    assert_eq!(ids, ["a", "c", "d", "e"]);
    assert_eq!(node.folders().len(), 3);
}

#[test]
fn so_does_one_that_hits_its_owners_cap() {
    let node = Node::new();
    let rules = Rules { owner_max_gpus: [("alice".to_owned(), 1)].into(), ..Rules::default() };
    let request = Request { owner: Some("alice".into()), ..fraction(600_000) };
    let take = |id: &str, maker: Process| {
        node.store.reserve(&inventory(4), &rules, &request, &[Tier::Quota], &applicant(id, maker))
    };
    let first = node.spawn();
    take("a", first).unwrap();
    assert_eq!(take("b", node.spawn()).unwrap_err().code, Code::Denied);
    node.kill(first);
    take("b", node.spawn()).unwrap();
}

#[test]
fn a_container_outlives_the_runtime_that_was_killed() {
    let node = Node::new();
    let maker = node.spawn();
    let pid_file = node.pid_file("a");
    let applicant = Applicant { pid_file: Some(pid_file.clone()), ..applicant("a", maker) };
    let lease = reserve(&node.store, 1, 600_000, &applicant).unwrap();
    let init = node.spawn();
    fs::write(&pid_file, init.pid.to_string()).unwrap();
    node.kill(maker);
    assert_eq!(node.store.reconcile().unwrap(), []);
    let learnt = &node.store.leases().unwrap()[0];
    assert_eq!((learnt.state, learnt.init), (State::Active, Some(init)));
    fs::remove_file(pid_file).unwrap();
    assert_eq!(node.store.reconcile().unwrap(), [], "it needs the file no more");
    node.kill(init);
    node.spawn_as(init.pid, 1);
    assert_eq!(node.store.reconcile().unwrap()[0].grant, lease.grant, "a reused pid is somebody else");
}

#[test]
fn processes_left_in_the_cgroup_keep_the_lease() {
    let node = Node::new();
    let lease = reserve(&node.store, 1, 600_000, &applicant("a", node.spawn())).unwrap();
    let init = node.spawn();
    node.populate("docker/a", true);
    node.store.activate(&lease.grant.nonce, Some(init), Some("/docker/a".into())).unwrap();
    node.kill(init);
    assert_eq!(node.store.reconcile().unwrap(), []);
    node.populate("docker/a", false);
    assert_eq!(node.store.reconcile().unwrap().len(), 1);
}

#[test]
fn without_procfs_nobody_is_taken_for_dead() {
    let node = Node::new();
    let maker = node.spawn();
    reserve(&node.store, 1, 600_000, &applicant("a", maker)).unwrap();
    fs::rename(node.path("proc"), node.path("gone")).unwrap();
    assert!(matches!(node.store.reconcile(), Err(fgpu_allocator::Error::NoProc(_))));
    assert_eq!(reserve(&node.store, 1, 600_000, &applicant("b", maker)).unwrap_err().code, Code::Internal);
    assert_eq!(node.store.leases().unwrap().len(), 1);
}

#[test]
fn a_reboot_voids_everything() {
    let mut node = Node::new();
    let lease = reserve(&node.store, 1, 1_000_000, &applicant("a", node.spawn())).unwrap();
    node.make_folder(&lease);
    node.reboot(2);
    assert_eq!(node.store.leases().unwrap(), []);
    assert!(!node.store.activate(&lease.grant.nonce, None, None).unwrap());
    assert_eq!(node.store.reconcile().unwrap(), [lease]);
    assert_eq!(node.folders(), [""; 0]);
    assert_eq!(node.store.reconcile().unwrap(), []);
    // A reserve does not wait for a reconcile.
    reserve(&node.store, 1, 1_000_000, &applicant("b", node.spawn())).unwrap();
    node.reboot(3);
    reserve(&node.store, 1, 1_000_000, &applicant("c", node.spawn())).unwrap();
    assert_eq!(node.store.leases().unwrap().len(), 1);
}

#[test]
fn reconcile_clears_folders_without_a_lease_and_what_a_killed_rebuild_left() {
    let node = Node::new();
    let lease = reserve(&node.store, 1, 250_000, &applicant("a", node.spawn())).unwrap();
    node.make_folder(&lease);
    let orphan = node.store.container_dir(&Nonce([7; 16]));
    fs::create_dir_all(orphan.join("deeper")).unwrap();
    let foreign = node.path("state/containers/README");
    fs::write(&foreign, "not ours").unwrap();
    fs::write(node.path("state/allocations.json.rebuild"), "half").unwrap();
    assert_eq!(node.store.reconcile().unwrap(), []);
    assert!(!orphan.exists() && foreign.exists());
    assert!(node.store.container_dir(&lease.grant.nonce).exists());
    assert!(!node.path("state/allocations.json.rebuild").exists());
}

#[test]
fn explain_answers_as_reserve_would_and_changes_nothing() {
    let node = Node::new();
    let maker = node.spawn();
    reserve(&node.store, 2, 600_000, &applicant("a", maker)).unwrap();
    reserve(&node.store, 2, 600_000, &applicant("b", node.spawn())).unwrap();
    let before = fs::read(node.file()).unwrap();
    let explain = |request: &Request| {
        node.store.explain(&inventory(2), &Rules::default(), request, &[Tier::Quota]).unwrap()
    };
    let no = explain(&fraction(600_000));
    assert_eq!(no.decision.gpus[0].verdict, Verdict::Short { memory: true, cores: true });
    assert_eq!(no.holders[0][0].key, key("a"));
    let error = reserve(&node.store, 2, 600_000, &applicant("c", node.spawn())).unwrap_err();
    assert_eq!(no.error, Some(error));
    // The dead do not count.
    node.kill(maker);
    let yes = explain(&fraction(600_000));
    assert_eq!(yes.error, None);
    assert_eq!(yes.decision.outcome.unwrap().gpus[0].uuid, inventory(2).gpus[0].uuid);
    assert_eq!(fs::read(node.file()).unwrap(), before);
}

#[test]
fn policies_work_through_the_file() {
    let node = Node::new();
    let take = |id: &str, request: Request| {
        let applicant = applicant(id, node.spawn());
        node.store.reserve(&inventory(2), &Rules::default(), &request, &[Tier::Quota], &applicant)
    };
    let alone = Request { policy: Policy::Exclusive, ..fraction(100_000) };
    assert!(take("a", alone.clone()).unwrap().exclusive);
    let other = take("b", fraction(100_000)).unwrap();
    assert_eq!(other.grant.gpus[0].uuid, inventory(2).gpus[1].uuid);
    assert_eq!(take("c", alone).unwrap_err().code, Code::NoCapacity);
    assert_eq!(take("d", Request { count: 2, ..fraction(1_000) }).unwrap_err().code, Code::Fragmented);
    assert_no_overcommit(&node.store.leases().unwrap(), &inventory(2), &Rules::default());
}

#[test]
fn names_with_quotes_and_other_oddities_survive() {
    let node = Node::new();
    for id in ["a\"b", "a\\", "ü\n", "", "a\",\"x\":\""] {
        let lease = reserve(&node.store, 1, 10_000, &applicant(id, node.spawn())).unwrap();
        assert_eq!(node.store.leases().unwrap(), [lease.clone()]);
        assert_eq!(node.store.release_key(&key(id)).unwrap(), [lease]);
    }
}

#[test]
fn a_path_that_is_no_text_is_refused_and_leaves_nothing() {
    use std::os::unix::ffi::OsStrExt;
    let node = Node::new();
    let bundle = std::ffi::OsStr::from_bytes(b"/b\xff").into();
    let applicant = Applicant { bundle, ..applicant("a", node.spawn()) };
    assert_eq!(reserve(&node.store, 1, 10_000, &applicant).unwrap_err().code, Code::Internal);
    assert_eq!(node.store.leases().unwrap(), []);
}

#[test]
fn a_store_that_is_removed_under_a_waiter_does_not_let_it_in_alone() {
    let node = Node::new();
    reserve(&node.store, 1, 1_000_000, &applicant("a", node.spawn())).unwrap();
    fs::remove_dir_all(node.path("state")).unwrap();
    assert_eq!(
        reserve(&node.store, 1, 10_000, &applicant("b", node.spawn())).unwrap_err().code,
        Code::Internal
    );
}

#[test]
fn a_lease_changes_its_size_within_its_gpus() {
    let node = Node::new();
    let spec = inventory(2);
    let pair = Request { count: 2, ..fraction(250_000) };
    let asking = applicant("a", node.spawn());
    let lease = node.store.reserve(&spec, &Rules::default(), &pair, &[Tier::Quota], &asking).unwrap();
    reserve(&node.store, 2, 500_000, &applicant("b", node.spawn())).unwrap();
    let nonce = lease.grant.nonce;
    let told = std::cell::RefCell::new(Vec::new());
    let resize = |request: &Request| {
        told.borrow_mut().clear();
        node.store.resize(&spec, &Rules::default(), request, &nonce, |gpus, compute| {
            told.borrow_mut().push((gpus.iter().map(|gpu| gpu.cores_ppm).collect::<Vec<_>>(), compute));
        })
    };
    // Up to what is left, not beyond; of two GPUs, whatever the request says of a count.
    let larger = resize(&fraction(500_000)).unwrap().unwrap();
    assert_eq!(larger.grant.gpus.iter().map(|gpu| gpu.cores_ppm).collect::<Vec<_>>(), [500_000; 2]);
    assert_eq!(larger.grant.gpus[0].memory, 40 * crate::node::GIB);
    assert_eq!((larger.request.as_str(), larger.created), ("fgpu/fraction=0.5", lease.created));
    // Nobody is ever allowed more than is written: the old share until then, the new one after.
    assert_eq!(*told.borrow(), [(vec![250_000; 2], Compute::Cap), (vec![500_000; 2], Compute::Cap)]);
    let refused = resize(&fraction(500_001)).unwrap_err();
    assert_eq!(refused.code, Code::Fragmented, "{refused}");
    assert!(refused.message.contains("moby/b") && !refused.message.contains("moby/a"), "{refused}");
    assert_eq!(*told.borrow(), []);
    let smaller = resize(&Request { compute: Compute::Share, ..fraction(100_000) }).unwrap().unwrap();
    assert_eq!(*told.borrow(), [(vec![100_000; 2], Compute::Share), (vec![100_000; 2], Compute::Share)]);
    assert_eq!(node.store.leases().unwrap()[0], smaller);
    // The room of the dead counts.
    node.kill(node.store.leases().unwrap()[1].maker);
    assert!(resize(&fraction(1_000_000)).unwrap().is_some());
    node.store.release(&nonce).unwrap();
    assert_eq!(resize(&fraction(100_000)).unwrap(), None);
}

/// The driver's part of it is still to be undone; it is nobody's.
#[test]
fn a_lease_that_has_ended_keeps_its_size() {
    let node = Node::new();
    let (spec, rules, half) = (inventory(1), Rules::default(), fraction(500_000));
    let asking = applicant("a", node.spawn());
    let nonce = node.store.reserve(&spec, &rules, &half, &[Tier::Driver], &asking).unwrap().grant.nonce;
    node.store.activate(&nonce, None, Some("/docker/a".into())).unwrap();
    let ended = node.store.release(&nonce).unwrap().unwrap();
    assert_eq!(ended.state, State::Releasing);
    let resized = node.store.resize(&spec, &rules, &fraction(1_000_000), &nonce, |_, _| {}).unwrap();
    assert_eq!((resized, node.store.leases().unwrap()), (None, vec![ended]));
}
