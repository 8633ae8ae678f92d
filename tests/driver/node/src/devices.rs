//! Which GPUs a process may use: those whose device node it can open, as with the real driver.
//!
//! No kernel driver stands behind the nodes, so an open that everybody permits ends in `ENXIO`. That is the
//! answer that makes a GPU visible; `EPERM` (device cgroup), `EACCES` and `ENOENT` hide it.

use alloc::ffi::CString;
use alloc::format;

use crate::locate::Root;
use crate::sys::{self, Errno};

/// Whether `/dev/nvidiactl`, without which the driver counts as not loaded, may be opened.
pub fn control_visible(root: &Root) -> bool {
    may_open(root, "nvidiactl")
}

/// Whether the GPU with this minor number may be opened.
pub fn gpu_visible(root: &Root, minor: u32) -> bool {
    may_open(root, &format!("nvidia{minor}"))
}

/// Whether the MIG capability with this minor number may be used: as with the real driver by opening its node
/// for reading.
pub fn capability_visible(root: &Root, minor: u32) -> bool {
    opens(root, &format!("nvidia-caps/nvidia-cap{minor}"), sys::O_RDONLY)
}

/// The nodes are in the root's own `dev` if it has one, else in the `/dev` of the process.
pub fn path(root: &Root, name: &str) -> CString {
    let root = if sys::exists(&root.join("dev")) { root } else { &Root::SLASH };
    root.join(&format!("dev/{name}"))
}

fn may_open(root: &Root, name: &str) -> bool {
    opens(root, name, sys::O_RDWR)
}

fn opens(root: &Root, name: &str, access: i32) -> bool {
    match sys::open(&path(root, name), access | sys::O_NONBLOCK) {
        Ok(fd) => {
            sys::close(fd);
            true
        }
        Err(error) => matches!(error, Errno::ENXIO | Errno::ENODEV),
    }
}
