//! The tables of private functions (`cuGetExportTable`) by which NVIDIA's runtime library (libcudart) and its
//! mathematical libraries reach the driver beside the public names.
//!
//! A table is known by a UUID. It is an array of pointers; slot 0 is its size in bytes, the others are
//! functions. One table has no size. What they are for is public knowledge: ZLUDA (`dark_api`) and others
//! that stand in for libcuda have published names, slots and arguments. What is here was written from that,
//! and tried with libcudart 11.8, 12.9 and 13.5, static and shared. A slot that is not known is noted by
//! table and number in the log of calls, as missing (`crate::calls`), and answers "not supported".
//!
//! | table | slots that are served |
//! |---|---|
//! | `CUDART_INTERFACE` | 2: a primary context's handle, without making it; 6, 7: load and unload (CUDA 11); 12: compilers |
//! | `TOOLS_TLS` | 2: the current context |
//! | `TOOLS_RUNTIME_CALLBACK_HOOKS` | 2 and 6: buffers in which a debugger says what it wants to be told |
//! | `TOOLS_CONTEXT` | 4: number of a context |
//! | `CONTEXT_LOCAL_STORAGE` | 0: keep a value for a context, 1: forget it, 2: look it up |
//! | `CONTEXT_CHECKS` | 2: check a context, 3: check the process; there is nothing to find |
//! | `SELF_TEST` | 1: the driver's part of the runtime's self-test |
//!
//! The self-test is what `cudaErrorSoftwareValidityNotEstablished` tells of. The runtime asks three times:
//! the first two answers are constants; for the third one both compute a digest of what both know (versions,
//! process, thread, addresses of the tables, time, GPUs), and the runtime compares.

use alloc::collections::btree_map::BTreeMap;
use alloc::format;
use core::arch::asm;
use core::ffi::c_void;

use sim_node::md2;
use sim_node::sys;

use crate::abi::{Answer, Failure, Handle, code, get, put, put_if_asked};
use crate::calls::{self, Counter, Kind};
use crate::context;
use crate::current;
use crate::driver::{self, Driver};
use crate::module;

type Id = [u8; 16];

/// A table. The slots are as wide as pointers.
#[repr(C)]
struct Table<const N: usize>([*const (); N]);

// SAFETY: a size and addresses of functions, which nobody writes.
unsafe impl<const N: usize> Sync for Table<N> {}

/// A table's UUID, its name here, and where it starts.
struct Known {
    id: Id,
    name: &'static str,
    start: *const (),
}

// SAFETY: as the tables.
unsafe impl Sync for Known {}

/// A function that nobody has described yet.
unsafe extern "C" fn unknown<const TABLE: usize, const SLOT: usize>() -> u32 {
    let name = TABLES.get(TABLE).map_or("?", |known| known.name);
    calls::note(&format!("{name}:{SLOT}"), Kind::Missing);
    Failure::NOT_SUPPORTED.0
}

/// A table of unknown functions, but for the known ones; slot 0 is the size unless it is a known function.
const fn table<const N: usize>(mut slots: [*const (); N], known: &[(usize, *const ())]) -> Table<N> {
    slots[0] = core::ptr::without_provenance(size_of::<[*const (); N]>());
    let mut i = 0;
    while i < known.len() {
        slots[known[i].0] = known[i].1;
        i += 1;
    }
    Table(slots)
}

/// The tables: a UUID, a name, slots by their numbers, and which functions are known.
macro_rules! tables {
    ($($number:literal $name:ident $id:literal [$($slot:literal)*] { $($at:literal = $function:expr;)* })*) => {
        $(static $name: Table<{ [$($slot),*].len() }> = table(
            [$(unknown::<$number, $slot> as *const ()),*],
            &[$(($at, $function as *const ())),*],
        );)*
        static TABLES: &[Known] = &[$(Known {
            id: u128::to_be_bytes($id),
            name: stringify!($name),
            start: (&raw const $name).cast(),
        }),*];
    };
}

tables! {
    0 CUDART_INTERFACE 0x6BD5FB6C_5BF4_E74A_8987_D93912FD9DF9 [0 1 2 3 4 5 6 7 8 9 10 11 12] {
        2 = primary_context;
        6 = load;
        7 = unload;
        12 = load_compilers;
    }
    1 TOOLS_TLS 0x42D85A81_23F6_CB47_8298_F6E78A3AECDC [0 1 2 3] { 2 = thread_context; }
    2 TOOLS_RUNTIME_CALLBACK_HOOKS 0xA094798C_2E74_2E74_93F2_0800200C0A66 [0 1 2 3 4 5 6] {
        2 = hooks;
        6 = more_hooks;
    }
    3 CONTEXT_LOCAL_STORAGE 0xC693336E_1121_DF11_A8C3_68F355D89593 [0 1 2 3] {
        0 = keep;
        1 = forget;
        2 = look_up;
    }
    4 CONTEXT_CHECKS 0x263E8860_7CD2_6143_92F6_BBD5006DFA7E [0 1 2 3] {
        2 = check_context;
        3 = check_process;
    }
    5 SELF_TEST 0xD4082055_BDE6_704B_8D34_BA123C66E1F2 [0 1 2] { 1 = self_test; }
    6 TOOLS_CONTEXT 0x21318C60_9714_3248_8CA6_41FF7324C8F2 [
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39
        40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76
        77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94
    ] { 4 = context_number; }
}

/// As `cuGetExportTable`: a table that is not known is an invalid value, and noted.
pub(crate) unsafe fn export(out: *mut *const c_void, id: *const Id) -> Answer {
    // SAFETY: handed on from the caller.
    let id = unsafe { get(id) }?;
    let Some(known) = TABLES.iter().find(|known| known.id == *id) else {
        calls::note(&format!("table:{:032x}", u128::from_be_bytes(*id)), Kind::Unknown);
        return Err(Failure::INVALID_VALUE);
    };
    // SAFETY: handed on from the caller.
    unsafe { put(out, known.start.cast()) }
}

/// Counts a call and gives its answer as a `CUresult`.
fn slot(counter: &'static Counter, answer: impl FnOnce() -> Answer) -> u32 {
    calls::counted(counter, || code(answer()))
}

unsafe extern "C" fn primary_context(out: *mut Handle, ordinal: i32) -> u32 {
    static CALLED: Counter = Counter::new("CUDART_INTERFACE:2");
    // SAFETY: handed on from the caller.
    slot(&CALLED, || unsafe { put(out, context::primary_handle(ordinal)?) })
}

/// Loads a wrapper of a fat binary, as nvcc puts it into programs.
unsafe extern "C" fn load(out: *mut Handle, wrapper: *const u8, _: usize, _: usize, _: u32) -> u32 {
    static CALLED: Counter = Counter::new("CUDART_INTERFACE:6");
    // SAFETY: handed on from the caller.
    slot(&CALLED, || unsafe { module::load_module(out, wrapper) })
}

unsafe extern "C" fn unload(module: Handle) -> u32 {
    static CALLED: Counter = Counter::new("CUDART_INTERFACE:7");
    slot(&CALLED, || module::unload(module))
}

/// The runtime asks whether the driver's compilers are there, and gets on without them.
unsafe extern "C" fn load_compilers() -> u32 {
    static CALLED: Counter = Counter::new("CUDART_INTERFACE:12");
    slot(&CALLED, || Ok(()))
}

unsafe extern "C" fn thread_context(out: *mut Handle) -> u32 {
    static CALLED: Counter = Counter::new("TOOLS_TLS:2");
    // SAFETY: handed on from the caller.
    slot(&CALLED, || unsafe { put(out, current::get().unwrap_or(0)) })
}

unsafe extern "C" fn context_number(context: Handle, out: *mut u64) -> u32 {
    static CALLED: Counter = Counter::new("TOOLS_CONTEXT:4");
    // SAFETY: handed on from the caller.
    slot(&CALLED, || unsafe { put(out, context::number(context)?) })
}

/// Words that a debugger would set; nobody does.
struct Hooks<const N: usize>(core::cell::UnsafeCell<[u32; N]>);

// SAFETY: only its address is given out.
unsafe impl<const N: usize> Sync for Hooks<N> {}

static HOOKS: Hooks<1024> = Hooks(core::cell::UnsafeCell::new([0; 1024]));
static MORE_HOOKS: Hooks<14> = Hooks(core::cell::UnsafeCell::new([0; 14]));

unsafe extern "C" fn hooks(out: *mut *mut u32, count: *mut usize) {
    // SAFETY: handed on from the caller; null means that it is not wanted.
    unsafe { put_if_asked(out, HOOKS.0.get().cast()) };
    // SAFETY: as above.
    unsafe { put_if_asked(count, 1024) };
}

unsafe extern "C" fn more_hooks(out: *mut *mut u32, count: *mut usize) {
    // SAFETY: handed on from the caller; null means that it is not wanted.
    unsafe { put_if_asked(out, MORE_HOOKS.0.get().cast()) };
    // SAFETY: as above.
    unsafe { put_if_asked(count, 14) };
}

/// Called with context, key and value when the context ends or is reset.
type Ended = unsafe extern "C" fn(Handle, usize, usize);

/// What callers keep for a context, by key.
#[derive(Default)]
pub(crate) struct Kept(BTreeMap<usize, (usize, Option<Ended>)>);

impl Kept {
    /// The context has ended: whoever kept something is told. No lock may be held.
    pub(crate) fn end(self, context: Handle) {
        for (key, (value, ended)) in self.0 {
            if let Some(ended) = ended {
                // SAFETY: the function that came with the value, with what it was kept for.
                unsafe { ended(context, key, value) };
            }
        }
    }
}

/// The context that is meant; 0 is the current one.
fn meant(context: Handle) -> Result<Handle, Failure> {
    if context == 0 { current::get().ok_or(Failure::INVALID_CONTEXT) } else { Ok(context) }
}

/// What is kept for a context.
fn with_kept<T>(context: Handle, with: impl FnOnce(&mut Kept) -> T) -> Result<T, Failure> {
    let context = meant(context)?;
    let mut objects = Driver::get()?.objects();
    let context = objects.contexts.get_mut(&context).ok_or(Failure::INVALID_CONTEXT)?;
    Ok(with(&mut context.kept))
}

unsafe extern "C" fn keep(context: Handle, key: usize, value: usize, ended: Option<Ended>) -> u32 {
    static CALLED: Counter = Counter::new("CONTEXT_LOCAL_STORAGE:0");
    slot(&CALLED, || with_kept(context, |kept| kept.0.insert(key, (value, ended))).map(drop))
}

unsafe extern "C" fn forget(context: Handle, key: usize) -> u32 {
    static CALLED: Counter = Counter::new("CONTEXT_LOCAL_STORAGE:1");
    slot(&CALLED, || with_kept(context, |kept| kept.0.remove(&key)).map(drop))
}

unsafe extern "C" fn look_up(out: *mut usize, context: Handle, key: usize) -> u32 {
    static CALLED: Counter = Counter::new("CONTEXT_LOCAL_STORAGE:2");
    slot(&CALLED, || {
        let value = with_kept(context, |kept| kept.0.get(&key).map(|(value, _)| *value))?;
        // SAFETY: handed on from the caller.
        unsafe { put(out, value.ok_or(Failure::INVALID_HANDLE)?) }
    })
}

unsafe extern "C" fn check_context(_context: Handle, found: *mut u32, _what: *mut *const c_void) -> u32 {
    static CALLED: Counter = Counter::new("CONTEXT_CHECKS:2");
    // SAFETY: handed on from the caller.
    slot(&CALLED, || unsafe { put(found, 0) })
}

unsafe extern "C" fn check_process() -> u32 {
    static CALLED: Counter = Counter::new("CONTEXT_CHECKS:3");
    slot(&CALLED, || Ok(()))
}

/// The key of the self-test, as ZLUDA publishes it.
const SELF_TEST_KEY: [u8; md2::BLOCK] = 0x146A_DDAE_53A9_A752_AA08_4136_0BF5_5A9F_u128.to_be_bytes();

/// The thread's `pthread_self`, its lower half.
fn thread() -> u32 {
    let own: u64;
    // SAFETY: on x86_64 the first word of a thread's control block is its own address, in every libc.
    unsafe { asm!("mov {}, fs:0", out(reg) own, options(nostack, readonly)) };
    own as u32
}

/// What the first two of three questions are answered with: the runtime's version has 0 and 1 for its last
/// digit there.
const SELF_TEST_FIRST: [[u64; 2]; 2] =
    [[0x3341_181C_03CB_675C, 0x8ED3_83AA_1F4C_D1E8], [0x1841_181C_03CB_675C, 0x8ED3_83AA_1F4C_D1E8]];

unsafe extern "C" fn self_test(version: u32, seconds: u64, out: *mut [u8; md2::BLOCK]) -> u32 {
    static CALLED: Counter = Counter::new("SELF_TEST:1");
    slot(&CALLED, || {
        let driver = Driver::get()?;
        if let Some(first) = SELF_TEST_FIRST.get(version as usize % 10) {
            // SAFETY: handed on from the caller.
            return unsafe { put(out.cast(), *first) };
        }
        let versions = [driver::version()?, version, sys::pid(), thread()];
        let function = SELF_TEST.0[1];
        let addresses =
            [(&raw const CUDART_INTERFACE).addr(), (&raw const SELF_TEST).addr(), function.addr()];
        let digest = md2::hmac(SELF_TEST_KEY, |message| {
            versions.iter().for_each(|number| message.update(&number.to_ne_bytes()));
            addresses.iter().for_each(|address| message.update(&address.to_ne_bytes()));
            message.update(&seconds.to_ne_bytes());
            for (_, gpu) in &driver.gpus {
                message.update(&gpu.uuid_bytes);
                for number in [gpu.pci_domain, gpu.pci_bus, gpu.pci_device] {
                    message.update(&number.to_ne_bytes());
                }
            }
        });
        // SAFETY: handed on from the caller.
        unsafe { put(out, digest) }
    })
}
