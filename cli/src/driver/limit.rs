//! The driver's own memory limit, in the cgroup of a lease.

use fgpu_allocator::Lease;
use fgpu_driver::limits::Limiter;
use fgpu_spec::{Code, Error, FileKind};

use super::Node;

/// Has the driver refuse the lease's cgroup more of each GPU than the lease has. All or nothing.
///
/// # Errors
/// What the driver answers. Nothing is limited then.
pub(super) fn set(node: &Node<'_>, lease: &Lease) -> Result<(), Error> {
    let cgroup = lease.cgroup.as_deref().ok_or_else(|| {
        Error::new(
            Code::DriverError,
            "the container has no cgroup of its own in which the driver could limit it",
        )
    })?;
    let limiter = open(node)?;
    let set = |gpu: &fgpu_spec::GrantedGpu| limiter.limit(&gpu.uuid, cgroup, gpu.memory);
    lease.grant.gpus.iter().try_for_each(set).inspect_err(|_| {
        for gpu in &lease.grant.gpus {
            // What was not set cannot be cleared; the first error is the one to tell.
            let _ = limiter.clear(&gpu.uuid, cgroup);
        }
    })
}

/// Has the driver forget the lease's cgroup. One that is gone is forgotten already.
///
/// # Errors
/// What the driver answers.
pub(super) fn clear(node: &Node<'_>, lease: &Lease) -> Result<(), Error> {
    let Some(cgroup) = lease.cgroup.as_deref().filter(|cgroup| fgpu_driver::limits::exists(cgroup)) else {
        return Ok(());
    };
    let limiter = open(node)?;
    let known = |gpu: &&fgpu_spec::GrantedGpu| node.gpu(&gpu.uuid).is_ok();
    let mut gpus = lease.grant.gpus.iter().filter(known);
    gpus.try_for_each(|gpu| limiter.clear(&gpu.uuid, cgroup))
}

fn open(node: &Node<'_>) -> Result<Limiter, Error> {
    let mut files = node.inventory.files.iter().filter(|file| file.kind == FileKind::Library);
    let nvml = files.find(|file| file.name == "libnvidia-ml.so.1");
    let limiter = nvml.map(|file| Limiter::open(&file.host)).transpose()?.flatten();
    limiter.ok_or_else(|| Error::new(Code::DriverError, "this driver has no memory limits"))
}
