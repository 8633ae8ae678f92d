//! Faults that are planted one by one.

use std::fs;
use std::os::unix::fs::{chown, symlink};

use fgpu_spec::{DriverFile, FileKind, Inventory, MigInstance, MigPlacement, MigProfile, MigStage, Tier};

use crate::mend;
use crate::node::{BOOT, Node, VERSION, inventory, is_root};

/// A check, its severity, a part of its mend, and what brings it about.
pub(crate) type Fault<'a> = (&'a str, &'a str, &'a str, fn(&Node));

/// Plants faults one by one on a sound node: each must be found, it alone, and its mend must have these
/// words. A mend of plain commands is followed, and mends; those of `must_follow` are such.
#[track_caller]
pub(crate) fn faults(planted: &[Fault<'_>], must_follow: &[&str]) {
    if !is_root() {
        return;
    }
    let mut followed = Vec::new();
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
        if mend::can_be_followed(&mends) {
            mend::follow(&node, &mends);
            let left = node.findings().0;
            assert!(!left.iter().any(|finding| finding["check"] == *check), "{mends:?}: {left:#?}");
            followed.push(*check);
        }
    }
    for check in must_follow {
        assert!(followed.contains(check), "{check} was not followed: {followed:?}");
    }
}

#[test]
fn faults_of_the_driver() {
    faults(
        &[
            ("driver-not-loaded", "error", "modprobe nvidia", |node| {
                node.remove("proc/driver/nvidia/version")
            }),
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
            ("device-node-missing", "error", "nvidia-modprobe -c 255", |node| node.remove("dev/nvidiactl")),
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
            ("device-node-mode", "warning", "chmod 0666 /dev/nvidia0", |node| {
                node.mode("dev/nvidia0", 0o660)
            }),
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
            ("gpu-unhealthy", "error", "nvidia-smi --gpu-reset -i 1", |node| {
                health(
                    node,
                    r#"{"uuid":"GPU-00000001-aaaa-bbbb-cccc-dddddddddddd","unhealthy":"it is lost"}"#,
                );
            }),
            ("foreign-use", "warning", "ps -o pid,user,cgroup,args -p 400", |node| {
                node.put("proc/400/comm", "python\n");
                health(
                    node,
                    r#"{"uuid":"GPU-00000000-aaaa-bbbb-cccc-dddddddddddd","foreign":1073741824,
                    "outsiders":[{"pid":400,"name":"python"},{"pid":401,"name":"gone"}]}"#,
                );
            }),
        ],
        &["device-node-mode"],
    );
}

/// What was observed of the GPUs.
fn health(node: &Node, gpu: &str) {
    let text = format!(r#"{{"version":1,"boot_id":"{BOOT}","gpus":[{gpu}]}}"#);
    node.put("run/fgpu/health.json", &text);
}

#[test]
fn faults_of_the_kernel() {
    faults(
        &[
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
        ],
        &[],
    );
}

#[test]
fn faults_of_the_installation() {
    faults(
        &[
            ("installation-incomplete", "error", "dpkg -i ./fgpu_*.deb", |node| {
                node.remove("usr/bin/fgpu-runtime")
            }),
            ("installation-incomplete", "error", "dpkg -i ./fgpu_*.deb", |node| {
                node.remove("usr/lib/fgpu/libfgpu-cuda.so");
            }),
            ("library-damaged", "error", "dpkg -i ./fgpu_*.deb", |node| {
                node.put("usr/lib/fgpu/libfgpu-nvml.so", "cut sh");
            }),
            ("library-damaged", "error", "dpkg -i ./fgpu_*.deb", |node| {
                // Cut short: the header says that there is more.
                let path = node.path("usr/lib/fgpu/libfgpu-cuda.so");
                let mut bytes = fs::read(&path).unwrap();
                bytes[0x28..0x30].copy_from_slice(&1_000_000u64.to_le_bytes());
                fs::write(path, bytes).unwrap();
            }),
            ("library-mode", "warning", "chmod 0644", |node| {
                node.mode("usr/lib/fgpu/libfgpu-cuda.so", 0o600)
            }),
            ("program-not-executable", "error", "chmod 0755 /usr/bin/containerd-shim-fgpu-v2", |node| {
                node.mode("usr/bin/containerd-shim-fgpu-v2", 0o644);
            }),
            ("runc-missing", "error", "apt-get install runc", |node| {
                node.remove("usr/bin/runc");
                node.program("crun", "crun version 1.21");
            }),
            ("state-owner", "error", "chown -h root:root", |node| {
                chown(node.path("run/fgpu/allocations.json"), Some(1000), Some(1000)).unwrap();
            }),
            ("state-owner", "error", "chown -h root:root", |node| {
                node.put("run/fgpu/containers/x/limits", "");
                node.put("run/fgpu/containers/x/ledger", "");
                for name in ["x", "x/limits", "x/ledger"] {
                    chown(node.path(&format!("run/fgpu/containers/{name}")), Some(1000), None).unwrap();
                }
            }),
            ("state-mode", "error", "chmod 0600 /run/fgpu/lock", |node| node.mode("run/fgpu/lock", 0o666)),
            ("unit-failed", "error", "journalctl -u fgpu-gc.service", |node| {
                node.program("systemctl", "exit-code")
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
            // fgpu-runtime finds what CRI-O's packages bring.
            ("runc-missing", "error", "apt-get install runc", |node| {
                node.remove("usr/bin/runc");
                node.put("usr/libexec/crio/crun", "");
            }),
            // The kernel lays no overlay over what has names of its own comparison.
            ("no-overlay", "warning", "modprobe overlay", |node| {
                symlink("/proc/sys/kernel", node.path("weird")).unwrap();
                let host = "/weird/osrelease".into();
                let file = DriverFile { kind: FileKind::Program, name: "nvidia-smi".into(), host };
                let known = Inventory { files: vec![file], ..inventory(BOOT) };
                node.put("run/fgpu/inventory.json", &serde_json::to_string(&known).unwrap());
            }),
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
            ("gc-cannot-write", "error", "ReadWritePaths=/srv/log", |node| {
                node.put("etc/fgpu/config.toml", "log-dir = \"/srv/log\"\n");
            }),
        ],
        &[
            "config-writable",
            "program-not-executable",
            "library-mode",
            "state-owner",
            "state-mode",
            "state-dir-writable",
        ],
    );
}

/// A node whose jobs of Slurm have shards.
fn with_slurm(node: &Node, slurm: &str, cgroup: &str) {
    node.put("etc/slurm/slurm.conf", &format!("GresTypes=gpu,shard\n{slurm}"));
    node.put("etc/slurm/cgroup.conf", cgroup);
    node.put("etc/slurm/plugstack.conf.d/50-fgpu.conf", "required /usr/lib/fgpu/slurm/fgpu.so\n");
}

#[test]
fn faults_of_slurm() {
    const GOOD: [&str; 2] = ["TaskPlugin=task/affinity,task/cgroup\n", "ConstrainDevices=yes\n"];
    faults(
        &[
            ("slurm-not-set-up", "warning", "fgpu setup slurm", |node| {
                with_slurm(node, GOOD[0], GOOD[1]);
                node.put(
                    "etc/slurm/plugstack.conf.d/50-fgpu.conf",
                    "#required /usr/lib/fgpu/slurm/fgpu.so\n",
                );
            }),
            ("slurm-proctrack", "error", "proctrack/cgroup", |node| {
                with_slurm(node, &format!("{}ProctrackType=proctrack/pgid\n", GOOD[0]), GOOD[1]);
            }),
            ("slurm-devices", "error", "ConstrainDevices=yes", |node| with_slurm(node, GOOD[0], "")),
            ("slurm-devices", "error", "TaskPlugin=task/cgroup", |node| with_slurm(node, "", GOOD[1])),
            ("slurm-ssh", "warning", "pam_slurm_adopt", |node| {
                with_slurm(node, GOOD[0], GOOD[1]);
                node.put("usr/sbin/sshd", "");
                node.put("etc/pam.d/sshd", "account required pam_nologin.so\n");
            }),
        ],
        &[],
    );
    if is_root() {
        let node = Node::new();
        with_slurm(&node, GOOD[0], GOOD[1]);
        assert_eq!(node.findings().0, Vec::<serde_json::Value>::new());
    }
}

#[test]
fn faults_of_the_leases() {
    faults(
        &[
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
            ("never-started", "warning", "kill -KILL 300 && fgpu gc", |node| {
                // As it is between create and start, with PF_FORKNOEXEC.
                node.process_called(300, "runc:[2:INIT]", 1_077_936_448);
                let lease = node.lease("created", 300);
                let init = fgpu_allocator::Process { pid: 300, start: 4711 };
                assert!(node.store().activate(&lease.grant.nonce, Some(init), None).unwrap());
            }),
            ("request-overlooked", "warning", "write fgpu/fraction=0.5", |node| {
                let bundle = "run/containerd/io.containerd.runtime.v2.task/k8s.io/0123";
                node.process(300);
                node.put(&format!("{bundle}/init.pid"), "300");
                node.put(&format!("{bundle}/config.json"), r#"{"annotations":{"FGPU/fraction":"0.5"}}"#);
            }),
            ("stale-leases", "warning", "fgpu gc", |node| {
                node.process(200);
                node.lease("gone", 200);
                node.remove("proc/200");
            }),
            ("leases-unknown", "warning", "mount -t proc", |node| node.remove("proc/self/stat")),
        ],
        &[],
    );
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
    node.cdi(&fgpu_spec::cdi_names(Some(&inventory), None));
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
    assert!(store.driver_part().progress(&lease.grant.nonce, 0, MigStage::Made, Some(device)).unwrap());
    let lock = store.slices().lock_driver(&inventory.gpus[0]).unwrap();
    let made = store.leases().unwrap().pop().unwrap();
    store.slices().made(&lock, &inventory.gpus[0], made.grant.gpus[0].clone()).unwrap();
}

#[test]
fn faults_of_mig_instances() {
    const THERE: &[&str] = &["gi1", "gi1/ci0"];
    if is_root() {
        let node = Node::new();
        with_slice(&node, THERE);
        assert_eq!(node.findings(), (Vec::new(), Some(0)));
    }
    faults(
        &[
            ("mig-orphan", "warning", "fgpu gc", |node| {
                with_slice(node, THERE);
                node.remove("run/fgpu/allocations.json");
            }),
            ("mig-instance-gone", "error", "end moby/sliced", |node| with_slice(node, &[])),
            ("mig-bare-instance", "warning", "nvidia-smi mig -dgi -i 0 -gi 3", |node| {
                in_mig_mode(node, &["gi3"]);
            }),
        ],
        &[],
    );
}
