//! Faults that are planted one by one.

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixListener;
use std::path::Path;

use fgpu_spec::{Inventory, MigInstance, MigPlacement, MigProfile, MigStage, Tier};

use crate::node::{BOOT, DOCKER, Node, VERSION, inventory, is_root};

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
        ("library-damaged", "error", "--reinstall fgpu", |node| {
            node.put("usr/lib/fgpu/libfgpu-nvml.so", "cut sh");
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
        ("never-started", "warning", "kill -KILL 300 && fgpu gc", |node| {
            node.process(300);
            let text = "300 (runc:[2:INIT]) S 1 1 1 0 -1 1077936448 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n";
            node.put("proc/300/stat", text);
            let lease = node.lease("created", 300);
            let init = fgpu_allocator::Process { pid: 300, start: 4711 };
            assert!(node.store().activate(&lease.grant.nonce, Some(init), None).unwrap());
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
