//! What the kernel says: the version of the loaded driver, its device majors, the boot.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use fgpu_spec::{Code, Error};

use crate::rooted::under;

const VERSION: &str = "/proc/driver/nvidia/version";
const DEVICES: &str = "/proc/devices";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The version in the text of `/proc/driver/nvidia/version`, for example `550.163.01`.
///
/// The first line of the proprietary module reads `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01
/// Tue Apr …`, that of the open one `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01
/// Release Build  (…)  Tue Apr …`: the version is the first word after `Kernel Module` that is made of
/// numbers and dots. What comes back is therefore safe to be put into a file name.
pub fn parse_version(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let (_, after) = line.split_once("Kernel Module")?;
    after.split_ascii_whitespace().find(|word| is_version(word))
}

/// `390.157` or `550.163.01`: two to four numbers with dots between.
fn is_version(word: &str) -> bool {
    let numbers = word.split('.');
    (2..=4).contains(&numbers.clone().count())
        && numbers.into_iter().all(|n| !n.is_empty() && n.len() <= 5 && n.bytes().all(|b| b.is_ascii_digit()))
}

/// The version of the driver that is loaded: from `<root>/proc/driver/nvidia/version` if there is one, else
/// from the kernel's own.
///
/// # Errors
/// `no-gpu` if no driver is loaded, `driver-error` if the text is none that NVIDIA's modules write,
/// `internal` if it cannot be read.
pub fn running_version(root: &Path) -> Result<String, Error> {
    let path = of(root, VERSION);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(no_driver(root)),
        Err(error) => return Err(Error::io("read", &path, &error)),
    };
    parse_version(&text).map(str::to_owned).ok_or_else(|| {
        Error::new(
            Code::DriverError,
            format!(
                "{} holds no driver version (its first line is {:?})",
                path.display(),
                text.lines().next().unwrap_or("")
            ),
        )
    })
}

fn no_driver(root: &Path) -> Error {
    let looked = match root == Path::new("/") {
        true => VERSION.to_owned(),
        false => format!("neither {} nor {VERSION}", under(root, VERSION).display()),
    };
    let verb = if root == Path::new("/") { "does not exist" } else { "exists" };
    Error::new(
        Code::NoGpu,
        format!(
            "no NVIDIA driver is loaded on this node ({looked} {verb}): install it or run `modprobe nvidia`; if \
             a container brings the driver, name its root file system in /etc/fgpu/config.toml ([driver] root)"
        ),
    )
}

/// The character devices of the kernel's `/proc/devices`: which major belongs to which driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CharacterDevices(Vec<(u32, String)>);

impl CharacterDevices {
    /// Parses the text of `/proc/devices`. A line that is no `MAJOR NAME` is skipped, and so are the block
    /// devices, whose majors are numbers of another kind.
    pub fn parse(text: &str) -> Self {
        let section = text
            .lines()
            .skip_while(|line| !line.starts_with("Character devices:"))
            .skip(1)
            .take_while(|line| !line.starts_with("Block devices:"));
        Self(
            section
                .filter_map(|line| {
                    let (major, name) = line.trim_start().split_once(' ')?;
                    Some((major.parse().ok()?, name.trim().to_owned()))
                })
                .collect(),
        )
    }

    /// Reads `<root>/proc/devices` if there is one, else the kernel's own. What cannot be read lists nothing.
    pub(crate) fn read(root: &Path) -> Self {
        fs::read_to_string(of(root, DEVICES)).map(|text| Self::parse(&text)).unwrap_or_default()
    }

    /// Every major that is registered.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(|(major, _)| *major)
    }

    /// The majors registered under one of `names`.
    pub fn majors(&self, names: &[&str]) -> Vec<u32> {
        self.0.iter().filter(|(_, name)| names.contains(&name.as_str())).map(|(major, _)| *major).collect()
    }
}

/// The random id of this boot, by which a file that outlived a reboot is known.
///
/// # Errors
/// `internal` if the kernel does not say.
pub fn boot_id() -> Result<String, Error> {
    let path = Path::new(BOOT_ID);
    let id = fs::read_to_string(path).map_err(|error| Error::io("read", path, &error))?;
    Ok(id.trim_end().to_owned())
}

/// `path` under `root` if it exists there, else on the host: a driver root may or may not have a `/proc`.
pub(crate) fn of(root: &Path, path: &str) -> PathBuf {
    let inside = under(root, path);
    if inside.exists() { inside } else { path.into() }
}

#[cfg(test)]
mod tests;
