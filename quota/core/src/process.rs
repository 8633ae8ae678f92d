//! This process: its slot in the ledger and its allocations.
//!
//! # Registration
//!
//! A process registers at its first allocation. It opens the ledger, locks the byte of a free slot *for that
//! open file description*, maps the file through it, tells the kernel that the mapping is not for forked
//! children (`MADV_DONTFORK`) and closes the descriptor. From then on the mapping alone keeps the lock:
//!
//! - exit, a signal, exec: the address space goes, and with it the mapping and the lock;
//! - `closefrom`, or an application that closes numbers it does not know: nothing happens, there is no
//!   number;
//! - other descriptors of the ledger in this process, for example the NVML library's: closing them changes
//!   nothing, unlike with the classic locks of POSIX;
//! - fork: the child has neither the mapping nor the lock, so the parent's death is seen though the child
//!   lives.
//!
//! All state of one process is in one page that the kernel wipes in a forked child
//! (`MADV_WIPEONFORK`), locks included: a child finds zeros and registers itself when it allocates. No
//! system call is needed to tell parent from child.
//!
//! A process that was checkpointed and restored (CRIU) has its memory back, this page included, but not the
//! lock. If its slot was cleared meanwhile, it sees that at its next call and registers again with everything
//! that it has.
//!
//! One gap: a thread that forks while another is between opening and closing the ledger gives the child a
//! descriptor that keeps the lock, until the child execs or ends. Within one pid namespace the pid then
//! decides ([`fgpu_wire::ledger`]); else the parent's memory counts until the child ends. It is never
//! under-counted.

use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};

use fgpu_wire::LEDGER_PATH;
use fgpu_wire::ledger::{self, Busy, Compute, Ledger, MAX_SLOTS, Owner};
use fgpu_wire::limits::{Page, UNLIMITED};

use crate::allocations::Allocations;
use crate::files;
use crate::kernel::{self, System};
use crate::limiter::Lanes;
use crate::message::Refusal;
use crate::mutex::Mutex;
use crate::size;
use crate::sys::{self, File, InChild};

/// The page that is wiped at fork. All zeros is a process that has not registered.
static PAGE: AtomicPtr<Process> = AtomicPtr::new(core::ptr::null_mut());

/// Device ordinals that are remembered; CUDA has no more GPUs than that in one process.
const DEVICES: usize = 64;

/// This process's account.
#[repr(C)]
pub struct Process {
    /// 1 when all fields below are set.
    ready: AtomicU32,
    registering: Mutex,
    ledger: AtomicPtr<Ledger>,
    limits: AtomicPtr<Page>,
    slot: AtomicU32,
    generation: AtomicU32,
    namespace: AtomicU64,
    /// By CUDA ordinal: the GPU's number in the grant plus 1; 0: unknown. CUDA_VISIBLE_DEVICES may reorder,
    /// so the ordinal alone is not enough.
    devices: [AtomicU8; DEVICES],
    /// What was allocated and not yet freed.
    pub allocations: Allocations,
    /// How many of the driver's meters there are to read ([`Kind::Pool`](crate::allocations::Kind::Pool),
    /// `Graphs`). A process without any never reads one.
    pub meters: AtomicU32,
    /// How many executable graphs allocate memory.
    pub executables: AtomicU32,
    /// How often memory that graphs do not use at the moment was given back to the driver.
    pub trims: AtomicU64,
    seen: AtomicPtr<Seen>,
    lanes: AtomicPtr<Lanes>,
}

/// Cells of [`Seen`].
const SEEN: usize = 4096;

/// A set that forgets: each cell has the last value with these lowest bits of its hash.
type Seen = [AtomicU64; SEEN];

/// What a GPU's memory looks like from inside the container, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The limit; [`UNLIMITED`] if there is none.
    pub limit: u64,
    /// In use by all processes of the container.
    pub used: u64,
}

impl Process {
    /// This process's account, registered at the first call.
    #[inline]
    pub fn current() -> Result<&'static Self, Refusal> {
        match Self::registered() {
            Some(process) => Ok(process),
            None => Self::register(),
        }
    }

    /// This process's account, if it has registered. A process that has not has allocated nothing.
    #[inline]
    pub fn registered() -> Option<&'static Self> {
        // SAFETY: a published page stays mapped for good; it is zeros or what this process wrote.
        let process = unsafe { PAGE.load(Ordering::Acquire).as_ref() }?;
        (process.ready.load(Ordering::Acquire) == 1).then_some(process)
    }

    #[cold]
    fn register() -> Result<&'static Self, Refusal> {
        let limits = files::limits()?;
        let process = page()?;
        let _registering = process.registering.lock();
        if process.ready.load(Ordering::Acquire) == 1 {
            return Ok(process);
        }
        let namespace = kernel::namespace();
        let (ledger, slot) = take_slot(limits)?;
        let owner = ledger.register(slot, sys::pid(), &System::new(namespace)).ok_or(Refusal::Ledger)?;
        process.ledger.store(core::ptr::from_ref(ledger).cast_mut(), Ordering::Relaxed);
        process.limits.store(core::ptr::from_ref(limits).cast_mut(), Ordering::Relaxed);
        process.slot.store(owner.slot as u32, Ordering::Relaxed);
        process.generation.store(owner.generation, Ordering::Relaxed);
        process.namespace.store(namespace, Ordering::Relaxed);
        process.ready.store(1, Ordering::Release);
        Ok(process)
    }

    fn ledger(&self) -> &'static Ledger {
        // SAFETY: set before `ready`, and mapped for good.
        unsafe { &*self.ledger.load(Ordering::Relaxed) }
    }

    /// The grant.
    pub fn limits(&self) -> &'static Page {
        // SAFETY: set before `ready`, and mapped for good.
        unsafe { &*self.limits.load(Ordering::Relaxed) }
    }

    fn owner(&self) -> Owner {
        Owner {
            slot: self.slot.load(Ordering::Relaxed) as usize,
            generation: self.generation.load(Ordering::Relaxed),
        }
    }

    /// The ledger and this process's registration in it, renewed if the slot was lost.
    #[inline]
    fn account(&self) -> (&'static Ledger, Owner) {
        let (ledger, owner) = (self.ledger(), self.owner());
        if ledger.is_registered(owner) { (ledger, owner) } else { self.register_again() }
    }

    /// The same; `None` if it was renewed just now. The ledger then agrees with the table of allocations,
    /// which the callers have changed already.
    #[inline]
    fn still_registered(&self) -> Option<(&'static Ledger, Owner)> {
        let (ledger, owner) = (self.ledger(), self.owner());
        if ledger.is_registered(owner) {
            return Some((ledger, owner));
        }
        self.register_again();
        None
    }

    /// Registers anew if the slot was lost, before the table of allocations is changed.
    #[inline]
    pub fn renew(&self) {
        self.still_registered();
    }

    #[cold]
    fn register_again(&self) -> (&'static Ledger, Owner) {
        let _registering = self.registering.lock();
        let (ledger, owner) = (self.ledger(), self.owner());
        if ledger.is_registered(owner) {
            return (ledger, owner);
        }
        let Ok((ledger, slot)) = take_slot(self.limits()) else { return (ledger, owner) };
        let namespace = kernel::namespace();
        let system = System::new(namespace);
        let Some(owner) = ledger.register(slot, sys::pid(), &system) else { return (ledger, owner) };
        for (gpu, &bytes) in self.allocations.lock().counted().iter().enumerate() {
            if bytes != 0 {
                ledger.reserve(owner, gpu, bytes, bytes, UNLIMITED, &system);
            }
        }
        self.namespace.store(namespace, Ordering::Relaxed);
        self.ledger.store(core::ptr::from_ref(ledger).cast_mut(), Ordering::Relaxed);
        self.slot.store(owner.slot as u32, Ordering::Relaxed);
        self.generation.store(owner.generation, Ordering::Relaxed);
        (ledger, owner)
    }

    fn system(&self) -> System {
        System::new(self.namespace.load(Ordering::Relaxed))
    }

    /// Reserves for an allocation of `bytes` on GPU number `gpu` of the grant; returns what it counts for, to
    /// be [released](Self::release) once. `None`: out of memory.
    pub fn reserve(&self, gpu: usize, bytes: u64) -> Option<u64> {
        let (least, most) = size::of(bytes);
        self.reserve_between(gpu, least, most)
    }

    /// Reserves up to `most` and at least `least`, which are not rounded; returns what was reserved.
    pub fn reserve_between(&self, gpu: usize, least: u64, most: u64) -> Option<u64> {
        let (ledger, owner) = self.account();
        ledger.reserve(owner, gpu, least, most, self.limits().memory(gpu), &self.system())
    }

    /// Counts what the driver has taken already, even above the limit. The ledger stays true, and the next
    /// allocation is refused.
    pub fn force(&self, gpu: usize, bytes: u64) {
        if let Some((ledger, owner)) = self.still_registered() {
            ledger.reserve(owner, gpu, bytes, bytes, UNLIMITED, &self.system());
        }
    }

    /// Bytes in use on GPU number `gpu` of the grant, dead processes included.
    pub fn total(&self, gpu: usize) -> u64 {
        self.ledger().total(gpu)
    }

    /// Adds `what`, which is not 0; returns whether it was there. The set may forget a value, but never
    /// invents one.
    #[inline]
    pub fn see(&self, what: u64) -> bool {
        // SAFETY: a published page stays mapped for good.
        let Some(seen) = (unsafe { self.seen.load(Ordering::Acquire).as_ref() }) else {
            self.make_seen();
            return false;
        };
        let hash = what.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52;
        let Some(cell) = seen.get(hash as usize) else { return false };
        cell.load(Ordering::Relaxed) == what || {
            cell.store(what, Ordering::Relaxed);
            false
        }
    }

    /// Forgets all values.
    pub fn forget_seen(&self) {
        // SAFETY: a published page stays mapped for good.
        if let Some(seen) = unsafe { self.seen.load(Ordering::Acquire).as_ref() } {
            seen.iter().for_each(|cell| cell.store(0, Ordering::Relaxed));
        }
    }

    #[cold]
    fn make_seen(&self) {
        make(&self.seen);
    }

    /// The state of the limiter of SM time; `None` if the kernel has no memory for it.
    #[inline]
    pub fn lanes(&self) -> Option<&'static Lanes> {
        // SAFETY: a published mapping stays for good, and zeros are `Lanes`.
        let lanes = unsafe { self.lanes.load(Ordering::Acquire).as_ref() };
        lanes.or_else(|| {
            make(&self.lanes);
            // SAFETY: a published mapping stays for good, and zeros are `Lanes`.
            unsafe { self.lanes.load(Ordering::Acquire).as_ref() }
        })
    }

    /// The same, if it exists.
    #[inline]
    pub fn known_lanes(&self) -> Option<&'static Lanes> {
        // SAFETY: a published mapping stays for good, and zeros are `Lanes`.
        unsafe { self.lanes.load(Ordering::Acquire).as_ref() }
    }

    /// The container's account of time on GPU number `gpu` of the grant.
    #[inline]
    pub fn compute(&self, gpu: usize) -> Option<&'static Compute> {
        self.ledger().compute(gpu)
    }

    /// This process's recent use of the time of GPU number `gpu` of the grant.
    #[inline]
    pub fn part(&self, gpu: usize) -> Option<&'static Busy> {
        self.ledger().busy(self.owner().slot, gpu)
    }

    /// Gives back what [`reserve`](Self::reserve) returned.
    pub fn release(&self, gpu: usize, bytes: u64) {
        if let Some((ledger, owner)) = self.still_registered() {
            ledger.release(owner, gpu, bytes, &self.system());
        }
    }

    /// Limit and use of GPU number `gpu` of the grant, without dead processes.
    pub fn memory(&self, gpu: usize) -> Memory {
        let (ledger, owner) = self.account();
        ledger.reap(owner, &self.system());
        Memory { limit: self.limits().memory(gpu), used: ledger.total(gpu) }
    }

    /// The number in the grant of a CUDA device, if it was [remembered](Self::remember_device).
    #[inline]
    pub fn device(&self, ordinal: i32) -> Option<usize> {
        let device = self.devices.get(usize::try_from(ordinal).ok()?)?;
        usize::from(device.load(Ordering::Relaxed)).checked_sub(1)
    }

    /// Remembers the number in the grant of a CUDA device.
    pub fn remember_device(&self, ordinal: i32, gpu: usize) {
        if let Some(device) = usize::try_from(ordinal).ok().and_then(|ordinal| self.devices.get(ordinal)) {
            device.store(gpu as u8 + 1, Ordering::Relaxed);
        }
    }
}

impl Memory {
    /// What is left under the limit; `None` if there is none.
    pub fn free(&self) -> Option<u64> {
        (self.limit != UNLIMITED).then(|| self.limit.saturating_sub(self.used))
    }
}

/// Maps zeros for a pointer of the page's, unless another thread is faster.
#[cold]
pub(crate) fn make<T>(cell: &AtomicPtr<T>) {
    let Ok(at) = sys::map_zeros(size_of::<T>()) else { return };
    // In a forked child the pointer to it is wiped; if the kernel refuses, a copy is left there unused.
    let _ = sys::at_fork(at, size_of::<T>(), InChild::Absent);
    let null = core::ptr::null_mut();
    if cell.compare_exchange(null, at.cast().as_ptr(), Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: no other thread has seen ours.
        unsafe { sys::unmap(at, size_of::<T>()) };
    }
}

/// The wiped-at-fork page, made at the first call.
fn page() -> Result<&'static Process, Refusal> {
    const { assert!(size_of::<Process>() <= 4096) };
    // SAFETY: a published page stays mapped for good.
    if let Some(page) = unsafe { PAGE.load(Ordering::Acquire).as_ref() } {
        return Ok(page);
    }
    let at = sys::map_zeros(size_of::<Process>()).map_err(|_| Refusal::Kernel)?;
    if sys::at_fork(at, size_of::<Process>(), InChild::Zeros).is_err() {
        // SAFETY: no other thread has seen it.
        unsafe { sys::unmap(at, size_of::<Process>()) };
        return Err(Refusal::Kernel);
    }
    let mine: *mut Process = at.cast().as_ptr();
    let published =
        match PAGE.compare_exchange(core::ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => mine,
            Err(theirs) => {
                // SAFETY: no other thread has seen ours.
                unsafe { sys::unmap(at, size_of::<Process>()) };
                theirs
            }
        };
    // SAFETY: published, so mapped for good; zeros are a valid `Process`.
    Ok(unsafe { &*published })
}

/// Takes a slot: locks its byte, and leaves the lock to the mapping.
fn take_slot(limits: &Page) -> Result<(&'static Ledger, usize), Refusal> {
    let file = File::open(LEDGER_PATH, true).map_err(|_| Refusal::Ledger)?;
    if file.size().is_ok_and(|size| size < ledger::SIZE) {
        return Err(Refusal::Ledger);
    }
    let at = file.map(ledger::SIZE, true).map_err(|_| Refusal::Kernel)?;
    // SAFETY: mapped for good unless unmapped below, of the right size, every bit pattern is a `Ledger`.
    let ledger: &'static Ledger = unsafe { at.cast().as_ref() };
    let taken = if sys::at_fork(at, ledger::SIZE, InChild::Absent).is_err() {
        Err(Refusal::Kernel)
    } else if !ledger.is_valid(&limits.nonce()) {
        Err(Refusal::Ledger)
    } else {
        lock_some_byte(&file, limits)
    };
    if taken.is_err() {
        // SAFETY: nothing but `ledger` refers to it, and that is not used again.
        unsafe { sys::unmap(at, ledger::SIZE) };
    }
    taken.map(|slot| (ledger, slot))
}

fn lock_some_byte(file: &File, limits: &Page) -> Result<usize, Refusal> {
    for slot in 0..MAX_SLOTS {
        if file.lock_byte(slot).map_err(|_| Refusal::Kernel)? {
            file.ensure_room(0, ledger::HEADER).map_err(|_| Refusal::Ledger)?;
            let times = limits.gpus().max(1) * ledger::COMPUTE;
            file.ensure_room(ledger::COMPUTE_AT, times).map_err(|_| Refusal::Ledger)?;
            file.ensure_room(ledger::slot_at(slot), ledger::SLOT).map_err(|_| Refusal::Ledger)?;
            return Ok(slot);
        }
    }
    Err(Refusal::Full)
}
