//! Many processes at once, and SIGKILL at any instant.

use std::fs::File;
use std::time::Duration;

use fgpu_allocator::{Process, Rules, Store};
use fgpu_spec::Code;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use crate::node::{Dice, applicant, assert_no_overcommit, folder, forked, inventory, reserve, status};

/// Reserves, activates and releases, `rounds` times; returns how often there was no room.
fn work(dir: &std::path::Path, seed: u64, rounds: u64) -> u64 {
    let store = Store::open(dir).unwrap();
    let me = Process::current().unwrap();
    let mut dice = Dice(seed | 1);
    let mut refused = 0;
    let mut held = Vec::new();
    for round in 0..rounds {
        match reserve(
            &store,
            2,
            100_000 * (1 + dice.below(4)) as u32,
            &applicant(&format!("{seed}-{round}"), me),
        ) {
            Ok(lease) => {
                std::fs::create_dir_all(store.container_dir(&lease.grant.nonce)).unwrap();
                assert!(store.activate(&lease.grant.nonce, Some(me), None).unwrap());
                held.push(lease.grant.nonce);
            }
            Err(error) => {
                assert!(matches!(error.code, Code::NoCapacity | Code::Fragmented), "{error}");
                refused += 1;
            }
        }
        assert_no_overcommit(&store.leases().unwrap(), &inventory(2), &Rules::default());
        if held.len() > 1 || dice.below(2) == 0 {
            for nonce in held.drain(..) {
                assert!(store.release(&nonce).unwrap().is_some());
            }
        }
    }
    held.iter().for_each(|nonce| drop(store.release(nonce).unwrap().unwrap()));
    refused
}

#[test]
fn sixteen_processes_share_two_gpus_and_leave_nothing() {
    let dir = folder();
    let children: Vec<_> =
        (0..16).map(|seed| forked(|| i32::from(work(dir.path(), seed + 1, 100) == 0))).collect();
    let calm = children.into_iter().map(status).filter(|&status| status == 1).count();
    assert!(calm < 16, "nobody ever met a full node: this tests nothing");
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.leases().unwrap(), []);
    assert_eq!(std::fs::read_dir(dir.path().join("containers")).unwrap().count(), 0);
}

#[test]
fn threads_of_one_store_exclude_each_other() {
    let dir = folder();
    let store = Store::open(dir.path()).unwrap();
    let me = Process::current().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..100 {
                    let lease =
                        reserve(store, 1, 100_000, &applicant(&format!("{thread}-{round}"), me)).unwrap();
                    assert!(store.release(&lease.grant.nonce).unwrap().is_some());
                }
            });
        }
    });
    assert_eq!(store.leases().unwrap(), []);
}

#[test]
fn sigkill_at_any_instant() {
    let dir = folder();
    let store = Store::open(dir.path()).unwrap();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let start = |seed| forked(|| work(dir.path(), seed, u64::MAX) as i32);
    let mut children: Vec<Pid> = (1..=3).map(start).collect();
    for round in 0..300 {
        std::thread::sleep(Duration::from_micros(dice.below(4000)));
        let victim = dice.below(3) as usize;
        kill(children[victim], Signal::SIGKILL).unwrap();
        // They end by nothing else: an assertion of theirs would show here.
        let ended = waitpid(children[victim], None).unwrap();
        assert!(matches!(ended, nix::sys::wait::WaitStatus::Signaled(_, Signal::SIGKILL, _)), "{ended:?}");
        assert_no_overcommit(&store.leases().unwrap(), &inventory(2), &Rules::default());
        if dice.below(4) == 0 {
            store.reconcile().unwrap();
        }
        children[victim] = start(1000 + round);
    }
    for child in children {
        kill(child, Signal::SIGKILL).unwrap();
        waitpid(child, None).unwrap();
    }
    File::open(dir.path().join("lock")).unwrap().try_lock().expect("nobody is left to hold the lock");
    store.reconcile().unwrap();
    assert_eq!(store.leases().unwrap(), []);
    assert_eq!(std::fs::read_dir(dir.path().join("containers")).unwrap().count(), 0);
}
