//! Who uses each GPU, for dcgm-exporter: with `--hpc-job-mapping-dir DIR` it gives each of its metrics of a GPU the
//! label `hpc_job` for each line of `DIR/<index of the GPU>` (dcgm-exporter, README, "HPC job mapping").

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use fgpu_spec::Error;

use super::replace;
use crate::status::{LeaseStatus, Status};

/// Writes the file of each GPU that somebody has a share of, and removes those of the others.
///
/// # Errors
/// A file cannot be written or removed.
pub(super) fn write(folder: &Path, status: &Status) -> Result<(), Error> {
    for gpu in &status.gpus {
        let path = folder.join(gpu.index.to_string());
        let is_on = |lease: &&LeaseStatus| lease.gpus.iter().any(|share| share.uuid == gpu.uuid);
        let line = |lease: &LeaseStatus| name(lease).to_owned() + "\n";
        let lines: String =
            status.leases.iter().filter(|lease| !lease.gone).filter(is_on).map(line).collect();
        if !lines.is_empty() {
            replace(&path, &lines)?;
        } else if let Err(error) = fs::remove_file(&path)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(Error::io("remove", &path, &error));
        }
    }
    Ok(())
}

/// What the lease's holder is called: its name, if that cannot be taken for anything else in a label.
fn name(lease: &LeaseStatus) -> &str {
    let is_plain = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    lease.name.as_deref().filter(is_plain).unwrap_or(&lease.short)
}
