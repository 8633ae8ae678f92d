//! A root directory that stands for a node.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fgpu_allocator::{Applicant, Host, Key, Lease, Process, Rules, Store};
use fgpu_spec::{Defaults, Gpu, Inventory, Request, Tier, Topology};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::Value;

pub(crate) const VERSION: &str = "550.163.01";
pub(crate) const BOOT: &str = "00000000-0000-0000-0000-000000000001";
pub(crate) const DOCKER: &str =
    r#"{ "features": { "cdi": true }, "runtimes": { "fgpu": { "runtimeType": "io.containerd.fgpu.v2" } } }"#;

/// A node on which nothing is wrong: two GPUs, Docker and Podman, systemd, one container with a share.
pub(crate) struct Node {
    pub(crate) root: tempfile::TempDir,
}

impl Node {
    pub(crate) fn new() -> Self {
        Self::on(std::env::temp_dir())
    }

    /// One whose files are in this folder.
    pub(crate) fn on(folder: impl AsRef<Path>) -> Self {
        let node = Self { root: tempfile::tempdir_in(folder).unwrap() };
        fs::set_permissions(node.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        node.kernel();
        node.driver();
        node.installation();
        node.engines();
        node
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    pub(crate) fn mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A program that says this version.
    pub(crate) fn program(&self, name: &str, version: &str) {
        let path = self.path(&format!("usr/bin/{name}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        if !path.is_symlink() {
            symlink(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/says-its-version"), &path)
                .unwrap();
        }
        self.put(&format!("usr/bin/{name}.version"), &format!("{version}\n"));
    }

    fn kernel(&self) {
        self.put("proc/sys/kernel/osrelease", "6.12.0-1-amd64\n");
        self.put("proc/sys/kernel/random/boot_id", &format!("{BOOT}\n"));
        self.put("proc/self/mounts", "proc /proc proc rw,nosuid 0 0\n");
        symlink("/proc/self/stat", self.path("proc/self/stat")).unwrap();
        self.put("proc/modules", "nvidia 1 2 - Live 0x0\n");
        self.put("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
    }

    fn driver(&self) {
        let text = format!(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Tue Apr  8 12:41:17 UTC 2025\n"
        );
        self.put("proc/driver/nvidia/version", &text);
        self.put(
            "proc/devices",
            "Character devices:\n  1 mem\n195 nvidia\n510 nvidia-uvm\n\nBlock devices:\n  8 sd\n",
        );
        for name in ["libcuda", "libnvidia-ml"] {
            self.put(&format!("usr/lib/{}-linux-gnu/{name}.so.{VERSION}", std::env::consts::ARCH), "");
            self.put(&format!("usr/lib/{}-linux-gnu/{name}.so.1", std::env::consts::ARCH), "");
        }
        for minor in 0..2 {
            self.gpu(minor);
        }
        self.device("nvidiactl", 195, 255);
        self.device("nvidia-uvm", 510, 0);
        self.put("run/fgpu/inventory.json", &serde_json::to_string(&inventory(BOOT)).unwrap());
    }

    /// A GPU of the kernel's part of the driver, and its node.
    pub(crate) fn gpu(&self, minor: u32) {
        let text = format!("Model: \t\t Simulated\nDevice Minor: \t {minor}\n");
        self.put(&format!("proc/driver/nvidia/gpus/0000:0{minor}:00.0/information"), &text);
        self.device(&format!("nvidia{minor}"), 195, minor);
    }

    pub(crate) fn device(&self, name: &str, major: u32, minor: u32) {
        let path = self.path(&format!("dev/{name}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::from(0o666), makedev(major, minor)).unwrap();
        self.mode(&format!("dev/{name}"), 0o666);
    }

    fn installation(&self) {
        for program in ["fgpu-runtime", "fgpu-hook", "containerd-shim-fgpu-v2"] {
            self.put(&format!("usr/bin/{program}"), "");
            self.mode(&format!("usr/bin/{program}"), 0o755);
        }
        for library in ["libfgpu-cuda.so", "libfgpu-nvml.so"] {
            self.put(&format!("usr/lib/fgpu/{library}"), &library_text());
        }
        self.put("etc/fgpu/config.toml", "policy = \"pack\"\n");
        self.cdi(&fgpu_spec::cdi_names(Some(&inventory(BOOT)), None));
        self.put("usr/share/doc/fgpu/copyright", "");
        fs::create_dir_all(self.path("var/log/fgpu")).unwrap();
        fs::create_dir_all(self.path("var/lib/fgpu")).unwrap();
        fs::create_dir_all(self.path("run/systemd/system")).unwrap();
        let wants = self.path("etc/systemd/system/timers.target.wants");
        fs::create_dir_all(&wants).unwrap();
        symlink("/usr/lib/systemd/system/fgpu-gc.timer", wants.join("fgpu-gc.timer")).unwrap();
        let wants = self.path("etc/systemd/system/local-fs.target.wants");
        fs::create_dir_all(&wants).unwrap();
        symlink("/usr/lib/systemd/system/run-fgpu.mount", wants.join("run-fgpu.mount")).unwrap();
        self.process(100);
        self.lease("living", 100);
    }

    /// A CDI file with these devices.
    pub(crate) fn cdi(&self, names: &[String]) {
        let devices: Vec<_> = names.iter().map(|name| serde_json::json!({ "name": name })).collect();
        let file = serde_json::json!({ "kind": "fgpu.dev/gpu", "devices": devices });
        self.put("run/cdi/fgpu.json", &file.to_string());
    }

    fn engines(&self) {
        self.program("dockerd", "Docker version 26.1.5+dfsg1, build a72d7cd");
        self.program("containerd", "containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6");
        self.program("podman", "podman version 5.4.2");
        self.program("runc", "runc version 1.1.15+ds1");
        self.program("containerd-shim-runc-v2", "containerd-shim-runc-v2:");
        self.put("etc/docker/daemon.json", DOCKER);
        for (pid, name) in [(50, "dockerd"), (51, "containerd"), (52, "crio")] {
            self.process(pid);
            self.put(&format!("proc/{pid}/comm"), &format!("{name}\n"));
        }
        for name in ["fgpu.json", "fgpu-poststop.json"] {
            let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/hooks.d").join(name);
            let text = fs::read_to_string(packaged).unwrap();
            self.put(&format!("usr/share/containers/oci/hooks.d/{name}"), &text);
        }
    }

    /// Docker as it runs, with these runtimes.
    pub(crate) fn docker(&self, runtimes: &str) {
        let listener = UnixListener::bind(self.path("run/docker.sock")).unwrap();
        let body = format!("{{\"ID\":\"x\",\"Runtimes\":{runtimes}}}");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept()?;
            let mut request = [0; 1024];
            let length = stream.read(&mut request)?;
            assert!(request[..length].starts_with(b"GET /info HTTP/1.0\r\n"));
            write!(stream, "HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{body}")
        });
    }

    /// The locks of this machine are the node's.
    pub(crate) fn real_locks(&self) {
        symlink("/proc/locks", self.path("proc/locks")).unwrap();
    }

    /// A process of this machine is the node's.
    pub(crate) fn real_process(&self, pid: u32) {
        symlink(format!("/proc/{pid}"), self.path(&format!("proc/{pid}"))).unwrap();
    }

    /// A process that runs on the node.
    pub(crate) fn process(&self, pid: i32) {
        self.process_called(pid, "x", 0);
    }

    /// A process that runs on the node, by its name and its flags (`PF_*`).
    pub(crate) fn process_called(&self, pid: i32, name: &str, flags: u32) {
        let zeros = "0 ".repeat(32);
        let fields = format!("S 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 4711 {zeros}");
        self.put(&format!("proc/{pid}/stat"), &format!("{pid} ({name}) {fields}\n"));
    }

    pub(crate) fn store(&self) -> Store {
        let host = Host { proc: self.path("proc"), cgroup: self.path("sys/fs/cgroup") };
        Store::open_on(&self.path("run/fgpu"), host).unwrap()
    }

    pub(crate) fn lease(&self, id: &str, pid: i32) -> Lease {
        self.lease_of(&inventory(BOOT), id, pid, ("fgpu/fraction", "0.25"), Tier::Quota)
    }

    pub(crate) fn lease_of(
        &self,
        inventory: &Inventory,
        id: &str,
        pid: i32,
        (key, value): (&str, &str),
        tier: Tier,
    ) -> Lease {
        let annotations = [(key.to_owned(), value.to_owned())].into();
        let request = Request::parse(&annotations, None, &Defaults::default()).unwrap().unwrap();
        let applicant = Applicant {
            key: Key { namespace: "moby".into(), id: id.into() },
            bundle: "/bundle".into(),
            maker: Process { pid, start: 4711 },
            pid_file: None,
            anchor: None,
        };
        self.store().reserve(inventory, &Rules::default(), &request, &[tier], &applicant).unwrap()
    }

    pub(crate) fn doctor(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgpu"));
        command.arg("doctor").arg("--root").arg(self.root.path()).args(arguments).output().unwrap()
    }

    /// `fgpu setup` of an engine.
    pub(crate) fn set_up(&self, engine: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgpu"));
        let output = command.args(["setup", engine, "--root"]).arg(self.root.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// What is found, and the exit code.
    pub(crate) fn findings(&self) -> (Vec<Value>, Option<i32>) {
        let output = self.doctor(&["--json"]);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["schema"], 1);
        (answer["findings"].as_array().unwrap().clone(), output.status.code())
    }
}

/// What is checked of a quota library: the header of an ELF file without sections, and the path that is
/// sealed.
fn library_text() -> String {
    let mut text = format!("\u{7f}ELF{}", "\0".repeat(60));
    text.push_str(fgpu_wire::Seal::unsealed_cuda());
    text
}

pub(crate) fn inventory(boot: &str) -> Inventory {
    let gpu = |index: u32| Gpu {
        uuid: format!("GPU-{index:08x}-aaaa-bbbb-cccc-dddddddddddd"),
        index,
        minor: index,
        model: "Simulated H100".into(),
        pci: String::new(),
        numa: None,
        total_memory: 80 << 30,
        reserved_memory: 0,
        mig_enabled: false,
        context_memory: None,
        compute_capability: None,
        mig_profiles: Vec::new(),
    };
    Inventory {
        version: fgpu_driver::FORMAT,
        boot_id: boot.into(),
        root: "/".into(),
        driver_version: VERSION.into(),
        cuda_version: 12040,
        gpus: (0..2).map(gpu).collect(),
        driver_limits: false,
        topology: Topology::default(),
        files: Vec::new(),
    }
}

/// Device nodes and owners can only be made by root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
