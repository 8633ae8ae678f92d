//! `cuInit`, and everything that the process has made since.

use alloc::boxed::Box;
use alloc::collections::btree_map::BTreeMap;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use sim_node::account::Account;
use sim_node::config::{Gpu, Node};
use sim_node::devices;
use sim_node::fault::Fault;
use sim_node::locate::Root;
use sim_node::lock::{Guard, Mutex};
use sim_node::state::Mapped;
use sim_node::sys;

use crate::abi::{Answer, Failure, Handle, api, put};
use crate::array::Arrays;
use crate::context::{Context, Green};
use crate::graph::Graphs;
use crate::launch::Queue;
use crate::memory::Allocations;
use crate::module::{Function, Module};
use crate::pool::Pool;
use crate::share::Shared;
use crate::stream::{Event, Stream};
use crate::vmm::Vmm;

/// The process's driver, made by the first `cuInit` and never freed.
pub(crate) struct Driver {
    pub(crate) account: Account,
    /// By ordinal: the GPU's number in the node and what it is.
    pub(crate) gpus: Vec<(usize, &'static Gpu)>,
    /// 1, and 0 in a child that was forked off: as with the real driver it has no GPU.
    original: &'static AtomicU32,
    objects: Mutex<Objects>,
}

/// What the program has made, by handle.
#[derive(Default)]
pub(crate) struct Objects {
    last_handle: Handle,
    pub(crate) contexts: BTreeMap<Handle, Context>,
    pub(crate) primary: BTreeMap<i32, Handle>,
    /// By device ordinal: a primary context has its handle before it is made, and again when it is made
    /// again.
    pub(crate) primary_handles: BTreeMap<i32, Handle>,
    pub(crate) streams: BTreeMap<Handle, Stream>,
    pub(crate) events: BTreeMap<Handle, Event>,
    pub(crate) modules: BTreeMap<Handle, Module>,
    pub(crate) functions: BTreeMap<Handle, Function>,
    pub(crate) pools: BTreeMap<Handle, Pool>,
    /// By device ordinal.
    pub(crate) default_pools: BTreeMap<i32, Handle>,
    pub(crate) allocations: Allocations,
    pub(crate) arrays: Arrays,
    pub(crate) graphs: Graphs,
    pub(crate) shared: Shared,
    pub(crate) green: BTreeMap<Handle, Green>,
    pub(crate) vmm: Vmm,
    /// By the GPU's number in the node.
    pub(crate) queues: BTreeMap<usize, Queue>,
}

impl Objects {
    /// A handle that nothing had before. It never leads to memory: nobody but this library may look behind
    /// it.
    pub(crate) fn new_handle(&mut self) -> Handle {
        // The first few numbers mean something (streams 0, 1 and 2).
        self.last_handle = self.last_handle.max(0x1_0000) + 0x10;
        self.last_handle
    }
}

static DRIVER: AtomicPtr<Driver> = AtomicPtr::new(core::ptr::null_mut());
static INIT: Mutex<()> = Mutex::new(());
/// Something in this library whose address is known.
static LANDMARK: u8 = 0;

impl Driver {
    /// The driver, if it was initialised in this process.
    pub(crate) fn get() -> Result<&'static Self, Failure> {
        // SAFETY: null or a driver that is never freed.
        let driver = unsafe { DRIVER.load(Ordering::Acquire).as_ref() }.ok_or(Failure::NOT_INITIALIZED)?;
        if driver.original.load(Ordering::Relaxed) == 1 { Ok(driver) } else { Err(Failure::NOT_INITIALIZED) }
    }

    /// What the program has made; others wait until the guard is dropped.
    pub(crate) fn objects(&self) -> Guard<'_, Objects> {
        self.objects.lock()
    }

    /// The GPU with that ordinal: its number in the node and what it is.
    pub(crate) fn gpu(&self, ordinal: i32) -> Result<(usize, &'static Gpu), Failure> {
        let gpu = usize::try_from(ordinal).ok().and_then(|ordinal| self.gpus.get(ordinal));
        gpu.copied().ok_or(Failure::INVALID_DEVICE)
    }

    fn open() -> Result<Self, Failure> {
        let (root, node) = find_node()?;
        let mapped =
            Mapped::open(&root.join("run/nvidia-sim/state"), true).map_err(|_| Failure::NO_DEVICE)?;
        match mapped.state.node_fault(Fault::CudaInit) {
            0 => {}
            code => return Err(Failure(code as u32)),
        }
        if !devices::control_visible(&root) {
            return Err(Failure::NO_DEVICE);
        }
        let gpus = node.gpus().iter().enumerate();
        let gpus = gpus.filter(|(_, gpu)| devices::gpu_visible(&root, gpu.minor));
        // MIG devices are not simulated here.
        let gpus: Vec<_> = gpus.filter(|(_, gpu)| gpu.mig_enabled == 0).collect();
        let gpus = match visible_devices() {
            Some(wanted) => select(&gpus, wanted),
            None => gpus,
        };
        if gpus.is_empty() {
            return Err(Failure::NO_DEVICE);
        }
        let account = Account::open(mapped).map_err(|_| Failure::OUT_OF_MEMORY)?;
        Ok(Self { account, gpus, original: mark_original()?, objects: Mutex::new(Objects::default()) })
    }
}

/// The root of the node that this library belongs to.
pub(crate) fn root() -> Option<Root> {
    Root::of_library(&raw const LANDMARK as usize)
}

/// The node that this library belongs to.
fn find_node() -> Result<(Root, &'static Node), Failure> {
    let root = root().ok_or(Failure::NO_DEVICE)?;
    let node = Node::map(&root.join("run/nvidia-sim/config")).ok_or(Failure::NO_DEVICE)?;
    Ok((root, node))
}

/// A word that is 1 here and 0 in forked children.
fn mark_original() -> Result<&'static AtomicU32, Failure> {
    const PAGE: usize = 4096;
    // SAFETY: a new anonymous mapping, private to this library and never unmapped.
    let word = unsafe {
        let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
        let page = sys::mmap(0, PAGE, sys::PROT_READ_WRITE, flags, -1).map_err(|_| Failure::OUT_OF_MEMORY)?;
        sys::wipe_on_fork(page, PAGE).map_err(|_| Failure::NOT_SUPPORTED)?;
        &*(page as *const AtomicU32)
    };
    word.store(1, Ordering::Relaxed);
    Ok(word)
}

unsafe extern "C" {
    fn getenv(name: *const c_char) -> *const c_char;
}

/// `CUDA_VISIBLE_DEVICES`.
fn visible_devices() -> Option<&'static str> {
    // SAFETY: the name is NUL-terminated.
    let value = unsafe { getenv(c"CUDA_VISIBLE_DEVICES".as_ptr()) };
    // SAFETY: getenv answers null or a NUL-terminated text.
    (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_str().unwrap_or(""))
}

/// The GPUs of a list of indices and (beginnings of) UUIDs; as with the real driver the first one that is not
/// there ends the list.
fn select(gpus: &[(usize, &'static Gpu)], wanted: &str) -> Vec<(usize, &'static Gpu)> {
    let find = |item: &str| match item.parse::<usize>() {
        Ok(index) => gpus.get(index).copied(),
        Err(_) if item.starts_with("GPU-") => {
            gpus.iter().find(|(_, gpu)| gpu.uuid.as_str().starts_with(item)).copied()
        }
        Err(_) => None,
    };
    wanted.split(',').map(|item| find(item.trim())).map_while(|gpu| gpu).collect()
}

fn init(flags: u32) -> Answer {
    if flags != 0 {
        return Err(Failure::INVALID_VALUE);
    }
    let _init = INIT.lock();
    if DRIVER.load(Ordering::Acquire).is_null() {
        DRIVER.store(Box::leak(Box::new(Driver::open()?)), Ordering::Release);
    }
    Driver::get().map(drop)
}

/// The CUDA version: without `cuInit`, as the real one answers.
pub(crate) fn version() -> Result<u32, Failure> {
    static VERSION: AtomicU32 = AtomicU32::new(0);
    if VERSION.load(Ordering::Relaxed) == 0 {
        let (_, node) = find_node()?;
        VERSION.store(node.cuda_version, Ordering::Relaxed);
    }
    Ok(VERSION.load(Ordering::Relaxed))
}

api! {
    cuInit(flags: u32) => init(flags);
    cuDriverGetVersion(out: *mut i32) => put(out, version()? as i32);
    cuProfilerStart() => Driver::get().map(drop);
    cuProfilerStop() => Driver::get().map(drop);
}
