//! Refuses a container whose spec brings a driver besides the share: what a mount's source holds is looked at
//! here.
//!
//! A source is looked at, and not walked: whether it is a driver file, whether the node's driver lies below
//! it, and whether one of the folders in which drivers and toolkits keep libcuda is in it.

use std::fs;
use std::path::{Path, PathBuf};

use fgpu_spec::{Document, Error, is_driver_file};

use crate::config::Config;
use crate::layout::TRIPLET;

/// Where a driver root, a toolkit or a library folder keeps the driver's libraries, from the source on.
const FOLDERS: &[&str] = &[
    "",
    "compat",
    "compat/lib",
    "compat/lib.real",
    "current",
    "lib",
    "lib64",
    "nvidia/current",
    "usr/lib",
    "usr/lib64",
    "usr/local/nvidia/lib64",
];
/// The same below a library folder of Debian's, in `/`, `/usr` and `/usr/lib`.
const TRIPLET_FOLDERS: &[&str] = &["", "nvidia", "nvidia/current"];

const NAMES: &[&str] = &["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"];

/// Refuses a request, given as text, whose container is given another driver.
///
/// # Errors
/// `conflict`, with what is to be removed.
pub fn refuse(config: &Config, request: &str, document: &Document, bundle: &Path) -> Result<(), Error> {
    let version = fgpu_driver::running_version(&config.driver_root).ok();
    let look = Look { root: &config.driver_root, version: version.as_deref() };
    let holds = |source: &Path| look.driver_file(&bundle.join(source));
    match document.foreign_driver(&config.driver_extra, holds)? {
        Some(found) => Err(found.refusal(request)),
        None => Ok(()),
    }
}

struct Look<'a> {
    root: &'a Path,
    version: Option<&'a str>,
}

impl Look<'_> {
    /// The driver file that a mount of `source` brings: empty if it is the source itself.
    fn driver_file(&self, source: &Path) -> Option<String> {
        // The runtime follows links of a source, too. What is not there it refuses or makes.
        let real = fs::canonicalize(source).ok()?;
        if is_driver_file(&real) {
            return Some(if real == source { String::new() } else { real.display().to_string() });
        }
        if !real.is_dir() {
            return None;
        }
        // The stub of a CUDA toolkit is to link against; it does nothing.
        let within = |folder: PathBuf| (!folder.ends_with("stubs")).then(|| self.library(&folder)).flatten();
        let library = folders().find_map(|folder| within(real.join(folder)));
        let found = library.or_else(|| {
            let own = folders().map(|folder| self.root.join(folder));
            own.filter(|folder| folder.starts_with(&real)).find_map(within)
        })?;
        Some(found.display().to_string())
    }

    /// libcuda or NVML in this very folder. An empty file is a place that a mount has left.
    fn library(&self, folder: &Path) -> Option<PathBuf> {
        if !folder.is_dir() {
            return None;
        }
        let is_there = |file: &PathBuf| {
            fs::symlink_metadata(file)
                .is_ok_and(|found| found.is_symlink() || found.is_file() && found.len() > 0)
        };
        let versioned = self.version.map(|version| format!("libcuda.so.{version}"));
        NAMES.iter().copied().chain(versioned.as_deref()).map(|name| folder.join(name)).find(is_there)
    }
}

fn folders() -> impl Iterator<Item = String> {
    let triplet = TRIPLET.trim_start_matches("/usr/lib/");
    let debian = ["", "lib/", "usr/lib/"].into_iter().flat_map(move |prefix| {
        TRIPLET_FOLDERS.iter().map(move |folder| format!("{prefix}{triplet}/{folder}"))
    });
    FOLDERS.iter().map(|folder| (*folder).to_owned()).chain(debian)
}

#[cfg(test)]
mod tests;
