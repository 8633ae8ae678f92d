//! Watches what a container must not reach: a folder beside its root, and the mounts of the host.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// Every file below a folder with what would change if somebody wrote to it, linked it or replaced it.
pub(crate) fn tree(folder: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(current) = folders.pop() {
        for entry in fs::read_dir(&current).unwrap() {
            let path = entry.unwrap().path();
            let stat = path.symlink_metadata().unwrap();
            let content = match stat.file_type() {
                kind if kind.is_symlink() => format!("{:?}", fs::read_link(&path).unwrap()),
                kind if kind.is_file() => format!("{:?}", fs::read(&path).unwrap()),
                _ => String::new(),
            };
            lines.push(format!(
                "{} {:o} {} {} {} {}:{} {content}",
                path.display(),
                stat.mode(),
                stat.ino(),
                stat.nlink(),
                stat.rdev(),
                stat.uid(),
                stat.gid()
            ));
            if stat.is_dir() {
                folders.push(path);
            }
        }
    }
    lines.sort();
    lines
}

/// The mounts of this thread's namespace, but for those in the state directory, which are the leases' own and
/// the boards.
pub(crate) fn host_mounts() -> String {
    let all = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    all.lines().filter(|line| !line.contains("/state/")).map(|line| format!("{line}\n")).collect()
}

pub(crate) struct Witness {
    outside: PathBuf,
    tree: Vec<String>,
    mounts: String,
    opened: Inotify,
}

impl Witness {
    /// Starts to watch this folder.
    pub(crate) fn new(outside: &Path) -> Self {
        let (tree, mounts) = (tree(outside), host_mounts());
        let opened = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).unwrap();
        let flags = AddWatchFlags::IN_OPEN | AddWatchFlags::IN_ACCESS | AddWatchFlags::IN_MODIFY;
        let mut folders = vec![outside.to_owned()];
        while let Some(folder) = folders.pop() {
            opened.add_watch(&folder, flags).unwrap();
            folders.extend(
                fs::read_dir(&folder)
                    .unwrap()
                    .map(|entry| entry.unwrap().path())
                    .filter(|path| path.symlink_metadata().unwrap().is_dir()),
            );
        }
        // What was watched last was listed after its watch began.
        while opened.read_events().is_ok_and(|events| !events.is_empty()) {}
        Self { outside: outside.to_owned(), tree, mounts, opened }
    }

    /// Nothing was opened, changed or mounted since.
    pub(crate) fn assert_untouched(&self, about: &str) {
        let events = self.opened.read_events().unwrap_or_default();
        assert!(events.is_empty(), "{about}: something outside was opened: {events:?}");
        assert_eq!(tree(&self.outside), self.tree, "{about}: something outside changed");
        assert_eq!(host_mounts(), self.mounts, "{about}: the host's mounts changed");
    }
}
