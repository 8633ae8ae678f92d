//! Images that are made to cost much.

use super::*;
use crate::layers::MOST_LOOKS;

/// Issue 13, line 5: an ld.so.cache of 4 MiB cost root seven seconds outside of any cgroup. What is counted
/// is looks into folders.
#[test]
fn a_hostile_image_is_refused_before_it_costs_much() {
    let files: Vec<String> = (0..8).map(|number| format!("opt/{number}/libcuda.so.1")).collect();
    let root = image(&files.iter().map(String::as_str).chain(["etc/debian_version"]).collect::<Vec<_>>());
    let cache = |entries: &[(&str, &str)]| {
        fs::write(root.path().join("etc/ld.so.cache"), ld_cache(entries)).unwrap();
        let layers = Layers::of_directory(root.path()).unwrap();
        let result = Layout::read(Some(&layers), &[], "/").map(|layout| layout.foreign_cuda.len());
        (result.map_err(|error| error.message), layers.looks())
    };
    let paths: Vec<String> = files.iter().map(|file| format!("/{file}")).collect();
    let known: Vec<(&str, &str)> = paths.iter().map(|path| ("libcuda.so.1", path.as_str())).collect();
    let (found, usual) = cache(&known);
    assert_eq!(found, Ok(8));
    // The same few a hundred thousand times over.
    let many: Vec<_> = known.iter().copied().cycle().take(100_000).collect();
    let (found, looks) = cache(&many);
    assert!(found.clone().unwrap_err().contains("more than 256 paths"), "{found:?}");
    assert!(looks <= usual, "{looks} looks, {usual} in a usual image");
    // As many of other names.
    let others: Vec<_> = many.iter().map(|(_, path)| ("libcuda.so.12", *path)).chain(known).collect();
    assert_eq!(cache(&others), (Ok(8), usual));
    // Few that go round and round by links.
    let folder = root.path().join("opt/0");
    symlink("x/../".repeat(800), folder.join("round")).unwrap();
    fs::create_dir(folder.join("x")).unwrap();
    let round = format!("/opt/0{}/libcuda.so.1", "/round".repeat(38));
    let (found, looks) = cache(&vec![("libcuda.so.1", &*round); 256]);
    assert!(found.clone().unwrap_err().contains("longer than is looked into"), "{found:?}");
    assert_eq!(looks, MOST_LOOKS);
}

/// An ordinary node's own root, with all that is installed there, is far from the bound.
#[test]
fn this_machine_is_within_the_bound() {
    let layers = Layers::of_directory(Path::new("/")).unwrap();
    let _ = Layout::read(Some(&layers), &[], "/");
    assert!(layers.looks() < MOST_LOOKS / 20, "{}", layers.looks());
}
