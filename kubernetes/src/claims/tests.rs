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
    let gpus = vec![inventory(4).gpus[2].uuid.clone()];
    assert_eq!(asked.share, Share::Part { gpus, memory: 32 << 30, cores_ppm: 400_000 });
    assert_eq!(asked.words, "cores=40 memory=32Gi of gpu-2");
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
        let gpus = vec![inventory(1).gpus[0].uuid.clone()];
        let memory = memory & !((1 << 20) - 1);
        assert_eq!(asked[0].share, Share::Part { gpus, memory, cores_ppm: cores }, "{device}");
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
    let gpus = |asked: &Asked| match &asked.share {
        Share::Part { gpus, .. } => gpus.clone(),
        Share::Slices { .. } => Vec::new(),
    };
    let names: Vec<_> = asked.iter().map(|asked| (asked.request.as_str(), gpus(asked).len())).collect();
    assert_eq!(names, [("a", 2), ("b", 1)]);
    assert_eq!(gpus(&asked[0])[0], inventory(4).gpus[3].uuid, "in the order of the results");
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
    assert_eq!(asked[0].words, "cores=10 memory=1Gi of gpu-0, compute=cap, owner=team-a");
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

/// A repeated call after a restart is the same, whatever an administrator has changed meanwhile.
#[test]
fn the_words_of_a_share_do_not_depend_on_the_node() {
    let results = || json!([result("gpu", "gpu-0-share", json!({"share": "25"}))]);
    let words = |reserve: u64| {
        let given = given(&claim(results(), json!([])), POOL, &inventory(4), reserve).unwrap();
        given[0].asked.words.clone()
    };
    assert_eq!(words(0), "share=25 of gpu-0-share");
    assert_eq!(words(0), words(4 << 30));
}

#[test]
fn a_slice_is_the_place_of_its_device() {
    let mut inventory = inventory(2);
    inventory.gpus[1].mig_enabled = true;
    inventory.gpus[1].mig_profiles =
        serde_json::from_str(include_str!("../../../spec/testdata/mig-h100-80gb.json")).unwrap();
    let profile = inventory.gpus[1].mig_profiles.iter().find(|one| one.name == "1g.10gb+me").unwrap();
    let device = slice(1, profile, profile.placements[4]);
    assert_eq!(device, "gpu-1-mig-1g-10gb-me-4");
    let read = |device: &str| {
        let results = json!([{"request": "gpu", "driver": DRIVER, "pool": POOL, "device": device}]);
        given(&claim(results, json!([])), POOL, &inventory, 0)
    };
    let place = MigPlace { gpu: inventory.gpus[1].uuid.clone(), placement: profile.placements[4] };
    let asked = &read(&device).unwrap()[0].asked;
    assert_eq!(asked.share, Share::Slices { profile: "1g.10gb+me".into(), places: vec![place] });
    assert_eq!(asked.words, "all of gpu-1-mig-1g-10gb-me-4");
    for gone in ["gpu-1", "gpu-1-share", "gpu-0-mig-1g-10gb-0", "gpu-1-mig-1g-10gb-7"] {
        assert!(read(gone).unwrap_err().contains("is not on this node any more"), "{gone}");
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
