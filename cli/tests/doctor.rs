//! `fgpu doctor` finds every fault that is planted below a root directory that stands for a node, names it, and says what
//! mends it; and finds nothing on the node without it.

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml's allow-unwrap-in-tests does not reach the helpers of a test"
)]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fgpu_allocator::{Claim, Host, Key, Lease, Process, Rules, Store};
use fgpu_spec::{
    Defaults, Gpu, Inventory, MigInstance, MigPlacement, MigProfile, MigStage, Request, Tier, Topology,
};
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use serde_json::Value;

const VERSION: &str = "550.163.01";
const BOOT: &str = "00000000-0000-0000-0000-000000000001";
const DOCKER: &str = r#"{ "runtimes": { "fgpu": { "runtimeType": "io.containerd.fgpu.v2" } } }"#;

/// A node on which nothing is wrong: two GPUs, Docker and Podman, systemd, one container with a share.
struct Node {
    root: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        let node = Self { root: tempfile::tempdir().unwrap() };
        fs::set_permissions(node.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        node.kernel();
        node.driver();
        node.installation();
        node.engines();
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
    }

    fn mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A program that says this version.
    fn program(&self, name: &str, version: &str) {
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
    fn gpu(&self, minor: u32) {
        let text = format!("Model: \t\t Simulated\nDevice Minor: \t {minor}\n");
        self.put(&format!("proc/driver/nvidia/gpus/0000:0{minor}:00.0/information"), &text);
        self.device(&format!("nvidia{minor}"), 195, minor);
    }

    fn device(&self, name: &str, major: u32, minor: u32) {
        let path = self.path(&format!("dev/{name}"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        mknodat(CWD, &path, FileType::CharacterDevice, Mode::from(0o666), makedev(major, minor)).unwrap();
        self.mode(&format!("dev/{name}"), 0o666);
    }

    fn installation(&self) {
        for program in ["fgpu-runtime", "fgpu-hook", "containerd-shim-fgpu-v2"] {
            self.put(&format!("usr/bin/{program}"), "");
        }
        for library in ["libfgpu-cuda.so", "libfgpu-nvml.so"] {
            self.put(&format!("usr/lib/fgpu/{library}"), "");
        }
        self.put("etc/fgpu/config.toml", "policy = \"pack\"\n");
        fs::create_dir_all(self.path("var/log/fgpu")).unwrap();
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

    fn engines(&self) {
        self.program("dockerd", "Docker version 26.1.5+dfsg1, build a72d7cd");
        self.program("containerd", "containerd github.com/containerd/containerd 1.7.24~ds1 1.7.24~ds1-6");
        self.program("podman", "podman version 5.4.2");
        self.program("runc", "runc version 1.1.15+ds1");
        self.program("containerd-shim-runc-v2", "containerd-shim-runc-v2:");
        self.put("etc/docker/daemon.json", DOCKER);
        for name in ["fgpu.json", "fgpu-poststop.json"] {
            let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/hooks.d").join(name);
            let text = fs::read_to_string(packaged).unwrap();
            self.put(&format!("usr/share/containers/oci/hooks.d/{name}"), &text);
        }
    }

    /// Docker as it runs, with these runtimes.
    fn docker(&self, runtimes: &str) {
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

    /// A process that runs on the node.
    fn process(&self, pid: i32) {
        let text = format!("{pid} (x) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n");
        self.put(&format!("proc/{pid}/stat"), &text);
    }

    fn store(&self) -> Store {
        let host = Host { proc: self.path("proc"), cgroup: self.path("sys/fs/cgroup") };
        Store::open_on(&self.path("run/fgpu"), host).unwrap()
    }

    fn lease(&self, id: &str, pid: i32) -> Lease {
        self.lease_of(&inventory(BOOT), id, pid, ("fgpu/fraction", "0.25"), Tier::Quota)
    }

    fn lease_of(
        &self,
        inventory: &Inventory,
        id: &str,
        pid: i32,
        (key, value): (&str, &str),
        tier: Tier,
    ) -> Lease {
        let annotations = [(key.to_owned(), value.to_owned())].into();
        let request = Request::parse(&annotations, None, &Defaults::default()).unwrap().unwrap();
        let claim = Claim {
            key: Key { namespace: "moby".into(), id: id.into() },
            bundle: "/bundle".into(),
            maker: Process { pid, start: 4711 },
            pid_file: None,
        };
        self.store().reserve(inventory, &Rules::default(), &request, &[tier], &claim).unwrap()
    }

    fn doctor(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgpu"));
        command.arg("doctor").arg("--root").arg(self.root.path()).args(arguments).output().unwrap()
    }

    /// `fgpu setup` of an engine.
    fn set_up(&self, engine: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgpu"));
        let output = command.args(["setup", engine, "--root"]).arg(self.root.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// What is found, and the exit code.
    fn findings(&self) -> (Vec<Value>, Option<i32>) {
        let output = self.doctor(&["--json"]);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(answer["schema"], 1);
        (answer["findings"].as_array().unwrap().clone(), output.status.code())
    }
}

fn inventory(boot: &str) -> Inventory {
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
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A check, its severity, a part of its mend, and what brings it about.
type Fault<'a> = (&'a str, &'a str, &'a str, fn(&Node));

/// Plants faults one by one on a sound node: each must be found, it alone, and its mend must have these words.
#[track_caller]
fn faults(planted: &[Fault<'_>]) {
    if !is_root() {
        return;
    }
    for (check, severity, mend, plant) in planted {
        let node = Node::new();
        plant(&node);
        let (findings, code) = node.findings();
        let found: Vec<_> = findings.iter().map(|finding| finding["check"].as_str().unwrap()).collect();
        assert_eq!(found, [*check], "{findings:#?}");
        assert_eq!(findings[0]["severity"], *severity, "{check}");
        assert_eq!(code, Some(if *severity == "error" { 1 } else { 3 }), "{check}");
        let mends: Vec<_> =
            findings[0]["mend"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
        assert!(mends.iter().any(|line| line.contains(mend)), "{check}: {mends:?}");
    }
}

#[test]
fn a_sound_node_has_nothing_to_mend() {
    if !is_root() {
        return;
    }
    let node = Node::new();
    assert_eq!(node.findings(), (Vec::new(), Some(0)));
    let text = String::from_utf8(node.doctor(&[]).stdout).unwrap();
    assert!(text.ends_with("\nNothing is wrong.\n"), "{text}");
    for word in [VERSION, "Docker 26.1.5 is wired", "Podman 5.4.2 is wired", "1 container holds a share"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn a_driver_that_a_container_brings_is_looked_for_below_its_root() {
    if !is_root() {
        return;
    }
    let node = Node::new();
    node.put("etc/fgpu/config.toml", "[driver]\nroot = \"/run/nvidia/driver\"\n");
    for folder in ["proc/driver", "dev", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu"] {
        if node.path(folder).exists() {
            let below = node.path("run/nvidia/driver").join(folder);
            fs::create_dir_all(below.parent().unwrap()).unwrap();
            fs::rename(node.path(folder), below).unwrap();
        }
    }
    assert_eq!(node.findings(), (Vec::new(), Some(0)));
    node.remove("run/nvidia/driver/dev/nvidia1");
    assert_eq!(node.findings().0[0]["what"], "/run/nvidia/driver/dev/nvidia1 is not there");
}

#[test]
fn faults_of_the_driver() {
    faults(&[
        ("driver-not-loaded", "error", "modprobe nvidia", |node| node.remove("proc/driver/nvidia/version")),
        ("nouveau", "error", "blacklist nouveau", |node| {
            node.remove("proc/driver/nvidia/version");
            node.put("proc/modules", "nouveau 1 2 - Live 0x0\n");
        }),
        ("driver-library-missing", "error", "libcuda1", |node| {
            let folder = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
            node.remove(&format!("{folder}/libcuda.so.{VERSION}"));
        }),
        ("driver-library-mismatch", "error", "reboot", |node| {
            let folder = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
            for name in ["libcuda", "libnvidia-ml"] {
                node.remove(&format!("{folder}/{name}.so.{VERSION}"));
                node.put(&format!("{folder}/{name}.so.570.86.15"), "");
            }
        }),
        ("uvm-not-loaded", "error", "nvidia-modprobe -u", |node| {
            node.put("proc/devices", "Character devices:\n195 nvidia-frontend\n");
        }),
        ("device-node-missing", "error", "nvidia-modprobe -c 0", |node| node.remove("dev/nvidiactl")),
        ("device-node-missing", "error", "nvidia-modprobe -c 1", |node| node.remove("dev/nvidia1")),
        ("device-node-missing", "error", "nvidia-modprobe -u -c 0", |node| node.remove("dev/nvidia-uvm")),
        ("device-node-wrong", "error", "rm /dev/nvidia0", |node| {
            node.remove("dev/nvidia0");
            node.put("dev/nvidia0", "");
        }),
        ("device-node-wrong", "error", "rm /dev/nvidia-uvm", |node| {
            node.remove("dev/nvidia-uvm");
            node.device("nvidia-uvm", 509, 0);
        }),
        ("device-node-mode", "warning", "chmod 0666 /dev/nvidia0", |node| node.mode("dev/nvidia0", 0o660)),
        ("inventory-missing", "warning", "fgpu inventory --refresh", |node| {
            node.remove("run/fgpu/inventory.json");
        }),
        ("inventory-unreadable", "warning", "fgpu inventory --refresh", |node| {
            node.put("run/fgpu/inventory.json", "{}");
        }),
        ("inventory-stale", "warning", "fgpu inventory --refresh", |node| {
            let text = serde_json::to_string(&inventory("another")).unwrap();
            node.put("run/fgpu/inventory.json", &text);
        }),
        ("gpu-left-out", "error", "dmesg", |node| node.gpu(2)),
    ]);
}

#[test]
fn faults_of_the_kernel() {
    faults(&[
        ("kernel-too-old", "error", "linux-image", |node| {
            node.put("proc/sys/kernel/osrelease", "4.19.0-27-amd64\n");
        }),
        ("kernel-too-old-for-hook", "warning", "linux-image", |node| {
            node.put("proc/sys/kernel/osrelease", "5.10.0-30-amd64\n");
        }),
        ("cgroups-missing", "error", "mount -t cgroup2", |node| {
            node.remove("sys/fs/cgroup/cgroup.controllers")
        }),
        ("crun-on-hybrid-cgroups", "error", "apt-get install runc", |node| {
            node.remove("sys/fs/cgroup/cgroup.controllers");
            node.put("sys/fs/cgroup/devices/cgroup.procs", "");
            node.put("sys/fs/cgroup/unified/cgroup.controllers", "");
            node.remove("usr/bin/runc");
            node.program("crun", "crun version 1.21");
        }),
        ("hidepid", "warning", "hidepid=0", |node| {
            node.put("proc/self/mounts", "proc /proc proc rw,hidepid=invisible 0 0\n");
        }),
        ("selinux-devices", "error", "setsebool", |node| {
            node.put("sys/fs/selinux/enforce", "1");
            node.put("sys/fs/selinux/booleans/container_use_devices", "0 0");
        }),
    ]);
}

#[test]
fn faults_of_the_installation() {
    faults(&[
        ("installation-incomplete", "error", "--reinstall fgpu", |node| node.remove("usr/bin/fgpu-runtime")),
        ("installation-incomplete", "error", "--reinstall fgpu", |node| {
            node.remove("usr/lib/fgpu/libfgpu-cuda.so");
        }),
        ("config-invalid", "error", "/etc/fgpu/config.toml", |node| {
            node.put("etc/fgpu/config.toml", "polizy = \"pack\"\n");
        }),
        ("config-writable", "error", "chmod 0644", |node| node.mode("etc/fgpu/config.toml", 0o666)),
        ("config-writable", "error", "chown root:root", |node| {
            chown(node.path("etc/fgpu/config.toml"), Some(1000), None).unwrap();
        }),
        ("accept-env", "warning", "accept-env = false", |node| {
            node.put("etc/fgpu/config.toml", "accept-env = true\n");
        }),
        ("no-runtime", "error", "apt-get install runc", |node| node.remove("usr/bin/runc")),
        ("stock-shim-missing", "error", "--reinstall containerd", |node| {
            node.remove("usr/bin/containerd-shim-runc-v2");
        }),
        ("state-dir-writable", "error", "chmod 0755 /run/fgpu", |node| node.mode("run/fgpu", 0o777)),
        ("state-dir-unreadable", "warning", "chmod 0755 /run/fgpu", |node| node.mode("run/fgpu", 0o700)),
        ("log-dir-unusable", "warning", "rm /var/log/fgpu", |node| {
            node.remove("var/log/fgpu");
            node.put("var/log/fgpu", "");
        }),
        ("gc-timer-off", "warning", "systemctl enable --now fgpu-gc.timer", |node| {
            node.remove("etc/systemd/system/timers.target.wants");
        }),
        ("state-dir-shared", "warning", "systemctl enable run-fgpu.mount", |node| {
            node.remove("etc/systemd/system/local-fs.target.wants");
        }),
        ("gc-cannot-write", "error", "ReadWritePaths=/run/fgpu /srv/log", |node| {
            node.put("etc/fgpu/config.toml", "log-dir = \"/srv/log\"\n");
        }),
    ]);
}

#[test]
fn file_systems_that_are_full_or_read_only() {
    if !is_root() {
        return;
    }
    // What is in the directory stays in it.
    let full = "cp -a \"$0\" \"$0.was\" && mount -t tmpfs -o size=64k full \"$0\" && cp -a \"$0.was/.\" \"$0\" && \
                { head -c 65536 /dev/zero > \"$0/x\"; exec \"$@\"; }";
    let read_only = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
    for (script, directory, check) in [
        (full, "var/log/fgpu", "log-disk-full"),
        (read_only, "var/log/fgpu", "log-disk-full"),
        (full, "run/fgpu", "state-dir-full"),
        (read_only, "run/fgpu", "state-dir-read-only"),
    ] {
        let node = Node::new();
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(node.path(directory));
        command.args([env!("CARGO_BIN_EXE_fgpu"), "doctor", "--json", "--root"]).arg(node.root.path());
        let answer: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        assert_eq!(answer["findings"][0]["check"], check);
        assert_eq!(answer["findings"].as_array().unwrap().len(), 1, "{answer:#}");
    }
}

#[test]
fn faults_of_the_leases() {
    faults(&[
        ("allocator-corrupt", "error", "fgpu gc --rebuild", |node| {
            node.put("run/fgpu/allocations.json", "damaged");
        }),
        ("allocator-other-version", "error", "reboot", |node| {
            let path = node.path("run/fgpu/allocations.json");
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, text.replacen("\"version\":1", "\"version\":9", 1)).unwrap();
        }),
        ("allocator-damaged-once", "warning", "fgpu doctor --report", |node| {
            node.put("run/fgpu/allocations.json.corrupt-1", "damaged");
        }),
        ("stale-leases", "warning", "fgpu gc", |node| {
            node.process(200);
            node.lease("gone", 200);
            node.remove("proc/200");
        }),
        ("leases-unknown", "warning", "mount -t proc", |node| node.remove("proc/self/stat")),
    ]);
}

/// Puts the first GPU into MIG mode, with these instances in the kernel's list.
fn in_mig_mode(node: &Node, instances: &[&str]) -> Inventory {
    let mut inventory = inventory(BOOT);
    inventory.gpus[0].mig_enabled = true;
    inventory.gpus[0].mig_profiles = vec![MigProfile {
        name: "1g.10gb".into(),
        id: 19,
        slices: 1,
        multiprocessors: 16,
        memory: 9984 << 20,
        most: 7,
        placements: vec![MigPlacement { start: 0, size: 1 }],
    }];
    node.put("run/fgpu/inventory.json", &serde_json::to_string(&inventory).unwrap());
    node.put("proc/driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1\n");
    for instance in instances {
        node.put(&format!("proc/driver/nvidia/capabilities/gpu0/mig/{instance}/access"), "");
    }
    inventory
}

/// The same, and a container that has GPU instance 1.
fn with_slice(node: &Node, instances: &[&str]) {
    let inventory = in_mig_mode(node, instances);
    let lease = node.lease_of(&inventory, "sliced", 100, ("fgpu/mig", "1g.10gb"), Tier::Mig);
    let store = node.store();
    let device = MigInstance { gpu_instance: 1, compute_instance: 0, uuid: "MIG-1".into() };
    assert!(store.progress(&lease.grant.nonce, 0, MigStage::Made, Some(device)).unwrap());
    let lock = store.lock_driver(&inventory.gpus[0]).unwrap();
    let made = store.leases().unwrap().pop().unwrap();
    store.made(&lock, &inventory.gpus[0], made.grant.gpus[0].clone()).unwrap();
}

#[test]
fn faults_of_mig_instances() {
    const THERE: &[&str] = &["gi1", "gi1/ci0"];
    if is_root() {
        let node = Node::new();
        with_slice(&node, THERE);
        assert_eq!(node.findings(), (Vec::new(), Some(0)));
    }
    faults(&[
        ("mig-orphan", "warning", "fgpu gc", |node| {
            with_slice(node, THERE);
            node.remove("run/fgpu/allocations.json");
        }),
        ("mig-instance-gone", "error", "end moby/sliced", |node| with_slice(node, &[])),
        ("mig-bare-instance", "warning", "nvidia-smi mig -dgi -i 0 -gi 3", |node| {
            in_mig_mode(node, &["gi3"]);
        }),
    ]);
}

#[test]
fn faults_of_the_engines() {
    faults(&[
        ("no-engine", "warning", "fgpu setup podman", |node| {
            ["dockerd", "containerd", "podman"]
                .iter()
                .for_each(|name| node.remove(&format!("usr/bin/{name}")));
        }),
        ("engine-not-wired", "error", "fgpu setup docker", |node| node.remove("etc/docker/daemon.json")),
        ("engine-not-wired", "error", "fgpu setup podman", |node| {
            node.remove("usr/share/containers/oci/hooks.d");
        }),
        ("engine-not-wired", "error", "fgpu setup containerd", |node| {
            node.put("etc/containerd/config.toml", "version = 2\n");
            fs::create_dir_all(node.path("var/lib/kubelet")).unwrap();
        }),
        ("engine-not-wired", "error", "fgpu setup crio", |node| {
            node.program("crio", "crio version 1.37.0");
            node.put("etc/crio/crio.conf", "[crio.runtime]\nhooks_dir = [\"/opt/hooks\"]\n");
        }),
        ("engine-not-restarted", "error", "systemctl reload docker", |node| node.docker("{\"runc\":{}}")),
        ("engine-not-answering", "error", "systemctl restart docker", |node| {
            drop(UnixListener::bind(node.path("run/docker.sock")).unwrap());
        }),
        ("engine-not-restarted", "error", "systemctl restart containerd", |node| {
            fs::create_dir_all(node.path("var/lib/kubelet")).unwrap();
            node.set_up("containerd");
            node.put("proc/stat", "cpu 0\nbtime 1700000000\n");
            node.process(300);
            node.put("proc/300/comm", "containerd\n");
        }),
        ("engine-config", "error", "correct the file", |node| {
            node.put("etc/docker/daemon.json", "{\"a\":1,}")
        }),
        ("engine-config", "error", "containerd config migrate", |node| {
            node.put("etc/containerd/config.toml", "[plugins.cri]\n");
            fs::create_dir_all(node.path("var/lib/kubelet")).unwrap();
        }),
        ("engine-too-old", "warning", "apt-get install podman", |node| {
            node.program("podman", "podman version 3.0.1");
        }),
        ("docker-too-old-for-shim", "error", "fgpu setup docker --runtime", |node| {
            node.program("dockerd", "Docker version 20.10.24+dfsg1, build 297e128");
        }),
        ("docker-without-annotations", "error", "accept-env = true", |node| {
            node.program("dockerd", "Docker version 20.10.24+dfsg1, build 297e128");
            let runtime = r#"{ "runtimes": { "fgpu": { "path": "/usr/bin/fgpu-runtime" } } }"#;
            node.put("etc/docker/daemon.json", runtime);
        }),
        ("runc-forgets-devices", "error", "ln -s ../nvidiactl /dev/char/195:255", |node| {
            node.program("runc", "runc version 1.1.5+ds1");
        }),
        ("hook-invalid", "error", "rm /etc/containers/oci/hooks.d/broken.json", |node| {
            node.put("etc/containers/oci/hooks.d/broken.json", "{");
        }),
        ("hook-precreate", "error", "rm /usr/share/containers/oci/hooks.d/precreate.json", |node| {
            let packaged = "../packaging/hooks.d/precreate/fgpu.json";
            let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(packaged)).unwrap();
            node.put("usr/share/containers/oci/hooks.d/precreate.json", &text);
        }),
        ("hook-program-missing", "error", "rm /etc/containers/oci/hooks.d/old.json", |node| {
            let text =
                r#"{"version":"1.0.0","hook":{"path":"/opt/fgpu-hook"},"when":{},"stages":["poststop"]}"#;
            node.put("etc/containers/oci/hooks.d/old.json", text);
        }),
    ]);
}

#[test]
fn a_docker_that_knows_the_runtime_is_no_fault() {
    if !is_root() {
        return;
    }
    let node = Node::new();
    node.docker("{\"fgpu\":{\"runtimeType\":\"io.containerd.fgpu.v2\"},\"runc\":{\"path\":\"runc\"}}");
    assert_eq!(node.findings(), (Vec::new(), Some(0)));
}

#[test]
fn others_that_hand_out_the_same_gpus() {
    faults(&[
        ("nvidia-is-default-runtime", "error", "systemctl reload docker", |node| {
            node.put(
                "etc/docker/daemon.json",
                &DOCKER.replacen('{', "{ \"default-runtime\": \"nvidia\",", 1),
            );
        }),
        ("nvidia-is-default-runtime", "error", "systemctl restart containerd", |node| {
            let text = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\ndefault_runtime_name = \"nvidia\"\n";
            node.put("etc/containerd/config.toml", text);
        }),
        ("nvidia-hook", "error", "rm /usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", |node| {
            let text = r#"{"version":"1.0.0","hook":{"path":"/usr/bin/nvidia-container-runtime-hook"},"stages":["prestart"]}"#;
            node.put("usr/share/containers/oci/hooks.d/oci-nvidia-hook.json", text);
        }),
        ("nvidia-cdi", "warning", "rm /etc/cdi/nvidia.yaml", |node| node.put("etc/cdi/nvidia.yaml", "")),
        ("nvidia-device-plugin", "warning", "kubectl", |node| {
            node.put("var/lib/kubelet/device-plugins/nvidia-gpu.sock", "");
            // Kubernetes on this node goes through containerd.
            node.set_up("containerd");
        }),
        ("hami-preload", "error", "libvgpu", |node| {
            node.put("etc/ld.so.preload", "/usr/local/vgpu/libvgpu.so\n");
        }),
        ("nvidia-runtime-below", "error", "runtimes = [\"runc\", \"crun\"]", |node| {
            node.put("etc/fgpu/config.toml", "runtimes = [\"nvidia-container-runtime\", \"runc\"]\n");
        }),
    ]);
}

#[test]
fn two_faults_are_both_found_and_the_text_has_their_mends() {
    if !is_root() {
        return;
    }
    let node = Node::new();
    node.remove("dev/nvidiactl");
    node.mode("run/fgpu", 0o700);
    let output = node.doctor(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("/dev/nvidiactl is not there  [device-node-missing]\n    nvidia-modprobe -c 0\n"),
        "{text}"
    );
    assert!(text.contains("\nErrors: 1, warnings: 1. What mends each is below it.\n"), "{text}");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_report_tells_nothing_about_anybody() {
    if !is_root() {
        return;
    }
    let node = Node::new();
    node.put("etc/fgpu/config.toml", "[owner.\"secret-team\"]\nmax-gpus = 1\n");
    node.put(
        "etc/docker/daemon.json",
        &DOCKER.replacen('{', "{ \"http-proxy\": \"http://me:secret-password@proxy\",", 1),
    );
    node.lease("secret-container", 100);
    node.put(
        "var/log/fgpu/events.jsonl",
        "{\"schema\":1,\"time\":\"T\",\"event\":\"refused\",\"container\":\"secret-x\",\"code\":\"no-capacity\",\
         \"message\":\"secret-y\"}\nsecret garbage\n",
    );
    let output = node.doctor(&["--report"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    for word in [
        "550.163.01",
        "Simulated H100",
        "runc version 1.1.15",
        "T refused no-capacity",
        "owners with a cap: 1",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    for word in ["secret", "GPU-0000", &node.root.path().display().to_string()] {
        assert!(!text.contains(word), "{word}: {text}");
    }
}
