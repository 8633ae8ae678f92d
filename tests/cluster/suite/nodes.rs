//! Three nodes with 24 GPUs, which kube-scheduler alone fills.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fgpu_cluster::{Cluster, component};
use fgpu_lab::command::{run, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::node;
use fgpu_lab::outside::{DRA, Engine};
use serde_json::{Value, json};

use crate::dra::{CLASSES, QUERY};

pub(crate) const TESTS: &[Test] = &[Test::once("nodes::a_crowd_on_three_nodes", a_crowd_on_three_nodes)];

const NODE: &str = "/cluster/node";
const ADMIN: &str = "/opt/cluster/pki/admin.conf";
const NODES: u32 = 3;
const GPUS: u64 = 24;

/// How many of 500 pods ask for that many percent of a GPU: as the pods with one GPU in Alibaba's trace of 2023 (tests/replay),
/// whose file may not be passed on.
const MIX: [(u32, u32); 8] =
    [(10, 7), (20, 14), (30, 28), (40, 64), (50, 10), (60, 18), (80, 77), (100, 282)];

/// The plugins of all nodes.
struct Plugins(Vec<Child>);

impl Plugins {
    fn start() -> Self {
        let one = |number: u32| {
            let name = format!("node{number}");
            let words = [DRA, "--node-name", &name, "--kubeconfig", ADMIN].map(str::to_owned);
            let enter = (number > 1).then(|| [NODE.to_owned(), number.to_string(), "run".to_owned()]);
            let line: Vec<String> = enter.into_iter().flatten().chain(words).collect();
            let log = std::fs::File::create(format!("/var/log/lab/fgpu-dra-{name}.log")).expect("a log");
            let mut command = Command::new(&line[0]);
            command.args(&line[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            command.spawn().expect("fgpu-dra starts")
        };
        Self((1..=NODES).map(one).collect())
    }
}

impl Drop for Plugins {
    fn drop(&mut self) {
        run(["pkill", "-KILL", "-x", "fgpu-dra"]);
        for plugin in &mut self.0 {
            let _ = plugin.wait();
        }
    }
}

/// The further nodes of the cluster.
struct Nodes;

impl Nodes {
    fn start() -> Self {
        // The first one as the others.
        for number in 2..=NODES {
            run([NODE, &number.to_string(), "start"]).ok();
        }
        Self
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for number in 2..=NODES {
            run([NODE, &number.to_string(), "stop"]);
        }
    }
}

/// Parts per million of memory and SM time that the leases of a node hold of each GPU, the larger of both; and how many leases.
fn ledger(number: u32, whole: u64) -> (Vec<u64>, usize) {
    let name = number.to_string();
    let words = ["cat", "/run/fgpu/allocations.json"];
    let read = || match number {
        1 => run(words),
        _ => run([&[NODE, &name, "run"], &words[..]].concat()),
    };
    // It is exchanged by rename: what is read is whole.
    let file: Value = serde_json::from_str(read().ok()).expect("the allocator file is JSON");
    let leases = file["leases"].as_array().cloned().unwrap_or_default();
    let leases: Vec<_> = leases.iter().filter(|lease| lease["key"]["namespace"] == "claim").collect();
    let mut held = std::collections::BTreeMap::<String, (u64, u64)>::new();
    for gpu in leases.iter().flat_map(|lease| lease["gpus"].as_array().into_iter().flatten()) {
        let one = held.entry(gpu["uuid"].to_string()).or_default();
        one.0 += gpu["memory"].as_u64().unwrap_or_default();
        one.1 += gpu["cores_ppm"].as_u64().unwrap_or_default();
    }
    let held = held.into_values().map(|(memory, cores)| (memory * 1_000_000 / whole).max(cores));
    (held.collect(), leases.len())
}

/// What the API server has given out: percent of each device.
fn allocated(cluster: &Cluster) -> Vec<u64> {
    let claims = cluster.get("resourceclaims")["items"].as_array().cloned().unwrap_or_default();
    let mut given = std::collections::BTreeMap::<String, u64>::new();
    for claim in claims {
        for result in claim["status"]["allocation"]["devices"]["results"].as_array().into_iter().flatten() {
            let share =
                result["consumedCapacity"]["share"].as_str().and_then(|text| text.parse::<u64>().ok());
            *given.entry(format!("{}/{}", result["pool"], result["device"])).or_default() +=
                share.expect("a share");
        }
    }
    given.into_values().collect()
}

fn a_crowd_on_three_nodes() {
    // The further nodes run containerd.
    if component::engine() == Engine::Crio {
        return;
    }
    let cluster = Cluster::start();
    let _simulated = node::simulated("h100-80-x8.toml");
    let _nodes = Nodes::start();
    let _plugins = Plugins::start();
    cluster.apply(CLASSES);
    wait_until("the slices of all nodes", || {
        let all = cluster.get("resourceslices")["items"].as_array().cloned().unwrap_or_default();
        let devices = all.iter().filter_map(|slice| slice["spec"]["devices"].as_array().map(Vec::len));
        devices.sum::<usize>() as u64 == 2 * GPUS
    });
    for number in 1..=NODES {
        wait_until("the kubelet's registration", || {
            std::fs::read_to_string(format!("/var/log/lab/fgpu-dra-node{number}.log"))
                .is_ok_and(|log| log.contains("the kubelet knows us"))
        });
    }
    let start = Instant::now();
    let mut objects = Vec::new();
    for (percent, pods) in MIX {
        let name = format!("of{percent}");
        objects.push(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
                "deviceClassName": "fgpu-share", "capacity": {"requests": {"share": percent.to_string()}}}}]}}},
        }));
        objects.push(json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
            "spec": {"completions": pods, "parallelism": pods, "backoffLimit": 0, "template": {"spec": {
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
                "containers": [{"name": "main", "image": "debian13:lab", "command": ["sh", "-c", format!("{QUERY}; sleep 3")],
                                "resources": {"claims": [{"name": "gpu"}]}}]}}},
        }));
    }
    cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string());
    let whole = node::gpus()[0].share(1_000_000);
    let (mut samples, mut most) = (Vec::new(), 0);
    let done = |cluster: &Cluster| -> u64 {
        let jobs = cluster.get("jobs")["items"].as_array().cloned().unwrap_or_default();
        assert!(jobs.iter().all(|job| job["status"]["failed"].as_u64().unwrap_or(0) == 0), "a pod failed");
        jobs.iter().map(|job| job["status"]["succeeded"].as_u64().unwrap_or(0)).sum()
    };
    let all: u64 = MIX.iter().map(|(_, pods)| u64::from(*pods)).sum();
    loop {
        let given = allocated(&cluster);
        assert!(given.iter().all(|percent| *percent <= 100), "{given:?}");
        for number in 1..=NODES {
            let (held, _) = ledger(number, whole);
            assert!(held.len() <= 8 && held.iter().all(|ppm| *ppm <= 1_000_000), "node{number}: {held:?}");
        }
        let count = done(&cluster);
        let sum = given.iter().sum::<u64>();
        most = most.max(sum);
        // While there is more to do than there is room.
        if all - count > 100 {
            samples.push(sum);
        }
        if count == all {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(1500), "{count} of {all} pods");
        thread::sleep(Duration::from_secs(1));
    }
    let mean = samples.iter().sum::<u64>() as f64 / samples.len().max(1) as f64 / GPUS as f64;
    eprintln!(
        "cluster: {all} pods on {GPUS} GPUs in {:.0} s; of the GPUs {mean:.0}% given out in the mean, {}% at most",
        start.elapsed().as_secs_f64(),
        most / GPUS
    );
    cluster.kubectl(&["delete", "jobs", "--all", "--cascade=foreground", "--timeout=300s"]).ok();
    for number in 1..=NODES {
        wait_until("no lease", || ledger(number, whole).1 == 0);
    }
}
