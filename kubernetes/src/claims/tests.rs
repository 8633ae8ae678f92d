use serde_json::json;

use super::*;
use crate::devices::tests::inventory;

const POOL: &str = "node1";

fn claim(results: serde_json::Value, config: serde_json::Value) -> ResourceClaim {
    serde_json::from_value(json!({
        "metadata": {"name": "training", "namespace": "default", "uid": "1f-2e"},
        "spec": {},
        "status": {
            "allocation": {"devices": {"results": results, "config": config}},
            "reservedFor": [
                {"resource": "pods", "name": "a", "uid": "pod-a"},
                {"resource": "others", "apiGroup": "x.y", "name": "b", "uid": "no-pod"},
            ],
        },
    }))
    .unwrap()
}

fn result(request: &str, device: &str, capacity: serde_json::Value) -> serde_json::Value {
    json!({"request": request, "driver": DRIVER, "pool": POOL, "device": device, "consumedCapacity": capacity})
}

fn read(results: serde_json::Value, config: serde_json::Value) -> Result<Vec<Asked>, String> {
    let given = given(&claim(results, config), POOL, &inventory(4), 0)?;
    Ok(given.into_iter().map(|given| given.asked).collect())
}

fn config(parameters: serde_json::Value, requests: &[&str]) -> serde_json::Value {
    let full = json!({"apiVersion": "fgpu.dev/v1", "kind": "FgpuConfig"});
    let mut all = full.as_object().unwrap().clone();
    all.extend(parameters.as_object().unwrap().clone());
    json!({"source": "FromClaim", "requests": requests, "opaque": {"driver": DRIVER, "parameters": all}})
}

#[test]
fn a_result_is_a_share_of_that_gpu() {
    let asked = read(json!([result("gpu", "gpu-2", json!({"memory": "32Gi", "cores": "40"}))]), json!([]));
    let asked = &asked.unwrap()[0];
    assert_eq!((asked.memory, asked.cores_ppm), (32 << 30, 400_000));
    assert_eq!(asked.gpus, [inventory(4).gpus[2].uuid.clone()]);
    assert_eq!(
        (&*asked.uid, &*asked.namespace, &*asked.name, &*asked.request),
        ("1f-2e", "default", "training", "gpu")
    );
    assert_eq!(asked.pods, ["pod-a"]);
    assert_eq!((asked.compute, asked.isolation), (None, Isolation::Auto));
}

#[test]
fn shares_are_percent_of_both_and_silence_is_the_whole_gpu() {
    let usable = inventory(1).gpus[0].usable_memory(0);
    for (device, capacity, memory, cores) in [
        ("gpu-0-share", json!({"share": "25"}), usable / 4, 250_000),
        ("gpu-0-share", json!({"gpu.fgpu.dev/share": "100"}), usable, 1_000_000),
        ("gpu-0-share", json!({}), usable, 1_000_000),
        ("gpu-0", json!({}), usable, 0),
    ] {
        let asked = read(json!([result("gpu", device, capacity)]), json!([])).unwrap();
        assert_eq!((asked[0].memory, asked[0].cores_ppm), (memory & !((1 << 20) - 1), cores), "{device}");
    }
}

#[test]
fn requests_are_apart_and_other_drivers_are_not_ours() {
    let other = json!({"request": "nic", "driver": "nic.example", "pool": POOL, "device": "gpu-0"});
    let elsewhere = json!({"request": "gpu", "driver": DRIVER, "pool": "node2", "device": "gpu-0"});
    let two = json!({"memory": "1Gi"});
    let asked = read(
        json!([
            result("b/small", "gpu-1", json!({"memory": "2Gi"})),
            other,
            elsewhere,
            result("a", "gpu-3", two.clone()),
            result("a", "gpu-2", two)
        ]),
        json!([]),
    )
    .unwrap();
    let names: Vec<_> = asked.iter().map(|asked| (asked.request.as_str(), asked.gpus.len())).collect();
    assert_eq!(names, [("a", 2), ("b", 1)]);
    assert_eq!(asked[0].gpus[0], inventory(4).gpus[3].uuid, "in the order of the results");
    assert_eq!(read(json!([]), json!([])), Ok(Vec::new()));
}

#[test]
fn parameters_are_read_strictly_and_the_last_one_counts() {
    let one = || json!([result("gpu", "gpu-0", json!({"memory": "1Gi", "cores": "10"}))]);
    let of_class = config(json!({"compute": "share", "owner": "team-a"}), &[]);
    let of_claim = config(json!({"compute": "cap"}), &["gpu"]);
    let of_other = config(json!({"owner": "team-b"}), &["other"]);
    let foreign = json!({"source": "FromClaim", "opaque": {"driver": "x.y", "parameters": {"nonsense": 1}}});
    let asked = read(one(), json!([of_class, of_claim, of_other, foreign])).unwrap();
    assert_eq!((asked[0].compute, asked[0].owner.as_deref()), (Some(Compute::Cap), Some("team-a")));
    for (parameters, word) in [
        (json!({"compute": "burst"}), "unknown variant `burst`"),
        (json!({"memory": "1Gi"}), "unknown field `memory`"),
        (json!({"kind": "GpuConfig"}), "fgpu.dev/v1 GpuConfig, and not"),
    ] {
        let error = read(one(), json!([config(parameters, &[])])).unwrap_err();
        assert!(
            error.starts_with("request gpu: its parameters for gpu.fgpu.dev") && error.contains(word),
            "{error}"
        );
    }
}

/// The scheduler copies a claim's configuration as it is, with the alternatives that it did not choose.
#[test]
fn parameters_of_another_alternative_do_not_count() {
    let one = || json!([result("gpu/small", "gpu-0", json!({"memory": "1Gi"}))]);
    for (requests, owner) in [
        (&["gpu/small"][..], Some("team-a")),
        (&["gpu"], Some("team-a")),
        (&["other", "gpu/small"], Some("team-a")),
        (&["other", "gpu/large"], None),
        (&["gpu/large"], None),
        (&["small"], None),
    ] {
        let asked = read(one(), json!([config(json!({"owner": "team-a"}), requests)])).unwrap();
        assert_eq!(asked[0].owner.as_deref(), owner, "{requests:?}");
    }
}

#[test]
fn what_cannot_be_given_is_refused_in_words() {
    let mut admin = result("gpu", "gpu-0", json!({}));
    admin["adminAccess"] = true.into();
    for (results, words) in [
        (json!([result("gpu", "gpu-9", json!({}))]), "request gpu: device gpu-9 is not on this node"),
        (json!([result("gpu", "gpu-0", json!({"memory": "1.5Gi"}))]), "request gpu: its memory is \"1.5Gi\""),
        (json!([result("gpu", "gpu-0", json!({"cores": "101"}))]), "request gpu: its cores is 101 percent"),
        (json!([admin]), "request gpu: fgpu gives no admin access"),
        (
            json!([
                result("gpu", "gpu-0", json!({"memory": "1Gi"})),
                result("gpu", "gpu-1", json!({"memory": "2Gi"}))
            ]),
            "request gpu: its devices have different amounts",
        ),
    ] {
        let error = read(results, json!([])).unwrap_err();
        assert!(error.starts_with(words), "{error}");
    }
    let unallocated: ResourceClaim = serde_json::from_value(json!({"metadata": {}, "spec": {}})).unwrap();
    assert_eq!(given(&unallocated, POOL, &inventory(1), 0).unwrap_err(), "the claim is not allocated");
}
