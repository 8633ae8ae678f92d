//! The chart, its image and its policies.

use std::fs;

use fgpu_cluster::account::{Account, NODE};
use fgpu_cluster::{Cluster, component};
use fgpu_lab::command::{Output, run, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::node;
use fgpu_lab::outside::Engine;
use serde_json::{Value, json};

use crate::dra::{CLASSES, Plugin, QUERY, RBAC, claim, held, list, pod, slices};

pub(crate) const TESTS: &[Test] = &[
    Test::once("deploy::the_plain_files_are_those_of_the_chart", the_plain_files_are_those_of_the_chart),
    Test::once("deploy::the_examples_run", the_examples_run),
    Test::once("deploy::pods_survive_an_upgrade_and_an_uninstall", pods_survive_an_upgrade_and_an_uninstall),
    Test::once("deploy::a_node_needs_no_package", a_node_needs_no_package),
    Test::once("deploy::a_node_writes_its_own_slices_only", a_node_writes_its_own_slices_only),
    Test::once(
        "deploy::annotations_that_would_do_nothing_are_refused",
        annotations_that_would_do_nothing_are_refused,
    ),
];

const HELM: &str = "/opt/cluster/helm/helm";
pub(crate) const CHART: &str = "/opt/deploy/chart";
/// Where the chart puts the programs.
pub(crate) const HOST: &str = "/opt/fgpu";

/// What the chart makes with these values.
#[track_caller]
fn chart(values: &[&str]) -> String {
    chart_in(CHART, values)
}

#[track_caller]
fn chart_in(folder: &str, values: &[&str]) -> String {
    let fixed = ["template", "fgpu", folder, "--namespace", "default", "--kube-version", "1.36.3"];
    let values = values.iter().flat_map(|value| ["--set", value]);
    run([HELM].into_iter().chain(fixed).chain(values)).ok().to_owned()
}

/// The chart with the image of this tag, which the node gets as from a registry.
#[track_caller]
fn install(cluster: &Cluster, tag: &str, archive: &str) {
    install_from(cluster, CHART, &[&format!("image.tag={tag}")], &format!("/opt/cluster/image/{archive}"));
    wait_until("the node's slices", || slices(cluster) == 2);
}

/// A chart with these values, and an image.
#[track_caller]
pub(crate) fn install_from(cluster: &Cluster, chart: &str, values: &[&str], archive: &str) {
    assert!(fs::exists(archive).unwrap_or(false), "there is no {archive}: make cluster, make cluster-skew");
    match component::engine() {
        Engine::Containerd => run(["ctr", "--namespace", "k8s.io", "images", "import", archive]).ok().len(),
        Engine::Crio => run(["podman", "load", "--quiet", "--input", archive]).ok().len(),
    };
    let objects = chart_in(chart, &[values, &["image.pullPolicy=Never"]].concat());
    cluster.kubectl_with(&["apply", "--dry-run=server", "--filename=-"], &objects).ok();
    cluster.apply(&objects);
    cluster.kubectl(&["rollout", "status", "daemonset/fgpu-dra", "--timeout=120s"]).ok();
    // A pod that comes before that is tried again after a minute or more.
    wait_until("the kubelet's registration", || {
        cluster.kubectl(&["logs", "daemonset/fgpu-dra"]).stdout.contains("the kubelet knows us")
    });
    wait_until("the node's slices", || slices(cluster) > 0);
}

#[track_caller]
fn objects(cluster: &Cluster, text: &str) -> Vec<Value> {
    let read = cluster.kubectl_with(&["create", "--dry-run=client", "--filename=-", "--output=json"], text);
    let all = serde_json::Deserializer::from_str(read.ok()).into_iter::<Value>();
    all.map(|object| object.expect("kubectl prints JSON"))
        .flat_map(|object| object["items"].as_array().cloned().unwrap_or_else(|| vec![object]))
        .collect()
}

/// For nodes with the package, which need no chart.
fn the_plain_files_are_those_of_the_chart() {
    let cluster = Cluster::start();
    let content = |text: &str| -> Vec<Value> {
        let kinds = ["ClusterRole", "ClusterRoleBinding", "DeviceClass"];
        let all = objects(&cluster, text).into_iter();
        let mut all: Vec<_> = all
            .filter(|object| kinds.iter().any(|kind| object["kind"] == **kind))
            .map(|object| {
                json!([object["metadata"]["name"], object["rules"], object["roleRef"], object["spec"]])
            })
            .collect();
        all.sort_by_key(Value::to_string);
        all
    };
    let values = ["daemonSet=false"];
    assert_eq!(content(&chart(&values)), content(&format!("{RBAC}\n---\n{CLASSES}")));
    assert!(chart(&["gpus=0"]).contains("- --gpus=0\n"), "helm reads a number");
    let refused = run([HELM, "template", "fgpu", CHART, "--set", "gpus=some thing"]);
    assert!(refused.status != 0 && refused.stderr.contains("gpus"), "{}", refused.story());
    let unknown = run([HELM, "template", "fgpu", CHART, "--set", "policies.slice=true"]);
    assert!(unknown.status != 0 && unknown.stderr.contains("slice"), "{}", unknown.story());
}

/// The examples as they are, but for the image, which no registry has here.
fn the_examples_run() {
    let cluster = Cluster::start();
    let _plugin = Plugin::start(&cluster);
    let folder = fs::read_dir("/opt/deploy/examples").expect("the examples");
    for entry in folder.flatten() {
        let text = fs::read_to_string(entry.path()).expect("an example");
        let tried = cluster.kubectl_with(&["apply", "--dry-run=server", "--filename=-"], &text);
        assert_eq!(tried.status, 0, "{}: {}", entry.path().display(), tried.story());
    }
    let example = |name: &str| {
        let text = fs::read_to_string(format!("/opt/deploy/examples/{name}.yaml")).expect("an example");
        text.replace("image: debian\n", "image: debian13:lab\n")
    };
    cluster.apply(&example("job"));
    cluster.wait("job/sweep", "condition=Complete");
    let failed = cluster.get("job/sweep")["status"]["failed"].clone();
    assert!(failed.is_null() || failed == 0, "{failed}");
    cluster.apply(&example("deployment"));
    cluster.kubectl(&["rollout", "status", "deployment/serving", "--timeout=120s"]).ok();
    let quarter = node::gpus()[0].share(250_000) >> 20;
    assert_eq!(held(), [quarter, quarter]);
    cluster.kubectl(&["rollout", "restart", "deployment/serving"]).ok();
    cluster.kubectl(&["rollout", "status", "deployment/serving", "--timeout=120s"]).ok();
    cluster.kubectl(&["delete", "deployment/serving", "--cascade=foreground", "--timeout=120s"]).ok();
    // The simulated GPUs have no NVLinks.
    let pair: Vec<_> = example("two-gpus")
        .lines()
        .filter(|line| !line.contains("nvlinkDomain"))
        .map(str::to_owned)
        .collect();
    let pair = pair.join("\n").replacen("      - requests: [gpus]\n---", "---", 1);
    cluster.apply(&pair.replace("[nvidia-smi]", &format!("[\"sh\", \"-c\", \"{QUERY}\"]")));
    cluster.wait_for_phase("pair", "Succeeded");
    let half = (node::gpus()[0].share(500_000) >> 20).to_string();
    assert_eq!(cluster.logs("pair"), format!("{half}\n{half}"));
    cluster.delete("pod/pair");
    cluster.delete("resourceclaim/two-halves");
    cluster.kubectl(&["delete", "job/sweep", "--cascade=foreground", "--timeout=120s"]).ok();
    wait_until("no lease", || node::leases().is_empty());
}

/// The folders of versions on the node.
fn versions() -> Vec<String> {
    let all = fs::read_dir(HOST).into_iter().flatten().flatten();
    all.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn pods_survive_an_upgrade_and_an_uninstall() {
    let cluster = Cluster::start();
    install(&cluster, "lab", "fgpu-dra.tar");
    let first = versions();
    assert_eq!(first.len(), 1, "{first:?}");
    let script = format!("{QUERY}; while [ ! -e /done ]; do sleep 0.2; done");
    let mut stays = pod("stays", &script);
    stays["spec"]["restartPolicy"] = "Always".into();
    cluster.apply(&list(&[claim("stays", "fgpu", &json!({"memory": "1Gi"}), &Value::Null), stays]));
    cluster.wait_for_phase("stays", "Running");
    wait_until("what the pod prints", || cluster.logs("stays") == "1024");
    let files = run(["sh", "-c", "cat /run/cdi/fgpu.dev-claim_*.json"]);
    assert!(files.ok().contains(&format!("{HOST}/{}/bin/fgpu-hook", first[0])), "{}", files.ok());

    install(&cluster, "next", "fgpu-dra-next.tar");
    let both = versions();
    assert_eq!(both.len(), 2, "a claim names the programs of the former: {both:?}");
    assert_eq!(cluster.kubectl(&["exec", "stays", "--", "sh", "-c", QUERY]).ok(), "1024");
    cluster.kubectl(&["exec", "stays", "--", "touch", "/done"]).ok();
    let restarts = |cluster: &Cluster| {
        let pod = cluster.get("pod/stays");
        let status = &pod["status"]["containerStatuses"][0];
        status["ready"] == true && status["restartCount"] == 1
    };
    wait_until("the container's next start", || restarts(&cluster));
    wait_until("what the pod prints", || cluster.logs("stays") == "1024");
    assert_eq!(held(), [1024]);

    cluster.kubectl(&["delete", "daemonset/fgpu-dra", "--cascade=foreground", "--timeout=120s"]).ok();
    run(["fgpu", "gc"]).ok();
    assert_eq!(held(), [1024], "its pod runs");
    assert_eq!(cluster.kubectl(&["exec", "stays", "--", "sh", "-c", QUERY]).ok(), "1024");
    // The kubelet waits for a plugin that takes the claim back.
    cluster.kubectl(&["delete", "pod/stays", "--grace-period=1", "--wait=false"]).ok();
    install(&cluster, "next", "fgpu-dra-next.tar");
    cluster.wait("pod/stays", "delete");
    cluster.delete("resourceclaim/stays");
    wait_until("no lease", || node::leases().is_empty());
    // The next start removes what nothing names any more.
    cluster.kubectl(&["rollout", "restart", "daemonset/fgpu-dra"]).ok();
    wait_until("one version", || versions().len() == 1);
    assert_ne!(versions(), first);
}

/// A node on which nobody has installed fgpu.
struct Bare;

/// What the package has that a claim could use.
const PACKAGE: [&str; 3] = ["/usr/bin/fgpu", "/usr/bin/fgpu-hook", "/usr/lib/fgpu"];

impl Bare {
    #[track_caller]
    fn make() -> Self {
        for path in PACKAGE {
            run(["mv", path, &format!("{path}.away")]).ok();
        }
        Self
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        for path in PACKAGE {
            run(["mv", &format!("{path}.away"), path]);
        }
    }
}

fn a_node_needs_no_package() {
    let cluster = Cluster::start();
    let _bare = Bare::make();
    install(&cluster, "lab", "fgpu-dra.tar");
    let script = format!("{QUERY}; exec sleep 12345");
    cluster.apply(&list(&[
        claim("held", "fgpu", &json!({"memory": "1Gi"}), &Value::Null),
        pod("held", &script),
    ]));
    cluster.wait_for_phase("held", "Running");
    wait_until("what the pod prints", || cluster.logs("held") == "1024");
    // As an update of the container's resources does it, with some runtimes.
    let gpu = node::gpus()[0].minor;
    let is_closed = || {
        let tried = cluster.kubectl(&["exec", "held", "--", "nodes", &format!("/dev/nvidia{gpu}")]);
        tried.ok().ends_with(" EPERM")
    };
    assert!(!is_closed());
    let close = format!(
        "pid=$(pgrep -xf 'sleep 12345') && \
                 echo 'c 195:{gpu} rw' >/sys/fs/cgroup/devices$(sed -n 's/.*:devices://p' /proc/$pid/cgroup)/devices.deny"
    );
    run(["sh", "-c", &close]).ok();
    assert!(is_closed());
    cluster.kubectl(&["rollout", "restart", "daemonset/fgpu-dra"]).ok();
    wait_until("an open device", || !is_closed());
    cluster.delete("pod/held");
    cluster.delete("resourceclaim/held");
    wait_until("no lease", || node::leases().is_empty());
}

fn a_node_writes_its_own_slices_only() {
    let cluster = Cluster::start();
    cluster.apply(&chart(&["daemonSet=false"]));
    let account = Account::existing(&cluster, "fgpu-dra");
    let kubeconfig = format!("--kubeconfig={}", account.kubeconfig.display());
    let write_in = |pool: &str, name: &str, node: &str, driver: &str| -> Output {
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name},
            "spec": {"driver": driver, "nodeName": node, "devices": [{"name": "gpu-0"}],
                     "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}},
        });
        cluster.kubectl_with(&[&kubeconfig, "create", "--filename=-"], &slice.to_string())
    };
    let write = |name: &str, node: &str, driver: &str| write_in(node, name, node, driver);
    // A policy counts a moment after it was made.
    let denied = |output: &Output| output.stderr.contains("fgpu-dra on node node1 may write the slices");
    wait_until("the policy", || {
        let output = write("elsewhere", "node2", "gpu.fgpu.dev");
        if output.status == 0 {
            cluster.delete("resourceslice/elsewhere");
        }
        denied(&output)
    });
    let foreign = write("foreign", NODE, "gpu.nvidia.com");
    assert!(denied(&foreign), "{}", foreign.story());
    let pool = write_in("node2", "pool", NODE, "gpu.fgpu.dev");
    assert!(denied(&pool), "{}", pool.story());
    write("own", NODE, "gpu.fgpu.dev").ok();
    // The administrator may do what he likes, and the node may not touch it.
    let others = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "others"},
        "spec": {"driver": "gpu.fgpu.dev", "nodeName": "node2", "devices": [{"name": "gpu-0"}],
                 "pool": {"name": "node2", "generation": 1, "resourceSliceCount": 1}},
    });
    cluster.apply(&others.to_string());
    let delete = |name: &str| cluster.kubectl(&[&kubeconfig, "delete", &format!("resourceslice/{name}")]);
    let refused = delete("others");
    assert!(denied(&refused), "{}", refused.story());
    delete("own").ok();
    // Nor anything else of the cluster.
    for words in [
        ["delete", "resourceclaims", "--all"],
        ["get", "secrets", "--all-namespaces"],
        ["get", "pods", "--all-namespaces"],
    ] {
        let forbidden = cluster.kubectl(&[&[&*kubeconfig], &words[..]].concat());
        assert!(forbidden.stderr.contains("forbidden"), "{}", forbidden.story());
    }
}

fn annotations_that_would_do_nothing_are_refused() {
    let cluster = Cluster::start();
    let values = ["daemonSet=false", "policies.runtimeClasses={fgpu}", "policies.noPodWideShares=true"];
    cluster.apply(&chart(&values));
    let create = |annotation: &str, class: Option<&str>, containers: &[&str]| -> Output {
        let containers: Vec<_> =
            containers.iter().map(|name| json!({"name": name, "image": "busybox:lab"})).collect();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "asked", "annotations": {annotation: "1"}},
            "spec": {"runtimeClassName": class, "containers": containers},
        });
        cluster.kubectl_with(&["create", "--dry-run=server", "--filename=-"], &pod.to_string())
    };
    let says = |output: &Output, words: &str| output.status != 0 && output.stderr.contains(words);
    // A policy counts a moment after it was made.
    wait_until("the policies", || {
        says(&create("fgpu/count", None, &["main"]), "needs a runtimeClassName, one of fgpu")
            && says(
                &create("min.fgpu/count", Some("fgpu"), &["main"]),
                "min.fgpu/count names no container of this pod: main",
            )
    });
    let wide = create("fgpu/count", Some("fgpu"), &["main", "side"]);
    assert!(says(&wide, "says with CONTAINER.fgpu/KEY which of them"), "{}", wide.story());
    create("fgpu/count", Some("fgpu"), &["main"]).ok();
    create("side.fgpu/count", Some("fgpu"), &["main", "side"]).ok();
    create("fgpu/wait", Some("fgpu"), &["main", "side"]).ok();
    create("example.org/fgpu", None, &["main", "side"]).ok();
}
