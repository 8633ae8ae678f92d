//! Paths under a driver root: a link inside the root never leads out of it.

use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

/// As many links as the kernel follows in one path (`MAXSYMLINKS`).
const MAX_LINKS: u32 = 40;

/// Where `path` (absolute, as the driver root's own processes would name it) lies on the host.
pub(crate) fn under(root: &Path, path: impl AsRef<Path>) -> PathBuf {
    let path = path.as_ref();
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// The file behind `path` under `root` with every link resolved as a `chroot` to `root` would: an absolute
/// link starts again at `root`, and `..` stops there. The result is a path on the host, `root` included.
///
/// The kernel has this as `openat2(RESOLVE_IN_ROOT)`, but only since 5.6, and drivers run on older ones. The
/// driver root belongs to the administrator, so a link that changes under us is no attack.
///
/// # Errors
/// Whatever `lstat` or `readlink` says of a component; `InvalidInput` after 40 links.
pub fn resolve(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let root = root.canonicalize()?;
    let mut pending = Vec::new();
    push(&mut pending, path);
    let mut done = PathBuf::new();
    let mut links = 0;
    while let Some(name) = pending.pop() {
        if name == ".." {
            done.pop();
            continue;
        }
        let here = root.join(&done).join(&name);
        if !here.symlink_metadata()?.is_symlink() {
            done.push(name);
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many levels of symbolic links"));
        }
        let target = here.read_link()?;
        if target.is_absolute() {
            done.clear();
        }
        push(&mut pending, &target);
    }
    Ok(root.join(done))
}

/// Puts the names of `path` on the stack of names still to walk, the first one on top.
fn push(pending: &mut Vec<OsString>, path: &Path) {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    pending.extend(names);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn root() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        fs::create_dir_all(path.join("usr/lib")).unwrap();
        fs::write(path.join("usr/lib/real"), "").unwrap();
        (dir, path)
    }

    #[test]
    fn an_absolute_link_starts_at_the_root() {
        let (_keep, root) = root();
        symlink("/usr/lib", root.join("lib")).unwrap();
        symlink("/lib/real", root.join("usr/lib/alias")).unwrap();
        assert_eq!(resolve(&root, Path::new("/lib/alias")).unwrap(), root.join("usr/lib/real"));
    }

    #[test]
    fn dot_dot_does_not_leave_the_root() {
        let (_keep, root) = root();
        symlink("../../../../../usr/lib/real", root.join("usr/out")).unwrap();
        assert_eq!(resolve(&root, Path::new("usr/out")).unwrap(), root.join("usr/lib/real"));
        assert_eq!(resolve(&root, Path::new("/../../usr")).unwrap(), root.join("usr"));
    }

    #[test]
    fn a_link_out_of_the_root_leads_nowhere() {
        let (_keep, root) = root();
        symlink("/etc/passwd", root.join("secret")).unwrap();
        assert_eq!(resolve(&root, Path::new("/secret")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_circle_ends() {
        let (_keep, root) = root();
        symlink("b", root.join("a")).unwrap();
        symlink("a", root.join("b")).unwrap();
        assert_eq!(resolve(&root, Path::new("/a")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn the_real_root_resolves_as_the_kernel_does() {
        let exe = Path::new("/proc/self/exe");
        let cwd = std::env::current_dir().unwrap();
        assert_eq!(resolve(Path::new("/"), &cwd).unwrap(), cwd.canonicalize().unwrap());
        assert_eq!(resolve(Path::new("/"), exe).unwrap(), exe.canonicalize().unwrap());
    }
}
