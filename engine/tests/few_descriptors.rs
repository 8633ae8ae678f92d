//! An image that needs more descriptors than this process has. The limit is the whole process's, so this test
//! has one of its own.

#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but only sees test functions")]

use fgpu_engine::RootfsMount;
use fgpu_engine::layers::Layers;
use nix::sys::resource::{Resource, setrlimit};

/// What cannot be looked into is not taken for missing: a copy of the driver in it would not be covered.
#[test]
fn a_folder_that_cannot_be_opened_is_not_a_missing_one() {
    let root = tempfile::tempdir().unwrap();
    let layer = |number: usize| root.path().join(number.to_string());
    const DEEP: &str = "a/b/c/d/e/f/g/h";
    for number in 0..40 {
        std::fs::create_dir_all(layer(number).join(DEEP)).unwrap();
    }
    std::fs::write(layer(39).join(DEEP).join("libcuda.so.1"), "").unwrap();
    let lower: Vec<_> = (0..40).map(|number| layer(number).display().to_string()).collect();
    let options = vec![format!("lowerdir={}", lower.join(":"))];
    let mounts = [RootfsMount { kind: "overlay".into(), source: "overlay".into(), options }];
    let layers = Layers::of_mounts(&mounts).unwrap();
    assert!(layers.folder(DEEP).unwrap().has_file("libcuda.so.1"));
    assert_eq!(layers.unread(), None);

    let layers = Layers::of_mounts(&mounts).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 160, 160).unwrap();
    assert!(!layers.folder(DEEP).is_some_and(|folder| folder.has_file("libcuda.so.1")));
    let why = layers.unread().unwrap();
    assert!(why.contains("EMFILE"), "{why}");
}
