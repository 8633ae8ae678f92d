//! Writes down which MIG instances are not ours: an administrator may have made or destroyed some.

use fgpu_driver::nvml::{self, mig::MigGpu};
use fgpu_spec::Error;

use super::{Node, list};

/// Looks at every GPU in MIG mode. One that does not answer hides no other.
///
/// # Errors
/// NVML cannot be loaded; what the first GPU that failed answered.
pub(super) fn run(node: &Node<'_>) -> Result<(), Error> {
    if !node.inventory.gpus.iter().any(|gpu| gpu.mig_enabled) {
        return Ok(());
    }
    let nvml = nvml::open(node.root)?;
    let mut first = Ok(());
    for gpu in node.inventory.gpus.iter().filter(|gpu| gpu.mig_enabled) {
        let look = || {
            let lock = node.store.slices().lock_driver(gpu)?;
            let instances = list(&MigGpu::open(&nvml, gpu)?)?;
            node.write_down(&lock, gpu, &instances).map(drop)
        };
        first = first.and(look());
    }
    first
}
