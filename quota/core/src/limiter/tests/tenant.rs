//! Containers on one GPU, their processes, and what those do all day.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use fgpu_wire::ledger::Compute;
use fgpu_wire::limits::{self, GpuLimit, Page};
use fgpu_wire::turns::{Board, PLACES, Statement, Turn};

use super::world::World;
use crate::limiter::{Elapsed, Events, Grant, Host, Lane, Stream};

pub(super) const US: u64 = 1_000;
pub(super) const MS: u64 = 1_000_000;
pub(super) const S: u64 = 1_000_000_000;
/// What a launch takes the host.
const LAUNCH: u64 = 5 * US;
/// By how much a sleep ends late.
const LATE: u64 = 60 * US;
/// How long it takes to see that the GPU is done.
const WAKE: u64 = 15 * US;

pub(super) struct Container {
    pub(super) page: Page,
    account: Compute,
    place: Option<usize>,
}

pub(super) struct Node {
    pub(super) world: World,
    pub(super) shelf: Shelf,
    pub(super) containers: Vec<Container>,
}

/// What a process does; all without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One large kernel after the other, each waited for.
    LargeAndWait,
    /// Small kernels in one stream, never waited for.
    Small,
    /// Small kernels in sixteen streams by turns.
    ManyStreams,
    /// Graphs of different sizes, a few in advance.
    Graphs,
    /// Four threads with default streams of their own, and cooperative kernels that are waited for.
    Threads,
    /// Kernels of so many nanoseconds in one stream, never waited for.
    Of(u64),
    /// And each waited for.
    OfAndWait(u64),
    /// A copy of so many nanoseconds, a kernel of so many in the same stream, and both waited for.
    CopyAndWait(u64, u64),
    /// By turns so many small ones and so many of 5 ms, never waited for.
    Mixed(usize, usize),
}

pub(super) const SHAPES: [Shape; 5] =
    [Shape::LargeAndWait, Shape::Small, Shape::ManyStreams, Shape::Graphs, Shape::Threads];

/// The board of a GPU.
pub(super) struct Shelf(Mutex<[Statement; PLACES]>);

impl Default for Shelf {
    fn default() -> Self {
        Self(Mutex::new([Statement::default(); PLACES]))
    }
}

impl Board for Shelf {
    fn exchange(&self, _: u64, place: usize, said: &Statement, places: &mut [Statement; PLACES]) {
        self.publish(place, said);
        *places = *self.0.lock().unwrap();
    }

    fn publish(&self, place: usize, said: &Statement) {
        self.0.lock().unwrap()[place] = *said;
    }
}

fn limit(compute: u8, ppm: u32) -> GpuLimit {
    GpuLimit { uuid: [1; 16], memory: 1 << 30, cores_ppm: ppm, compute, minor: 0 }
}

impl Node {
    /// A node whose GPU is divided among containers: how `cores` is meant, and the share in ppm.
    pub(super) fn new(shares: &[(u8, u32)]) -> Self {
        let containers = shares.iter().enumerate().map(|(number, &(compute, ppm))| {
            let nonce = [number as u8 + 1; 16];
            let bytes = limits::encode(&nonce, &[limit(compute, ppm)]);
            // SAFETY: of the same size, and made of atomics, for which every content is a value.
            let page = unsafe { std::mem::transmute::<[u8; limits::SIZE], Page>(bytes) };
            Container { page, account: Compute::new(), place: Some(number) }
        });
        let containers = containers.collect();
        Self { world: World::new(), shelf: Shelf::default(), containers }
    }

    /// As on a node without the file: every container by itself.
    pub(super) fn forget_turns(&mut self) {
        self.containers.iter_mut().for_each(|container| container.place = None);
    }

    pub(super) fn grant(&self, container: usize) -> Grant<'_> {
        let container = &self.containers[container];
        let turn = container.place.map(|place| Turn::new(place, container.account.own(), &self.shelf));
        Grant { page: &container.page, gpu: 0, account: &container.account, part: None, turn }
    }

    pub(super) fn charged(&self, container: usize) -> u64 {
        self.containers[container].account.charged()
    }

    /// Nanoseconds that a container's kernels ran between two times after the beginning.
    pub(super) fn time(&self, container: usize, from: u64, to: u64) -> u64 {
        self.world.lock().gpu.time(container, S + from, S + to)
    }
}

/// A process with one context, limited or not.
pub(super) struct Process {
    pub(super) node: Arc<Node>,
    container: usize,
    process: usize,
    pub(super) lane: Box<Lane>,
    limited: bool,
    /// Launches so far.
    pub(super) launches: AtomicU64,
}

impl Process {
    pub(super) fn new(node: &Arc<Node>, container: usize, limited: bool) -> Arc<Self> {
        let process = node.world.lock().gpu.process(container);
        // SAFETY: zeros are the beginning of a lane.
        let lane = unsafe { Box::new_zeroed().assume_init() };
        Arc::new(Self { node: node.clone(), container, process, lane, limited, launches: AtomicU64::new(0) })
    }

    /// Its kernels are taken off the GPU.
    pub(super) fn die(&self) {
        self.node.world.lock().gpu.end(self.process);
    }
}

/// A thread of a process.
pub(super) struct Thread {
    pub(super) process: Arc<Process>,
    actor: usize,
}

impl Host for Thread {
    fn now(&self) -> u64 {
        self.process.node.world.now()
    }

    fn sleep(&self, nanoseconds: u64) {
        self.process.node.world.sleep(self.actor, nanoseconds + LATE);
    }

    fn thread(&self) -> usize {
        self.actor * 2 + 0x1000
    }
}

impl Events for Thread {
    fn create(&self) -> Option<usize> {
        Some(self.process.node.world.lock().gpu.event())
    }

    fn record(&self, event: usize, _: Stream) -> bool {
        self.process.node.world.lock().gpu.record(self.process.process, event);
        true
    }

    fn is_done(&self, event: usize) -> bool {
        self.process.node.world.lock().gpu.came(event).is_some()
    }

    fn elapsed(&self, from: usize, to: usize) -> Elapsed {
        if from == 0 {
            return Elapsed::Unknown;
        }
        let world = self.process.node.world.lock();
        let (Some(from), Some(to)) = (world.gpu.came(from), world.gpu.came(to)) else {
            return Elapsed::NotReady;
        };
        // As exact as cuEventElapsedTime is, which gives milliseconds in a `float`.
        to.checked_sub(from).map_or(Elapsed::Unknown, |exact| {
            Elapsed::Time((f64::from((exact as f64 / 1e6) as f32) * 1e6) as u64)
        })
    }

    fn is_idle(&self, _: Stream) -> bool {
        self.process.node.world.lock().gpu.left(self.process.process) == 0
    }

    fn is_captured(&self, _: Stream) -> bool {
        false
    }

    fn is_capture_beginning(&self) -> bool {
        false
    }
}

impl Thread {
    pub(super) fn new(process: &Arc<Process>, actor: usize) -> Self {
        Self { process: process.clone(), actor }
    }

    /// The host computes.
    pub(super) fn compute(&self, nanoseconds: u64) {
        self.process.node.world.sleep(self.actor, nanoseconds);
    }

    pub(super) fn launch(&self, stream: Stream, nanoseconds: u64) {
        self.launch_slowly(stream, nanoseconds, 0);
    }

    /// The kernel is on the GPU so long before the call comes back.
    pub(super) fn launch_slowly(&self, stream: Stream, nanoseconds: u64, before: u64) {
        let process = &*self.process;
        let grant = process.node.grant(process.container);
        let now = process.limited.then(|| process.lane.before(|| Some(grant), stream, self, self)).flatten();
        self.compute(LAUNCH);
        process.node.world.lock().gpu.launch(process.process, nanoseconds);
        process.launches.fetch_add(1, Ordering::Relaxed);
        if before > 0 {
            self.compute(before);
        }
        if let Some(now) = now {
            process.lane.after(now, || Some(grant), stream, self, self);
        }
    }

    pub(super) fn copy(&self, nanoseconds: u64) {
        let process = &*self.process;
        if process.limited {
            process.lane.before_next(|| Some(process.node.grant(process.container)), self, self);
        }
        self.compute(LAUNCH);
        process.node.world.lock().gpu.copy(process.process, nanoseconds);
    }

    /// The context ends.
    pub(super) fn end_context(&self) {
        let process = &*self.process;
        let grant = process.node.grant(process.container);
        process.lane.before_close(&grant, self, self);
        self.wait_unlimited();
        assert!(process.lane.close(self.now(), &grant, self));
    }

    /// Like a program that learns of the end from its own memory.
    pub(super) fn wait_unlimited(&self) {
        loop {
            let left = self.process.node.world.lock().gpu.left(self.process.process);
            self.compute(left + WAKE);
            if left == 0 {
                break;
            }
        }
    }

    pub(super) fn wait(&self) {
        let process = &*self.process;
        let grant = process.node.grant(process.container);
        if process.limited {
            process.lane.before_wait(|| Some(grant), self, self);
        }
        self.wait_unlimited();
        if process.limited {
            process.lane.after_wait(|| Some(grant), self, self);
        }
    }

    /// Works until the clock says so.
    pub(super) fn work(&self, shape: Shape, until: u64) {
        let mut round = 0;
        while self.now() < until {
            match shape {
                Shape::LargeAndWait => {
                    self.launch(Stream::Shared(0), 12 * MS);
                    self.wait();
                }
                Shape::OfAndWait(nanoseconds) => {
                    self.launch(Stream::Shared(0), nanoseconds);
                    self.wait();
                }
                Shape::CopyAndWait(copy, kernel) => {
                    self.copy(copy);
                    self.launch(Stream::Shared(0), kernel);
                    self.wait();
                }
                Shape::Small => self.launch(Stream::Shared(0), 20 * US),
                Shape::ManyStreams => self.launch(Stream::Shared(0x1000 + round % 16 * 0x100), 30 * US),
                Shape::Graphs => self.launch(Stream::Shared(0x2000), [3 * MS, 200 * US, 900 * US][round % 3]),
                Shape::Of(nanoseconds) => self.launch(Stream::Shared(0), nanoseconds),
                Shape::Mixed(small, large) => {
                    let is_small = round % (small + large) < small;
                    self.launch(Stream::Shared(0), if is_small { 20 * US } else { 5 * MS });
                }
                Shape::Threads => {
                    self.launch(Stream::OwnThread, 400 * US);
                    if round % 8 == 7 {
                        self.wait();
                    }
                }
            }
            // As deep as a driver's queue.
            while self.process.node.world.lock().gpu.depth(self.process.process) >= 1024 {
                self.compute(100 * US);
            }
            round += 1;
        }
    }
}

/// Starts the threads of a process that works between two times after the beginning.
pub(super) fn start(
    process: &Arc<Process>,
    shape: Shape,
    from: u64,
    to: u64,
) -> Vec<(usize, JoinHandle<()>)> {
    let threads = if shape == Shape::Threads { 4 } else { 1 };
    let start = || {
        let mine = process.clone();
        process.node.world.actor(S + from, move |actor| Thread::new(&mine, actor).work(shape, S + to))
    };
    (0..threads).map(|_| start()).collect()
}
