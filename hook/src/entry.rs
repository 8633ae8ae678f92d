//! What a hook does before anything else. A hook is started by a runtime that is not ours with whatever
//! environment, descriptors and privileges that has, and runs next to what an image brought (CVE-2025-23266:
//! an image's LD_PRELOAD in a hook). None of it is heard:
//!
//! - the environment is forgotten; the program is static, so no loader has read it before;
//! - the umask is 022, the working directory `/`;
//! - descriptors above 2 (crun's `_OCI_SYNCPIPE`) reach no program that we start;
//! - no program that we start can gain privileges (no-new-privs), and of the capabilities only those of the
//!   [`Stage`] are left, in the bounding set too.

use caps::errors::CapsError;
use caps::{CapSet, Capability, CapsHashSet};
use fgpu_spec::{Code, Error};
use rustix::fs::Mode;

use crate::sys;

/// The work of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// createRuntime and prestart: changes a container.
    Create,
    /// precreate: changes a spec. What a stale inventory takes is all that it needs beyond files.
    Edit,
    /// poststop: changes the state directory.
    Release,
}

/// `fgpu inventory --refresh` and nvidia-modprobe below it: loading the module, making its nodes.
const REFRESH: [Capability; 4] =
    [Capability::CAP_SYS_MODULE, Capability::CAP_MKNOD, Capability::CAP_CHOWN, Capability::CAP_FOWNER];

/// Files that belong to another id: the bundle of a container with a user namespace belongs to its root. And
/// `/proc/<pid>` under `hidepid`: without it a live container of another id would look dead, and its lease be
/// freed.
const FILES: [Capability; 2] = [Capability::CAP_DAC_OVERRIDE, Capability::CAP_SYS_PTRACE];

/// `fgpu driver set-up` and `tear-down`: the driver lets only an administrator make and destroy MIG
/// instances, and NVML makes the nodes of their capabilities.
const INSTANCES: [Capability; 2] = [Capability::CAP_SYS_ADMIN, Capability::CAP_MKNOD];

/// A live container.
const CONTAINER: [Capability; 7] = [
    // mounts, setns(2), bpf(2)
    Capability::CAP_SYS_ADMIN,
    // setns(2) into a mount namespace, chroot(2) back
    Capability::CAP_SYS_CHROOT,
    // placeholders belong to the container's root
    Capability::CAP_SETUID,
    Capability::CAP_SETGID,
    // before 5.11 a bpf program counts against RLIMIT_MEMLOCK
    Capability::CAP_SYS_RESOURCE,
    // to query and attach bpf programs of cgroups, SYS_ADMIN does not stand for it on older kernels
    // (kernel/bpf/syscall.c before `bpf_net_capable`)
    Capability::CAP_NET_ADMIN,
    // to read a program back whose constants are blinded, where kptr_restrict hides addresses
    // (`bpf_dump_raw_ok`)
    Capability::CAP_SYSLOG,
];

impl Stage {
    fn capabilities(self) -> CapsHashSet {
        let sets: &[&[Capability]] = match self {
            Self::Create => &[&FILES, &REFRESH, &CONTAINER],
            Self::Edit => &[&FILES, &REFRESH, &INSTANCES],
            Self::Release => &[&FILES, &INSTANCES],
        };
        sets.iter().copied().flatten().copied().collect()
    }
}

/// Makes this process one that only its arguments and standard input speak to.
///
/// # Errors
/// The kernel does not let us; then nothing has been done that matters.
pub(crate) fn enter(stage: Stage) -> Result<(), Error> {
    sys::clear_environment();
    rustix::process::umask(Mode::WGRP | Mode::WOTH);
    let failed =
        |doing: &str, error: std::io::Error| Error::new(Code::Internal, format!("cannot {doing}: {error}"));
    rustix::process::chdir("/").map_err(|errno| failed("enter /", errno.into()))?;
    match sys::close_others_on_exec() {
        // Before 5.11. What we open is closed on exec anyway; what we were given is the runtime's affair
        // there.
        Err(error) if matches!(error.raw_os_error(), Some(nix::libc::ENOSYS | nix::libc::EINVAL)) => {}
        result => result.map_err(|error| failed("close what was left open", error))?,
    }
    rustix::thread::set_no_new_privs(true).map_err(|errno| failed("give up new privileges", errno.into()))?;
    keep(&stage.capabilities())
        .map_err(|error| Error::new(Code::Internal, format!("cannot drop capabilities: {error}")))
}

/// Keeps these capabilities, as far as we have them, in every set.
fn keep(wanted: &CapsHashSet) -> Result<(), CapsError> {
    if caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)? {
        for one in caps::runtime::thread_all_supported().difference(wanted) {
            caps::drop(None, CapSet::Bounding, *one)?;
        }
    }
    // Fails only on kernels without ambient capabilities, where there is nothing to clear.
    let _ = caps::clear(None, CapSet::Ambient);
    let kept = &caps::read(None, CapSet::Permitted)? & wanted;
    // What is effective must be permitted.
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    caps::clear(None, CapSet::Inheritable)
}
