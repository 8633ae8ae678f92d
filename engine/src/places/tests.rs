use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn mounts(root: &Path, destinations: &[&str]) -> Vec<Mount> {
    let file = root.join("source");
    fs::write(&file, "").unwrap();
    let mount = |destination: &&str| Mount {
        source: if destination.ends_with("folder") { root.to_owned() } else { file.clone() },
        destination: (*destination).to_owned(),
        writable: false,
        inherits: false,
    };
    destinations.iter().map(mount).collect()
}

#[test]
fn missing_folders_are_made() {
    let host = tempfile::tempdir().unwrap();
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    fs::create_dir_all(at("usr/bin")).unwrap();
    fs::write(at("usr/bin/there"), "kept").unwrap();
    symlink("usr/bin", at("bin")).unwrap();
    let wanted = [
        "/usr/bin/there",
        "/bin/tool",
        "/run/fgpu/driver/lib",
        "/run/fgpu/limits",
        "/run/fgpu",
        "/run/a/folder",
        "/top",
    ];
    let mounts = mounts(host.path(), &wanted);
    // Twice: the second time everything is there.
    for _ in 0..2 {
        make(root.path(), &mounts);
        assert_eq!(fs::read_to_string(at("usr/bin/there")).unwrap(), "kept");
        for file in ["usr/bin/tool", "run/fgpu", "top"] {
            assert_eq!(fs::metadata(at(file)).unwrap().len(), 0, "{file}");
        }
        assert!(at("run/a/folder").is_dir());
        assert_eq!(fs::metadata(at("run/a")).unwrap().permissions().mode() & 0o7777, 0o755);
    }
}

#[test]
fn nothing_is_made_outside_of_the_root_nor_through_what_is_no_folder() {
    let host = tempfile::tempdir().unwrap();
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    let outside = host.path().join("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, at("absolute")).unwrap();
    symlink("../../../../../../../../../..", at("up")).unwrap();
    symlink(outside.join("new"), at("dangling")).unwrap();
    symlink("/proc/self/root", at("magic")).unwrap();
    symlink("loop", at("loop")).unwrap();
    fs::write(at("file"), "").unwrap();
    let up = format!("/up{}/escaped", outside.display());
    let magic = format!("/magic{}/escaped", outside.display());
    let wanted = ["/absolute/escaped", &up, &magic, "/dangling", "/loop/x", "/file/x", "relative", "", "/"];
    let mut all = mounts(host.path(), &wanted);
    all.push(Mount {
        source: "/".into(),
        destination: "/../folder".into(),
        writable: false,
        inherits: false,
    });
    make(root.path(), &all);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert!(!outside.with_file_name("folder").exists());
    assert!(at("dangling").is_symlink() && at("file").is_file());
    assert!(at("folder").is_dir(), "the way up from the root leads into the root itself");
}

/// Another thread renames elsewhere all the time, and every path has `..` in it: the kernel gives up on
/// such a path, and nothing may be left out because of that.
#[test]
fn renames_elsewhere_leave_nothing_out() {
    let host = tempfile::tempdir().unwrap();
    let busy = crate::openat2::busy::Busy::new();
    for round in 0..200 {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("usr/lib")).unwrap();
        symlink("../../usr/../usr/lib", at("usr/lib64")).unwrap();
        let wanted = ["/usr/lib64/one", "/usr/lib64/../lib64/new/two", "/a/b/../../usr/lib64/../../a/folder"];
        fs::create_dir_all(at("a/b")).unwrap();
        make(root.path(), &mounts(host.path(), &wanted));
        for made in ["usr/lib/one", "usr/lib/new/two", "a/folder"] {
            assert!(at(made).exists(), "round {round}: {made}");
        }
    }
    assert!(busy.stop() > 0);
}
