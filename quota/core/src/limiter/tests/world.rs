//! Virtual time. Each actor is a thread, and one of them runs at a time. An actor that sleeps hands over to
//! the one that wakes first, and the clock jumps there. So every run is the same.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use super::gpu::Gpu;

/// An actor that has not begun, or has ended.
const NEVER: u64 = u64::MAX;

pub(super) struct Inner {
    pub(super) now: u64,
    pub(super) gpu: Gpu,
    /// By actor, when it wakes.
    wakes: Vec<u64>,
    /// By actor, when it is killed.
    killed: Vec<u64>,
    running: Option<usize>,
}

#[derive(Clone)]
pub(super) struct World(Arc<(Mutex<Inner>, Condvar)>);

/// What unwinds the thread of an actor that was killed.
struct Killed;

impl World {
    pub(super) fn new() -> Self {
        let now = 1_000_000_000;
        let mut gpu = Gpu::default();
        gpu.advance(now);
        let inner = Inner { now, gpu, wakes: Vec::new(), killed: Vec::new(), running: None };
        Self(Arc::new((Mutex::new(inner), Condvar::new())))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.0.lock().unwrap()
    }

    pub(super) fn now(&self) -> u64 {
        self.lock().now
    }

    /// A thread that begins to run when `begin` is come, once [`run`](Self::run) is called.
    pub(super) fn actor(
        &self,
        begin: u64,
        run: impl FnOnce(usize) + Send + 'static,
    ) -> (usize, JoinHandle<()>) {
        let mut inner = self.lock();
        let actor = inner.wakes.len();
        inner.wakes.push(begin);
        inner.killed.push(NEVER);
        drop(inner);
        let world = self.clone();
        let thread = std::thread::spawn(move || {
            let ended = catch_unwind(AssertUnwindSafe(|| {
                world.wait_for(actor, world.lock());
                run(actor);
            }));
            let mut inner = world.lock();
            inner.wakes[actor] = NEVER;
            world.hand_on(inner);
            if let Err(panic) = ended
                && !panic.is::<Killed>()
            {
                resume_unwind(panic);
            }
        });
        (actor, thread)
    }

    pub(super) fn kill(&self, actor: usize, at: u64) {
        self.lock().killed[actor] = at;
    }

    /// Runs all actors to their ends.
    pub(super) fn run(&self, threads: Vec<JoinHandle<()>>) {
        self.hand_on(self.lock());
        for thread in threads {
            if let Err(panic) = thread.join() {
                resume_unwind(panic);
            }
        }
    }

    fn hand_on(&self, mut inner: MutexGuard<'_, Inner>) {
        let next = (0..inner.wakes.len()).min_by_key(|&actor| inner.wakes[actor].min(inner.killed[actor]));
        inner.running = next.filter(|&next| inner.wakes[next] != NEVER);
        if let Some(next) = inner.running {
            let to = inner.wakes[next].min(inner.killed[next]);
            inner.advance(to);
        }
        drop(inner);
        self.0.1.notify_all();
    }

    fn wait_for(&self, actor: usize, mut inner: MutexGuard<'_, Inner>) {
        while inner.running != Some(actor) {
            inner = self.0.1.wait(inner).unwrap();
        }
        if inner.killed[actor] <= inner.now {
            inner.killed[actor] = NEVER;
            drop(inner);
            resume_unwind(Box::new(Killed));
        }
    }

    pub(super) fn sleep(&self, actor: usize, nanoseconds: u64) {
        let mut inner = self.lock();
        let until = inner.now + nanoseconds;
        let is_first = (0..inner.wakes.len())
            .all(|other| other == actor || inner.wakes[other].min(inner.killed[other]) > until);
        if is_first && inner.killed[actor] > until {
            inner.advance(until);
            return;
        }
        inner.wakes[actor] = until;
        self.hand_on(inner);
        self.wait_for(actor, self.lock());
    }
}

impl Inner {
    fn advance(&mut self, to: u64) {
        self.now = self.now.max(to);
        self.gpu.advance(self.now);
    }
}
