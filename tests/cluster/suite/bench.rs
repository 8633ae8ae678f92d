//! Measurements for BENCHMARKS.md: `make cluster-bench`. They assert nothing but that what is measured happens.

use std::fs;
use std::time::{Duration, Instant};

use fgpu_cluster::Cluster;
use fgpu_lab::command::{run, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::node;
use serde_json::{Value, json};

use crate::dra::{Plugin, claim, list, pod, slices, told};

pub(crate) const TESTS: &[Test] = &[
    Test::once("bench::pods_with_claims", pods_with_claims),
    Test::once("bench::the_plugin_at_rest", the_plugin_at_rest),
];

/// The program that is shipped, and where it finds the others.
const BUILT: &str = "/opt/cluster/image/fgpu-dra";
const RELEASE: &str = "/usr/bin/fgpu-dra-release";
/// Pods of each kind.
const PODS: usize = 24;
/// Claims of a cluster.
const CLAIMS: usize = 1000;
const REST: Duration = Duration::from_secs(60);

#[track_caller]
fn install() {
    run(["install", "-m", "0755", BUILT, RELEASE]).ok();
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// How long a pod takes from its creation to its end, s.
fn life(cluster: &Cluster, name: &str, objects: &str) -> f64 {
    let start = Instant::now();
    cluster.apply(objects);
    cluster.wait_for_phase(name, "Succeeded");
    start.elapsed().as_secs_f64()
}

fn pods_with_claims() {
    let cluster = Cluster::start();
    install();
    let _plugin = Plugin::start_as(&cluster, RELEASE);
    let mut plain = pod("plain", "true");
    plain["spec"].as_object_mut().expect("an object").remove("resourceClaims");
    plain["spec"]["containers"][0].as_object_mut().expect("an object").remove("resources");
    let share = list(&[
        claim("share", "fgpu", &json!({"memory": "1Gi", "cores": "10"}), &Value::Null),
        pod("share", "true"),
    ]);
    // An object of no pod, so that both lists have two.
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "plain"}});
    let plain = list(&[map, plain]);
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..PODS {
        without.push(life(&cluster, "plain", &plain));
        cluster.delete("pod/plain");
        cluster.delete("configmap/plain");
        with.push(life(&cluster, "share", &share));
        cluster.delete("pod/share");
        cluster.delete("resourceclaim/share");
    }
    wait_until("no lease", || node::leases().is_empty());
    let log = told();
    let number = |line: &str, before: &str, after: &str| -> Option<f64> {
        line.split_once(before)?.1.split_once(after)?.0.parse().ok()
    };
    let prepared = log.lines().filter(|line| line.contains(" is prepared"));
    let own: Vec<f64> = prepared.filter_map(|line| number(line, "devices, in ", " ms beside")).collect();
    assert_eq!(own.len(), PODS, "{log}");
    let differences: Vec<f64> =
        with.iter().zip(&without).map(|(with, without)| (with - without) * 1e3).collect();
    eprintln!(
        "bench: {PODS} pods each: without a GPU {:.0} ms, with a claim {:.0} ms, median of the differences {:.0} ms; prepare {:.1} ms beside \
         the API server (median), {:.1} ms at most",
        median(without) * 1e3,
        median(with) * 1e3,
        median(differences),
        median(own.clone()),
        own.iter().copied().fold(0.0, f64::max)
    );
}

/// Processor time, s, and resident memory, KiB.
fn usage(pid: &str) -> (f64, u64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the plugin runs");
    let fields: Vec<i64> = stat
        .rsplit(") ")
        .next()
        .unwrap_or_default()
        .split(' ')
        .filter_map(|field| field.parse().ok())
        .collect();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the plugin runs");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kib = resident.trim().trim_end_matches(" kB").parse().unwrap_or(0);
    // Of the fields behind the name, the state is no number: utime and stime are the 11th and 12th of the rest.
    ((fields[10] + fields[11]) as f64 / 100.0, kib)
}

fn the_plugin_at_rest() {
    let cluster = Cluster::start();
    install();
    let plugin = Plugin::start_as(&cluster, RELEASE);
    let claims: Vec<_> = (0..CLAIMS)
        .map(|number| claim(&format!("claim{number}"), "fgpu", &json!({"memory": "1Gi"}), &Value::Null))
        .collect();
    let created = cluster.kubectl_with(&["create", "--filename=-"], &list(&claims));
    created.ok();
    let (before, _) = usage(&plugin.pid());
    std::thread::sleep(REST);
    let (after, resident) = usage(&plugin.pid());
    eprintln!(
        "bench: {CLAIMS} claims, {} slices: {:.2}% of a processor, {resident} KiB resident",
        slices(&cluster),
        (after - before) / REST.as_secs_f64() * 100.0
    );
}
