//! Others that hand out the same GPUs, past the leases.

use super::Diagnosis;
use super::node::Node;

pub(super) fn check(node: &Node, diagnosis: &mut Diagnosis) {
    default_runtime(node, diagnosis);
    toolkit_hook(node, diagnosis);
    cdi(node, diagnosis);
    device_plugin(node, diagnosis);
    preload(node, diagnosis);
    real_runtime(node, diagnosis);
}

/// With it every container of an image that sets NVIDIA_VISIBLE_DEVICES, as CUDA's do, has all GPUs whole.
fn default_runtime(node: &Node, diagnosis: &mut Diagnosis) {
    let text = node.text("/etc/docker/daemon.json").unwrap_or_default();
    let docker = serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default();
    if docker["default-runtime"] == "nvidia" {
        diagnosis.error(
            "nvidia-is-default-runtime",
            "Docker's default runtime is nvidia: a container that does not ask fgpu gets every GPU whole if its image says so",
            &[
                "sed -zi 's/\\(\"default-runtime\"[[:space:]]*:[[:space:]]*\\)\"nvidia\"/\\1\"runc\"/' /etc/docker/daemon.json",
                "systemctl reload docker",
            ],
        );
    }
    let containerd = node.text("/etc/containerd/config.toml").unwrap_or_default();
    if containerd
        .lines()
        .map(|line| line.split_whitespace().collect::<String>().replace('\'', "\""))
        .any(|line| line.starts_with("default_runtime_name=\"nvidia\""))
    {
        diagnosis.error(
            "nvidia-is-default-runtime",
            "containerd's default runtime is nvidia: a pod that does not ask fgpu gets every GPU whole if its image says so",
            &[
                "sed -i \"s/\\(default_runtime_name[[:space:]]*=[[:space:]]*\\)[\\\"']nvidia[\\\"']/\\1'runc'/\" /etc/containerd/config.toml",
                "systemctl restart containerd",
            ],
        );
    }
}

fn toolkit_hook(node: &Node, diagnosis: &mut Diagnosis) {
    for folder in ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"] {
        let path = format!("{folder}/oci-nvidia-hook.json");
        if node.has(&path) {
            let what = format!(
                "{path} gives every container whose image sets NVIDIA_VISIBLE_DEVICES all GPUs, also those that have a share"
            );
            diagnosis.error("nvidia-hook", what, &[&format!("rm {path}")]);
        }
    }
}

fn cdi(node: &Node, diagnosis: &mut Diagnosis) {
    for folder in ["/etc/cdi", "/var/run/cdi"] {
        let specs = node.names(folder).into_iter().filter(|name| name.contains("nvidia"));
        for name in specs {
            let what = format!(
                "{folder}/{name} lets anybody who may start containers have whole GPUs with --device nvidia.com/gpu=all"
            );
            diagnosis.warn("nvidia-cdi", what, &[&format!("rm {folder}/{name}")]);
        }
    }
}

fn device_plugin(node: &Node, diagnosis: &mut Diagnosis) {
    let sockets = node.names("/var/lib/kubelet/device-plugins");
    if sockets.iter().any(|name| name.starts_with("nvidia") && name.ends_with(".sock")) {
        diagnosis.warn(
            "nvidia-device-plugin",
            "NVIDIA's device plugin offers this node's GPUs to Kubernetes, which does not know of the shares",
            &[
                "kubectl -n kube-system delete daemonset nvidia-device-plugin-daemonset",
                "or keep nodes apart with a label",
            ],
        );
    }
}

fn preload(node: &Node, diagnosis: &mut Diagnosis) {
    if node.text("/etc/ld.so.preload").is_some_and(|text| text.contains("libvgpu")) {
        diagnosis.error(
            "hami-preload",
            "/etc/ld.so.preload loads HAMi's libvgpu into every process: two limiters in one process count twice",
            &["sed -i 's/[^[:space:]:]*libvgpu[^[:space:]:]*//g' /etc/ld.so.preload"],
        );
    }
}

fn real_runtime(node: &Node, diagnosis: &mut Diagnosis) {
    let nvidia =
        node.config.runtimes.iter().find(|name| name.to_string_lossy().contains("nvidia-container-runtime"));
    if let Some(name) = nvidia {
        let what = format!(
            "runtimes names {}, which puts whole GPUs into the container after fgpu has put in its share",
            name.display()
        );
        diagnosis.error(
            "nvidia-runtime-below",
            what,
            &["sed -zi 's/\\(^\\|\\n\\)runtimes[[:space:]]*=[^]]*]/\\1runtimes = [\"runc\", \"crun\"]/' /etc/fgpu/config.toml"],
        );
    }
}
