//! Shares by RuntimeClass and annotation, as docs/quickstart.md has them.

use fgpu_cluster::{Cluster, component};
use fgpu_lab::command::{run, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::node;
use fgpu_lab::outside::Engine;
use serde_json::json;

pub(crate) const TESTS: &[Test] = &[
    Test::once("annotations::a_pod_sees_its_quarter", a_pod_sees_its_quarter),
    Test::once("annotations::the_quick_start_runs", the_quick_start_runs),
    Test::once("annotations::the_containers_of_a_pod_share_its_half", the_containers_of_a_pod_share_its_half),
    Test::once("annotations::a_pod_without_room_says_so", a_pod_without_room_says_so),
];

const QUERY: &str = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits";

/// The RuntimeClasses by which a pod comes to its share; with CRI-O, whose hooks see annotations, also none.
fn classes() -> &'static [Option<&'static str>] {
    match component::engine() {
        Engine::Containerd => &[Some("fgpu"), Some("fgpu-oci")],
        Engine::Crio => &[None, Some("fgpu")],
    }
}

/// A pod of one container that runs a line of shell with a fraction of a GPU.
pub(crate) fn pod(name: &str, class: Option<&str>, fraction: &str, script: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"fgpu/fraction": fraction}},
        "spec": {"restartPolicy": "Never", "runtimeClassName": class, "containers": [
            {"name": "main", "image": "debian13:lab", "command": ["sh", "-c", script]}]},
    })
    .to_string()
}

/// The share of a pod ends with its cgroup; who looks for room finds that, and gc.
fn wait_until_free() {
    wait_until("the end of all leases", || {
        run(["fgpu", "gc"]).ok();
        node::leases().is_empty()
    });
}

fn a_pod_sees_its_quarter() {
    let cluster = Cluster::start();
    for class in classes() {
        cluster.apply(&pod("quarter", *class, "0.25", QUERY));
        cluster.wait_for_phase("quarter", "Succeeded");
        let share = node::gpus()[0].share(250_000) >> 20;
        assert_eq!(cluster.logs("quarter"), share.to_string(), "{class:?}");
        cluster.delete("pod/quarter");
        wait_until_free();
    }
}

/// The page's objects as they are, but for the image, which no registry has here.
fn the_quick_start_runs() {
    let page = include_str!("../../../docs/quickstart.md");
    let section = page.split("## Kubernetes on containerd").nth(1).expect("it has the section");
    let blocks: Vec<_> =
        section.split("```yaml\n").skip(1).filter_map(|text| text.split("```").next()).collect();
    let [class, trainer, ..] = blocks[..] else { panic!("two YAML blocks: {blocks:?}") };
    let cluster = Cluster::start();
    // Not the test's own: the class is there from the start of the cluster.
    cluster.kubectl_with(&["apply", "--filename=-"], class).ok();
    cluster.apply(&trainer.replace("image: debian\n", "image: debian13:lab\n"));
    cluster.wait_for_phase("trainer", "Succeeded");
    let share = format!("/  {}MiB", node::gpus()[0].share(250_000) >> 20);
    let log = cluster.logs("trainer");
    assert!(log.contains(&share), "no {share} in {log}");
}

/// An init container, a sidecar and the pod's own: half a GPU each would be more than there is.
fn the_containers_of_a_pod_share_its_half() {
    let cluster = Cluster::start();
    for class in classes() {
        let one = |name: &str, script: &str| json!({"name": name, "image": "debian13:lab", "command": ["sh", "-c", script]});
        let mut sidecar = one("sidecar", &format!("{QUERY}; sleep 1000"));
        sidecar["restartPolicy"] = "Always".into();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "half", "annotations": {"fgpu/fraction": "0.5", "fgpu/device": "0"}},
            "spec": {"restartPolicy": "Never", "runtimeClassName": class,
                     "initContainers": [one("init", QUERY), sidecar], "containers": [one("main", &format!("{QUERY}; sleep 1000"))]},
        });
        cluster.apply(&pod.to_string());
        cluster.wait_for_phase("half", "Running");
        let half = (node::gpus()[0].share(500_000) >> 20).to_string();
        for container in ["init", "sidecar", "main"] {
            let log = || cluster.kubectl(&["logs", "half", "--container", container]);
            wait_until("what the container prints", || !log().ok().is_empty());
            assert_eq!(log().ok(), half, "{class:?} {container}");
        }
        let leases = node::leases();
        assert_eq!(leases.len(), 1, "{leases:?}");
        cluster.delete("pod/half");
        wait_until_free();
    }
}

/// With containerd the runtime's create is part of the kubelet's start, so a pod that is never restarted fails
/// for good; with CRI-O it is part of the kubelet's create, which is tried again.
fn a_pod_without_room_says_so() {
    let cluster = Cluster::start();
    let gpus = node::gpus().len();
    let names: Vec<_> = (0..gpus).map(|index| format!("whole{index}")).collect();
    for name in &names {
        cluster.apply(&pod(name, Some("fgpu"), "1", "sleep 1000"));
        cluster.wait_for_phase(name, "Running");
    }
    cluster.apply(&pod("more", Some("fgpu"), "0.25", QUERY));
    match component::engine() {
        Engine::Containerd => cluster.wait_for_phase("more", "Failed"),
        Engine::Crio => {
            let reason = "jsonpath={.status.containerStatuses[0].state.waiting.reason}=CreateContainerError";
            cluster.wait("pod/more", reason);
        }
    }
    let events = cluster.events("more");
    assert!(events.iter().any(|event| event.contains("fgpu: no-capacity: ")), "{events:?}");
    assert_eq!(node::leases().len(), gpus);
    if component::engine() == Engine::Crio {
        cluster.delete("pod/whole0");
        cluster.wait_for_phase("more", "Succeeded");
        drop(cluster);
        wait_until_free();
    }
}
