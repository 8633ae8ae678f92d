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
fn the_upper_layer_wins_and_no_link_leads_out() {
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
    let mounts =
        overlay(&[&format!("upperdir={}", upper.display()), "workdir=/x", &format!("lowerdir={escaped}")]);
    let layers = Layers::of_mounts(&mounts).unwrap();
    assert_eq!(layers.read("etc/both", 100).unwrap(), b"upper");
    assert_eq!(layers.read("/etc/low", 3).unwrap(), b"low");
    assert_eq!(layers.read("etc/link", 100), None);
    assert_eq!(layers.read("out/passwd", 100), None);
    assert_eq!(layers.read("etc/../../passwd", 100), None);
    assert!(layers.has("etc/low") && layers.has("etc/link") && !layers.has("out/passwd"));
    let names = |path: &str| layers.folder(path).map(|folder| folder.names(10)).unwrap_or_default();
    assert_eq!(names("etc"), ["both", "link", "low"]);
    // Within the image it leads where it would in the container.
    assert_eq!(names("out"), ["both", "link", "low"]);
}

#[test]
fn links_lead_where_they_would_in_the_container() {
    let root = tempfile::tempdir().unwrap();
    let (upper, lower) = (root.path().join("u"), root.path().join("l"));
    for folder in
        [upper.join("opt"), lower.join("usr/lib/deep"), lower.join("opt/hidden"), lower.join("opt/gone")]
    {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::write(lower.join("usr/lib/deep/file"), "found").unwrap();
    std::fs::write(upper.join("opt/hidden"), "a file over a folder").unwrap();
    for (target, link) in [
        ("usr/lib", "lib"),
        ("/lib/deep", "absolute"),
        ("../usr/../lib/./deep", "opt/up"),
        ("../../../../usr", "opt/far"),
        ("loop", "loop"),
        ("/nowhere/at/all", "dangling"),
        ("deep/file", "usr/lib/name"),
    ] {
        std::fs::create_dir_all(upper.join(link).parent().unwrap()).unwrap();
        symlink(target, upper.join(link)).unwrap();
    }
    nix::sys::stat::mknod(&upper.join("opt/gone"), SFlag::S_IFCHR, Mode::empty(), 0).unwrap();
    let layers = Layers::of_mounts(&overlay(&[
        &format!("upperdir={}", upper.display()),
        &format!("lowerdir={}", lower.display()),
    ]));
    let layers = layers.unwrap();
    for path in ["lib/deep/file", "absolute/file", "opt/up/file", "opt/far/lib/name", "/usr/lib/name"] {
        assert_eq!(layers.canonical(path).as_deref(), Some("/usr/lib/deep/file"), "{path}");
        assert_eq!(layers.read(path, 10).as_deref(), Some(&b"found"[..]), "{path}");
    }
    for (path, canonical) in [
        ("dangling", Some("/nowhere/at/all")),
        ("dangling/x", Some("/nowhere/at/all/x")),
        ("dangling/../x", Some("/nowhere/at/x")),
        ("loop", None),
        ("opt/hidden/x", None),
        ("opt/gone/x", Some("/opt/gone/x")),
        ("lib", Some("/usr/lib")),
        ("/", Some("/")),
        ("..", Some("/")),
    ] {
        assert_eq!(layers.canonical(path).as_deref(), canonical, "{path}");
    }
    assert!(
        layers.has("loop") && layers.has("dangling") && !layers.has("opt/gone") && layers.has("opt/hidden")
    );
    assert!(layers.folder("opt/hidden").is_none() && layers.folder("opt/gone").is_none());
    let library = layers.folder("lib").unwrap();
    assert!(library.has_file("name") && !library.has_file("deep") && !library.has_file("none"));
    assert_eq!(library.folder("deep").unwrap().path, "/usr/lib/deep");
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
fn a_layer_that_is_no_directory_is_unknown() {
    let block = RootfsMount { kind: "ext4".into(), source: "/dev/dm-1".into(), options: vec![] };
    assert!(Layers::of_mounts(&[block]).is_none());
    assert!(Layers::of_mounts(&[]).is_none());
    assert!(Layers::of_mounts(&overlay(&["lowerdir=/nonexistent"])).is_none());
}
