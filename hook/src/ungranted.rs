//! GPUs that a container has by other ways than its grant: `--privileged` lists every device node of the
//! host, and `--device` may name one. The other front ends take them out of the spec; here the runtime has
//! made the nodes already, and they are removed from the container's /dev.

use std::os::fd::OwnedFd;

use fgpu_spec::{Plan, is_granted_only_path};
use rustix::fs::{AtFlags, FileType, major, minor, statat, unlinkat};
use rustix::io::Errno;
use serde::Deserialize;

use crate::resolve::refusal;

/// A node that the runtime made.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Device {
    /// Absolute path in the container.
    pub(crate) path: String,
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    major: i64,
    #[serde(default)]
    minor: i64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Spec {
    linux: Linux,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Linux {
    devices: Option<Vec<Device>>,
}

/// The GPUs and MIG capabilities of a `config.json` that are not in the plan.
pub(crate) fn of_spec(config: &str, plan: &Plan) -> Vec<Device> {
    // It has been read as a document; what this part does not understand the runtime did not either.
    let spec: Spec = serde_json::from_str(config).unwrap_or_default();
    let is_granted = |device: &Device| {
        plan.nodes.iter().any(|node| device.is(node.major, node.minor) || node.path == device.path)
    };
    let mut devices = spec.linux.devices.unwrap_or_default();
    devices.retain(|device| {
        let by_number = matches!(device.r#type.as_str(), "c" | "u")
            && plan.majors.is_granted_only(device.major, device.minor);
        (by_number || is_granted_only_path(&device.path)) && !is_granted(device)
    });
    devices
}

impl Device {
    fn is(&self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) == (i64::from(major), i64::from(minor))
    }

    /// Removes the node `name` of `folder` if it is this device. What the runtime has mounted there instead
    /// of making a node is taken away with `unmount` first.
    ///
    /// # Errors
    /// The node stays.
    pub(crate) fn remove(
        &self,
        folder: &OwnedFd,
        name: &str,
        unmount: impl FnOnce() -> rustix::io::Result<()>,
    ) -> Result<(), fgpu_spec::Error> {
        let failed = |errno| refusal(&self.path, errno);
        match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(failed(errno)),
            Ok(stat) => {
                let kind = FileType::from_raw_mode(stat.st_mode);
                if kind != FileType::CharacterDevice || !self.is(major(stat.st_rdev), minor(stat.st_rdev)) {
                    return Ok(());
                }
            }
        }
        match unlinkat(folder, name, AtFlags::empty()) {
            Err(Errno::BUSY) => {
                unmount().map_err(failed)?;
                unlinkat(folder, name, AtFlags::empty()).map_err(failed)
            }
            result => result.map_err(failed),
        }
    }
}

#[cfg(test)]
mod tests;
