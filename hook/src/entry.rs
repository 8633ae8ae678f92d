//! What a hook does before anything else. A hook is started by somebody else's runtime with whatever environment,
//! descriptors and privileges that has, and runs next to what an image brought (CVE-2025-23266: an image's
//! LD_PRELOAD in a hook). None of it is heard:
//!
//! - the environment is forgotten; the program is static, so no loader has read it before;
//! - the umask is 022, the working directory `/`;
//! - descriptors above 2 (crun's `_OCI_SYNCPIPE`) reach no program that we start;
//! - no program that we start can gain privileges (no-new-privs), and of the capabilities only those of the
//!   [`Stage`] are left, in the bounding set too.

use fgpu_spec::{Code, Error};
use rustix::fs::Mode;
use rustix::thread::{CapabilitySet, CapabilitySets};

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
const REFRESH: CapabilitySet = CapabilitySet::SYS_MODULE
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER);

/// Files that belong to another id: the bundle of a container with a user namespace belongs to its root. And
/// `/proc/<pid>` under `hidepid`: without it a live container of another id would look dead, and its lease be freed.
const FILES: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::SYS_PTRACE);

/// `fgpu driver set-up` and `tear-down`: the driver lets only an administrator make and destroy MIG instances, and NVML
/// makes the nodes of their capabilities.
const INSTANCES: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::MKNOD);

impl Stage {
    fn capabilities(self) -> CapabilitySet {
        match self {
            Self::Create => FILES
                .union(REFRESH)
                // mounts, setns(2), bpf(2)
                .union(CapabilitySet::SYS_ADMIN)
                // setns(2) into a mount namespace, chroot(2) back
                .union(CapabilitySet::SYS_CHROOT)
                // placeholders belong to the container's root
                .union(CapabilitySet::SETUID)
                .union(CapabilitySet::SETGID)
                // before 5.11 a bpf program counts against RLIMIT_MEMLOCK
                .union(CapabilitySet::SYS_RESOURCE)
                // to query and attach bpf programs of cgroups, SYS_ADMIN does not stand for it on older kernels
                // (kernel/bpf/syscall.c before `bpf_net_capable`)
                .union(CapabilitySet::NET_ADMIN)
                // to read a program back whose constants are blinded, where kptr_restrict hides addresses
                // (`bpf_dump_raw_ok`)
                .union(CapabilitySet::SYSLOG),
            Self::Edit => FILES.union(REFRESH).union(INSTANCES),
            Self::Release => FILES.union(INSTANCES),
        }
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
        // Before 5.11. What we open is closed on exec anyway; what we were given is the runtime's affair there.
        Err(error) if matches!(error.raw_os_error(), Some(nix::libc::ENOSYS | nix::libc::EINVAL)) => {}
        result => result.map_err(|error| failed("close what was left open", error))?,
    }
    rustix::thread::set_no_new_privs(true).map_err(|errno| failed("give up new privileges", errno.into()))?;
    keep(stage.capabilities()).map_err(|errno| failed("drop capabilities", errno.into()))
}

/// Keeps these capabilities, as far as we have them, in every set.
fn keep(wanted: CapabilitySet) -> rustix::io::Result<()> {
    let own = rustix::thread::capabilities(None)?;
    if own.effective.contains(CapabilitySet::SETPCAP) {
        for number in 0..u64::BITS {
            let one = CapabilitySet::from_bits_retain(1 << number);
            if wanted.contains(one) {
                continue;
            }
            match rustix::thread::remove_capability_from_bounding_set(one) {
                // The first number that this kernel has no capability for.
                Err(rustix::io::Errno::INVAL) => break,
                result => result?,
            }
        }
    }
    // Fails only on kernels without ambient capabilities, where there is nothing to clear.
    let _ = rustix::thread::clear_ambient_capability_set();
    let kept = own.permitted & wanted;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() },
    )
}
