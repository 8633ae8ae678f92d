//! Tenants who want more than their claim, and a node that lies.

use fgpu_cluster::Cluster;
use fgpu_cluster::account::{Account, NODE};
use fgpu_lab::command::wait_until;
use fgpu_lab::inside::Test;
use fgpu_lab::node;
use serde_json::{Value, json};

use crate::dra::{Plugin, QUERY, claim, give_back, held, list, pod};

pub(crate) const TESTS: &[Test] = &[
    Test::once("hostile::nobody_joins_the_claim_of_another_pod", nobody_joins_the_claim_of_another_pod),
    Test::once("hostile::the_plugins_sockets_are_roots", the_plugins_sockets_are_roots),
    Test::once("hostile::odd_parameters_are_refused_in_few_words", odd_parameters_are_refused_in_few_words),
    Test::once("hostile::a_tenant_cannot_allocate_for_himself", a_tenant_cannot_allocate_for_himself),
    Test::once("hostile::slices_that_lie_give_nothing_away", slices_that_lie_give_nothing_away),
];

fn small(name: &str, script: &str) -> String {
    list(&[claim(name, "fgpu", &json!({"memory": "1Gi"}), &Value::Null), pod(name, script)])
}

fn uid(cluster: &Cluster, object: &str) -> String {
    cluster.get(object)["metadata"]["uid"].as_str().expect("an object has a uid").to_owned()
}

/// By the annotations by which engines take CDI devices, and by fgpu's own.
fn nobody_joins_the_claim_of_another_pod() {
    let cluster = Cluster::start();
    let _plugin = Plugin::start(&cluster);
    cluster.apply(&small("victim", "sleep 1000"));
    cluster.wait_for_phase("victim", "Running");
    let device = format!("fgpu.dev/claim={}-gpu", uid(&cluster, "resourceclaim/victim"));
    let grant = node::leases()[0].nonce.clone();
    let thief = |name: &str, annotations: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "debian13:lab",
                     "command": ["sh", "-c", "ls /dev/nvidia0 && nvidia-smi"]}]},
        })
    };
    cluster.apply(&thief("device", json!({"cdi.k8s.io/fgpu_claim": device})).to_string());
    // Both engines take CDI devices from pods' annotations; the hook finds whose claim it is.
    let denied = || {
        let events = cluster.events("device");
        events.iter().any(|event| event.contains("it is not reserved for the pod with uid")).then_some(events)
    };
    wait_until("a refusal", || {
        denied().is_some() || cluster.get("pod/device")["status"]["phase"] == "Failed"
    });
    if denied().is_none() {
        let log = cluster.kubectl(&["logs", "device"]);
        assert!(!log.stdout.contains("NVIDIA-SMI"), "{}", log.story());
    }
    for (name, annotations) in [
        ("grant", json!({"fgpu/grant": grant})),
        (
            "uid",
            json!({"io.kubernetes.pod.uid": uid(&cluster, "pod/victim"), "cdi.k8s.io/fgpu_claim": device}),
        ),
        (
            "sandbox",
            json!({"io.kubernetes.cri.sandbox-uid": uid(&cluster, "pod/victim"), "cdi.k8s.io/fgpu_claim": device}),
        ),
    ] {
        cluster.apply(&thief(name, annotations).to_string());
        let ended = || {
            let pod = cluster.get(&format!("pod/{name}"));
            let events = cluster.events(name);
            pod["status"]["phase"] == "Failed"
                || events.iter().any(|event| event.contains("fgpu: ") && event.starts_with("Failed"))
        };
        wait_until("the thief's end", ended);
        let log = cluster.kubectl(&["logs", name]);
        assert!(!log.stdout.contains("NVIDIA-SMI"), "{name}: {}", log.story());
    }
    assert_eq!(held(), [1024], "and the victim has what it had");
    assert_eq!(cluster.kubectl(&["exec", "victim", "--", "sh", "-c", QUERY]).ok(), "1024");
    for name in ["device", "grant", "uid", "sandbox"] {
        cluster.delete(&format!("pod/{name}"));
    }
    give_back(&cluster, "victim");
    wait_until("no lease", || node::leases().is_empty());
}

/// A pod that mounts the folders of the sockets as a tenant may: without being root. (A pod that is the node's root
/// needs no socket; admission keeps tenants from that.)
fn the_plugins_sockets_are_roots() {
    let cluster = Cluster::start();
    let _plugin = Plugin::start(&cluster);
    let folders = ["/var/lib/kubelet/plugins/gpu.fgpu.dev", "/var/lib/kubelet/plugins_registry", "/run/fgpu"];
    let name = |at: usize| format!("folder{at}");
    let volumes: Vec<_> = folders
        .iter()
        .enumerate()
        .map(|(at, folder)| json!({"name": name(at), "hostPath": {"path": folder}}))
        .collect();
    let mounts: Vec<_> = folders
        .iter()
        .enumerate()
        .map(|(at, _)| json!({"name": name(at), "mountPath": format!("/mnt/{at}")}))
        .collect();
    let script = "ls /mnt/0 2>&1; for socket in /mnt/0/dra-*.sock /mnt/1/gpu.fgpu.dev-*-reg.sock /mnt/2/dra.sock; do \
                  [ ! -w $socket ] && echo closed; done; touch /mnt/0/x /mnt/1/x /mnt/2/x /mnt/2/allocations.json 2>/dev/null; echo end";
    let tenant = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "tenant"},
        "spec": {"restartPolicy": "Never", "volumes": volumes, "containers": [{
            "name": "main", "image": "debian13:lab", "command": ["sh", "-c", script], "volumeMounts": mounts,
            "securityContext": {"runAsUser": 1000, "allowPrivilegeEscalation": false}}]},
    });
    cluster.apply(&tenant.to_string());
    cluster.wait_for_phase("tenant", "Succeeded");
    let log = cluster.logs("tenant");
    assert!(log.contains("Permission denied"), "{log}");
    assert_eq!(log.matches("closed").count(), 3, "{log}");
    for folder in folders {
        assert!(!std::path::Path::new(folder).join("x").exists(), "{folder}");
    }
    // The plugin still serves.
    cluster.apply(&small("after", QUERY));
    cluster.wait_for_phase("after", "Succeeded");
    cluster.delete("pod/tenant");
    give_back(&cluster, "after");
}

fn odd_parameters_are_refused_in_few_words() {
    let cluster = Cluster::start();
    let _plugin = Plugin::start(&cluster);
    let nested = (0..500).fold(json!(1), |inner, _| json!([inner]));
    let long = "\u{1b}[31m\u{202e}x".repeat(900);
    let odd = [
        json!({"apiVersion": "fgpu.dev/v1", "kind": "FgpuConfig", "owner": {"deep": nested}}),
        json!({"apiVersion": "fgpu.dev/v1", "kind": "FgpuConfig", "owner": long}),
        json!({"apiVersion": "fgpu.dev/v1", "kind": "FgpuConfig", (long.clone()): 1}),
        json!({"apiVersion": long, "kind": "FgpuConfig"}),
        json!({"apiVersion": "fgpu.dev/v1", "kind": "FgpuConfig", "compute": 1e300}),
    ];
    for (number, parameters) in odd.iter().enumerate() {
        let name = format!("odd{number}");
        let objects = list(&[claim(&name, "fgpu", &json!({"memory": "1Gi"}), parameters), pod(&name, QUERY)]);
        let applied = cluster.try_apply(&objects);
        if applied.status != 0 {
            // The API server has a bound of its own, 10 KiB.
            cluster.kubectl(&["delete", "pod", &name, "--ignore-not-found", "--grace-period=1"]).ok();
            continue;
        }
        let told = || cluster.events(&name).into_iter().find(|event| event.contains("fgpu: "));
        wait_until("a refusal", || told().is_some());
        let event = told().unwrap_or_default();
        assert!(event.len() < 2000, "{} bytes: {event}", event.len());
        assert!(!event.contains('\u{1b}') && !event.contains('\u{202e}'), "{event}");
        give_back(&cluster, &name);
    }
    assert_eq!(held(), [0u64; 0]);
}

/// The rights that tenants have: pods and claims of their namespace.
fn a_tenant_cannot_allocate_for_himself() {
    let cluster = Cluster::start();
    let _plugin = Plugin::start(&cluster);
    let rules = json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims", "resourceclaimtemplates"], "verbs": ["*"]},
    ]);
    let tenant = Account::create(&cluster, "tenant", &rules);
    let kubeconfig = format!("--kubeconfig={}", tenant.kubeconfig.display());
    cluster.apply(&claim("own", "fgpu", &json!({"memory": "1Gi"}), &Value::Null).to_string());
    let allocation = json!({"status": {"allocation": {"devices": {"results": [{
        "request": "gpu", "driver": "gpu.fgpu.dev", "pool": NODE, "device": "gpu-0",
        "shareID": "3f1c0a9b-2d11-4f3a-9a55-0d7f3f0f6c11", "consumedCapacity": {"memory": "79Gi", "cores": "100"}}]}}}});
    let words = [
        "patch",
        "resourceclaim/own",
        "--subresource=status",
        "--type=merge",
        "--patch",
        &allocation.to_string(),
    ];
    let patched = cluster.kubectl(&[&[&*kubeconfig], &words[..]].concat());
    assert!(patched.stderr.contains("forbidden"), "{}", patched.story());
    for words in [
        &["delete", "resourceslices", "--all"][..],
        &["create", "deviceclass", "x"],
        &["label", &format!("node/{NODE}"), "gpu.fgpu.dev/gpus=none"],
    ] {
        let refused = cluster.kubectl(&[&[&*kubeconfig], words].concat());
        assert_ne!(refused.status, 0, "{}", refused.story());
    }
    assert_eq!(held(), [0u64; 0]);
    cluster.delete("resourceclaim/own");
}

/// What a slice says decides what kube-scheduler gives out, and the node's own GPUs decide what is reserved.
fn slices_that_lie_give_nothing_away() {
    let cluster = Cluster::start();
    let mut plugin = Plugin::start(&cluster);
    plugin.pause();
    let slice = cluster.get("resourceslice/node1-gpu.fgpu.dev-001");
    let mut lie = slice.clone();
    let devices = lie["spec"]["devices"].as_array_mut().expect("devices");
    devices[0]["capacity"]["memory"] = json!({"value": "900Gi"});
    devices[0].as_object_mut().expect("an object").remove("consumesCounters");
    devices[1].as_object_mut().expect("an object").remove("consumesCounters");
    devices[2]["name"] = "gpu-9".into();
    cluster.kubectl_with(&["replace", "--filename=-"], &lie.to_string()).ok();
    let of = |name: &str, memory: &str, index: u32| {
        let mut claim = claim(name, "fgpu", &json!({"memory": memory}), &Value::Null);
        let expression = format!("device.attributes['gpu.fgpu.dev'].index == {index}");
        claim["spec"]["devices"]["requests"][0]["exactly"]["selectors"] =
            json!([{"cel": {"expression": expression}}]);
        list(&[claim, pod(name, "sleep 1000")])
    };
    cluster.apply(&of("large", "500Gi", 0));
    cluster.apply(&of("ghost", "1Gi", 1));
    for name in ["large", "ghost"] {
        cluster.wait(&format!("pod/{name}"), "condition=PodScheduled=True");
    }
    plugin.go_on();
    let told = |name: &str, words: &str| cluster.events(name).iter().any(|event| event.contains(words));
    wait_until("a refusal", || {
        told("large", "too small even when empty")
            || told("large", "no-capacity")
            || told("large", "too-large")
    });
    wait_until("a refusal", || told("ghost", "device gpu-9 is not on this node any more"));
    assert_eq!(held(), [0u64; 0]);
    for name in ["large", "ghost"] {
        give_back(&cluster, name);
    }
    // And the slice is put right.
    wait_until("the slice as it was", || {
        cluster.get("resourceslice/node1-gpu.fgpu.dev-001")["spec"]["devices"] == slice["spec"]["devices"]
    });
}
