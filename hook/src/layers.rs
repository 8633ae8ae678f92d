//! A container's root file system as untrusted layers.
//!
//! On `Create` containerd hands over the root as mounts that nobody has mounted yet. What we want to know of an
//! image is little (its library directory, which other libcuda it knows), so it is read from the layers' own
//! directories instead of mounting anything. Every component of a path is opened with `O_NOFOLLOW`: a link in
//! an image leads nowhere, neither out of the layer nor within it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstatat};

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
pub(crate) struct Layers(Vec<OwnedFd>);

impl Layers {
    /// The layers of a root that is mounted already.
    pub(crate) fn of_directory(root: &Path) -> Option<Self> {
        open_layer(root).map(|fd| Self(vec![fd]))
    }

    /// The layers of a root that somebody has opened.
    pub(crate) fn of_descriptor(root: &OwnedFd) -> Option<Self> {
        root.try_clone().ok().map(|fd| Self(vec![fd]))
    }

    /// The layers of a root that is still to be mounted. `None` for a kind whose layers are no directories
    /// (a block device, say): then nothing is known of the image.
    pub(crate) fn of_mounts(mounts: &[RootfsMount]) -> Option<Self> {
        let [mount] = mounts else { return None };
        let directories: Vec<PathBuf> = match mount.kind.as_str() {
            "bind" => vec![PathBuf::from(&mount.source)],
            "overlay" => overlay_directories(&mount.options),
            _ => return None,
        };
        let layers: Option<Vec<_>> = directories.iter().map(|path| open_layer(path)).collect();
        layers.filter(|layers| !layers.is_empty()).map(Self)
    }

    /// Whether any layer has something at `path`.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.0.iter().any(|layer| {
            walk(layer, path).is_some_and(|(parent, name)| {
                fstatat(parent.as_ref().unwrap_or(layer), name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
            })
        })
    }

    /// The first `limit` bytes of the uppermost layer's regular file at `path`.
    pub(crate) fn read(&self, path: &str, limit: u64) -> Option<Vec<u8>> {
        self.0.iter().find_map(|layer| {
            let (parent, name) = walk(layer, path)?;
            let parent = parent.as_ref().unwrap_or(layer);
            // A FIFO, a device or a socket of the image is not even opened.
            let stat = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW).ok()?;
            if SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) != SFlag::S_IFREG {
                return None;
            }
            let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
            let file = File::from(openat(parent, name, flags, Mode::empty()).ok()?);
            let mut bytes = Vec::new();
            // Whoever swapped the file for a FIFO in between gets an empty read, not a hang: O_NONBLOCK.
            file.metadata().ok().filter(std::fs::Metadata::is_file)?;
            file.take(limit).read_to_end(&mut bytes).ok()?;
            Some(bytes)
        })
    }

    /// The names in a directory over all layers, at most `limit` of them.
    pub(crate) fn list(&self, path: &str, limit: usize) -> Vec<String> {
        // A set: a hostile image has as many layers as there may be, and other names in each of them.
        let mut names = BTreeSet::new();
        for layer in &self.0 {
            let Some(directory) = walk(layer, &format!("{path}/.")).and_then(|(parent, _)| parent) else {
                continue;
            };
            let Ok(directory) = Dir::openat(&directory, ".", READ_DIRECTORY, Mode::empty()) else { continue };
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

const READ_DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC).union(OFlag::O_NOFOLLOW);

fn open_layer(path: &Path) -> Option<OwnedFd> {
    open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).ok()
}

/// Opens the parent of the last component, one component at a time and through no link. The parent is `None`
/// where it is the layer itself.
fn walk<'a>(layer: &OwnedFd, path: &'a str) -> Option<(Option<OwnedFd>, &'a str)> {
    let mut components = path.split('/').filter(|part| !part.is_empty()).peekable();
    let mut parent: Option<OwnedFd> = None;
    while let Some(name) = components.next() {
        if components.peek().is_none() {
            return Some((parent, name));
        }
        if name == ".." {
            return None;
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let next = openat(parent.as_ref().unwrap_or(layer), name, flags, Mode::empty()).ok()?;
        parent = Some(next);
    }
    None
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
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn overlay(options: &[&str]) -> Vec<RootfsMount> {
        vec![RootfsMount {
            kind: "overlay".into(),
            source: "overlay".into(),
            options: options.iter().map(|&option| option.into()).collect(),
        }]
    }

    #[test]
    fn the_upper_layer_wins_and_a_link_leads_nowhere() {
        let root = tempfile::tempdir().unwrap();
        let (upper, lower) = (root.path().join("u"), root.path().join("l:1"));
        for layer in [&upper, &lower] {
            std::fs::create_dir_all(layer.join("etc")).unwrap();
        }
        std::fs::write(upper.join("etc/both"), "upper").unwrap();
        std::fs::write(lower.join("etc/both"), "lower").unwrap();
        std::fs::write(lower.join("etc/low"), "lower").unwrap();
        symlink("/etc/passwd", upper.join("etc/link")).unwrap();
        symlink("/etc", upper.join("out")).unwrap();
        let escaped = lower.display().to_string().replace(':', "\\:");
        let mounts = overlay(&[
            &format!("upperdir={}", upper.display()),
            "workdir=/x",
            &format!("lowerdir={escaped}"),
        ]);
        let layers = Layers::of_mounts(&mounts).unwrap();
        assert_eq!(layers.read("etc/both", 100).unwrap(), b"upper");
        assert_eq!(layers.read("/etc/low", 3).unwrap(), b"low");
        assert_eq!(layers.read("etc/link", 100), None);
        assert_eq!(layers.read("out/passwd", 100), None);
        assert_eq!(layers.read("etc/../../passwd", 100), None);
        assert!(layers.has("etc/low") && layers.has("etc/link") && !layers.has("out/passwd"));
        assert_eq!(layers.list("etc", 10), ["both", "link", "low"]);
        assert!(layers.list("out", 10).is_empty());
    }

    #[test]
    fn a_fifo_or_a_device_of_the_image_is_not_opened() {
        let root = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&root.path().join("cache"), Mode::S_IRWXU).unwrap();
        let layers = Layers::of_directory(root.path()).unwrap();
        assert_eq!(layers.read("cache", 100), None);
        assert!(layers.has("cache"));
    }

    #[test]
    fn what_is_no_directory_is_unknown() {
        let block = RootfsMount { kind: "ext4".into(), source: "/dev/dm-1".into(), options: vec![] };
        assert!(Layers::of_mounts(&[block]).is_none());
        assert!(Layers::of_mounts(&[]).is_none());
        assert!(Layers::of_mounts(&overlay(&["lowerdir=/nonexistent"])).is_none());
    }
}
