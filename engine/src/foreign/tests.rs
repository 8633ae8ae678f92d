use std::os::unix::fs::symlink;

use super::*;

fn tree(files: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in files {
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "ELF").unwrap();
    }
    root
}

fn found(root: &Path, source: &Path) -> bool {
    Look { root, version: Some("550.163.01") }.driver_file(source).is_some()
}

#[test]
fn a_folder_with_a_driver_is_told_from_one_without() {
    let triplet = TRIPLET.trim_start_matches('/');
    let nowhere = Path::new("/nonexistent");
    for (file, holds) in [
        ("libcuda.so.1", true),
        ("libcuda.so", true),
        ("libcuda.so.550.163.01", true),
        ("libnvidia-ml.so.1", true),
        ("lib64/libcuda.so.1", true),
        ("usr/lib64/libcuda.so.1", true),
        (&format!("{triplet}/libcuda.so.1"), true),
        (&format!("{triplet}/nvidia/current/libcuda.so.1"), true),
        (&format!("{}/libcuda.so.1", triplet.trim_start_matches("usr/lib/")), true),
        ("compat/libcuda.so.1", true),
        ("compat/lib.real/libcuda.so.1", true),
        ("lib64/stubs/libcuda.so", false),
        ("models/libcuda.so.1", false),
        ("libcuda.so.1.txt/readme", false),
        ("libcudart.so.12", false),
        ("data", false),
    ] {
        let root = tree(&[file]);
        assert_eq!(found(nowhere, root.path()), holds, "{file}");
    }
    let stubs = tree(&["stubs/libcuda.so"]);
    assert!(!found(nowhere, &stubs.path().join("stubs")));
    let placeholder = tempfile::tempdir().unwrap();
    fs::write(placeholder.path().join("libcuda.so.1"), "").unwrap();
    assert!(!found(nowhere, placeholder.path()));
}

#[test]
fn a_link_does_not_hide_what_is_mounted() {
    let root = tree(&["driver/libcuda.so.550.163.01", "driver/libcuda.so.1"]);
    symlink("driver", root.path().join("data")).unwrap();
    symlink("driver/libcuda.so.550.163.01", root.path().join("file")).unwrap();
    symlink("nothing", root.path().join("dangling")).unwrap();
    for (name, holds) in [("data", true), ("file", true), ("dangling", false), ("missing", false)] {
        assert_eq!(found(Path::new("/nonexistent"), &root.path().join(name)), holds, "{name}");
    }
}

#[test]
fn a_mount_of_a_parent_folder_brings_the_driver() {
    let library = format!("run/nvidia/driver{TRIPLET}/libcuda.so.1");
    let node = tree(&[&library, "srv/data"]);
    let root = node.path().join("run/nvidia/driver");
    for source in ["", "run", "run/nvidia", "run/nvidia/driver/usr"] {
        assert!(found(&root, &node.path().join(source)), "{source}");
    }
    assert!(!found(&root, &node.path().join("srv")));
}
