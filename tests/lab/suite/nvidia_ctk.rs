//! NVIDIA's own `nvidia-ctk cdi generate` over the simulated driver: its spec names each GPU and each MIG
//! device, with the nodes that open it and no others. So the simulated NVML answers what a program of
//! NVIDIA's asks, and fgpu's MIG devices are ones to others, too.

use std::collections::{BTreeMap, BTreeSet};

use fgpu_lab::command::run;
use fgpu_lab::docker;
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};
use serde_json::Value;

use crate::mig::{capabilities, wait_until_clean};

pub(crate) const TESTS: &[Test] = &[
    Test::once("nvidia_ctk::each_gpu_has_its_node", each_gpu_has_its_node),
    Test::once("nvidia_ctk::each_mig_device_has_its_nodes", each_mig_device_has_its_nodes),
];

type Nodes = BTreeSet<String>;

/// The device nodes of some edits of a spec. What the container sees is the driver root's node of the same
/// path.
fn nodes(edits: &Value) -> Nodes {
    let nodes = edits["deviceNodes"].as_array().into_iter().flatten();
    let path = |node: &Value| {
        let path = node["path"].as_str().expect("a node has a path").to_owned();
        assert_eq!(node["hostPath"], format!("/opt/fgpu-sim{path}"), "{node}");
        path
    };
    nodes.map(path).collect()
}

/// What nvidia-ctk writes, and the devices in it by name.
///
/// It looks for the minors of capabilities in /proc/driver only, whatever its driver root is.
#[track_caller]
fn generated() -> (Value, BTreeMap<String, Nodes>) {
    let script = "mount --bind /opt/fgpu-sim/proc/driver /proc/driver && exec /opt/fgpu-sim.dist/nvidia-ctk --quiet \
                  cdi generate --format=json --driver-root=/opt/fgpu-sim --dev-root=/opt/fgpu-sim";
    let output = run(["unshare", "--mount", "sh", "-c", script]);
    let spec: Value =
        serde_json::from_str(output.ok()).unwrap_or_else(|error| panic!("{error}: {}", output.story()));
    let devices = spec["devices"].as_array().into_iter().flatten();
    let named = |device: &Value| {
        (device["name"].as_str().expect("a device has a name").to_owned(), nodes(&device["containerEdits"]))
    };
    let devices = devices.map(named).collect();
    (spec, devices)
}

fn set<const N: usize>(paths: [String; N]) -> Nodes {
    paths.into()
}

fn each_gpu_has_its_node() {
    for description in ["h100-80-x2.toml", "a100-40.toml"] {
        let _node = node::simulated(description);
        let (spec, found) = generated();
        let mut expected = BTreeMap::new();
        for (index, gpu) in node::gpus().into_iter().enumerate() {
            let own = set([format!("/dev/nvidia{}", gpu.minor)]);
            expected.extend([(index.to_string(), own.clone()), (gpu.uuid, own.clone())]);
            expected.entry("all".to_owned()).or_insert_with(Nodes::new).extend(own);
        }
        assert_eq!(found, expected, "{description}");
        let common = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"].map(|name| format!("/dev/{name}"));
        assert_eq!(nodes(&spec["containerEdits"]), set(common));
        let mounts = spec["containerEdits"]["mounts"].as_array().expect("it has the driver's files");
        for file in ["/libcuda.so.550.163.01", "/libnvidia-ml.so.550.163.01", "/nvidia-smi"] {
            let is_it = |mount: &Value| mount["hostPath"].as_str().is_some_and(|path| path.ends_with(file));
            assert!(mounts.iter().any(is_it), "{file}: {mounts:?}");
        }
    }
}

fn each_mig_device_has_its_nodes() {
    let _node = node::simulated("h100-80-x8-mig.toml");
    let mut containers = Vec::new();
    let mut expected = BTreeMap::new();
    for (gpu, profile) in [("0", "1g.10gb"), ("0", "1g.10gb"), ("1", "3g.40gb"), ("7", "2g.20gb")] {
        let before = capabilities();
        let share = docker::container("debian13").under(FrontEnd::Shim).annotation("fgpu/mig", profile);
        let container = share.annotation("fgpu/device", gpu).command(["sleep", "1000"]).start();
        let listed = container.exec(["nvidia-smi", "-L"]);
        let uuid =
            listed.ok().split("(UUID: ").find(|text| text.starts_with("MIG-")).expect("it has a MIG device");
        let uuid = uuid.split(')').next().unwrap_or_default().to_owned();
        let own = capabilities().into_iter().filter(|one| !before.contains(one));
        let mut nodes: Nodes = own.map(|(_, minor)| format!("/dev/nvidia-caps/nvidia-cap{minor}")).collect();
        assert_eq!(nodes.len(), 2, "the GPU instance's and the compute instance's");
        nodes.insert(format!("/dev/nvidia{gpu}"));
        expected.insert(uuid, nodes);
        containers.push(container);
    }
    let (_, found) = generated();
    let by_uuid: BTreeMap<_, _> = found
        .iter()
        .filter(|(name, _)| name.starts_with("MIG-"))
        .map(|(name, own)| (name.clone(), own.clone()))
        .collect();
    assert_eq!(by_uuid, expected);
    let indices: Vec<_> = found.keys().filter(|name| name.contains(':')).map(String::as_str).collect();
    assert_eq!(indices, ["0:0", "0:1", "1:0", "7:0"]);
    containers.into_iter().for_each(docker::Container::remove);
    wait_until_clean();
    let left: Vec<_> = generated().1.into_keys().filter(|name| name.starts_with("MIG-")).collect();
    assert!(left.is_empty(), "{left:?}");
}
