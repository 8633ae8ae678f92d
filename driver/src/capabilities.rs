//! The nodes through which the kernel module lets a process use a MIG device: one for the GPU instance, one
//! for the compute instance, `/dev/nvidia-caps/nvidia-cap<minor>`.
//!
//! ```text
//! /proc/driver/nvidia/capabilities/gpu<minor>/mig/gi<G>/access            DeviceFileMinor: 21 …
//! /proc/driver/nvidia/capabilities/gpu<minor>/mig/gi<G>/ci<C>/access
//! /proc/driver/nvidia-caps/mig-minors                                     gpu0/gi1/access 21
//! ```
//!
//! The first two are there while the instance is, and say how the node is to be; the last lists the minors of
//! all that there could ever be.

use std::fs;
use std::path::Path;

use fgpu_spec::{Code, Error};

use crate::procfs::of;

/// A MIG device on a GPU with this minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capability {
    /// The GPU's minor.
    pub gpu: u32,
    /// The GPU instance's id.
    pub gpu_instance: u32,
    /// The compute instance's id in it.
    pub compute_instance: u32,
}

/// How a capability's node has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CapNode {
    pub(crate) minor: u32,
    pub(crate) mode: u32,
}

/// Readable for everybody: that is what the driver asks for.
const DEFAULT_MODE: u32 = 0o444;

impl Capability {
    /// The two nodes, the GPU instance's first.
    ///
    /// # Errors
    /// `driver-error` if the kernel knows one of them not: the instance is gone, or the driver is not as
    /// expected.
    pub(crate) fn nodes(self, root: &Path) -> Result<[CapNode; 2], Error> {
        let Self { gpu, gpu_instance, compute_instance } = self;
        let instance = format!("gi{gpu_instance}");
        let compute = format!("gi{gpu_instance}/ci{compute_instance}");
        Ok([find(root, gpu, &instance)?, find(root, gpu, &compute)?])
    }
}

fn find(root: &Path, gpu: u32, instance: &str) -> Result<CapNode, Error> {
    let path = format!("/proc/driver/nvidia/capabilities/gpu{gpu}/mig/{instance}/access");
    let own = fs::read_to_string(of(root, &path)).ok().and_then(|text| parse_access(&text));
    own.or_else(|| {
        let all = fs::read_to_string(of(root, "/proc/driver/nvidia-caps/mig-minors")).ok()?;
        let minor = parse_minors(&all, &format!("gpu{gpu}/{instance}/access"))?;
        Some(CapNode { minor, mode: DEFAULT_MODE })
    })
    .ok_or_else(|| {
        Error::new(
            Code::DriverError,
            format!("{path} is not there: the MIG instance has gone, or this driver keeps it elsewhere"),
        )
    })
}

/// `DeviceFileMinor: 21\nDeviceFileMode: 292\nDeviceFileModify: 1\n`
fn parse_access(text: &str) -> Option<CapNode> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().parse::<u32>().ok()
    };
    Some(CapNode {
        minor: field("DeviceFileMinor")?,
        mode: field("DeviceFileMode").map_or(DEFAULT_MODE, |mode| mode & 0o777),
    })
}

/// `gpu0/gi1/ci0/access 22`
fn parse_minors(text: &str, name: &str) -> Option<u32> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(known, _)| *known == name)?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests;
