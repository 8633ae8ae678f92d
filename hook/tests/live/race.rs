//! A process that renames what leads to a destination while the hook looks for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::container::Container;
use crate::life::{USUAL, assert_has_its_gpu};
use crate::node::{Node, link, told};
use crate::witness::{Witness, host_mounts};

/// How often each race is run.
const ROUNDS: usize = 8;

/// Exchanges two names until it is told to stop, at least once.
fn exchange(one: &Path, other: &Path, stop: &AtomicBool) {
    loop {
        // It fails while something is mounted there that this namespace sees; then there is nothing to race
        // for.
        let _ = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
        if stop.load(Ordering::Relaxed) {
            return;
        }
        std::thread::yield_now();
    }
}

/// Runs the hook while `prepare`'s two names are exchanged.
fn race(node: &Node, outside: &Path, about: &str, prepare: fn(&Path, &Path) -> (PathBuf, PathBuf)) {
    for _ in 0..ROUNDS {
        let mut container = Container::new(node, &[("fgpu/fraction", "0.25")]);
        let (one, other) = prepare(&container.rootfs, outside);
        container.start(USUAL);
        let (witness, mounts) = (Witness::new(outside), container.mounts());
        let stop = AtomicBool::new(false);
        let output = std::thread::scope(|scope| {
            scope.spawn(|| exchange(&one, &other, &stop));
            let output = container.hook(node, &["createRuntime"]);
            stop.store(true, Ordering::Relaxed);
            output
        });
        witness.assert_untouched(about);
        let text = told(&output);
        if !output.status.success() {
            assert!(
                text.starts_with("exit status: 1: fgpu: denied: ") || text.contains("fgpu: internal: "),
                "{text}"
            );
            assert_eq!(text.lines().count(), 1, "{text}");
            node.assert_nothing_held(about);
            assert_eq!(container.mounts(), mounts, "{about}");
        }
        container.kill();
        assert_eq!(told(&container.hook(node, &["poststop"])), "exit status: 0: ");
        node.assert_nothing_held(about);
    }
    assert!(!host_mounts().contains("rootfs"), "{about}");
}

#[test]
fn renaming_while_the_hook_runs_leads_nowhere() {
    let node = Node::new(1);
    let outside = node.path("outside");
    for name in ["fgpu/driver", "lib64", "bin"] {
        fs::create_dir_all(outside.join(name)).unwrap();
    }
    fs::write(outside.join("libcuda.so.1"), "the host's").unwrap();
    race(&node, &outside, "a folder and a link out", |root, outside| {
        fs::create_dir_all(root.join("usr/lib64")).unwrap();
        link(outside, root.join("usr/other"));
        (root.join("usr/lib64"), root.join("usr/other"))
    });
    race(&node, &outside, "a parent and a link up", |root, _| {
        fs::create_dir_all(root.join("usr/lib64")).unwrap();
        link("../../../../../../../..", root.join("other"));
        (root.join("usr"), root.join("other"))
    });
    race(&node, &outside, "a file and a link out", |root, outside| {
        fs::create_dir_all(root.join("usr/lib64")).unwrap();
        fs::write(root.join("usr/lib64/libcuda.so.1"), "").unwrap();
        link(outside.join("libcuda.so.1"), root.join("usr/lib64/other"));
        (root.join("usr/lib64/libcuda.so.1"), root.join("usr/lib64/other"))
    });
    race(&node, &outside, "a file and a FIFO", |root, _| {
        fs::create_dir_all(root.join("run/fgpu")).unwrap();
        fs::write(root.join("run/fgpu/limits"), "").unwrap();
        nix::unistd::mkfifo(&root.join("run/fgpu/other"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        (root.join("run/fgpu/limits"), root.join("run/fgpu/other"))
    });
    race(&node, &outside, "a folder that moves out of the root", |root, outside| {
        fs::create_dir_all(root.join("run/fgpu")).unwrap();
        let beside = outside.parent().unwrap().join("beside");
        fs::create_dir_all(&beside).unwrap();
        (root.join("run/fgpu"), beside)
    });
    // Without a race it still works.
    let mut container = Container::new(&node, &[("fgpu/fraction", "0.25")]);
    container.start(USUAL);
    assert!(container.hook(&node, &["createRuntime"]).status.success());
    assert_has_its_gpu(&node, &container, "after the races");
}

/// What a busy machine does all the time: somebody renames, elsewhere. Where a path has `..` the kernel then
/// gives up (openat2(2), EAGAIN), and whoever asked has to ask again. Nobody's path is touched here, so every
/// container gets its GPU.
#[test]
fn renaming_elsewhere_disturbs_nobody() {
    const LINKS: &[(&str, &str)] = &[
        ("usr/lib64", "../../../lib"),
        ("usr/bin", "../usr/../usr/../tools"),
        ("run", "../../var/../var/run"),
    ];
    let node = Node::new(1);
    let elsewhere = node.path("elsewhere");
    let pairs = ["a", "b", "c"].map(|name| {
        let (one, other) = (elsewhere.join(name).join("one"), elsewhere.join(name).join("other"));
        fs::create_dir_all(&one).unwrap();
        fs::create_dir_all(&other).unwrap();
        (one, other)
    });
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (one, other) in &pairs {
            scope.spawn(|| exchange(one, other, &stop));
        }
        // Also when an assertion fails: the threads would go on for good.
        let _stopped = Stop(&stop);
        for _ in 0..ROUNDS {
            let mut container = Container::new(&node, &[("fgpu/fraction", "0.25")]);
            for (path, target) in LINKS {
                let path = container.rootfs.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                link(target, path);
            }
            for folder in ["lib", "tools", "var/run"] {
                fs::create_dir_all(container.rootfs.join(folder)).unwrap();
            }
            container.start(USUAL);
            assert_eq!(told(&container.hook(&node, &["createRuntime"])), "exit status: 0: ");
            assert_has_its_gpu(&node, &container, "renames elsewhere");
            container.kill();
            assert_eq!(told(&container.hook(&node, &["poststop"])), "exit status: 0: ");
            node.assert_nothing_held("renames elsewhere");
        }
    });
}

/// Tells `exchange` to stop when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
