//! Roots that were made to lead the hook astray. In each case a container has such a root, the hook runs, and
//! then: nothing outside the root has been opened, made, changed or mounted, and the container has its GPU,
//! or was refused with one line and looks as before.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::container::Container;
use crate::life::{USUAL, assert_has_its_gpu};
use crate::node::{Node, VERSION, device, link, told};
use crate::witness::{Witness, tree};

/// What must come of a case.
#[derive(Clone, Copy)]
enum Outcome {
    Works,
    /// With these words in the error.
    Refused(&'static str),
}
use Outcome::{Refused, Works};

mod cases;

/// What there is to lead astray to: a folder beside the root, on the same file system.
struct Ground<'a> {
    root: &'a Path,
    outside: &'a Path,
}

impl Ground<'_> {
    fn at(&self, path: &str) -> std::path::PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn file(&self, path: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), "the image's").unwrap();
    }

    fn folder(&self, path: &str) {
        fs::create_dir_all(self.at(path)).unwrap();
    }

    fn link(&self, path: &str, target: impl AsRef<Path>) {
        link(target, self.at(path));
    }

    /// The way up from the root to `outside`, as a relative link from `depth` folders below the root has it.
    fn up(&self, depth: usize) -> String {
        format!("{}{}", "../".repeat(depth + 40), self.outside.display().to_string().trim_start_matches('/'))
    }
}

struct Case {
    name: &'static str,
    prepare: fn(&Ground<'_>),
    /// Run in the container's mount namespace after the usual mounts; `$R` is the root, `$O` the folder
    /// outside.
    inside: &'static str,
    outcome: Outcome,
}

const fn case(name: &'static str, prepare: fn(&Ground<'_>), outcome: Outcome) -> Case {
    Case { name, prepare, inside: "", outcome }
}

const fn mounted(
    name: &'static str,
    prepare: fn(&Ground<'_>),
    inside: &'static str,
    outcome: Outcome,
) -> Case {
    Case { name, prepare, inside, outcome }
}

fn nothing(_: &Ground<'_>) {}

const CUDA: &str = "usr/lib64/libcuda.so.1";

/// Makes the folder that no case may reach.
fn outside(node: &Node) -> std::path::PathBuf {
    let outside = node.path("outside");
    fs::create_dir_all(outside.join("folder")).unwrap();
    fs::write(outside.join("file"), "the host's").unwrap();
    mkfifo(&outside.join("fifo"), Mode::S_IRWXU).unwrap();
    device(&outside.join("device"), 1, 5);
    outside
}

fn try_case(node: &Node, outside: &Path, case: &Case) {
    let mut container = Container::new(node, &[("fgpu/fraction", "0.25")]);
    let root = container.rootfs.clone();
    (case.prepare)(&Ground { root: &root, outside });
    let usual =
        if root.join("dev").is_symlink() { "mkdir -p $R/proc; mount -t proc proc $R/proc" } else { USUAL };
    container.start(&format!("O={}; {usual}; {}", outside.display(), case.inside));
    let (mounts, files) = (container.mounts(), tree(&root));
    let witness = Witness::new(outside);
    let output = container.hook(node, &["createRuntime"]);
    witness.assert_untouched(case.name);
    let text = told(&output);
    match case.outcome {
        Works => {
            assert_eq!(text, "exit status: 0: ", "{}", case.name);
            assert_has_its_gpu(node, &container, case.name);
        }
        Refused(words) => {
            let code = ["denied", "internal"].map(|code| format!("exit status: 1: fgpu: {code}: "));
            assert!(code.iter().any(|code| text.starts_with(code)), "{}: {text}", case.name);
            assert!(text.contains(words), "{}: {text}", case.name);
            assert_eq!(text.lines().count(), 1, "{}: {text}", case.name);
            assert_eq!(container.mounts(), mounts, "{}: {text}", case.name);
            assert_eq!(tree(&root), files, "{}: {text}", case.name);
            node.assert_nothing_held(case.name);
        }
    }
    container.kill();
    assert_eq!(told(&container.hook(node, &["poststop"])), "exit status: 0: ", "{}", case.name);
    node.assert_nothing_held(case.name);
}

#[test]
fn no_root_leads_the_hook_out_of_it() {
    let node = Node::new(1);
    let outside = outside(&node);
    cases::CASES.iter().for_each(|case| try_case(&node, &outside, case));
}

/// Whatever destination cannot be had, all that came before it is undone.
#[test]
fn every_step_is_undone() {
    let node = Node::new(1);
    let outside = outside(&node);
    let libraries = ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"];
    let mut destinations: Vec<String> = libraries.iter().map(|name| format!("usr/lib64/{name}")).collect();
    destinations.extend([
        format!("usr/lib64/libcuda.so.{VERSION}"),
        format!("usr/lib64/libnvidia-ml.so.{VERSION}"),
        "usr/bin/nvidia-smi".into(),
    ]);
    for destination in &destinations {
        let mut container = Container::new(&node, &[("fgpu/fraction", "0.25")]);
        fs::create_dir_all(container.rootfs.join(destination)).unwrap();
        container.start(USUAL);
        let (mounts, files) = (container.mounts(), tree(&container.rootfs));
        let witness = Witness::new(&outside);
        let text = told(&container.hook(&node, &["createRuntime"]));
        let wanted = format!(
            "exit status: 1: fgpu: denied: /{destination} in the container cannot be given its file: a directory is in its place\n"
        );
        assert_eq!(text, wanted);
        witness.assert_untouched(destination);
        assert_eq!(container.mounts(), mounts, "{destination}");
        assert_eq!(tree(&container.rootfs), files, "{destination}");
        node.assert_nothing_held(destination);
    }
}

/// A name that cannot be made: the folder is immutable. File systems without that flag have nothing to show
/// here.
#[test]
fn an_immutable_folder_is_a_refusal() {
    use rustix::fs::{IFlags, Mode, OFlags, ioctl_getflags, ioctl_setflags, open};
    let node = Node::new(1);
    let outside = outside(&node);
    let mut container = Container::new(&node, &[("fgpu/fraction", "0.25")]);
    let folder = container.rootfs.join("usr/lib64");
    fs::create_dir_all(&folder).unwrap();
    let folder = open(&folder, OFlags::RDONLY, Mode::empty()).unwrap();
    let set = |on: bool| {
        let flags = ioctl_getflags(&folder)?;
        ioctl_setflags(&folder, if on { flags | IFlags::IMMUTABLE } else { flags - IFlags::IMMUTABLE })
    };
    if let Err(errno) = set(true) {
        eprintln!("skipped: the temporary folder's file system has no immutable files ({errno})");
        return;
    }
    container.start(USUAL);
    let witness = Witness::new(&outside);
    let text = told(&container.hook(&node, &["createRuntime"]));
    set(false).unwrap();
    witness.assert_untouched("immutable");
    assert!(
        text.starts_with("exit status: 1: fgpu: internal: cannot make a place for /usr/lib64/"),
        "{text}"
    );
    assert!(text.contains("Operation not permitted"), "{text}");
    node.assert_nothing_held("immutable");
}
