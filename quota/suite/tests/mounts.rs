//! The library knows whether its limits are the mount that was made for it.

use std::path::Path;

use fgpu_quota_suite::{Container, gpu};

/// Runs `change` in the sealed container, and then a program that allocates; returns whether it got memory.
fn allocates_after(change: &str) -> bool {
    let container = Container::simulated(&[gpu(0, 100)], 16 << 20);
    container.seal(0x1234_5678_9abc_def0);
    let program = container.program("tenant", &[], &[]);
    let script = format!("set -e; {change}; exec \"$0\" libcuda.so.1 1 </dev/null");
    let mut command = container.command(Path::new("sh"));
    let output = command.args(["-c", &script]).arg(&program).output().expect("starts");
    let error = String::from_utf8_lossy(&output.stderr);
    let refused = error.contains("/run/fgpu/limits is missing, damaged or not the mount");
    assert!(output.status.success() != refused, "{change}: {error}");
    !refused
}

const READ_ONLY: &str =
    "mount --bind /run/fgpu/limits /run/fgpu/limits && mount -o remount,bind,ro /run/fgpu/limits";

#[test]
fn the_right_mount_allows_allocations() {
    assert!(allocates_after(READ_ONLY));
}

#[test]
fn any_other_file_gives_none() {
    for (what, change) in [
        ("writable", String::from("true")),
        ("a copy in another folder", "cp -a /run/fgpu /run/copy; umount /run/fgpu; rmdir /run/fgpu; mv /run/copy /run/fgpu".into()),
        ("a copy on another file system, read-only", format!("cp /run/fgpu/limits /run/mine; mount --bind /run/mine /run/fgpu/limits; {READ_ONLY}")),
        ("a link to the ledger", "cat /run/fgpu/limits >/run/fgpu/other; mv /run/fgpu/limits /run/fgpu/kept; ln -s other /run/fgpu/limits".into()),
        ("a tmpfs over it all", "cp -a /run/fgpu /run/copy; mount -t tmpfs none /run/fgpu; cp -a /run/copy/. /run/fgpu; mount --bind /run/fgpu/limits /run/fgpu/limits; mount -o remount,bind,ro /run/fgpu/limits".into()),
        ("nothing", "rm /run/fgpu/limits".into()),
        ("a folder", "rm /run/fgpu/limits; mkdir /run/fgpu/limits".into()),
    ] {
        assert!(!allocates_after(&change), "{what}");
    }
}
