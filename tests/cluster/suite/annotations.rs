//! Shares by RuntimeClass and annotation, as docs/quickstart.md has them.

use fgpu_cluster::Cluster;
use fgpu_lab::command::{run, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::node;
use serde_json::json;

pub(crate) const TESTS: &[Test] = &[
    Test::both("annotations::a_pod_sees_its_quarter", |front_end| {
        a_pod_sees_its_quarter(front_end.docker_runtime());
    }),
    Test::once("annotations::the_quick_start_runs", the_quick_start_runs),
    Test::once("annotations::a_pod_without_room_says_so", a_pod_without_room_says_so),
];

const QUERY: &str = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits";

/// A pod of one container that runs a line of shell with a fraction of a GPU.
fn pod(name: &str, class: &str, fraction: &str, script: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"fgpu/fraction": fraction}},
        "spec": {"restartPolicy": "Never", "runtimeClassName": class, "containers": [
            {"name": "main", "image": "debian13:lab", "command": ["sh", "-c", script]}]},
    })
    .to_string()
}

fn a_pod_sees_its_quarter(class: &str) {
    let cluster = Cluster::start();
    cluster.apply(&pod("quarter", class, "0.25", QUERY));
    cluster.wait_for_phase("quarter", "Succeeded");
    assert_eq!(cluster.logs("quarter"), (node::gpus()[0].share(250_000) >> 20).to_string());
    cluster.delete("pod/quarter");
    wait_until("the end of all pods' leases", || {
        run(["fgpu", "gc"]).status == 0 && node::leases().is_empty()
    });
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

fn a_pod_without_room_says_so() {
    let cluster = Cluster::start();
    let gpus = node::gpus().len();
    let names: Vec<_> = (0..gpus).map(|index| format!("whole{index}")).collect();
    for name in &names {
        cluster.apply(&pod(name, "fgpu", "1", "sleep 1000"));
        cluster.wait_for_phase(name, "Running");
    }
    cluster.apply(&pod("more", "fgpu", "0.25", QUERY));
    cluster.wait_for_phase("more", "Failed");
    let events = cluster.events("more");
    assert!(events.iter().any(|event| event.contains("fgpu: no-capacity: ")), "{events:?}");
    assert_eq!(node::leases().len(), gpus);
}
