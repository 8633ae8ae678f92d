//! What the DRA of this Kubernetes does by itself: the scheduler gives out capacity of a device that many
//! claims share. The device here has no driver, so its pods are scheduled and never run.

use fgpu_cluster::Cluster;
use fgpu_cluster::account::NODE;
use fgpu_lab::inside::Test;
use serde_json::{Value, json};

pub(crate) const TESTS: &[Test] = &[
    Test::baseline("claims::a_slice_comes_back_as_it_was_sent", a_slice_comes_back_as_it_was_sent),
    Test::baseline("claims::the_scheduler_consumes_capacity", the_scheduler_consumes_capacity),
    Test::baseline("claims::an_off_gate_drops_the_field", an_off_gate_drops_the_field),
];

const DRIVER: &str = "nobody.example.com";

/// A slice with a device of 80Gi and 100 cores.
fn slice() -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "by-hand"},
        "spec": {
            "driver": DRIVER, "nodeName": NODE,
            "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
            "devices": [{
                "name": "gpu0",
                "allowMultipleAllocations": true,
                "attributes": {"index": {"int": 0}},
                "capacity": {
                    "memory": {"value": "80Gi", "requestPolicy": {
                        "default": "80Gi", "validRange": {"min": "1Mi", "step": "1Mi", "max": "80Gi"}}},
                    "cores": {"value": "100", "requestPolicy": {
                        "default": "0", "validRange": {"min": "0", "step": "1", "max": "100"}}},
                },
            }],
        },
    })
}

fn class() -> Value {
    let selector = format!("device.driver == '{DRIVER}'");
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "by-hand"},
        "spec": {"selectors": [{"cel": {"expression": selector}}]},
    })
}

/// A claim of that name, and a pod of that name that has it.
fn pod_with_claim(name: &str, memory: &str, cores: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
         "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
             "deviceClassName": "by-hand", "capacity": {"requests": {"memory": memory, "cores": cores}}}}]}}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
         "spec": {
             "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
             "containers": [{"name": "main", "image": "busybox:lab", "command": ["sleep", "1000"],
                             "resources": {"claims": [{"name": "gpu"}]}}]}},
    ]})
}

fn a_slice_comes_back_as_it_was_sent() {
    let cluster = Cluster::start();
    cluster.apply(&slice().to_string());
    assert_eq!(cluster.get("resourceslice/by-hand")["spec"]["devices"], slice()["spec"]["devices"]);
}

/// Of three claims two fit; the third gets its share when one of them ends.
fn the_scheduler_consumes_capacity() {
    let cluster = Cluster::start();
    cluster.apply(&slice().to_string());
    cluster.apply(&class().to_string());
    let mut shares = Vec::new();
    for name in ["one", "two"] {
        cluster.apply(&pod_with_claim(name, "32Gi", "40").to_string());
        cluster.wait(&format!("pod/{name}"), "condition=PodScheduled=True");
        let allocation = cluster.get(&format!("resourceclaim/{name}"))["status"]["allocation"].clone();
        let result = &allocation["devices"]["results"][0];
        assert_eq!((&result["driver"], &result["device"]), (&json!(DRIVER), &json!("gpu0")), "{allocation}");
        assert_eq!(result["consumedCapacity"], json!({"memory": "32Gi", "cores": "40"}), "{allocation}");
        shares.push(result["shareID"].clone());
    }
    assert!(shares[0].is_string() && shares[0] != shares[1], "{shares:?}");

    cluster.apply(&pod_with_claim("three", "32Gi", "40").to_string());
    let reason = cluster.wait_until_unschedulable("three");
    assert!(reason.contains("cannot allocate all claims"), "{reason}");
    assert!(cluster.get("resourceclaim/three")["status"]["allocation"].is_null());

    cluster.delete("pod/one");
    cluster.delete("resourceclaim/one");
    cluster.wait("pod/three", "condition=PodScheduled=True");
}

/// An API server whose gate is off says nothing of it.
fn an_off_gate_drops_the_field() {
    let cluster = Cluster::with_gates("DRAConsumableCapacity=false");
    cluster.apply(&slice().to_string());
    let device = cluster.get("resourceslice/by-hand")["spec"]["devices"][0].clone();
    assert_eq!(device["name"], "gpu0");
    assert!(device["allowMultipleAllocations"].is_null(), "{device}");
}
