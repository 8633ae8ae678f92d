//! A container's root file system as untrusted layers.
//!
//! On `Create` containerd hands over the root as mounts that are not mounted yet. What we want to know of an
//! image is little (its library directory, which other libcuda it knows), so it is read from the layers' own
//! directories instead of mounting anything. Every component of a path is opened with `O_NOFOLLOW`, and a
//! link is resolved here, within the layers: it leads nowhere else.
//!
//! An upper layer hides what the lower ones have at the same path (a whiteout, or another kind of file), as
//! in overlayfs. That a directory may be opaque is not looked at: then we see files that the container does
//! not have, and cover them for nothing.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use nix::dir::Dir;
use nix::errno::Errno;
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
    root: Folders,
    /// Folders that were opened, by their paths without links. Most paths that are looked at begin alike.
    known: RefCell<BTreeMap<String, Folders>>,
    budget: Budget,
}

/// A folder of the root in each of the layers that have it, the uppermost first.
type Folders = Rc<Vec<OwnedFd>>;

/// As many descriptors are kept open for paths to come; a process may have 1024 (getrlimit(2),
/// `RLIMIT_NOFILE`).
const MOST_KEPT: usize = 128;
/// Folders of deeper paths are not kept: to name them takes longer than to open them.
const DEEPEST_KEPT: usize = 8;

impl Layers {
    /// The layers of a root that is mounted already.
    pub fn of_directory(root: &Path) -> Option<Self> {
        open_layer(root).map(|fd| Self::of(vec![fd]))
    }

    /// The layers of a root that is open already.
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
        Self { root: Rc::new(folders), known: RefCell::default(), budget: Budget::default() }
    }

    /// How often a folder of a layer was looked into.
    #[cfg(test)]
    pub fn looks(&self) -> u32 {
        self.budget.spent()
    }

    /// Why not all was looked into that was asked for, if so: what was said to be missing may be there.
    pub fn unread(&self) -> Option<String> {
        self.budget.end()
    }

    /// Whether there is something at `path`, be it a link that leads nowhere.
    pub fn has(&self, path: &str) -> bool {
        matches!(self.walk(path, false), Some(Walked { end, .. }) if !matches!(end, End::Missing))
    }

    /// The first `limit` bytes of the regular file at `path`.
    pub fn read(&self, path: &str, limit: u64) -> Option<Vec<u8>> {
        let Walked { end: End::File(file), .. } = self.walk(path, true)? else { return None };
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let folder = file.folders.get(file.layer)?;
        let file = File::from(openat(folder, file.name.as_str(), flags, Mode::empty()).ok()?);
        let mut bytes = Vec::new();
        // A FIFO in the file's place gives an empty read, not a hang: O_NONBLOCK.
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

    /// Where `path` leads, without a link in it: the path of what is there, or would be if it were made.
    /// `None` for a loop of links, and for what lies below a file or above what is not there.
    pub fn canonical(&self, path: &str) -> Option<String> {
        Some(self.walk(path, true)?.path)
    }

    /// Goes along `path`; a link at its end is followed if `follow` says so.
    fn walk(&self, path: &str, follow: bool) -> Option<Walked> {
        if !self.budget.spend(self.root.len()) {
            return None;
        }
        // The folders from the root to here, with their names.
        let mut stack: Vec<(String, Folders)> = vec![(String::new(), Rc::clone(&self.root))];
        let mut pending: Vec<String> = parts(path);
        let mut links = 0;
        while let Some(name) = pending.pop() {
            if name == ".." {
                stack.truncate(stack.len().saturating_sub(1).max(1));
                continue;
            }
            let (_, here) = stack.last()?;
            let end = self.look(&stack, here, &name)?;
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
                // The mount makes it, with nothing in it.
                (End::Missing, false) => stack.push((name, Folders::default())),
                (_, false) => return None,
                (end, true) => {
                    stack.push((name, Folders::default()));
                    return Some(Walked { path: path_of(&stack), end });
                }
            }
        }
        let path = path_of(&stack);
        Some(Walked { path, end: End::Folder(stack.pop()?.1) })
    }

    /// [`look`], or what is known from an earlier one.
    fn look(&self, stack: &[(String, Folders)], here: &Folders, name: &str) -> Option<End> {
        if stack.len() > DEEPEST_KEPT {
            return look(&self.budget, here, name);
        }
        let path = format!("{}/{name}", path_of(stack));
        if let Some(known) = self.known.borrow().get(&path) {
            return self.budget.spend(here.len()).then(|| End::Folder(Rc::clone(known)));
        }
        let end = look(&self.budget, here, name)?;
        if let End::Folder(folders) = &end {
            let mut known = self.known.borrow_mut();
            let kept: usize = known.values().map(|folders| folders.len()).sum();
            if kept + folders.len() <= MOST_KEPT {
                known.insert(path, Rc::clone(folders));
            }
        }
        Some(end)
    }
}

/// A folder of a root, without a link in its path.
#[derive(Debug)]
pub struct Folder {
    /// Absolute in the root.
    pub path: String,
    layers: Folders,
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
            let directory = match Dir::openat(layer, ".", READ_DIRECTORY, Mode::empty()) {
                Ok(directory) => directory,
                Err(errno) => {
                    self.budget.fail(errno);
                    break;
                }
            };
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
    Folder(Folders),
    Link,
    /// A regular file.
    File(FoundFile),
    /// A FIFO, a device, a socket: nothing that is opened.
    Other,
}

/// A file, by the folder that it is in.
struct FoundFile {
    folders: Folders,
    /// Which of them.
    layer: usize,
    name: String,
}

/// As many links are followed as the kernel follows (`MAXSYMLINKS`).
const MOST_LINKS: usize = 40;
const FOLDER: OFlag =
    OFlag::O_PATH.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// What the uppermost of these folders that knows `name` has there; `None` if the budget is spent.
///
/// A folder that cannot be opened, for want of a descriptor say, spends the budget: it may hold what is
/// looked for.
fn look(budget: &Budget, layers: &Folders, name: &str) -> Option<End> {
    if !budget.spend(layers.len()) {
        return None;
    }
    let mut folders = Vec::new();
    for (number, layer) in layers.iter().enumerate() {
        match openat(layer, name, FOLDER, Mode::empty()) {
            Ok(folder) => {
                folders.push(folder);
                continue;
            }
            // A name that is too long for one layer's file system is too long for the overlay, too.
            Err(Errno::ENOENT | Errno::ENAMETOOLONG) => continue,
            // Something that is no folder, or a link (open(2), O_DIRECTORY with O_NOFOLLOW).
            Err(Errno::ENOTDIR | Errno::ELOOP) => {}
            Err(errno) => {
                budget.fail(errno);
                return None;
            }
        }
        // It hides what is below it, and not what is above.
        if !folders.is_empty() {
            break;
        }
        let Ok(stat) = fstatat(layer, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
        return Some(match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
            SFlag::S_IFLNK => End::Link,
            // A whiteout is a character device 0:0 (overlayfs.rst).
            SFlag::S_IFCHR if stat.st_rdev == 0 => End::Missing,
            SFlag::S_IFREG => {
                End::File(FoundFile { folders: Rc::clone(layers), layer: number, name: name.to_owned() })
            }
            _ => End::Other,
        });
    }
    Some(if folders.is_empty() { End::Missing } else { End::Folder(Rc::new(folders)) })
}

/// The path of the folders from the root on.
fn path_of(stack: &[(String, Folders)]) -> String {
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
