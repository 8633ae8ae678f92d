//! Real cgroups of one version for one test, and a process in them that tries devices.
//!
//! Each test has a thread with a mount namespace of its own, in which `/sys/fs/cgroup` is what it asks for,
//! whatever the machine has there. The hierarchies themselves are the machine's, so a test works in cgroups
//! that it makes and removes. It takes root.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fgpu_spec::DeviceNode;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::super::bpf;
use super::super::program::Instruction;

/// Where the device nodes are that a [`Tenant`] opens.
const NODES: &str = "/mnt";

/// A BPF file system.
pub(crate) const PINS: &str = "/mnt/bpf";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V1,
    V2,
}

/// What is tried. The numbers are of no driver, so that an open that is allowed does nothing.
pub(crate) const DEVICES: [(char, u32, u32); 10] = [
    ('c', 240, 7),
    ('c', 240, 8),
    ('c', 241, 7),
    ('b', 240, 7),
    ('c', 195, 255),
    ('c', 195, 0),
    ('c', 195, 1),
    ('c', 234, 31),
    ('c', 1, 3),
    ('c', 10, 200),
];
/// Read, write, both, mknod.
pub(crate) const ACCESSES: [&str; 4] = ["r", "w", "rw", "m"];

pub(crate) fn node(major: u32, minor: u32) -> DeviceNode {
    let path = format!("/dev/x{minor}");
    DeviceNode { host: path.clone().into(), path, major, minor, mode: 0o666, uid: 0, gid: 0 }
}

/// Runs a test on a machine with cgroups of this version.
pub(crate) fn with(version: Version, test: impl FnOnce() + Send) {
    let run = || {
        assert!(nix::unistd::geteuid().is_root(), "device cgroups can only be tested by root");
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
        for place in ["/sys/fs/cgroup", NODES] {
            mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), nothing).unwrap();
        }
        let place = root(version);
        std::fs::create_dir_all(&place).unwrap();
        let (kind, options) = match version {
            Version::V1 => ("cgroup", Some("devices")),
            Version::V2 => ("cgroup2", None),
        };
        mount(Some("cgroup"), &place, Some(kind), MsFlags::empty(), options).unwrap();
        std::fs::create_dir(PINS).unwrap();
        mount(Some("bpf"), PINS, Some("bpf"), MsFlags::empty(), nothing).unwrap();
        for (kind, major, minor) in DEVICES {
            let flag = if kind == 'b' { SFlag::S_IFBLK } else { SFlag::S_IFCHR };
            let number = makedev(major.into(), minor.into());
            mknod(&file(kind, major, minor), flag, Mode::from_bits_truncate(0o666), number).unwrap();
        }
        test();
    };
    let ended = std::thread::scope(|scope| scope.spawn(run).join());
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

fn root(version: Version) -> PathBuf {
    match version {
        Version::V1 => "/sys/fs/cgroup/devices".into(),
        Version::V2 => "/sys/fs/cgroup".into(),
    }
}

fn file(kind: char, major: u32, minor: u32) -> PathBuf {
    Path::new(NODES).join(format!("{kind}-{major}-{minor}"))
}

/// A cgroup of the test's own.
pub(crate) struct Group(PathBuf);

impl Group {
    /// One below the root.
    pub(crate) fn new(version: Version) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("fgpu-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self::at(root(version).join(name))
    }

    /// The root itself.
    pub(crate) fn root(version: Version) -> PathBuf {
        root(version)
    }

    pub(crate) fn child(&self, name: &str) -> Self {
        Self::at(self.0.join(name))
    }

    fn at(path: PathBuf) -> Self {
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn directory(&self) -> OwnedFd {
        std::fs::File::open(&self.0).unwrap().into()
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).unwrap();
    }

    pub(crate) fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).unwrap()
    }

    /// Attaches a program and hands out its number.
    pub(crate) fn attach(&self, code: &[Instruction], flags: u32) -> u32 {
        use std::os::fd::AsFd;
        let program = bpf::load(code).unwrap();
        bpf::attach(self.directory().as_fd(), program.as_fd(), flags, None).unwrap();
        bpf::id(program.as_fd()).unwrap()
    }

    /// The numbers of the programs attached, and their flags.
    pub(crate) fn programs(&self) -> (Vec<u32>, u32) {
        use std::os::fd::AsFd;
        bpf::query(self.directory().as_fd()).unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has been waited for leaves its cgroup a moment later.
        while std::fs::remove_dir(&self.0)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A process that stands for a container: it opens and makes devices when told to.
pub(crate) struct Tenant {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Answers with the error's text; nothing is none. Only EPERM is the device cgroup's.
const SCRIPT: &str = r#"
    while read -r access node kind major minor; do
        case $access in
            r) (: <"$node") ;;
            w) (: >"$node") ;;
            rw) (: <>"$node") ;;
            m) mknod "$node.new" "$kind" "$major" "$minor" && rm "$node.new" ;;
        esac 2>&1 | tr '\n' ' '
        echo
    done"#;

impl Tenant {
    /// Starts one in a cgroup.
    pub(crate) fn new(cgroup: &Path) -> Self {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT]).env_clear().env("PATH", "/usr/bin:/bin");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        std::fs::write(cgroup.join("cgroup.procs"), process.id().to_string()).unwrap();
        let (orders, answers) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { process, orders, answers: BufReader::new(answers) }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.id().cast_signed()
    }

    /// Whether the device cgroup lets it.
    pub(crate) fn may(&mut self, access: &str, (kind, major, minor): (char, u32, u32)) -> bool {
        let node = file(kind, major, minor);
        writeln!(self.orders, "{access} {} {kind} {major} {minor}", node.display()).unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert!(answer.ends_with('\n'), "the shell is gone");
        !answer.contains("Operation not permitted")
    }

    /// Every access to every device, in the order of the constants.
    pub(crate) fn all(&mut self) -> Vec<bool> {
        DEVICES
            .iter()
            .flat_map(|device| ACCESSES.map(|access| (access, *device)))
            .map(|(access, device)| self.may(access, device))
            .collect()
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
