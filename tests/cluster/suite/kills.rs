//! Programs that are killed while pods with claims come and go, and a reboot.

use std::env;
use std::fs;
use std::thread;
use std::time::Duration;

use fgpu_cluster::{Cluster, component, component::Component};
use fgpu_lab::command::{run, shell, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::outside::Engine;
use fgpu_lab::shuffle::Random;
use fgpu_lab::{daemons, node, process};
use serde_json::{Value, json};

use crate::dra::{Plugin, QUERY, claim, claim_files, give_back, held, list, pod, slices};

pub(crate) const TESTS: &[Test] = &[
    Test::once("kills::no_kill_loses_or_leaves_a_share", no_kill_loses_or_leaves_a_share),
    Test::once(
        "kills::a_claim_that_goes_while_the_plugin_is_down",
        a_claim_that_goes_while_the_plugin_is_down,
    ),
    Test::once("kills::after_a_reboot_a_pod_has_its_share_again", after_a_reboot_a_pod_has_its_share_again),
];

/// Which program is killed.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Plugin,
    Engine,
    Cluster(Component),
}

const VICTIMS: [Victim; 6] = [
    Victim::Plugin,
    Victim::Cluster(Component::Kubelet),
    Victim::Engine,
    Victim::Cluster(Component::ApiServer),
    Victim::Cluster(Component::Etcd),
    Victim::Cluster(Component::Scheduler),
];

/// How many pods there are in all, `FGPU_CLUSTER_PODS`.
fn pods() -> usize {
    env::var("FGPU_CLUSTER_PODS").ok().and_then(|text| text.parse().ok()).unwrap_or(24)
}

fn kill(victim: Victim, plugin: &mut Plugin) {
    match victim {
        Victim::Plugin => {
            plugin.kill();
            plugin.launch();
        }
        Victim::Engine if component::engine() == Engine::Containerd => {
            daemons::kill(&["containerd"]);
            daemons::start();
        }
        Victim::Engine => Component::Crio.kill(),
        Victim::Cluster(component) => component.kill(),
    }
    component::start();
}

/// What the API server says is given out on this node, MiB.
fn allocated(cluster: &Cluster) -> u64 {
    let claims = cluster.get("resourceclaims")["items"].as_array().cloned().unwrap_or_default();
    let results = claims.iter().flat_map(|claim| {
        claim["status"]["allocation"]["devices"]["results"].as_array().cloned().unwrap_or_default()
    });
    let gib = |result: Value| {
        let text = result["consumedCapacity"]["memory"].as_str().unwrap_or_default().to_owned();
        text.strip_suffix("Gi")
            .and_then(|number| number.parse::<u64>().ok())
            .unwrap_or_else(|| panic!("{text} of {result}"))
    };
    results.map(gib).sum::<u64>() << 10
}

fn no_kill_loses_or_leaves_a_share() {
    let cluster = Cluster::start();
    let mut plugin = Plugin::start(&cluster);
    // One that lives through all of it.
    let steady = list(&[
        claim("steady", "fgpu", &json!({"memory": "4Gi"}), &Value::Null),
        pod("steady", "sleep 10000"),
    ]);
    cluster.apply(&steady);
    cluster.wait_for_phase("steady", "Running");
    let script = format!("{QUERY}; sleep 0.2");
    let mut template = pod("unused", &script)["spec"].clone();
    template["resourceClaims"] = json!([{"name": "gpu", "resourceClaimTemplateName": "each"}]);
    let each = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "each"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
            "deviceClassName": "fgpu", "capacity": {"requests": {"memory": "16Gi", "cores": "10"}}}}]}}},
    });
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "crowd"},
        "spec": {"completions": pods(), "parallelism": 8, "backoffLimit": 1000, "template": {"spec": template}},
    });
    cluster.apply(&list(&[each, job]));
    let mut random = Random::new(17);
    let mut kills = 0;
    let is_done = |cluster: &Cluster| cluster.get("job/crowd")["status"]["succeeded"] == pods();
    while !is_done(&cluster) {
        let victim = VICTIMS[kills % VICTIMS.len()];
        thread::sleep(Duration::from_millis(random.below(2500)));
        kill(victim, &mut plugin);
        kills += 1;
        node::assert_not_overcommitted(&node::gpus(), &node::leases());
        assert!(kills < 40 * pods(), "the pods do not come to their end");
    }
    let failed = cluster.get("job/crowd")["status"]["failed"].clone();
    eprintln!("cluster: {} pods, {kills} kills, {failed} pods failed", pods());
    assert!(kills >= VICTIMS.len(), "each was killed: {kills}");
    assert_eq!(cluster.kubectl(&["exec", "steady", "--", "sh", "-c", QUERY]).ok(), "4096");
    cluster.kubectl(&["delete", "job/crowd", "--cascade=foreground", "--timeout=120s"]).ok();
    wait_until("the crowd's claims to go", || allocated(&cluster) == 4 << 10);
    wait_until("one lease", || held() == [4 << 10]);
    give_back(&cluster, "steady");
    wait_until("no lease", || node::leases().is_empty());
    assert!(claim_files().is_empty(), "{:?}", claim_files());
}

/// The kubelet forgets it with its checkpoint, and nobody calls for it any more.
fn a_claim_that_goes_while_the_plugin_is_down() {
    let cluster = Cluster::start();
    let mut plugin = Plugin::start(&cluster);
    cluster.apply(&list(&[
        claim("lost", "fgpu", &json!({"memory": "1Gi"}), &Value::Null),
        pod("lost", "sleep 10000"),
    ]));
    cluster.wait_for_phase("lost", "Running");
    plugin.kill();
    cluster.kubectl(&["delete", "pod/lost", "--force", "--grace-period=0"]).ok();
    cluster
        .kubectl(&[
            "patch",
            "resourceclaim/lost",
            "--type=merge",
            "--patch",
            r#"{"metadata": {"finalizers": null}}"#,
        ])
        .ok();
    cluster.kubectl(&["delete", "resourceclaim/lost", "--wait=false"]).ok();
    cluster.wait("resourceclaim/lost", "delete");
    Component::Kubelet.kill();
    let _ = fs::remove_file("/var/lib/kubelet/dra_manager_state");
    component::start();
    plugin.run();
    wait_until("no lease", || node::leases().is_empty());
    assert!(claim_files().is_empty(), "{:?}", claim_files());
}

/// Everything is killed, and /run is empty.
fn after_a_reboot_a_pod_has_its_share_again() {
    let cluster = Cluster::start();
    let mut plugin = Plugin::start(&cluster);
    let mut stays = pod("stays", &format!("{QUERY}; sleep 10000"));
    stays["spec"]["restartPolicy"] = "Always".into();
    cluster.apply(&list(&[claim("stays", "fgpu", &json!({"memory": "1Gi"}), &Value::Null), stays]));
    cluster.wait_for_phase("stays", "Running");
    let before = node::only_lease().nonce;
    let of_pod = cluster.get("pod/stays")["metadata"]["uid"].as_str().expect("a uid").to_owned();
    plugin.kill();
    component::kill_all();
    daemons::kill(&["dockerd", "containerd"]);
    for program in ["/usr/bin/containerd-shim-runc-v2", "/usr/bin/containerd-shim-fgpu-v2", "/usr/bin/conmon"]
    {
        for process in process::running(program, "") {
            process::kill(process.pid);
        }
    }
    // What was in the pod's cgroups, whose names have its uid. Other environments have pods, too.
    let uid = of_pod.replace('-', "?");
    let inside = format!("find /sys/fs/cgroup -path '*pod{uid}*' -name cgroup.procs -exec cat {{}} +");
    shell(&format!("{inside} | sort -u | grep -vx 0 | xargs -r kill -KILL; true")).ok();
    wait_until("the end of the pod", || shell(&inside).ok().is_empty());
    let options = run(["sed", "-n", "s/^Options=//p", "/usr/lib/systemd/system/run-fgpu.mount"]);
    shell(
        "for place in $(awk '{print $5}' /proc/self/mountinfo | grep -E '^/run/(fgpu|docker|containerd|crio|netns)(/|$)|^/var/lib/(docker|containerd|containers|kubelet)/|^/var/run/netns/' | tac); do \
         umount -l $place || exit 1; done; \
         rm -rf /run/cdi /run/docker /run/containerd /run/crio /run/runc /run/crun /run/containers /run/docker.pid /run/fgpu/*; \
         true",
    )
    .ok();
    shell(&format!(
        "find /sys/fs/cgroup -depth -path '*pod{uid}*' -type d -exec rmdir {{}} + 2>/dev/null; true"
    ))
    .ok();
    shell(&format!(
        "mountpoint -q /run/fgpu || mount -t tmpfs -o {} fgpu /run/fgpu; fgpu cdi --write",
        options.ok()
    ))
    .ok();
    assert_eq!(node::leases(), []);
    daemons::start();
    component::start();
    plugin.run();
    wait_until("its life after the reboot", || {
        let log = cluster.kubectl(&["logs", "stays"]);
        held() == [1024]
            && log.status == 0
            && log.stdout.trim() == "1024"
            && node::only_lease().nonce != before
    });
    assert_eq!(slices(&cluster), 2);
    cluster.wait_for_phase("stays", "Running");
    give_back(&cluster, "stays");
    wait_until("no lease", || node::leases().is_empty());
}
