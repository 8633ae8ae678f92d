//! `/proc/driver/nvidia/params` for a container.
//!
//! The driver's libraries read there whether they may make missing device nodes. In a container they may not:
//! it would be a node that its grant does not have. NVIDIA's own runtime lies a copy over the file that says
//! so. The other front ends cannot: runc refuses a mount below /proc that is not on its own list (seen with
//! 1.1.15 and 1.3.6).

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use fgpu_spec::Error;

use crate::source::PARAMETERS;
use fgpu_engine::container_files;

/// The parameter, and what it shall be.
const MODIFY: &str = "ModifyDeviceFiles:";

/// Writes the container's parameters into `folder`; `None` where the host has none, in which case neither has
/// the container.
///
/// # Errors
/// A file cannot be read or written.
pub(crate) fn make(driver_root: &Path, folder: &Path) -> Result<Option<PathBuf>, Error> {
    let below = driver_root.join(PARAMETERS.trim_start_matches('/'));
    let Some(text) = read(&below)?.map_or_else(|| read(Path::new(PARAMETERS)), |text| Ok(Some(text)))? else {
        return Ok(None);
    };
    let path = folder.join("params");
    // The `none` tier has no folder for limits and ledger.
    container_files::folder(folder)?;
    // By a rename: containers of one claim share the folder.
    let temporary = folder.join(format!("params.{}", std::process::id()));
    let write = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o444).open(&temporary)?;
        file.write_all(forbid(&text).as_bytes())?;
        std::fs::rename(&temporary, &path)
    };
    write().map_err(|error| Error::io("create", &path, &error))?;
    Ok(Some(path))
}

fn read(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path, &error)),
    }
}

/// The parameters with `ModifyDeviceFiles: 0`.
fn forbid(text: &str) -> String {
    let line = |line: &str| {
        if line.starts_with(MODIFY) { format!("{MODIFY} 0\n") } else { format!("{line}\n") }
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_one_parameter_changes() {
        let text = "Mobile: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n";
        assert_eq!(forbid(text), "Mobile: 4294967295\nModifyDeviceFiles: 0\nDeviceFileMode: 438\n");
        assert_eq!(forbid("A: 1"), "A: 1\n");
    }

    #[test]
    fn a_file_is_made_for_a_host_that_has_one() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("containers/1");
        std::fs::create_dir_all(root.path().join("proc/driver/nvidia")).unwrap();
        std::fs::write(root.path().join("proc/driver/nvidia/params"), "ModifyDeviceFiles: 1\n").unwrap();
        let path = make(root.path(), &folder).unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(path).unwrap(), "ModifyDeviceFiles: 0\n");
    }
}
