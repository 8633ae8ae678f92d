//! The node that a command looks at: its configuration and its inventory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fgpu_engine::config::Config;
use fgpu_spec::{Code, Error, Inventory};

/// A configured node.
pub(crate) struct Node {
    /// Its configuration.
    pub(crate) config: Config,
    /// Where that was read from, if not from the usual place.
    path: Option<PathBuf>,
}

impl Node {
    /// The node that the configuration at `path`, or the usual one, describes.
    ///
    /// # Errors
    /// `internal` if the configuration is wrong or cannot be read; a named one must exist.
    pub(crate) fn configured(path: Option<&Path>) -> Result<Self, Error> {
        let config = match path {
            None => Config::load()?,
            Some(path) if !path.exists() => {
                return Err(Error::new(Code::Internal, format!("{} does not exist", path.display())));
            }
            Some(path) => Config::load_from(path)?,
        };
        Ok(Self { config, path: path.map(Path::to_owned) })
    }

    /// The inventory as it is now. One that is stale is refreshed, in a process of its own, if the caller is
    /// root.
    ///
    /// # Errors
    /// `no-gpu` and `driver-error` as the driver crate says; `internal` if it is stale and the caller may not
    /// refresh it.
    pub(crate) fn inventory(&self) -> Result<Inventory, Error> {
        let Config { driver_root, state_dir, .. } = &self.config;
        if rustix::process::geteuid().is_root() {
            return fgpu_driver::load(driver_root, state_dir, &|| self.refresh_apart());
        }
        fgpu_driver::cached(driver_root, state_dir)?.ok_or_else(|| {
            Error::new(
                Code::Internal,
                "nobody has looked at the driver since it was loaded; run `fgpu inventory --refresh` as root",
            )
        })
    }

    /// Runs `fgpu inventory --refresh`: NVML can crash, and then this process still has an error to print.
    fn refresh_apart(&self) -> Result<(), Error> {
        let program = Path::new("/proc/self/exe");
        let mut command = Command::new(program);
        if let Some(path) = &self.path {
            command.arg("--config").arg(path);
        }
        let output = command
            .args(["inventory", "--refresh"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .output()
            .map_err(|error| Error::io("run", program, &error))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::of_program("fgpu inventory --refresh", &output))
    }
}
