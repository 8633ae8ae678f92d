//! A container's root file system as untrusted layers.
//!
//! On `Create` containerd hands over the root as mounts that nobody has mounted yet. What we want to know of an
//! image is little (its library directory, which other libcuda it knows), so it is read from the layers' own
//! directories instead of mounting anything. Every component of a path is opened with `O_NOFOLLOW`, and a link is resolved
//! here, within the layers: it leads nowhere else.
//!
//! An upper layer hides what the lower ones have at the same path (a whiteout, or another kind of file), as in overlayfs. That a
//! directory may be opaque is not looked at: then we see files that the container does not have, and cover them for nothing.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstatat};

mod budget;

use budget::Budget;
#[cfg(test)]
pub(crate) use budget::MOST_LOOKS;

/// A mount of the root file system as containerd's `CreateTaskRequest.rootfs` describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RootfsMount {
    /// `overlay`, `bind`, …
    pub kind: String,
    /// The source, for a bind mount.
    pub source: String,
    /// Mount options.
    pub options: Vec<String>,
}

/// The directories that make up a root file system, the uppermost first.
#[derive(Debug)]
pub struct Layers {
    folders: Vec<OwnedFd>,
    budget: Budget,
}

impl Layers {
    /// The layers of a root that is mounted already.
    pub fn of_directory(root: &Path) -> Option<Self> {
        open_layer(root).map(|fd| Self::of(vec![fd]))
    }

    /// The layers of a root that somebody has opened.
    pub fn of_descriptor(root: &OwnedFd) -> Option<Self> {
        root.try_clone().ok().map(|fd| Self::of(vec![fd]))
    }

    /// The layers of a root that is still to be mounted. `None` for a kind whose layers are no directories
    /// (a block device, say): then nothing is known of the image.
    pub fn of_mounts(mounts: &[RootfsMount]) -> Option<Self> {
        let [mount] = mounts else { return None };
        let directories: Vec<PathBuf> = match mount.kind.as_str() {
            "bind" => vec![PathBuf::from(&mount.source)],
            "overlay" => overlay_directories(&mount.options),
            _ => return None,
        };
        let layers: Option<Vec<_>> = directories.iter().map(|path| open_layer(path)).collect();
        layers.filter(|layers| !layers.is_empty()).map(Self::of)
    }

    fn of(folders: Vec<OwnedFd>) -> Self {
        Self { folders, budget: Budget::default() }
    }

    /// How often a folder of a layer was looked into.
    #[cfg(test)]
    pub fn looks(&self) -> u32 {
        self.budget.spent()
    }

    /// Whether more was asked than is looked for. What was said since, that nothing is there, is not known.
    pub fn is_exhausted(&self) -> bool {
        self.budget.is_spent()
    }

    /// Whether there is something at `path`, be it a link that leads nowhere.
    pub fn has(&self, path: &str) -> bool {
        matches!(self.walk(path, false), Some(Walked { end, .. }) if !matches!(end, End::Missing))
    }

    /// The first `limit` bytes of the regular file at `path`.
    pub fn read(&self, path: &str, limit: u64) -> Option<Vec<u8>> {
        let Walked { end: End::File(file), .. } = self.walk(path, true)? else { return None };
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(&file.folder, file.name.as_str(), flags, Mode::empty()).ok()?);
        let mut bytes = Vec::new();
        // Whoever swapped the file for a FIFO in between gets an empty read, not a hang: O_NONBLOCK.
        file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        file.take(limit).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// The folder at `path`.
    pub fn folder(&self, path: &str) -> Option<Folder> {
        match self.walk(path, true)? {
            Walked { path, end: End::Folder(layers) } => {
                Some(Folder { path, layers, budget: self.budget.clone() })
            }
            _ => None,
        }
    }

    /// Where `path` leads, without a link in it: the path of what is there, or would be if somebody made it. `None` for a
    /// loop of links, and for what lies below a file or above what is not there.
    pub fn canonical(&self, path: &str) -> Option<String> {
        Some(self.walk(path, true)?.path)
    }

    /// Goes along `path`; a link at its end is followed if `follow` says so.
    fn walk(&self, path: &str, follow: bool) -> Option<Walked> {
        if !self.budget.spend(self.folders.len()) {
            return None;
        }
        let root =
            || -> Option<Vec<OwnedFd>> { self.folders.iter().map(|layer| layer.try_clone().ok()).collect() };
        // The folders from the root to here, with their names.
        let mut stack: Vec<(String, Vec<OwnedFd>)> = vec![(String::new(), root()?)];
        let mut pending: Vec<String> = parts(path);
        let mut links = 0;
        while let Some(name) = pending.pop() {
            if name == ".." {
                stack.truncate(stack.len().saturating_sub(1).max(1));
                continue;
            }
            let (_, here) = stack.last()?;
            let end = look(&self.budget, here, &name)?;
            if let (End::Link, true) = (&end, follow || !pending.is_empty()) {
                links += 1;
                let target = here.iter().find_map(|layer| readlinkat(layer, name.as_str()).ok())?;
                let target = target.to_str().filter(|_| links <= MOST_LINKS)?;
                if target.starts_with('/') {
                    stack.truncate(1);
                }
                pending.extend(parts(target));
                continue;
            }
            match (end, pending.is_empty()) {
                (End::Folder(layers), false) => stack.push((name, layers)),
                // Whoever mounts there makes it, with nothing in it.
                (End::Missing, false) => stack.push((name, Vec::new())),
                (_, false) => return None,
                (end, true) => {
                    stack.push((name, Vec::new()));
                    return Some(Walked { path: path_of(&stack), end });
                }
            }
        }
        let path = path_of(&stack);
        Some(Walked { path, end: End::Folder(stack.pop()?.1) })
    }
}

/// A folder of a root, without a link in its path.
#[derive(Debug)]
pub struct Folder {
    /// Absolute in the root.
    pub path: String,
    layers: Vec<OwnedFd>,
    budget: Budget,
}

impl Folder {
    /// Whether there is a file or a link of this name, or something else that is no folder.
    pub fn has_file(&self, name: &str) -> bool {
        matches!(look(&self.budget, &self.layers, name), Some(End::File(_) | End::Link | End::Other))
    }

    /// The folder of this name in it. A link is no folder here.
    pub fn folder(&self, name: &str) -> Option<Self> {
        match look(&self.budget, &self.layers, name)? {
            End::Folder(layers) => {
                Some(Self { path: format!("{}/{name}", self.path), layers, budget: self.budget.clone() })
            }
            _ => None,
        }
    }

    /// The names in it, over all layers, at most `limit` of them.
    pub fn names(&self, limit: usize) -> Vec<String> {
        // A set: a hostile image has as many layers as there may be, and other names in each of them.
        let mut names = BTreeSet::new();
        for layer in self.layers.iter().take_while(|_| self.budget.spend(limit / 16)) {
            let Ok(directory) = Dir::openat(layer, ".", READ_DIRECTORY, Mode::empty()) else { continue };
            for entry in directory.into_iter().take(limit).flatten() {
                let Ok(name) = entry.file_name().to_str() else { continue };
                if name != "." && name != ".." {
                    names.insert(name.to_owned());
                }
            }
        }
        names.into_iter().take(limit).collect()
    }
}

/// Where a path has led.
struct Walked {
    path: String,
    end: End,
}

/// What is at the end of a path.
enum End {
    Missing,
    Folder(Vec<OwnedFd>),
    Link,
    /// A regular file.
    File(Place),
    /// A FIFO, a device, a socket: nothing that is opened.
    Other,
}

/// A file, by the folder that it is in.
struct Place {
    folder: OwnedFd,
    name: String,
}

/// As many links are followed as the kernel follows (`MAXSYMLINKS`).
const MOST_LINKS: usize = 40;
const FOLDER: OFlag =
    OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// What the uppermost of these folders that knows `name` has there; `None` if the budget is spent.
fn look(budget: &Budget, layers: &[OwnedFd], name: &str) -> Option<End> {
    if !budget.spend(layers.len()) {
        return None;
    }
    let mut folders = Vec::new();
    for layer in layers {
        let Ok(stat) = fstatat(layer, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
        let kind = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
        if kind == SFlag::S_IFDIR {
            folders.extend(openat(layer, name, FOLDER, Mode::empty()));
            continue;
        }
        // A file or a whiteout (a character device 0:0) hides what is below it, and not what is above.
        if !folders.is_empty() {
            break;
        }
        return Some(match kind {
            SFlag::S_IFLNK => End::Link,
            SFlag::S_IFCHR if stat.st_rdev == 0 => End::Missing,
            SFlag::S_IFREG => match layer.try_clone() {
                Ok(folder) => End::File(Place { folder, name: name.to_owned() }),
                Err(_) => End::Missing,
            },
            _ => End::Other,
        });
    }
    Some(if folders.is_empty() { End::Missing } else { End::Folder(folders) })
}

/// The path of the folders from the root on.
fn path_of(stack: &[(String, Vec<OwnedFd>)]) -> String {
    let names: Vec<&str> = stack.iter().skip(1).map(|(name, _)| name.as_str()).collect();
    format!("/{}", names.join("/"))
}

/// The components of a path, the first one last.
fn parts(path: &str) -> Vec<String> {
    path.rsplit('/').filter(|part| !matches!(*part, "" | ".")).map(str::to_owned).collect()
}

const READ_DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC).union(OFlag::O_NOFOLLOW);

fn open_layer(path: &Path) -> Option<OwnedFd> {
    open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).ok()
}

/// `upperdir` and then `lowerdir`s, as the kernel's overlayfs.rst orders them. A colon in a name is escaped
/// with a backslash there.
fn overlay_directories(options: &[String]) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    directories
        .extend(options.iter().filter_map(|option| option.strip_prefix("upperdir=").map(PathBuf::from)));
    for lower in options.iter().filter_map(|option| option.strip_prefix("lowerdir=")) {
        let mut name = String::new();
        let mut characters = lower.chars();
        while let Some(character) = characters.next() {
            match character {
                '\\' => name.extend(characters.next()),
                ':' => directories.push(PathBuf::from(std::mem::take(&mut name))),
                other => name.push(other),
            }
        }
        directories.push(PathBuf::from(name));
    }
    directories.retain(|path| path.is_absolute());
    directories
}

#[cfg(test)]
mod tests;
