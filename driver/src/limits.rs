//! The driver's own memory limits, which it has per cgroup from r615 (CUDA 13.4) on.
//!
//! `nvmlDeviceSetMemoryLimits_v1` sets two numbers for the processes of a cgroup: the *hard* limit, above
//! which an allocation is refused, whatever library asks for it; and the *soft* one, which is reserved for
//! the cgroup. NVIDIA's guide ("MPS v3 memory partitioning") says what a soft limit costs: the driver adds it
//! to every cgroup above, and takes it away there only when it is lowered again, not when the cgroup is
//! removed. systemd removes a container's cgroup with its last process, before a limit could be lowered. So
//! ours is always 0: nothing can be left behind, and a grant is room all the same, since the hard limits of a
//! GPU never sum to more than it has.
//!
//! Needs cgroup v2 at /sys/fs/cgroup and root. Not for MIG; managed memory is not counted by the driver (it
//! is by the quota library).

#![expect(unsafe_code, reason = "functions of NVML that nvml-wrapper does not have")]

use std::ffi::{CString, c_char, c_int, c_ulonglong, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fgpu_spec::{Code, Error};
use libloading::Library;

/// Where the driver looks for cgroups.
const HIERARCHY: &str = "/sys/fs/cgroup";
/// `NVML_DEVICE_MEMORY_LIMIT_MAX`.
const MAX: c_ulonglong = c_ulonglong::MAX;

const SUCCESS: c_int = 0;
const NOT_SUPPORTED: c_int = 3;
const FUNCTION_NOT_FOUND: c_int = 13;

/// `nvmlSetMemoryLimits_v1_t`; bytes.
#[repr(C)]
struct Set {
    cgroup: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
}

/// `nvmlGetMemoryLimits_v1_t`; bytes.
#[repr(C)]
struct Get {
    cgroup: *const c_char,
    soft: c_ulonglong,
    hard: c_ulonglong,
    used: c_ulonglong,
}

type Plain = unsafe extern "C" fn() -> c_int;
type ByUuid = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;
type SetLimits = unsafe extern "C" fn(*mut c_void, *const Set) -> c_int;
type GetLimits = unsafe extern "C" fn(*mut c_void, *mut Get) -> c_int;

/// NVML, initialised, with the functions of r615.
pub struct Limiter {
    library: Library,
    by_uuid: ByUuid,
    set: SetLimits,
    get: GetLimits,
}

impl Drop for Limiter {
    fn drop(&mut self) {
        // SAFETY: the type is nvml.h's; the library was initialised by `open`, once for this value.
        if let Ok(shutdown) = unsafe { self.library.get::<Plain>(b"nvmlShutdown") } {
            // SAFETY: as above; nothing of NVML is used afterwards.
            unsafe { shutdown() };
        }
    }
}

impl Limiter {
    /// Opens this NVML. `None` if it has no such functions.
    ///
    /// # Errors
    /// `driver-error` if it cannot be loaded or initialised.
    pub fn open(nvml: &Path) -> Result<Option<Self>, Error> {
        let failed = |what: &dyn std::fmt::Display| {
            Error::new(Code::DriverError, format!("{} cannot be used: {what}", nvml.display()))
        };
        // SAFETY: NVML's initialisers run. It is the driver's own library, in a process that is there for
        // that.
        let library = unsafe { Library::new(nvml) }.map_err(|error| failed(&error))?;
        // SAFETY: the types are those of nvml.h of CUDA 13.5.
        let found = unsafe {
            (
                library.get::<SetLimits>(b"nvmlDeviceSetMemoryLimits_v1").map(|symbol| *symbol),
                library.get::<GetLimits>(b"nvmlDeviceGetMemoryLimits_v1").map(|symbol| *symbol),
                library.get::<ByUuid>(b"nvmlDeviceGetHandleByUUID").map(|symbol| *symbol),
                library.get::<Plain>(b"nvmlInit_v2").map(|symbol| *symbol),
            )
        };
        let (Ok(set), Ok(get), Ok(by_uuid), Ok(init)) = found else { return Ok(None) };
        // SAFETY: takes no argument.
        match unsafe { init() } {
            SUCCESS => Ok(Some(Self { library, by_uuid, set, get })),
            code => Err(failed(&format_args!("nvmlInit_v2: NVML error {code}"))),
        }
    }

    /// Whether the driver limits memory of this GPU: it can be told not to (`RmMemacctMode=0`).
    pub fn serves(&self, uuid: &str) -> bool {
        if !Path::new(HIERARCHY).join("cgroup.controllers").exists() {
            return false;
        }
        let Ok(device) = self.device(uuid) else { return false };
        let mut limits = Get { cgroup: c"/sys/fs/cgroup".as_ptr(), soft: 0, hard: 0, used: 0 };
        // SAFETY: a handle that NVML gave; the struct and the text in it outlive the call.
        let code = unsafe { (self.get)(device, &raw mut limits) };
        !matches!(code, NOT_SUPPORTED | FUNCTION_NOT_FOUND)
    }

    /// Has the driver refuse the processes of a cgroup more than so many bytes of a GPU.
    ///
    /// # Errors
    /// `driver-error` with NVML's code.
    pub fn limit(&self, uuid: &str, cgroup: &str, bytes: u64) -> Result<(), Error> {
        self.set_limits(uuid, cgroup, bytes)
    }

    /// Has the driver forget a cgroup. One that is gone is forgotten already.
    ///
    /// # Errors
    /// `driver-error` with NVML's code.
    pub fn clear(&self, uuid: &str, cgroup: &str) -> Result<(), Error> {
        let result = self.set_limits(uuid, cgroup, MAX);
        if exists(cgroup) { result } else { Ok(()) }
    }

    fn set_limits(&self, uuid: &str, cgroup: &str, hard: u64) -> Result<(), Error> {
        let device = self.device(uuid)?;
        let path = directory(cgroup);
        let text = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Error::new(Code::Internal, format!("{} is no path", path.display())))?;
        let limits = Set { cgroup: text.as_ptr(), soft: 0, hard };
        // SAFETY: a handle that NVML gave; the struct and the text in it outlive the call.
        match unsafe { (self.set)(device, &raw const limits) } {
            SUCCESS => Ok(()),
            code => Err(Error::new(
                Code::DriverError,
                format!(
                    "the driver sets no memory limit for {} on GPU {uuid}: NVML error {code}{}",
                    path.display(),
                    why(code)
                ),
            )),
        }
    }

    fn device(&self, uuid: &str) -> Result<*mut c_void, Error> {
        let failed = |what: String| Error::new(Code::DriverError, format!("GPU {uuid}: {what}"));
        let text = CString::new(uuid).map_err(|_| failed("no UUID".into()))?;
        let mut device = std::ptr::null_mut();
        // SAFETY: NUL-terminated; the variable outlives the call.
        match unsafe { (self.by_uuid)(text.as_ptr(), &raw mut device) } {
            SUCCESS => Ok(device),
            code => Err(failed(format!("nvmlDeviceGetHandleByUUID: NVML error {code}"))),
        }
    }
}

/// Whether there is a cgroup of this path, as `/proc/<pid>/cgroup` has it.
pub fn exists(cgroup: &str) -> bool {
    directory(cgroup).is_dir()
}

/// The directory of a cgroup as `/proc/<pid>/cgroup` names it.
fn directory(cgroup: &str) -> std::path::PathBuf {
    Path::new(HIERARCHY).join(cgroup.trim_start_matches('/'))
}

/// What the codes mean here, by NVIDIA's guide.
fn why(code: c_int) -> &'static str {
    match code {
        4 => " (not root)",
        6 => " (the cgroup has no dmem controller: its parent must have +dmem in cgroup.subtree_control)",
        17 => " (the cgroup cannot be opened)",
        _ => "",
    }
}
