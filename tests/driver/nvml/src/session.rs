//! `nvmlInit` to `nvmlShutdown`: which node, which of its GPUs this process may see.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, Ordering};

use sim_node::config::{Gpu, MAX_GPUS, Node};
use sim_node::devices;
use sim_node::fault::Fault;
use sim_node::instances::Instance;
use sim_node::locate::Root;
use sim_node::lock::Mutex;
use sim_node::observe::Onlooker;
use sim_node::state::{GpuState, Mapped};
use sim_node::sys;

use crate::abi::{Answer, Failure, Handle};
use crate::instances;

/// What is known between init and shutdown. Sessions are few and never freed: a thread may still be in a call
/// while another one shuts down.
pub(crate) struct Session {
    pub(crate) root: &'static Root,
    pub(crate) node: &'static Node,
    pub(crate) onlooker: &'static Onlooker,
    /// Numbers in the node of the GPUs that this process may open; a GPU's place here is its index.
    visible: Vec<usize>,
}

/// A GPU that a call is about.
pub(crate) struct Device {
    /// Index in this process.
    pub(crate) index: u32,
    /// Index in the node.
    pub(crate) number: usize,
    pub(crate) gpu: &'static Gpu,
    pub(crate) session: &'static Session,
    /// The MIG device of it that the call is about.
    pub(crate) mig: Option<Instance>,
}

struct Opened {
    root: &'static Root,
    node: &'static Node,
    onlooker: &'static Onlooker,
}

static OPENED: Mutex<Option<Opened>> = Mutex::new(None);
static INITS: Mutex<u32> = Mutex::new(0);
static SESSION: AtomicPtr<Session> = AtomicPtr::new(core::ptr::null_mut());

/// Handles are the addresses of these bytes: unique, never null, recognisable.
static HANDLES: [u8; MAX_GPUS] = [0; MAX_GPUS];

/// One more init; the first one looks which GPUs there are.
pub(crate) fn init() -> Answer {
    let mut inits = INITS.lock();
    if *inits == 0 {
        let session = open()?;
        SESSION.store(Box::leak(Box::new(session)), Ordering::Release);
    }
    *inits += 1;
    Ok(())
}

/// One init less.
pub(crate) fn shutdown() -> Answer {
    let mut inits = INITS.lock();
    *inits = inits.checked_sub(1).ok_or(Failure::UNINITIALIZED)?;
    if *inits == 0 {
        SESSION.store(core::ptr::null_mut(), Ordering::Release);
    }
    Ok(())
}

fn open() -> Result<Session, Failure> {
    let mut opened = OPENED.lock();
    if opened.is_none() {
        let root = Root::of_library(&raw const HANDLES as usize).ok_or(Failure::DRIVER_NOT_LOADED)?;
        let node = Node::map(&root.join("run/nvidia-sim/config")).ok_or(Failure::DRIVER_NOT_LOADED)?;
        let mapped = Mapped::open(&root.join("run/nvidia-sim/state"), false)
            .map_err(|_| Failure::DRIVER_NOT_LOADED)?;
        let onlooker = Box::leak(Box::new(Onlooker::new(mapped)));
        *opened = Some(Opened { root: Box::leak(Box::new(root)), node, onlooker });
    }
    let Some(Opened { root, node, onlooker }) = &*opened else { return Err(Failure::DRIVER_NOT_LOADED) };
    match onlooker.mapped().state.node_fault(Fault::NvmlInit) {
        0 => {}
        code => return Err(Failure(code as u32)),
    }
    if !devices::control_visible(root) {
        return Err(Failure::DRIVER_NOT_LOADED);
    }
    let gpus = node.gpus().iter().enumerate();
    let visible = gpus.filter(|(_, gpu)| devices::gpu_visible(root, gpu.minor)).map(|(i, _)| i).collect();
    Ok(Session { root, node, onlooker, visible })
}

impl Session {
    /// The current session.
    pub(crate) fn current() -> Result<&'static Self, Failure> {
        // SAFETY: null or a session that is never freed.
        unsafe { SESSION.load(Ordering::Acquire).as_ref() }.ok_or(Failure::UNINITIALIZED)
    }

    /// The GPUs that this process may see.
    pub(crate) fn devices(&'static self) -> impl Iterator<Item = Device> {
        self.visible.iter().enumerate().map(move |(index, &number)| Device {
            index: index as u32,
            number,
            gpu: &self.node.gpus[number],
            session: self,
            mig: None,
        })
    }

    /// The first visible GPU that fits.
    pub(crate) fn find(&'static self, fits: impl Fn(&Device) -> bool) -> Result<Device, Failure> {
        self.devices().find(fits).ok_or(Failure::NOT_FOUND)
    }
}

impl Device {
    /// The GPU behind a handle; injected faults strike here.
    pub(crate) fn of(handle: Handle) -> Result<Self, Failure> {
        let session = Session::current()?;
        let number = handle.wrapping_sub(&raw const HANDLES as usize);
        let found = session.find(|device| device.number == number);
        let device = match found {
            Ok(device) => device,
            Err(_) => instances::device(handle)?,
        };
        session.strike(device.number).map(|()| device)
    }

    /// The GPU's handle.
    pub(crate) fn handle(&self) -> Handle {
        &raw const HANDLES[self.number] as usize
    }

    /// What goes on on the GPU.
    pub(crate) fn state(&self) -> &'static GpuState {
        &self.session.onlooker.mapped().state.gpus[self.number]
    }
}

impl Session {
    /// Injected faults of a GPU.
    pub(crate) fn strike(&self, number: usize) -> Answer {
        let state = &self.onlooker.mapped().state.gpus[number];
        if state.fault(Fault::NvmlKill) != 0 {
            let count = &self.writer()?.state.gpus[number].faults[Fault::NvmlKill as usize];
            if count.fetch_sub(1, Ordering::AcqRel) == 1 {
                sys::kill_self();
            }
        }
        if state.fault(Fault::NvmlFail) != 0 {
            let count = &self.writer()?.state.gpus[number].faults[Fault::NvmlFail as usize];
            if count.fetch_sub(1, Ordering::AcqRel) == 1 {
                return Err(Failure::UNKNOWN);
            }
        }
        match state.fault(Fault::NvmlDelay) {
            0 => {}
            microseconds => sys::sleep(microseconds.saturating_mul(1000)),
        }
        match state.fault(Fault::NvmlDevice) {
            0 => Ok(()),
            code => Err(Failure(code as u32)),
        }
    }

    /// The state, mapped for writing. It stays so: closing any descriptor of the file would drop this
    /// process's locks.
    pub(crate) fn writer(&self) -> Result<Mapped, Failure> {
        let mut writer = WRITER.lock();
        if writer.is_none() {
            let mapped = Mapped::open(&self.root.join("run/nvidia-sim/state"), true);
            *writer = Some(mapped.map_err(|_| Failure::NO_PERMISSION)?);
        }
        (*writer).ok_or(Failure::NO_PERMISSION)
    }
}

static WRITER: Mutex<Option<Mapped>> = Mutex::new(None);
