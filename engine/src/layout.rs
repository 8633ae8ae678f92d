//! Where an image keeps its libraries, and which other driver libraries its loader would rather load.
//!
//! A loader takes the first of: LD_LIBRARY_PATH, the ld.so.cache, its default folders; in each folder the
//! `glibc-hwcaps` and the older hwcaps folders before the folder itself (glibc's ld.so(8)); musl has a file
//! of paths. Whatever of these leads to a libcuda or an NVML of the image's own must end at ours, so ours is
//! bound over it. Besides, some images keep such a copy where a program or an entry point finds it later
//! (forward compatibility); those places are known by name ([`places`]).
//!
//! The whole root is not searched, and what a program looks for by itself is not known: docs/tiers.md says
//! how far this goes.

#[cfg(target_arch = "x86_64")]
macro_rules! triplet {
    () => {
        "x86_64-linux-gnu"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! triplet {
    () => {
        "aarch64-linux-gnu"
    };
}

mod places;

use std::collections::BTreeSet;

use fgpu_driver::ldcache;
use fgpu_spec::{Code, Error, escape_for_display};

use crate::layers::{Folder, Layers};

/// The largest ld.so.cache that is read, bytes. A full desktop's has about 300 kB.
const CACHE_LIMIT: u64 = 4 << 20;
/// The largest of the short text files of a loader, bytes.
const TEXT_LIMIT: u64 = 64 << 10;
/// More foreign copies than this are refused; an image has one or two. Each is a mount.
const MOST_FOREIGN: usize = 32;
/// More paths for the driver in an ld.so.cache are refused. ldconfig writes one for each folder, name and
/// architecture.
const MOST_CACHED: usize = 256;
/// As many folders of LD_LIBRARY_PATH are looked into; a longer one is refused.
const MOST_FOLDERS: usize = 64;

pub(crate) const TRIPLET: &str = concat!("/usr/lib/", triplet!());
const LIB64: &str = "/usr/lib64";

/// The names by which a loader is asked for the driver's libraries.
const NAMES: [&str; 4] = ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ml.so"];

/// What is known of an image.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Layout {
    /// The directories in which its loader looks without an ld.so.cache. Both where the image is unknown.
    pub(crate) library_directories: Vec<&'static str>,
    /// Absolute paths of other copies of libcuda that its loader would find, without a link in them.
    pub(crate) foreign_cuda: Vec<String>,
    /// The same for NVML.
    pub(crate) foreign_nvml: Vec<String>,
}

impl Layout {
    /// Reads the layout from the image's layers; `env` is the environment that the container starts with, in
    /// the folder `cwd`.
    ///
    /// # Errors
    /// [`Code::Denied`] where the image leads its loader to a driver library over which ours cannot be
    /// mounted.
    pub(crate) fn read(layers: Option<&Layers>, env: &[String], cwd: &str) -> Result<Self, Error> {
        let Some(layers) = layers else {
            return Ok(Self { library_directories: vec![TRIPLET, LIB64], ..Self::default() });
        };
        let debian = layers.has(TRIPLET) || layers.has("etc/debian_version");
        let directory = if debian { TRIPLET } else { LIB64 };
        let layout = Self { library_directories: vec![directory], ..Self::default() };
        let mut search = Search { layers, layout, seen: BTreeSet::new() };
        search.everywhere(env, cwd)?;
        if let Some(why) = layers.unread() {
            return Err(refused("the search path of the loader", &why));
        }
        Ok(search.layout)
    }
}

/// The folders that LD_LIBRARY_PATH names, an empty name being `cwd` (ld.so(8)). The last of several wins, as
/// with execve(2)'s readers.
fn library_path(env: &[String], cwd: &str) -> impl Iterator<Item = String> {
    let value = env.iter().rev().find_map(|entry| entry.strip_prefix("LD_LIBRARY_PATH=")).unwrap_or_default();
    let folders = value.split([':', ';']).filter(move |_| !value.is_empty());
    folders.map(move |folder| match folder.starts_with('/') {
        true => folder.to_owned(),
        false => format!("{cwd}/{folder}"),
    })
}

struct Search<'a> {
    layers: &'a Layers,
    layout: Layout,
    /// Folders that were looked into.
    seen: BTreeSet<String>,
}

impl Search<'_> {
    fn everywhere(&mut self, env: &[String], cwd: &str) -> Result<(), Error> {
        self.cache()?;
        self.preloaded(env)?;
        for (number, folder) in library_path(env, cwd).enumerate() {
            if number == MOST_FOLDERS {
                let why = format!("it names more than {MOST_FOLDERS} folders, and no more are looked into");
                return Err(refused("LD_LIBRARY_PATH", &why));
            }
            self.folder(self.layers.folder(&folder), "LD_LIBRARY_PATH")?;
        }
        for folder in self.musl_path()?.into_iter().chain(places::DEFAULT.map(str::to_owned)) {
            self.folder(self.layers.folder(&folder), &folder)?;
        }
        for (folder, why) in places::known(self.layers) {
            self.folder(Some(folder), &why)?;
        }
        Ok(())
    }

    /// What the ld.so.cache has for our names.
    fn cache(&mut self) -> Result<(), Error> {
        const PATH: &str = "/etc/ld.so.cache";
        let Some(cache) = self.layers.read(PATH, CACHE_LIMIT + 1) else { return Ok(()) };
        if cache.len() as u64 > CACHE_LIMIT {
            return Err(refused(PATH, "it is larger than 4 MiB and is not read"));
        }
        let Some(found) = ldcache::paths(&cache, &NAMES, MOST_CACHED) else {
            // The format before glibc 2.2, which a loader reads to this day and no ldconfig writes.
            return match cache.starts_with(b"ld.so-1.7.0") {
                true => Err(refused(PATH, "it is of a format that ldconfig has not written since glibc 2.2")),
                false => Ok(()),
            };
        };
        let Ok(found) = found else {
            return Err(refused(PATH, &format!("it has more than {MOST_CACHED} paths for the driver")));
        };
        for (name, path) in found {
            match str::from_utf8(path) {
                Ok(path) => self.add(path, name, PATH)?,
                Err(_) => return Err(refused(PATH, "it has a path for the driver that is not UTF-8")),
            }
        }
        Ok(())
    }

    /// What is loaded before all else: ld.so.preload and LD_PRELOAD.
    fn preloaded(&mut self, env: &[String]) -> Result<(), Error> {
        const PATH: &str = "/etc/ld.so.preload";
        let text = self.text(PATH)?;
        let value = env.iter().rev().find_map(|entry| entry.strip_prefix("LD_PRELOAD=")).unwrap_or_default();
        let split = |text: &'_ str| -> Vec<String> {
            text.split(|c: char| c == ':' || c.is_whitespace()).map(str::to_owned).collect()
        };
        for (path, why) in split(&text)
            .iter()
            .map(|path| (path, PATH))
            .chain(split(value).iter().map(|path| (path, "LD_PRELOAD")))
        {
            let name = path.rsplit('/').next().unwrap_or_default();
            let stem = NAMES.into_iter().find(|known| name.starts_with(known.trim_end_matches(".1")));
            if let (Some(known), true) = (stem, path.starts_with('/')) {
                self.add(path, known, why)?;
            }
        }
        Ok(())
    }

    /// The folders of musl's loader.
    fn musl_path(&self) -> Result<Vec<String>, Error> {
        let text = self.text(&format!("/etc/ld-musl-{}.path", std::env::consts::ARCH))?;
        let folders = text.split([':', '\n']).filter(|folder| folder.starts_with('/'));
        Ok(folders.map(str::to_owned).collect())
    }

    /// A short text file of a loader. Nothing behind what is read may lead anywhere, so a longer one is
    /// refused.
    fn text(&self, path: &str) -> Result<String, Error> {
        let text = self.layers.read(path, TEXT_LIMIT + 1).unwrap_or_default();
        if text.len() as u64 > TEXT_LIMIT {
            return Err(refused(path, "it is larger than 64 KiB and is not read"));
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// What a loader that looks into a folder finds there, if it was not looked at yet.
    fn folder(&mut self, folder: Option<Folder>, why: &str) -> Result<(), Error> {
        match folder {
            Some(folder) if self.seen.insert(folder.path.clone()) => {
                self.files(&folder, &places::HWCAPS, why)
            }
            _ => Ok(()),
        }
    }

    /// The files of a folder, and of the hwcaps folders in it: each lies in those that come before it in the
    /// list, at most.
    fn files(&mut self, folder: &Folder, hwcaps: &[&str], why: &str) -> Result<(), Error> {
        for name in NAMES.iter().filter(|name| folder.has_file(name)) {
            self.add(&format!("{}/{name}", folder.path), name, why)?;
        }
        for (index, name) in hwcaps.iter().enumerate() {
            if let Some(inner) = folder.folder(name) {
                self.files(&inner, &hwcaps[index + 1..], why)?;
            }
        }
        Ok(())
    }

    /// Adds the file to which a path of the image's own leads to what our library is bound over. It becomes a
    /// mount *destination*, which the runtime resolves inside the root.
    fn add(&mut self, path: &str, name: &str, why: &str) -> Result<(), Error> {
        let (directory, file) = path.rsplit_once('/').unwrap_or_default();
        // In its library directory the usual names are ours anyway.
        let is_known = |path: String| self.layout.library_directories.iter().any(|known| path == *known);
        if NAMES.contains(&file) && self.layers.canonical(directory).is_some_and(is_known) {
            return Ok(());
        }
        // A loop, or something below a file: no loader loads it.
        let Some(path) = self.layers.canonical(path) else { return Ok(()) };
        let kernels = ["/proc", "/sys", "/dev", fgpu_wire::FOLDER_PATH];
        if path.len() >= 1024 || path.bytes().any(|byte| byte.is_ascii_control()) {
            return Err(refused(why, "it leads to a driver library whose path is no plain text"));
        }
        if kernels.iter().any(|kernels| path == *kernels || path.starts_with(&format!("{kernels}/"))) {
            return Err(refused(
                why,
                &format!(
                    "it leads to {} for {name}, where nothing can be mounted",
                    escape_for_display(&path)
                ),
            ));
        }
        let list = match name.starts_with("libcuda") {
            true => &mut self.layout.foreign_cuda,
            false => &mut self.layout.foreign_nvml,
        };
        if !list.contains(&path) {
            if list.len() == MOST_FOREIGN {
                return Err(refused(
                    why,
                    &format!(
                        "the image has more than {MOST_FOREIGN} copies of {name}, {} among them",
                        escape_for_display(&path)
                    ),
                ));
            }
            list.push(path);
        }
        Ok(())
    }
}

/// The image would go around the limit.
fn refused(what: &str, why: &str) -> Error {
    let message = format!(
        "{} in the container would have a driver library loaded that fgpu cannot limit: {why}; remove it, or ask for \
         fgpu/isolation=mig",
        escape_for_display(what)
    );
    Error::new(Code::Denied, message)
}

#[cfg(test)]
mod tests;
