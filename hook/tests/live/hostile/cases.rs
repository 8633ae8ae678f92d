//! What a container's root may be made of.

use super::*;

pub(super) const CASES: &[Case] = &[
    case("an empty root", nothing, Works),
    case(
        "every file is there",
        |g| [CUDA, "usr/bin/nvidia-smi", "run/fgpu/limits"].map(|p| g.file(p)).into_iter().collect(),
        Works,
    ),
    // Links as components. Absolute and climbing ones end inside the root, where what they name is made.
    case("usr is a link out", |g| g.link("usr", g.outside), Works),
    case("usr is a link up and out", |g| g.link("usr", g.up(0)), Works),
    case("usr/lib64 is a link out", |g| g.link("usr/lib64", g.outside), Works),
    case("usr/lib64 is a link up and out", |g| g.link("usr/lib64", g.up(1)), Works),
    case("usr/lib64 is a link to lib", |g| g.link("usr/lib64", "lib"), Works),
    case("usr/lib64 is a link with a slash at its end", |g| g.link("usr/lib64", "lib/"), Works),
    case("usr/lib64 is a link to the root", |g| g.link("usr/lib64", "/"), Works),
    case("usr/lib64 is a link to its parent", |g| g.link("usr/lib64", ".."), Works),
    case(
        "usr/bin is a link to a link out",
        |g| {
            g.link("usr/bin", "/a");
            g.link("a", g.outside);
        },
        Works,
    ),
    case("run is a link out", |g| g.link("run", g.outside), Works),
    case("run/fgpu is a link out", |g| g.link("run/fgpu", g.outside), Works),
    case("run/fgpu/driver is a link out", |g| g.link("run/fgpu/driver", g.outside.join("folder")), Works),
    case("run/extra is a link out", |g| g.link("run/extra", g.outside.join("folder")), Works),
    // Links as the last component.
    case("a library is a link to an absolute file outside", |g| g.link(CUDA, g.outside.join("file")), Works),
    case("a library is a link up and out to a file", |g| g.link(CUDA, format!("{}/file", g.up(2))), Works),
    case("a library is a link to a FIFO outside", |g| g.link(CUDA, g.outside.join("fifo")), Works),
    case("a library is a link to a device outside", |g| g.link(CUDA, g.outside.join("device")), Works),
    case("a library is a link to what does not exist", |g| g.link(CUDA, "/nowhere/at/all"), Works),
    case(
        "a library is a link to a file of the image",
        |g| {
            g.file("etc/passwd");
            g.link(CUDA, "/etc/passwd");
        },
        Works,
    ),
    case(
        // The kernel counts on when it starts a look-up over, so more than a third of its 40 may be too many.
        "a library is a chain of 12 links",
        |g| {
            (0..12).for_each(|n| g.link(&format!("usr/lib64/l{n}"), format!("l{}", n + 1)));
            g.link(CUDA, "l0");
        },
        Works,
    ),
    case(
        "a library is a chain of 50 links",
        |g| {
            (0..50).for_each(|n| g.link(&format!("usr/lib64/l{n}"), format!("l{}", n + 1)));
            g.link(CUDA, "l0");
        },
        Refused("loop of links"),
    ),
    case("limits is a link out", |g| g.link("run/fgpu/limits", g.outside.join("file")), Works),
    case("two destinations are one file", |g| g.link(CUDA, "libnvidia-ml.so.1"), Refused("replaced")),
    case(
        "a library is a link up from what does not exist",
        |g| g.link(CUDA, "none/../../x"),
        Refused("goes up"),
    ),
    case(
        "a link whose name is no text",
        |g| {
            g.link(CUDA, Path::new(std::ffi::OsStr::from_bytes(b"/no\xff\xfetext/x")));
        },
        Refused("not UTF-8"),
    ),
    case("a link to a name that is too long", |g| g.link(CUDA, "x".repeat(300)), Refused("too long")),
    // Loops.
    case("a library is a link to itself", |g| g.link(CUDA, "libcuda.so.1"), Refused("loop of links")),
    case("usr/lib64 is a link to itself", |g| g.link("usr/lib64", "lib64"), Refused("loop of links")),
    case(
        "two links to each other",
        |g| {
            g.link("run/fgpu", "/run/b");
            g.link("run/b", "fgpu");
        },
        Refused("loop of links"),
    ),
    // procfs and its magic links.
    case(
        "usr/lib64 is a link to /proc/self/root",
        |g| g.link("usr/lib64", "/proc/self/root"),
        Refused("procfs"),
    ),
    case(
        "usr is a link through the root of a process",
        |g| g.link("usr", format!("/proc/{}/root/tmp", std::process::id())),
        Refused("procfs"),
    ),
    case(
        "usr is a link through the folder of a process",
        |g| g.link("usr", format!("/proc/{}/cwd", std::process::id())),
        Refused("procfs"),
    ),
    case(
        "a library is a link to a descriptor",
        |g| g.link(CUDA, format!("/proc/{}/fd/0", std::process::id())),
        Refused("procfs"),
    ),
    case(
        "a library is a link to a file of procfs",
        |g| g.link(CUDA, "/proc/version"),
        Refused("kernel's own"),
    ),
    case(
        "our folder is a link to /proc/sys",
        |g| {
            g.link("run/fgpu", "/proc/sys/kernel");
        },
        Refused("kernel's own"),
    ),
    case(
        "a library is a link to what procfs does not have",
        |g| g.link(CUDA, "/proc/nothing"),
        Refused("kernel's own"),
    ),
    mounted(
        "procfs over the library folder",
        |g| g.folder("usr/lib64"),
        "mount -t proc proc $R/usr/lib64",
        Refused("kernel's own"),
    ),
    mounted("sysfs over run", |g| g.folder("run"), "mount -t sysfs sysfs $R/run", Refused("kernel's own")),
    // Things in the place of a file.
    case(
        "a library is a FIFO",
        |g| {
            g.folder("usr/lib64");
            mkfifo(&g.at(CUDA), Mode::S_IRWXU).unwrap();
        },
        Refused("a FIFO is in its place"),
    ),
    case(
        "a library is a socket",
        |g| {
            g.folder("usr/lib64");
            let here = std::env::temp_dir().join(format!("fgpu-{}", std::process::id()));
            drop(UnixListener::bind(&here).unwrap());
            if fs::rename(&here, g.at(CUDA)).is_err() {
                fs::remove_file(&here).unwrap();
                panic!("the root is on another file system than the temporary folder");
            }
        },
        Refused("a socket is in its place"),
    ),
    case("a library is a device", |g| device(&g.at(CUDA), 1, 5), Refused("another device is in its place")),
    case(
        "nvidia-smi is a FIFO",
        |g| {
            g.folder("usr/bin");
            mkfifo(&g.at("usr/bin/nvidia-smi"), Mode::S_IRWXU).unwrap();
        },
        Refused("a FIFO is in its place"),
    ),
    case(
        "a parent is a FIFO",
        |g| {
            g.folder("usr");
            mkfifo(&g.at("usr/lib64"), Mode::S_IRWXU).unwrap();
        },
        Refused("no directory"),
    ),
    case("a parent is a file", |g| g.file("run"), Refused("no directory")),
    case("our folder's place is a file", |g| g.file("run/fgpu"), Refused("a file is in its place")),
    case("run is a device", |g| device(&g.at("run"), 1, 3), Refused("no directory")),
    case("a folder's place is a file", |g| g.file("run/extra"), Refused("a file is in its place")),
    case(
        "a library is a hard link to a file outside",
        |g| {
            g.folder("usr/lib64");
            fs::hard_link(g.outside.join("file"), g.at(CUDA)).unwrap();
        },
        Works,
    ),
    case(
        "a library is a hard link to a FIFO outside",
        |g| {
            g.folder("usr/lib64");
            fs::hard_link(g.outside.join("fifo"), g.at(CUDA)).unwrap();
        },
        Refused("a FIFO is in its place"),
    ),
    case(
        "a folder that nobody may enter",
        |g| {
            g.folder("usr/lib64");
            fs::set_permissions(g.at("usr/lib64"), fs::Permissions::from_mode(0o000)).unwrap();
        },
        Works,
    ),
    // What is read of the image.
    case(
        "ld.so.cache is a FIFO",
        |g| {
            g.folder("etc");
            mkfifo(&g.at("etc/ld.so.cache"), Mode::S_IRWXU).unwrap();
        },
        Works,
    ),
    case(
        "ld.so.cache is a link to a FIFO outside",
        |g| g.link("etc/ld.so.cache", g.outside.join("fifo")),
        Works,
    ),
    case("ld.so.cache is a device", |g| device(&g.at("etc/ld.so.cache"), 1, 5), Works),
    case("a CUDA toolkit is a link out", |g| g.link("usr/local/cuda-12", g.outside), Works),
    case(
        "compat's libcuda is a link out",
        |g| {
            g.link("usr/local/cuda-12/compat/libcuda.so.1", g.outside.join("fifo"));
        },
        Works,
    ),
    // Device nodes, in the container's own /dev.
    mounted("a node is a file", nothing, "echo > $R/dev/nvidia0", Works),
    mounted("a node is there already", nothing, "mknod $R/dev/nvidia0 c 195 0", Works),
    mounted("a node is another device", nothing, "mknod $R/dev/nvidia0 c 1 5", Refused("another device")),
    mounted("a node is a block device", nothing, "mknod $R/dev/nvidia0 b 195 0", Refused("another device")),
    mounted(
        "a node is a link to another",
        nothing,
        "mknod $R/dev/zero c 1 5; ln -s zero $R/dev/nvidia0",
        Refused("another device"),
    ),
    mounted("a node is a link out", nothing, "ln -s $O/device $R/dev/nvidiactl", Works),
    mounted("a node is a folder", nothing, "mkdir $R/dev/nvidiactl", Refused("a directory is in its place")),
    mounted("a node is a FIFO", nothing, "mkfifo $R/dev/nvidiactl", Refused("a FIFO is in its place")),
    mounted("dev is a link out", |g| g.link("dev", g.outside), "", Works),
    // Volumes.
    mounted(
        "a volume over the library folder",
        |g| g.folder("usr/lib64"),
        "mount --bind $O/folder $R/usr/lib64",
        Refused("lies in a volume"),
    ),
    mounted(
        "a volume over run",
        |g| g.folder("run"),
        "mount --bind $O $R/run",
        Refused("make an empty folder of that name"),
    ),
    mounted("a volume over dev", nothing, "mount --bind $O/folder $R/dev", Refused("lies in a volume")),
    mounted(
        "a volume with the file",
        |g| g.file(CUDA),
        "mount --bind $O/file $R/usr/lib64/libcuda.so.1",
        Works,
    ),
    mounted(
        "a volume with a FIFO",
        |g| g.file(CUDA),
        "mount --bind $O/fifo $R/usr/lib64/libcuda.so.1",
        Refused("a FIFO is in its place"),
    ),
    mounted(
        "a shared volume with the file",
        |g| g.file(CUDA),
        "mount --bind $O/file $R/usr/lib64/libcuda.so.1; mount --make-shared $R/usr/lib64/libcuda.so.1",
        Refused("shared with the host"),
    ),
    mounted("a shared root", nothing, "mount --make-shared $R", Refused("shared with the host")),
    mounted(
        "a link into a volume",
        |g| {
            g.folder("volume");
            g.link("usr/lib64", "/volume");
        },
        "mount --bind $O/folder $R/volume",
        Refused("lies in a volume"),
    ),
    // File systems that refuse.
    mounted("a tmpfs of its own over run", |g| g.folder("run"), "mount -t tmpfs run $R/run", Works),
    mounted(
        "a read-only tmpfs over run",
        |g| g.folder("run"),
        "mount -t tmpfs -o ro run $R/run",
        Refused("Read-only file system"),
    ),
    mounted("a read-only root", nothing, "mount -o remount,bind,ro $R", Refused("Read-only file system")),
    mounted(
        "a full tmpfs over the library folder",
        |g| g.folder("usr/lib64"),
        "mount -t tmpfs -o nr_inodes=3 lib $R/usr/lib64",
        Refused("No space left"),
    ),
    mounted(
        "a full tmpfs over dev",
        nothing,
        "umount $R/dev; mount -t tmpfs -o nr_inodes=2 dev $R/dev",
        Refused("No space left"),
    ),
];
