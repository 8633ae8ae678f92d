//! cgroup v2: the device programs that are attached to cgroups. Every program on every cgroup from the root
//! down must allow an access; with none, everything is allowed.
//!
//! A program cannot be asked for its rules, and its own list (in config.json, or systemd's) is not all that
//! it was made of. So the program itself is taken, a block that allows the devices is put in front of it, and
//! it goes back in the old one's place: at no moment is more or less allowed than the one or the other.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use fgpu_spec::{Code, DeviceNode, Error};
use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

use super::bpf;
use super::cgroup::{Branch, Cgroup};
use super::pin::Pin;
use super::program::{Instruction, allowing, allows};

/// How often a cgroup is looked at again because its programs were exchanged meanwhile (systemd does that on
/// a reload).
const MOST_TRIES: usize = 8;

/// A program in the place of another.
#[derive(Debug)]
pub(super) struct Replaced {
    cgroup: Rc<Cgroup>,
    old: OwnedFd,
    new: OwnedFd,
    /// The file that held the old one and now holds the new one.
    pin: Option<Pin>,
}

/// Allows the devices in the container's own cgroups. What was done is put into `done` as it is done, so that
/// it is known if a later step fails.
///
/// `pins` are the files from which systemd attaches programs to the container's scope, and would again on a
/// reload.
///
/// # Errors
/// A cgroup that is not the container's own forbids a device, or a program cannot be read or replaced.
pub(super) fn allow(
    branch: Branch,
    nodes: &[DeviceNode],
    pins: &[Pin],
    done: &mut Vec<Replaced>,
) -> Result<(), Error> {
    for cgroup in &branch.shared {
        for program in attached(cgroup)?.programs {
            // What cannot be told is left to the kernel.
            for node in nodes {
                if allows_now(&program, std::slice::from_ref(node)) == Ok(Some(false)) {
                    return Err(super::shared_forbids(cgroup, node));
                }
            }
        }
    }
    for cgroup in branch.own {
        allow_in(&Rc::new(cgroup), nodes, pins, done)?;
    }
    Ok(())
}

fn allow_in(
    cgroup: &Rc<Cgroup>,
    nodes: &[DeviceNode],
    pins: &[Pin],
    done: &mut Vec<Replaced>,
) -> Result<(), Error> {
    'again: for _ in 0..MOST_TRIES {
        let attached = attached(cgroup)?;
        for old in attached.programs {
            if allows_now(&old, nodes).map_err(|errno| failed("read", cgroup, errno))? == Some(true) {
                continue;
            }
            let new = widened(cgroup, &old, nodes)?;
            // The file comes first: should systemd reload just now, it attaches what is in it.
            let pin = pins.iter().find(|pin| pin.holds(&old)).cloned();
            done.push(Replaced { cgroup: cgroup.clone(), old, new, pin });
            let Some(replaced) = done.last() else { continue };
            if let Some(pin) = &replaced.pin {
                pin.put(&replaced.new)?;
            }
            match replace(cgroup, &replaced.old, &replaced.new, attached.flags) {
                Ok(()) => {}
                Err(Errno::ENOENT) => continue 'again,
                Err(errno) => return Err(failed("replace", cgroup, errno)),
            }
        }
        return Ok(());
    }
    let message = format!(
        "cannot replace the device program of the cgroup {}: somebody else replaces it over and over, or attached it \
         by a BPF link; use --runtime=fgpu-runtime",
        cgroup.path().display()
    );
    Err(Error::new(Code::Internal, message))
}

struct Attached {
    programs: Vec<OwnedFd>,
    /// `BPF_F_ALLOW_OVERRIDE`, [`bpf::ALLOW_MULTI`] or nothing; the same for all programs of a cgroup.
    flags: u32,
}

/// The programs attached to a cgroup itself.
fn attached(cgroup: &Cgroup) -> Result<Attached, Error> {
    for _ in 0..MOST_TRIES {
        let (ids, flags) = match bpf::query(cgroup.directory()) {
            Ok(found) => found,
            // A kernel without device programs.
            Err(Errno::EINVAL | Errno::ENOSYS) => (Vec::new(), 0),
            Err(errno) => return Err(failed("find", cgroup, errno)),
        };
        match ids.into_iter().map(bpf::by_id).collect() {
            Ok(programs) => return Ok(Attached { programs, flags }),
            Err(Errno::ENOENT) => {} // replaced since
            Err(errno) => return Err(failed("open", cgroup, errno)),
        }
    }
    Err(failed("find", cgroup, Errno::ENOENT))
}

/// [`allows`], asked of a program of the kernel's.
fn allows_now(program: &OwnedFd, nodes: &[DeviceNode]) -> Result<Option<bool>, Errno> {
    Ok(bpf::instructions(program.as_fd())?.and_then(|code| allows(&code, nodes)))
}

/// Loads the program that allows the devices besides what the old one allows.
fn widened(cgroup: &Cgroup, old: &OwnedFd, nodes: &[DeviceNode]) -> Result<OwnedFd, Error> {
    let unfit = |reason: &str| {
        let message = format!(
            "cannot change the device program of the cgroup {}: {reason}; use --runtime=fgpu-runtime, which needs not \
             change it",
            cgroup.path().display()
        );
        Error::new(Code::Internal, message)
    };
    let code = bpf::instructions(old.as_fd()).map_err(|errno| failed("read", cgroup, errno))?;
    let Some(code) = code else {
        return Err(unfit(
            "the kernel does not show it (sysctl net.core.bpf_jit_harden=2 and kernel.kptr_restrict=2, or no CAP_SYSLOG)",
        ));
    };
    let code = allowing(&code, nodes).map_err(|reason| unfit(&reason.to_string()))?;
    match load(&code) {
        Err(Errno::EINVAL | Errno::EACCES) => {
            Err(unfit("the kernel's verifier does not take it a second time"))
        }
        loaded => loaded.map_err(|errno| failed("load", cgroup, errno)),
    }
}

/// Loads a program.
pub(super) fn load(code: &[Instruction]) -> Result<OwnedFd, Errno> {
    match bpf::load(code) {
        // Before Linux 5.11 programs count as locked memory, for which the limit is 64 KiB.
        Err(Errno::EPERM) if setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).is_ok() => {
            bpf::load(code)
        }
        loaded => loaded,
    }
}

/// Puts one program in the place of another. `ENOENT`: the other is not there.
fn replace(cgroup: &Cgroup, old: &OwnedFd, new: &OwnedFd, flags: u32) -> Result<(), Errno> {
    let (cgroup, new) = (cgroup.directory(), new.as_fd());
    if flags & bpf::ALLOW_MULTI == 0 {
        // There is one place, and what is attached takes it.
        return bpf::attach(cgroup, new, flags, None);
    }
    match bpf::attach(cgroup, new, bpf::ALLOW_MULTI | bpf::REPLACE, Some(old.as_fd())) {
        // Linux before 5.6. Between the two calls both must allow, and that is what the old one allows.
        Err(Errno::EINVAL) => {
            bpf::attach(cgroup, new, bpf::ALLOW_MULTI, None)?;
            bpf::detach(cgroup, old)
        }
        result => result,
    }
}

fn failed(doing: &str, cgroup: &Cgroup, errno: Errno) -> Error {
    let path = cgroup.path().display();
    let why = match errno {
        Errno::EPERM => {
            " (it takes CAP_SYS_ADMIN and CAP_NET_ADMIN in the host's user namespace; use --runtime=fgpu-runtime)"
        }
        _ => "",
    };
    Error::new(
        Code::Internal,
        format!("cannot {doing} the device program of the cgroup {path}: {errno}{why}"),
    )
}

impl Replaced {
    /// Puts the old program back, if the new one is still there: another program that replaced it has decided
    /// anew. A cgroup that is gone has no program.
    pub(super) fn undo(self) -> Result<(), Error> {
        let pin = match &self.pin {
            Some(pin) if pin.holds(&self.new) => pin.put(&self.old),
            _ => Ok(()),
        };
        let attached = match self.undo_attached() {
            Ok(()) | Err(Errno::ENOENT | Errno::ENODEV) => Ok(()),
            Err(errno) => Err(failed("put back", &self.cgroup, errno)),
        };
        attached.and(pin)
    }

    fn undo_attached(&self) -> Result<(), Errno> {
        let (ids, flags) = bpf::query(self.cgroup.directory())?;
        if !ids.contains(&bpf::id(self.new.as_fd())?) {
            return Ok(());
        }
        // The old one was attached again by another process, and none can be there twice.
        if ids.contains(&bpf::id(self.old.as_fd())?) {
            return bpf::detach(self.cgroup.directory(), &self.new);
        }
        replace(&self.cgroup, &self.new, &self.old, flags)
    }
}
