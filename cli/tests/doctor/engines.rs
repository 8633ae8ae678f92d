//! Faults of the engines, and of others that hand out the same GPUs.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::faults::faults;
use crate::node::DOCKER;

/// It serves claims of Kubernetes here.
const PLUGIN: &str = "var/lib/kubelet/plugins/gpu.fgpu.dev";

#[test]
fn faults_of_the_engines() {
    faults(
        &[
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
                node.remove("proc/51");
            }),
            ("engine-stopped", "error", "systemctl start docker", |node| node.remove("proc/50")),
            ("engine-stopped", "error", "systemctl start containerd", |node| {
                node.remove("proc/51");
                fs::create_dir_all(node.path("var/lib/kubelet")).unwrap();
                node.set_up("containerd");
            }),
            ("runtime-program-missing", "error", "fgpu setup docker", |node| {
                let runtime = r#"{ "features": { "cdi": true }, "runtimes": { "fgpu": { "path": "/opt/fgpu-runtime" } } }"#;
                node.put("etc/docker/daemon.json", runtime);
            }),
            ("runtime-program-missing", "warning", "take runtimes.kata out", |node| {
                let text =
                    DOCKER.replacen("\"fgpu\"", "\"kata\": { \"path\": \"kata-runtime\" }, \"fgpu\"", 1);
                node.put("etc/docker/daemon.json", &text);
            }),
            ("cdi-missing", "warning", "systemctl enable --now fgpu-cdi.service", |node| {
                node.remove("run/cdi")
            }),
            ("cdi-stale", "warning", "fgpu cdi --write", |node| {
                node.cdi(&fgpu_spec::cdi_names(None, None));
            }),
            ("cdi-off", "warning", "fgpu setup docker", |node| {
                node.put("etc/docker/daemon.json", &DOCKER.replace("\"cdi\": true", ""));
            }),
            ("cdi-folder", "warning", "add \"/run/cdi\" to cdi-spec-dirs", |node| {
                node.put(
                    "etc/docker/daemon.json",
                    &DOCKER.replacen('{', "{ \"cdi-spec-dirs\": [\"/srv/cdi\"],", 1),
                );
            }),
            ("kubelet-cdi", "error", "set enable_cdi = true", |node| {
                node.put("etc/containerd/config.toml", "version = 2\n");
                node.program("containerd", "containerd containerd.io 1.7.24 0123456");
                fs::create_dir_all(node.path(PLUGIN)).unwrap();
            }),
            ("kubelet-cdi", "error", "apt-get install containerd", |node| {
                node.put("etc/containerd/config.toml", "version = 2\n");
                node.program("containerd", "containerd containerd.io 1.6.28 0123456");
                fs::create_dir_all(node.path(PLUGIN)).unwrap();
            }),
            (
                "kubelet-cdi-folder",
                "error",
                "add \"/run/cdi\" to cdi_spec_dirs in /etc/crio/crio.conf.d/90.conf",
                |node| {
                    node.program("crio", "crio version 1.36.0");
                    node.process(301);
                    node.put("proc/301/comm", "crio\n");
                    node.put("etc/crio/crio.conf", "[crio.runtime]\ncdi_spec_dirs = [\"/run/cdi\"]\n");
                    node.put(
                        "etc/crio/crio.conf.d/90.conf",
                        "[crio.runtime]\ncdi_spec_dirs = [\"/etc/cdi\"]\n",
                    );
                    fs::create_dir_all(node.path(PLUGIN)).unwrap();
                },
            ),
            ("kubelet-too-old", "error", "use annotations", |node| {
                node.program("kubelet", "Kubernetes v1.33.2");
                node.program("containerd", "containerd containerd.io 2.1.4 0123456");
                fs::create_dir_all(node.path(PLUGIN)).unwrap();
            }),
            ("kubelet-gates", "warning", "turn them on", |node| {
                node.program("kubelet", "Kubernetes v1.35.0");
                node.program("containerd", "containerd containerd.io 2.1.4 0123456");
                fs::create_dir_all(node.path(PLUGIN)).unwrap();
            }),
            ("cdi-foreign", "warning", "rm /etc/cdi/other.yaml", |node| {
                node.put("etc/cdi/other.yaml", "cdiVersion: 0.5.0\nkind: fgpu.dev/gpu\ndevices: []\n");
            }),
            ("engine-not-wired", "error", "fgpu setup docker", |node| {
                node.program("dockerd", "Docker version 28.1.0, build 0123456");
                node.put("etc/docker/daemon.json", "{}");
            }),
            ("podman-image-annotations", "warning", "Podman 4.6", |node| {
                node.program("podman", "podman version 4.3.1");
            }),
            ("engine-not-wired", "error", "fgpu setup docker --runtime", |node| {
                node.program("dockerd", "Docker version 20.10.24+dfsg1, build 297e128");
                node.put("etc/fgpu/config.toml", "accept-env = true\n");
                node.remove("etc/docker/daemon.json");
            }),
            ("docker-without-annotations", "error", "sed /^accept-env/d", |node| {
                node.program("dockerd", "Docker version 20.10.24+dfsg1, build 297e128");
                let runtime = r#"{ "runtimes": { "fgpu": { "path": "/usr/bin/fgpu-runtime" } } }"#;
                node.put("etc/docker/daemon.json", runtime);
                node.put("etc/fgpu/config.toml", "accept-env = false\n");
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
            ("runc-forgets-devices", "error", "ln -sf ../$name /dev/char/", |node| {
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
        ],
        &[
            "docker-without-annotations",
            "hook-invalid",
            "hook-program-missing",
            "runc-forgets-devices",
            "engine-not-wired",
            "runtime-program-missing",
        ],
    );
}

#[test]
fn others_that_hand_out_the_same_gpus() {
    faults(
        &[
            ("nvidia-is-default-runtime", "error", "systemctl reload docker", |node| {
                node.put(
                    "etc/docker/daemon.json",
                    &DOCKER.replacen('{', "{ \"default-runtime\": \"nvidia\",", 1),
                );
            }),
            ("nvidia-is-default-runtime", "error", "systemctl reload docker", |node| {
                // The last member, over two lines: what is deleted would leave a comma.
                let text = DOCKER.trim_end().trim_end_matches('}').to_owned()
                    + ",\n \"default-runtime\":\n\"nvidia\"\n}";
                node.put("etc/docker/daemon.json", &text);
            }),
            ("nvidia-is-default-runtime", "error", "systemctl restart containerd", |node| {
                let text = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name='nvidia' # x\n";
                node.put("etc/containerd/config.toml", text);
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
            ("hami-preload", "error", "libvgpu", |node| {
                node.put("etc/ld.so.preload", "/usr/lib/libjemalloc.so.2 /usr/local/vgpu/libvgpu.so\n");
            }),
            ("nvidia-runtime-below", "error", "runtimes = [\"runc\", \"crun\"]", |node| {
                let text = "policy = \"pack\"\nruntimes = [\n  \"/usr/bin/nvidia-container-runtime\", # ours\n  \"runc\",\n]\n";
                node.put("etc/fgpu/config.toml", text);
            }),
            ("nvidia-runtime-below", "error", "runtimes = [\"runc\", \"crun\"]", |node| {
                node.put("etc/fgpu/config.toml", "runtimes = [\"nvidia-container-runtime\", \"runc\"]\n");
            }),
        ],
        &["nvidia-is-default-runtime", "hami-preload", "nvidia-runtime-below", "nvidia-cdi"],
    );
}
