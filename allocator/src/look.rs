//! A look at the allocator file that leaves no trace, for the runtime of containers without a share.

use std::io::Read;
use std::path::Path;

use memchr::memmem;
use rustix::fs::{Mode, OFlags, open};

use crate::{Key, image};

/// How often a file that fails its check is read again: it may be in the middle of a change.
const READS: usize = 16;

/// Whether a container may have a lease, or wait for one, in the store in `dir`.
///
/// Nothing is made, locked or waited for, and nothing is an error: a file that is missing, that may not be
/// read or is no regular file names no container. A damaged one names each container whose key is in it.
pub fn may_hold(dir: &Path, container: &Key) -> bool {
    let key = image::key_head(container);
    for _ in 0..READS {
        let Some(bytes) = read(&dir.join("allocations.json")) else { return false };
        if memmem::find(&bytes, &key).is_some() {
            return true;
        }
        if image::is_whole(&bytes) {
            return false;
        }
        std::thread::yield_now();
    }
    false
}

fn read(path: &Path) -> Option<Vec<u8>> {
    // What is no regular file does not make the open wait, and is not read.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut file = std::fs::File::from(open(path, flags, Mode::empty()).ok()?);
    let stat = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut bytes = Vec::with_capacity(usize::try_from(stat.len()).ok()? + 1);
    file.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    const LINE: &str = r#""key":{"namespace":"runc","id":"c1"}"#;

    fn key(id: &str) -> Key {
        Key { namespace: "runc".into(), id: id.into() }
    }

    #[test]
    fn a_store_that_names_nobody_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("allocations.json");
        let entries = || fs::read_dir(dir.path()).unwrap().count();
        assert!(!may_hold(&dir.path().join("missing"), &key("c1")));
        assert!(!may_hold(dir.path(), &key("c1")));
        assert_eq!(entries(), 0, "nothing was made");
        fs::write(&file, "damaged").unwrap();
        assert!(!may_hold(dir.path(), &key("c1")));
        fs::write(&file, format!("damaged {LINE}")).unwrap();
        assert!(may_hold(dir.path(), &key("c1")) && !may_hold(dir.path(), &key("c")));
        assert_eq!(entries(), 1, "nothing was kept aside");
    }

    /// Without a mend the first of these never returns.
    #[test]
    fn only_a_regular_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("allocations.json");
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(!may_hold(dir.path(), &key("c1")));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(!may_hold(dir.path(), &key("c1")));
        fs::remove_dir(&file).unwrap();
        fs::write(dir.path().join("other"), LINE).unwrap();
        symlink("other", &file).unwrap();
        assert!(!may_hold(dir.path(), &key("c1")));
    }
}
