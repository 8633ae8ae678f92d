//! Every operation, killed at each of its system calls, and each of its system calls failed.
//!
//! The operation runs in a child that is traced from system call to system call. After each the node must be
//! one on which the operation has happened or has not, and nothing else.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;

use fgpu_allocator::{Lease, Process, Rules, Store, Ticket, Turn};
use fgpu_spec::{Nonce, Tier};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::node::{applicant, assert_no_overcommit, folder, forked, fraction, inventory, reserve};

/// What is traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// Into a node that has no file yet.
    First,
    Reserve,
    /// One that finds no room at first, and frees a dead container's.
    ReserveAgain,
    /// One that finds no room, and takes a place in the queue.
    Join,
    Activate,
    /// To a larger share.
    Resize,
    Release,
    Reconcile,
    Rebuild,
}

const ALL: [Operation; 9] = [
    Operation::First,
    Operation::Reserve,
    Operation::ReserveAgain,
    Operation::Join,
    Operation::Activate,
    Operation::Resize,
    Operation::Release,
    Operation::Reconcile,
    Operation::Rebuild,
];

/// A node before an operation: `ours` lives, `dead` does not.
struct Scene {
    dir: tempfile::TempDir,
    store: Store,
    /// The holder of `ours`.
    me: Process,
    ours: Option<Nonce>,
    dead: Option<Nonce>,
}

/// What `ours` has after [`Operation::Resize`], in ppm.
const RESIZED: u32 = 600_000;

/// Nobody: no process has this pid and start time.
const NOBODY: Process = Process { pid: i32::MAX, start: 1 };

impl Scene {
    fn new(operation: Operation) -> Self {
        let dir = folder();
        let store = Store::open(dir.path()).unwrap();
        let me = Process::current().unwrap();
        let (mut ours, mut dead) = (None, None);
        if operation != Operation::First {
            let lease = reserve(&store, 1, 500_000, &applicant("ours", me)).unwrap();
            fs::create_dir_all(store.container_dir(&lease.grant.nonce)).unwrap();
            ours = Some(lease.grant.nonce);
            let lease = reserve(&store, 1, 250_000, &applicant("dead", NOBODY)).unwrap();
            fs::create_dir_all(store.container_dir(&lease.grant.nonce)).unwrap();
            dead = Some(lease.grant.nonce);
        }
        if operation == Operation::Rebuild {
            let file = dir.path().join("allocations.json");
            let mut bytes = fs::read(&file).unwrap();
            bytes[30] ^= 1;
            fs::write(file, bytes).unwrap();
        }
        Self { dir, store, me, ours, dead }
    }

    /// Does it; `true` if it says that it is done.
    fn run(&self, operation: Operation) -> bool {
        let nobody = |id| applicant(id, NOBODY);
        match operation {
            Operation::First | Operation::Reserve => reserve(&self.store, 1, 250_000, &nobody("new")).is_ok(),
            Operation::ReserveAgain => reserve(&self.store, 1, 500_000, &nobody("new")).is_ok(),
            Operation::Join => {
                let (spec, rules, request) = (inventory(1), Rules::default(), fraction(750_000));
                let (mut ticket, applicant) = (Ticket::new(NOBODY), nobody("new"));
                let turn = self.store.reserve_or_wait(
                    &spec,
                    &rules,
                    &request,
                    &[Tier::Quota],
                    &applicant,
                    &mut ticket,
                );
                matches!(turn, Ok(Turn::Waiting { .. }))
            }
            Operation::Activate => self.store.activate(&self.ours.unwrap(), Some(self.me), None).is_ok(),
            Operation::Resize => {
                let (spec, rules, request) = (inventory(1), Rules::default(), fraction(RESIZED));
                self.store.resize(&spec, &rules, &request, &self.ours.unwrap(), |_, _| {}).is_ok()
            }
            Operation::Release => self.store.release(&self.ours.unwrap()).is_ok(),
            Operation::Reconcile => self.store.reconcile().is_ok(),
            Operation::Rebuild => self.store.rebuild(false).is_ok(),
        }
    }

    /// The names of the leases that there are now, and whether they were activated or resized.
    fn state(&self) -> Option<BTreeSet<(String, bool)>> {
        let leases = self.store.leases().ok()?;
        assert_no_overcommit(&leases, &inventory(1), &Rules::default());
        let changed = |lease: &Lease| lease.init.is_some() || lease.grant.gpus[0].cores_ppm == RESIZED;
        Some(leases.into_iter().map(|lease| (lease.key.id.clone(), changed(&lease))).collect())
    }

    /// Checks the node after the operation said `done`, or nothing at all.
    fn check(&self, operation: Operation, done: Option<bool>, before: &Option<BTreeSet<(String, bool)>>) {
        match File::open(self.dir.path().join("lock")) {
            Ok(lock) => lock.try_lock().expect("the lock is free when nobody is left"),
            Err(error) => assert_eq!((operation, error.kind()), (Operation::First, ErrorKind::NotFound)),
        }
        let set = |names: &[(&str, bool)]| {
            Some(names.iter().map(|&(name, init)| (name.to_owned(), init)).collect::<BTreeSet<_>>())
        };
        let after = match operation {
            Operation::First => set(&[("new", false)]),
            Operation::Reserve => set(&[("ours", false), ("dead", false), ("new", false)]),
            Operation::ReserveAgain => set(&[("ours", false), ("new", false)]),
            Operation::Activate | Operation::Resize => set(&[("ours", true), ("dead", false)]),
            Operation::Release => set(&[("dead", false)]),
            Operation::Join | Operation::Reconcile | Operation::Rebuild => set(&[("ours", false)]),
        };
        let swept = set(&[("ours", false)]);
        let now = self.state();
        match done {
            // A holder whose life is undetermined keeps its lease.
            Some(true)
                if matches!(operation, Operation::Join | Operation::Reconcile | Operation::Rebuild) =>
            {
                assert!(now == after || now == set(&[("ours", false), ("dead", false)]), "{now:?}");
            }
            Some(true) => assert_eq!(now, after, "it said that it was done"),
            // The dead may have been freed before it failed.
            Some(false) if matches!(operation, Operation::ReserveAgain | Operation::Join) => {
                assert!(now == *before || now == swept, "it said that it failed: {now:?}");
            }
            // The file is written, and what comes after it failed.
            Some(false) if operation == Operation::Reconcile || operation == Operation::Rebuild => {
                assert!(now == *before || now == after, "{now:?}");
            }
            Some(false) => assert_eq!(now, *before, "it said that it failed"),
            None => assert!(
                now == *before || now == after || operation == Operation::ReserveAgain && now == swept,
                "half a change: {now:?}"
            ),
        }
        if operation == Operation::Rebuild {
            self.store.rebuild(false).unwrap();
        }
        // One reconcile clears it, and the node serves as before.
        self.store.reconcile().unwrap();
        let leases = self.store.leases().unwrap();
        let ours = self.ours.filter(|_| operation != Operation::Release || now == *before);
        assert_eq!(leases.iter().map(|lease| lease.grant.nonce).collect::<Vec<_>>(), Vec::from_iter(ours));
        if let Some(gone) = self.dead {
            assert!(!self.store.container_dir(&gone).exists());
        }
        assert_eq!(ours.is_some(), self.ours.is_some_and(|nonce| self.store.container_dir(&nonce).exists()));
        let leftovers: Vec<_> = fs::read_dir(self.dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with("allocations.json.corrupt-"))
            .filter(|name| {
                !["lock", "allocations.json", "allocations.json.spare", "containers", "queue"]
                    .contains(&&**name)
            })
            .collect();
        assert_eq!(leftovers, [""; 0]);
        let pipes = fs::read_dir(self.dir.path().join("queue")).map_or(0, Iterator::count);
        assert_eq!(pipes, 0, "who waited is nobody");
        let rest = 1_000_000 - leases.iter().map(|lease| lease.grant.gpus[0].cores_ppm).sum::<u32>();
        reserve(&self.store, 1, rest, &applicant("last", NOBODY)).unwrap();
    }

    /// Starts the operation in a child that waits at its first system call.
    fn start(&self, operation: Operation) -> Pid {
        let child = forked(|| {
            ptrace::traceme().unwrap();
            raise(Signal::SIGSTOP).unwrap();
            i32::from(!self.run(operation))
        });
        assert!(matches!(waitpid(child, None).unwrap(), WaitStatus::Stopped(_, Signal::SIGSTOP)));
        ptrace::setoptions(
            child,
            ptrace::Options::PTRACE_O_TRACESYSGOOD | ptrace::Options::PTRACE_O_EXITKILL,
        )
        .unwrap();
        child
    }
}

/// Lets it run to the next entry into or return from a system call; its end if it ends.
fn step(child: Pid) -> Option<Option<bool>> {
    let mut signal = None;
    loop {
        ptrace::syscall(child, signal).unwrap();
        match waitpid(child, Some(WaitPidFlag::__WALL)).unwrap() {
            WaitStatus::PtraceSyscall(_) => return None,
            WaitStatus::Stopped(_, other) => signal = Some(other),
            WaitStatus::Exited(_, 0) => return Some(Some(true)),
            WaitStatus::Exited(_, 1) => return Some(Some(false)),
            // Out of memory: Rust aborts.
            WaitStatus::Signaled(..) => return Some(None),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn killed_between_any_two_system_calls() {
    for operation in ALL {
        let mut stops = 0;
        for kill_at in 0.. {
            let scene = Scene::new(operation);
            let before = scene.state();
            let child = scene.start(operation);
            let end = (0..kill_at).find_map(|_| step(child));
            if end.is_none() {
                kill(child, Signal::SIGKILL).unwrap();
                waitpid(child, Some(WaitPidFlag::__WALL)).unwrap();
            }
            scene.check(operation, end.flatten(), &before);
            stops = kill_at;
            if end.is_some() {
                assert_eq!(end, Some(Some(true)), "left alone it works");
                break;
            }
        }
        assert!(stops > 10, "{operation:?} has made {stops} stops only: is it traced?");
    }
}

/// Others act while an operation stands between two of its system calls. What they were told must hold.
#[test]
fn others_come_in_between_any_two_system_calls() {
    for operation in ALL.into_iter().filter(|&operation| operation != Operation::Rebuild) {
        let mut interleaved = 0;
        for stop_at in 0.. {
            let scene = Scene::new(operation);
            let child = scene.start(operation);
            let mut end = (0..stop_at).find_map(|_| step(child));
            let lock = File::options().create(true).append(true).open(scene.dir.path().join("lock")).unwrap();
            let free = end.is_none() && lock.try_lock().is_ok();
            drop(lock);
            if free {
                interleaved += 1;
                // The container whose maker died turns out to live, and somebody takes what is left.
                let activated =
                    scene.dead.is_some_and(|dead| scene.store.activate(&dead, Some(scene.me), None).unwrap());
                let rival = reserve(&scene.store, 1, 250_000, &applicant("rival", scene.me)).is_ok();
                end = std::iter::from_fn(|| Some(step(child))).find_map(|end| end);
                let now = scene.state().unwrap();
                assert!(
                    !activated || now.contains(&("dead".into(), true)),
                    "{operation:?} {stop_at}: {now:?}"
                );
                assert!(!rival || now.contains(&("rival".into(), false)), "{operation:?} {stop_at}: {now:?}");
            } else if end.is_none() {
                end = std::iter::from_fn(|| Some(step(child))).find_map(|end| end);
            } else {
                break;
            }
            assert!(matches!(end, Some(Some(_))), "it goes on: {end:?}");
        }
        assert!(interleaved > 2, "{operation:?} held the lock all the time");
    }
}

/// Fails each system call in turn, as a full disk, a failing one, a lack of memory or a signal would.
#[cfg(target_arch = "x86_64")]
#[test]
fn any_system_call_may_fail() {
    use nix::errno::Errno;
    for operation in ALL {
        for errno in [Errno::ENOSPC, Errno::EIO, Errno::ENOMEM, Errno::EINTR] {
            for fail_at in 0.. {
                let scene = Scene::new(operation);
                let before = scene.state();
                let child = scene.start(operation);
                // Each call stops twice: at its entry and at its return.
                let mut end = (0..2 * fail_at + 1).find_map(|_| step(child));
                let reached = end.is_none();
                if reached {
                    let mut registers = ptrace::getregs(child).unwrap();
                    // The end cannot fail; std panics if a folder's descriptor cannot be closed, which no
                    // kernel does.
                    let spared = [nix::libc::SYS_exit_group, nix::libc::SYS_close];
                    if !spared.contains(&(registers.orig_rax as i64)) {
                        registers.orig_rax = u64::MAX;
                        ptrace::setregs(child, registers).unwrap();
                        assert_eq!(step(child), None);
                        let mut registers = ptrace::getregs(child).unwrap();
                        registers.rax = (-(errno as i64)) as u64;
                        ptrace::setregs(child, registers).unwrap();
                    }
                    end = std::iter::from_fn(|| Some(step(child))).find_map(|end| end);
                }
                scene.check(operation, end.flatten(), &before);
                if !reached {
                    break;
                }
            }
        }
    }
}
