//! What fgpu-dra offers to the cluster, and the ways in which claims ask for it.

use fgpu_cluster::account::NODE;
use fgpu_cluster::{Cluster, component};
use fgpu_lab::command::{run, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::node;
use fgpu_lab::outside::Engine;
use serde_json::{Value, json};

use crate::dra::{Plugin, QUERY, claim, give_back, held, label, list, pod, slices, told};

pub(crate) const TESTS: &[Test] = &[
    Test::once("offers::a_second_pod_of_a_claim_joins_it", a_second_pod_of_a_claim_joins_it),
    Test::once(
        "offers::slices_that_are_right_are_not_written_again",
        slices_that_are_right_are_not_written_again,
    ),
    Test::once("offers::an_offered_gpu_is_for_claims_alone", an_offered_gpu_is_for_claims_alone),
    Test::once("offers::nothing_is_offered_beside_nvidias_plugin", nothing_is_offered_beside_nvidias_plugin),
    Test::once("offers::a_gpu_in_mig_mode_is_given_out_by_slices", a_gpu_in_mig_mode_is_given_out_by_slices),
    Test::once("offers::an_extended_resource_is_a_whole_gpu", an_extended_resource_is_a_whole_gpu),
    Test::once("offers::the_first_alternative_that_fits_is_taken", the_first_alternative_that_fits_is_taken),
    Test::once("offers::admin_access_is_refused", admin_access_is_refused),
];

/// Whether a GPU with this index is offered.
fn is_offered(cluster: &Cluster, index: usize) -> bool {
    let all = cluster.get("resourceslices")["items"].as_array().cloned().unwrap_or_default();
    let devices =
        all.iter().flat_map(|slice| slice["spec"]["devices"].as_array().cloned().unwrap_or_default());
    devices.into_iter().any(|device| device["attributes"]["index"]["int"] == index)
}

fn small(name: &str, script: &str) -> String {
    list(&[claim(name, "fgpu", &json!({"memory": "1Gi"}), &Value::Null), pod(name, script)])
}

/// The kubelet prepares a claim once: the hook of the second pod asks the plugin.
fn a_second_pod_of_a_claim_joins_it() {
    let cluster = Cluster::start();
    let _plugin = Plugin::start(&cluster);
    cluster.apply(&small("first", "sleep 1000"));
    cluster.wait_for_phase("first", "Running");
    let mut second = pod("second", QUERY);
    second["spec"]["resourceClaims"][0]["resourceClaimName"] = "first".into();
    cluster.apply(&second.to_string());
    cluster.wait_for_phase("second", "Succeeded");
    assert_eq!(cluster.logs("second"), "1024");
    assert_eq!(held(), [1024], "one lease");
    let events = cluster.events("second");
    assert!(!events.iter().any(|event| event.starts_with("Failed")), "{events:?}");
    cluster.delete("pod/second");
    assert_eq!(held(), [1024], "the first one uses it");
    give_back(&cluster, "first");
    wait_until("no lease", || node::leases().is_empty());
}

/// A restart of the plugin on each node of a large cluster writes nothing.
fn slices_that_are_right_are_not_written_again() {
    let cluster = Cluster::start();
    let mut plugin = Plugin::start(&cluster);
    let versions = || -> Vec<Value> {
        let all = cluster.get("resourceslices")["items"].as_array().cloned().unwrap_or_default();
        all.iter().map(|slice| slice["metadata"]["resourceVersion"].clone()).collect()
    };
    let before = versions();
    plugin.kill();
    plugin.run();
    wait_until("a look at the slices", || told().contains("2 slices are published"));
    assert_eq!(versions(), before);
    // What somebody else has changed is put right, and what he has deleted is made anew.
    cluster
        .kubectl(&[
            "patch",
            "resourceslice/node1-gpu.fgpu.dev-000",
            "--type=json",
            "--patch",
            r#"[{"op": "replace", "path": "/spec/sharedCounters/0/counters/whole/value", "value": "9"}]"#,
        ])
        .ok();
    let value = || {
        cluster.get("resourceslice/node1-gpu.fgpu.dev-000")["spec"]["sharedCounters"][0]["counters"]["whole"]
            ["value"]
            .clone()
    };
    wait_until("the slice as it was", || value() == "1");
    cluster.delete("resourceslice/node1-gpu.fgpu.dev-001");
    wait_until("the slice that was deleted", || slices(&cluster) == 2);
}

fn an_offered_gpu_is_for_claims_alone() {
    let cluster = Cluster::start();
    let _plugin = Plugin::start(&cluster);
    let uuids: Vec<String> = node::gpus().into_iter().map(|gpu| gpu.uuid).collect();
    assert_eq!(node::pool(), uuids);
    let class = match component::engine() {
        Engine::Containerd => "fgpu",
        Engine::Crio => "",
    };
    let mut annotated = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "beside", "annotations": {"fgpu/fraction": "0.25"}},
        "spec": {"restartPolicy": "Never", "containers": [
            {"name": "main", "image": "debian13:lab", "command": ["sh", "-c", "sleep 1000"]}]},
    });
    if !class.is_empty() {
        annotated["spec"]["runtimeClassName"] = class.into();
    }
    cluster.apply(&annotated.to_string());
    let refused = || cluster.events("beside").into_iter().find(|event| event.contains("no-capacity"));
    wait_until("a refusal", || refused().is_some());
    let refused = refused().unwrap_or_default();
    assert!(refused.contains("held by kubernetes/node1"), "{refused}");
    cluster.delete("pod/beside");

    label(&cluster, "gpu.fgpu.dev/gpus=1");
    wait_until("GPU 0 is not offered", || !is_offered(&cluster, 0));
    assert_eq!(node::pool(), uuids[1..]);
    cluster.apply(&annotated.to_string());
    cluster.wait_for_phase("beside", "Running");
    cluster.apply(&small("claims", QUERY));
    cluster.wait_until_unschedulable("claims");
    // It is held at once, and offered when nothing else is on it.
    label(&cluster, "gpu.fgpu.dev/gpus-");
    wait_until("both are held", || node::pool().len() == 2);
    wait_until("words about it", || told().contains("not offered until what is on them has ended"));
    assert!(!is_offered(&cluster, 0));
    cluster.delete("pod/beside");
    run(["fgpu", "gc"]).ok();
    cluster.wait_for_phase("claims", "Succeeded");
    assert_eq!(cluster.logs("claims"), "1024");
    give_back(&cluster, "claims");
    wait_until("no lease", || node::leases().is_empty());
}

fn nothing_is_offered_beside_nvidias_plugin() {
    let cluster = Cluster::start();
    let _plugin = Plugin::start(&cluster);
    let capacity = |number: Value| {
        let patch = json!({"status": {"capacity": {"nvidia.com/gpu": number}}}).to_string();
        let words =
            ["patch", &format!("node/{NODE}"), "--subresource=status", "--type=merge", "--patch", &patch];
        cluster.kubectl(&words).ok();
    };
    capacity("2".into());
    wait_until("no slice", || slices(&cluster) == 0);
    assert_eq!(node::pool(), [""; 0], "others may have the GPUs");
    assert!(told().contains("a device plugin of NVIDIA's (nvidia.com/gpu: 2) is on this node"), "{}", told());
    capacity(Value::Null);
    wait_until("the node's slices", || slices(&cluster) == 2);
    // NVIDIA's DRA driver is known by its slices.
    let slice = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "nvidia"},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": NODE,
                 "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1}, "devices": [{"name": "gpu-0"}]},
    });
    cluster.apply(&slice.to_string());
    wait_until("no slice", || slices(&cluster) == 0);
    assert!(told().contains("the DRA driver gpu.nvidia.com is on this node"), "{}", told());
    cluster.delete("resourceslice/nvidia");
    wait_until("the node's slices", || slices(&cluster) == 2);
}

fn a_gpu_in_mig_mode_is_given_out_by_slices() {
    let cluster = Cluster::start();
    let _node = node::simulated("h100-80-mig.toml");
    let _plugin = Plugin::start(&cluster);
    let of_profile = |name: &str, profile: &str| {
        let mut claim = claim(name, "fgpu-mig", &Value::Null, &Value::Null);
        let expression = format!("device.attributes['gpu.fgpu.dev'].profile == '{profile}'");
        let exactly = &mut claim["spec"]["devices"]["requests"][0]["exactly"];
        exactly["selectors"] = json!([{"cel": {"expression": expression}}]);
        exactly.as_object_mut().expect("an object").remove("capacity");
        claim
    };
    let script = "nvidia-smi -L; sleep 1000";
    for name in ["one", "two"] {
        cluster.apply(&list(&[of_profile(name, "3g.40gb"), pod(name, script)]));
        cluster.wait_for_phase(name, "Running");
        wait_until("what the pod prints", || cluster.logs(name).contains("MIG 3g.40gb"));
        assert_eq!(cluster.logs(name).matches("MIG ").count(), 1, "{}", cluster.logs(name));
    }
    let gpus = node::gpus().len();
    let taken: Vec<_> =
        node::leases().into_iter().flat_map(|lease| lease.shares).map(|share| share.0).collect();
    if gpus > 1 {
        assert_eq!(taken[0], taken[1], "a GPU that is begun comes first");
    }
    give_back(&cluster, "one");
    // Its place serves another profile at once.
    cluster.apply(&list(&[of_profile("three", "1g.10gb"), pod("three", script)]));
    cluster.wait_for_phase("three", "Running");
    wait_until("what the pod prints", || cluster.logs("three").contains("MIG 1g.10gb"));
    for name in ["two", "three"] {
        give_back(&cluster, name);
    }
    wait_until("no lease", || node::leases().is_empty());
    // As the simulated kernel module shows them.
    let instances = "find /opt/fgpu-sim/proc/driver/nvidia/capabilities -name access | wc -l";
    wait_until("the end of all instances", || run(["sh", "-c", instances]).ok() == "0");
}

/// For pods and tools that know no claims: `resources.limits`.
fn an_extended_resource_is_a_whole_gpu() {
    let cluster = Cluster::with_gates("DRAExtendedResource=true");
    let _plugin = Plugin::start(&cluster);
    let class = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "fgpu-whole"},
        "spec": {"extendedResourceName": "fgpu.dev/gpu", "selectors": [{"cel": {"expression":
            "device.driver == 'gpu.fgpu.dev' && device.attributes['gpu.fgpu.dev'].kind == 'share'"}}]},
    });
    cluster.apply(&class.to_string());
    let mut whole = pod("whole", QUERY);
    whole["spec"].as_object_mut().expect("an object").remove("resourceClaims");
    whole["spec"]["containers"][0]["resources"] = json!({"limits": {"fgpu.dev/gpu": "1"}});
    cluster.apply(&whole.to_string());
    cluster.wait_for_phase("whole", "Succeeded");
    assert_eq!(cluster.logs("whole"), (node::gpus()[0].share(1_000_000) >> 20).to_string());
    cluster.delete("pod/whole");
    wait_until("no lease", || node::leases().is_empty());
}

fn the_first_alternative_that_fits_is_taken() {
    let cluster = Cluster::start();
    let _plugin = Plugin::start(&cluster);
    let alternative = |name: &str, memory: &str| json!({"name": name, "deviceClassName": "fgpu", "capacity": {"requests": {"memory": memory}}});
    let mut either = claim("either", "fgpu", &Value::Null, &Value::Null);
    either["spec"]["devices"]["requests"] = json!([
        {"name": "gpu", "firstAvailable": [alternative("large", "900Gi"), alternative("small", "2Gi")]}]);
    cluster.apply(&list(&[either, pod("either", QUERY)]));
    cluster.wait_for_phase("either", "Succeeded");
    assert_eq!(cluster.logs("either"), "2048");
    give_back(&cluster, "either");
    wait_until("no lease", || node::leases().is_empty());
}

/// It would be a share that nobody counts.
fn admin_access_is_refused() {
    let cluster = Cluster::start();
    let _plugin = Plugin::start(&cluster);
    let mut admin = claim("admin", "fgpu", &Value::Null, &Value::Null);
    let exactly = &mut admin["spec"]["devices"]["requests"][0]["exactly"];
    exactly["adminAccess"] = true.into();
    exactly.as_object_mut().expect("an object").remove("capacity");
    label_namespace(&cluster, "resource.kubernetes.io/admin-access=true");
    cluster.apply(&list(&[admin, pod("admin", QUERY)]));
    let told =
        || cluster.events("admin").into_iter().find(|event| event.contains("fgpu gives no admin access"));
    wait_until("a refusal", || told().is_some());
    assert_eq!(held(), [0u64; 0]);
    give_back(&cluster, "admin");
    label_namespace(&cluster, "resource.kubernetes.io/admin-access-");
}

fn label_namespace(cluster: &Cluster, words: &str) {
    cluster.kubectl(&["label", "--overwrite", "namespace/default", words]).ok();
}
