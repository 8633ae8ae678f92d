//! A node for one test: a driver's files and device nodes, an installation of fgpu around the built programs,
//! and a state directory, all in a folder; and a mount namespace of the test's thread, in which `/etc/fgpu`
//! is the node's.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fgpu_allocator::{Lease, Store};
use fgpu_spec::{DriverFile, FileKind, Gpu, Inventory};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

pub(crate) const VERSION: &str = "550.163.01";
/// The programs of the crate whose test this is: Cargo names no others (The Cargo Book, "Environment
/// variables Cargo sets for crates").
const PROGRAMS: [(&str, Option<&str>); 2] = [
    ("bin/fgpu-hook", option_env!("CARGO_BIN_EXE_fgpu-hook")),
    ("bin/fgpu-runtime", option_env!("CARGO_BIN_EXE_fgpu-runtime")),
];

pub(crate) const GIB: u64 = 1 << 30;

pub(crate) struct Node {
    folder: tempfile::TempDir,
    /// GPUs that it has.
    pub(crate) gpus: u32,
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

pub(crate) fn device(path: &Path, major: u64, minor: u64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    mknod(path, SFlag::S_IFCHR, Mode::empty(), makedev(major, minor)).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap();
}

impl Node {
    /// Makes it; needs root. The calling thread is in a mount namespace of its own from now on, and so is
    /// every process that it starts.
    pub(crate) fn new(gpus: u32) -> Self {
        unshare(CloneFlags::CLONE_NEWNS).expect("the tests of the live engine need root");
        let none: Option<&Path> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let node = Self { folder: tempfile::tempdir().unwrap(), gpus };
        fs::set_permissions(node.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        node.install();
        node.make_driver();
        node.store_inventory();
        mount(Some("etc"), "/etc", Some("tmpfs"), MsFlags::empty(), none).unwrap();
        let config = format!(
            "state-dir = {:?}\nlog-dir = {:?}\nlibrary-dir = {:?}\n[driver]\nroot = {:?}\nextra = [\"/run/extra\"]\n",
            node.path("state"),
            node.path("log"),
            node.path("libraries"),
            node.path("driver")
        );
        write(Path::new("/etc/fgpu/config.toml"), &config);
        node
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn install(&self) {
        for library in ["libfgpu-cuda.so", "libfgpu-nvml.so"] {
            let text = format!("{library} {}", fgpu_wire::Seal::unsealed_cuda());
            write(&self.path("lib/fgpu").join(library), &text);
        }
        // Its place is how a program finds the others, and a link would be looked through.
        let none: Option<&Path> = None;
        for (name, program) in PROGRAMS {
            let place = self.path(name);
            // A plan names it; no test of another crate has it run.
            write(&place, "");
            let Some(program) = program else { continue };
            mount(Some(program), &place, none, MsFlags::MS_BIND, none).unwrap();
        }
    }

    /// This boot's copy of a quota library, and the folder in a container in which it looks for the real
    /// ones.
    pub(crate) fn sealed(&self, library: &str) -> (PathBuf, String) {
        let boot = fs::read_dir(self.path("libraries")).unwrap().next().unwrap().unwrap().path();
        let is_it = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(library);
        let copy = fs::read_dir(boot).unwrap().map(|entry| entry.unwrap().path()).find(is_it).unwrap();
        let text = fs::read_to_string(&copy).unwrap();
        let real = text.split(' ').nth(1).unwrap().strip_suffix("/cuda").unwrap().to_owned();
        (copy, real)
    }

    fn make_driver(&self) {
        let root = self.path("driver");
        let version = format!("NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Simulated\n");
        write(&root.join("proc/driver/nvidia/version"), &version);
        write(&root.join("proc/driver/nvidia/params"), "DeviceFileMode: 438\nModifyDeviceFiles: 1\n");
        write(
            &root.join("proc/devices"),
            "Character devices:\n195 nvidia\n508 nvidia-uvm\n\nBlock devices:\n",
        );
        for (name, major, minor) in
            [("nvidiactl", 195, 255), ("nvidia-uvm", 508, 0), ("nvidia-uvm-tools", 508, 1)]
        {
            device(&root.join("dev").join(name), major, minor);
        }
        for minor in 0..self.gpus {
            device(&root.join(format!("dev/nvidia{minor}")), 195, minor.into());
        }
        for file in self.files() {
            write(&file.host, &file.name);
        }
        fs::create_dir_all(root.join("run/extra")).unwrap();
    }

    fn files(&self) -> Vec<DriverFile> {
        let file = |kind, name: &str, host: String| DriverFile {
            kind,
            name: name.into(),
            host: self.path("driver").join(host),
        };
        vec![
            file(FileKind::Library, "libcuda.so.1", format!("usr/lib64/libcuda.so.{VERSION}")),
            file(FileKind::Library, "libnvidia-ml.so.1", format!("usr/lib64/libnvidia-ml.so.{VERSION}")),
            file(FileKind::Library, "libnvidia-ptxjitcompiler.so.1", "usr/lib64/ptx".into()),
            file(FileKind::Program, "nvidia-smi", "usr/bin/nvidia-smi".into()),
        ]
    }

    pub(crate) fn inventory(&self) -> Inventory {
        let gpu = |index: u32| Gpu {
            uuid: format!("GPU-{index:08x}-1626-88d0-8c89-1efd240dcea1"),
            index,
            minor: index,
            model: "Simulated H100".into(),
            pci: format!("00000000:{:02X}:00.0", index + 1),
            numa: None,
            total_memory: 80 * GIB,
            reserved_memory: 0,
            mig_enabled: false,
            context_memory: None,
            compute_capability: None,
            mig_profiles: Vec::new(),
        };
        Inventory {
            version: fgpu_driver::FORMAT,
            boot_id: fgpu_driver::boot_id().unwrap(),
            root: self.path("driver"),
            driver_version: VERSION.into(),
            cuda_version: 12040,
            gpus: (0..self.gpus).map(gpu).collect(),
            driver_limits: false,
            topology: fgpu_spec::Topology::default(),
            files: self.files(),
        }
    }

    pub(crate) fn store_inventory(&self) {
        fgpu_driver::store(&self.path("state"), &self.inventory()).unwrap();
    }

    pub(crate) fn hook(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.path("bin/fgpu-hook"));
        command.args(words);
        command
    }

    #[allow(dead_code, reason = "the tests of fgpu-runtime use it")]
    /// `fgpu-runtime` in front of a shell script that is given the words of the command line.
    pub(crate) fn runtime(&self, script: &str, words: &[&str]) -> Command {
        let config = fs::read_to_string("/etc/fgpu/config.toml").unwrap();
        if !config.starts_with("runtimes") {
            let real = self.path("bin/runc");
            // By a shell: what this process has open for writing while another test forks cannot be executed
            // (ETXTBSY).
            let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\"";
            let mut shell = Command::new("sh");
            assert!(shell.args(["-c", write]).arg(&real).arg(script).status().unwrap().success());
            fs::write("/etc/fgpu/config.toml", format!("runtimes = [{real:?}]\n{config}")).unwrap();
        }
        let mut command = Command::new(self.path("bin/fgpu-runtime"));
        command.args(words);
        command
    }

    pub(crate) fn store(&self) -> Store {
        Store::open(&self.path("state")).unwrap()
    }

    pub(crate) fn leases(&self) -> Vec<Lease> {
        self.store().leases().unwrap()
    }

    /// Nothing is held, and nothing is left of what was.
    pub(crate) fn assert_nothing_held(&self, about: &str) {
        assert_eq!(self.leases(), [], "{about}");
        let folders = fs::read_dir(self.path("state/containers")).map_or(0, Iterator::count);
        assert_eq!(folders, 0, "{about}: a grant's folder is left");
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        assert!(!mounts.contains("/state/containers/"), "{about}: a lease's mounts are left: {mounts}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let programs = PROGRAMS.map(|(name, _)| self.path(name));
        let boards = fs::read_dir(self.path("state/board")).into_iter().flatten().flatten();
        for mount in programs.into_iter().chain(boards.map(|entry| entry.path())) {
            let _ = umount2(&mount, MntFlags::MNT_DETACH);
        }
    }
}

/// What a program printed, with its status.
pub(crate) fn told(output: &Output) -> String {
    format!(
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

pub(crate) fn link(target: impl AsRef<Path>, path: impl AsRef<Path>) {
    fs::create_dir_all(path.as_ref().parent().unwrap()).unwrap();
    symlink(target, path).unwrap();
}
