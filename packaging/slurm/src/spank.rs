//! What is used of Slurm's SPANK (slurm/spank.h). The functions are those of the program that loads us.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_void};

/// `spank_t`.
pub(crate) type SpankHandle = *mut c_void;

/// `enum spank_item`: numbers that never change, since they are a plugin's.
const S_JOB_UID: c_int = 0;
const S_JOB_ID: c_int = 2;
const S_JOB_STEPID: c_int = 3;

/// `SLURM_BATCH_SCRIPT` and `SLURM_INTERACTIVE_STEP` (slurm.h): steps that have what their job has.
const BATCH: u32 = 0xffff_fffb;
const INTERACTIVE: u32 = 0xffff_fffa;

/// The longest variable of Slurm's that is read: a node's GPUs, bytes.
const LONGEST: usize = 1024;

/// `struct spank_option`.
#[repr(C)]
struct SpankOption {
    name: *const c_char,
    arginfo: *const c_char,
    usage: *const c_char,
    has_arg: c_int,
    val: c_int,
    cb: Option<extern "C" fn(c_int, *const c_char, c_int) -> c_int>,
}

unsafe extern "C" {
    fn slurm_api_version() -> c_long;
    fn slurm_spank_log(format: *const c_char, ...);
    fn spank_context() -> c_int;
    fn spank_get_item(handle: SpankHandle, item: c_int, ...) -> c_int;
    fn spank_getenv(handle: SpankHandle, name: *const c_char, into: *mut c_char, length: c_int) -> c_int;
    fn spank_setenv(handle: SpankHandle, name: *const c_char, value: *const c_char, over: c_int) -> c_int;
    fn spank_option_register(handle: SpankHandle, option: *const SpankOption) -> c_int;
    fn spank_option_getopt(
        handle: SpankHandle,
        option: *const SpankOption,
        value: *mut *const c_char,
    ) -> c_int;
}

/// The one option. Shards say how much and not how SM time is meant.
const OPTION: SpankOption = SpankOption {
    name: c"fgpu-compute".as_ptr(),
    arginfo: c"cap|share".as_ptr(),
    usage: c"how the SM time of the job's shards is meant: cap (never more), share (idle time may be used)"
        .as_ptr(),
    has_arg: 1,
    val: 0,
    cb: Some(is_compute),
};

/// Whether the option has one of its values. What would ask for more than shards is none.
extern "C" fn is_compute(_: c_int, value: *const c_char, _: c_int) -> c_int {
    if value.is_null() {
        return -1;
    }
    // SAFETY: Slurm's string.
    let value = unsafe { CStr::from_ptr(value) };
    if [c"cap", c"share"].contains(&value) { 0 } else { -1 }
}

/// `SLURM_API_VERSION`, 0xMMmmpp.
pub(crate) fn api_version() -> c_long {
    // SAFETY: it reads a constant.
    unsafe { slurm_api_version() }
}

/// Who has loaded us.
pub(crate) enum Context {
    /// srun, sbatch or salloc.
    Submit,
    /// slurmstepd.
    Step,
    /// slurmd.
    Daemon,
    /// A prolog or an epilog.
    Other,
}

pub(crate) fn context() -> Context {
    // SAFETY: no argument.
    match unsafe { spank_context() } {
        1 | 3 => Context::Submit,
        2 => Context::Step,
        4 => Context::Daemon,
        _ => Context::Other,
    }
}

/// A line in the log of the process that has loaded us.
pub(crate) fn log(line: &str) {
    if let Ok(line) = CString::new(line) {
        // SAFETY: a format with one string, and that.
        unsafe { slurm_spank_log(c"%s".as_ptr(), line.as_ptr()) };
    }
}

/// Whose GPUs a step has.
pub(crate) enum Step {
    /// All of its job's: the batch script.
    OfJob,
    /// What srun has asked for.
    Own,
}

/// The handle of one call.
pub(crate) struct Spank(SpankHandle);

impl Spank {
    /// # Safety
    /// `handle` is valid as long as this.
    pub(crate) unsafe fn new(handle: SpankHandle) -> Self {
        Self(handle)
    }

    fn number(&self, item: c_int) -> u32 {
        let mut number: u32 = 0;
        // SAFETY: these items are of type uint32_t or uid_t, 32 bits wide.
        unsafe { spank_get_item(self.0, item, &raw mut number) };
        number
    }

    pub(crate) fn job(&self) -> u32 {
        self.number(S_JOB_ID)
    }

    pub(crate) fn uid(&self) -> u32 {
        self.number(S_JOB_UID)
    }

    pub(crate) fn step(&self) -> Step {
        match self.number(S_JOB_STEPID) {
            BATCH | INTERACTIVE => Step::OfJob,
            _ => Step::Own,
        }
    }

    /// A variable of the task's environment. One that is longer than Slurm's are is none.
    pub(crate) fn env(&self, name: &CStr) -> Option<String> {
        let mut value = [0; LONGEST];
        let length = c_int::try_from(LONGEST).unwrap_or(0);
        // SAFETY: the buffer is that long.
        let code = unsafe { spank_getenv(self.0, name.as_ptr(), value.as_mut_ptr(), length) };
        // SAFETY: it holds zeros, or a string that ends in it.
        let value = unsafe { CStr::from_ptr(value.as_ptr()) };
        (code == 0 && !value.is_empty()).then(|| value.to_string_lossy().into_owned())
    }

    pub(crate) fn set_env(&self, name: &CStr, value: &str) {
        if let Ok(value) = CString::new(value) {
            // SAFETY: two strings.
            unsafe { spank_setenv(self.0, name.as_ptr(), value.as_ptr(), 1) };
        }
    }

    pub(crate) fn register_option(&self) {
        let option = OPTION;
        // SAFETY: Slurm copies the option, whose strings are constants.
        unsafe { spank_option_register(self.0, &raw const option) };
    }

    /// The option's value, if the user has given it.
    pub(crate) fn option(&self) -> Option<String> {
        let (option, mut value) = (OPTION, std::ptr::null());
        // SAFETY: the option has an argument, for which there is a place.
        let code = unsafe { spank_option_getopt(self.0, &raw const option, &raw mut value) };
        if code != 0 || value.is_null() {
            return None;
        }
        // SAFETY: Slurm's string.
        Some(unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned())
    }
}
