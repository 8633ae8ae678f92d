//! Claims by fgpu-dra: the scheduler of the cluster gives out shares, and the node holds to them.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fgpu_cluster::account::{Account, NODE};
use fgpu_cluster::{Cluster, component, component::Component};
use fgpu_lab::command::{run, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::node;
use fgpu_lab::outside::DRA;
use serde_json::{Value, json};

pub(crate) const TESTS: &[Test] = &[
    Test::once("dra::two_claims_run_and_the_third_waits", two_claims_run_and_the_third_waits),
    Test::once("dra::containers_of_a_claim_share_it", containers_of_a_claim_share_it),
    Test::once("dra::a_gpu_is_used_by_bytes_or_by_shares", a_gpu_is_used_by_bytes_or_by_shares),
    Test::once(
        "dra::what_is_killed_comes_back_and_nothing_is_lost",
        what_is_killed_comes_back_and_nothing_is_lost,
    ),
    Test::once("dra::wrong_parameters_are_told", wrong_parameters_are_told),
    Test::once("dra::gates_that_are_off_are_named", gates_that_are_off_are_named),
];

pub(crate) const RBAC: &str = include_str!("../../../deploy/kubernetes/rbac.yaml");
pub(crate) const CLASSES: &str = include_str!("../../../deploy/kubernetes/deviceclasses.yaml");
const SHARE: &str = include_str!("../../../deploy/kubernetes/examples/share.yaml");
const LOG: &str = "/var/log/lab/fgpu-dra.log";
pub(crate) const QUERY: &str = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits";

/// The plugin, as a process of the node.
pub(crate) struct Plugin {
    process: Option<Child>,
    program: &'static str,
    kubeconfig: String,
}

impl Plugin {
    /// Starts it with the rights of deploy/kubernetes, and waits until its slices are there.
    #[track_caller]
    pub(crate) fn start(cluster: &Cluster) -> Self {
        Self::start_as(cluster, DRA)
    }

    /// The same with another build of it.
    #[track_caller]
    pub(crate) fn start_as(cluster: &Cluster, program: &'static str) -> Self {
        assert!(Path::new(program).exists(), "{program} is not built: make cluster");
        let objects =
            cluster.kubectl_with(&["create", "--dry-run=client", "--filename=-", "--output=json"], RBAC);
        let role = serde_json::Deserializer::from_str(objects.ok())
            .into_iter::<Value>()
            .map(|object| object.expect("kubectl prints JSON"))
            .flat_map(|object| object["items"].as_array().cloned().unwrap_or_else(|| vec![object]))
            .find(|object| object["kind"] == "ClusterRole")
            .expect("rbac.yaml has a ClusterRole");
        let account = Account::create(cluster, "fgpu-dra", &role["rules"]);
        cluster.apply(CLASSES);
        let mut plugin =
            Self { process: None, program, kubeconfig: account.kubeconfig.display().to_string() };
        plugin.run();
        wait_until("the node's slices", || slices(cluster) >= 2);
        plugin
    }

    /// Starts the process, and waits until the kubelet calls it: to a pod before that the kubelet comes back
    /// after a minute or more.
    #[track_caller]
    pub(crate) fn run(&mut self) {
        self.launch();
        wait_until("the kubelet's registration", || told().contains("the kubelet knows us"));
    }

    /// Starts the process.
    #[track_caller]
    pub(crate) fn launch(&mut self) {
        let _ = fs::remove_file(LOG);
        let log = || Stdio::from(File::options().create(true).append(true).open(LOG).expect("a log"));
        let words = ["--node-name", NODE, "--kubeconfig", &self.kubeconfig];
        let child =
            Command::new(self.program).args(words).stdin(Stdio::null()).stdout(log()).stderr(log()).spawn();
        self.process = Some(child.expect("fgpu-dra starts"));
    }

    /// Stops it: it hears of nothing until [`Plugin::go_on`].
    #[track_caller]
    pub(crate) fn pause(&mut self) {
        run(["kill", "-STOP", &self.pid()]).ok();
    }

    #[track_caller]
    pub(crate) fn go_on(&mut self) {
        run(["kill", "-CONT", &self.pid()]).ok();
    }

    pub(crate) fn pid(&self) -> String {
        self.process.as_ref().map(|process| process.id().to_string()).unwrap_or_default()
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // After a panic the cluster's end needs it: the kubelet gives claims back to it.
        if std::thread::panicking() {
            eprintln!("== fgpu-dra\n{}", told());
        } else {
            self.kill();
        }
    }
}

/// What the plugin has logged since its start.
pub(crate) fn told() -> String {
    fs::read_to_string(LOG).unwrap_or_default()
}

pub(crate) fn slices(cluster: &Cluster) -> usize {
    let all = cluster.get("resourceslices");
    let ours = |slice: &&Value| slice["spec"]["driver"] == "gpu.fgpu.dev";
    all["items"].as_array().map_or(0, |all| all.iter().filter(ours).count())
}

/// A claim of that name, of GPU 0.
pub(crate) fn claim(name: &str, class: &str, capacity: &Value, more: &Value) -> Value {
    let first = "device.attributes['gpu.fgpu.dev'].index == 0";
    let mut claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {
            "deviceClassName": class, "capacity": {"requests": capacity},
            "selectors": [{"cel": {"expression": first}}]}}]}},
    });
    if !more.is_null() {
        claim["spec"]["devices"]["config"] =
            json!([{"opaque": {"driver": "gpu.fgpu.dev", "parameters": more}}]);
    }
    claim
}

/// A pod of that name that uses the claim of its name.
pub(crate) fn pod(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [{"name": "main", "image": "debian13:lab", "command": ["sh", "-c", script],
                            "resources": {"claims": [{"name": "gpu"}]}}],
        },
    })
}

pub(crate) fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

pub(crate) fn give_back(cluster: &Cluster, name: &str) {
    cluster.delete(&format!("pod/{name}"));
    cluster.delete(&format!("resourceclaim/{name}"));
}

/// The sum of what the node's leases hold, MiB of each GPU.
pub(crate) fn held() -> Vec<u64> {
    node::leases().iter().flat_map(|lease| &lease.shares).map(|share| share.1 >> 20).collect()
}

fn two_claims_run_and_the_third_waits() {
    let cluster = Cluster::start();
    let _plugin = Plugin::start(&cluster);
    let script = format!("{QUERY}; alloc fill; sleep 1000");
    let capacity = json!({"memory": "32Gi", "cores": "40"});
    for name in ["one", "two"] {
        cluster.apply(&list(&[claim(name, "fgpu", &capacity, &Value::Null), pod(name, &script)]));
        cluster.wait_for_phase(name, "Running");
        wait_until("what the pod prints", || cluster.logs(name).lines().count() == 2);
        let log = cluster.logs(name);
        let [total, filled] = log.lines().collect::<Vec<_>>()[..] else { panic!("{log}") };
        assert_eq!(total, (32 << 10).to_string());
        let bytes: u64 = filled
            .split("bytes=")
            .nth(1)
            .and_then(|text| text.split(' ').next()?.parse().ok())
            .expect(filled);
        assert!(bytes <= 32 << 30 && bytes > 31 << 30, "{filled}");
    }
    assert_eq!(held(), [32 << 10, 32 << 10]);
    cluster.apply(&list(&[claim("three", "fgpu", &capacity, &Value::Null), pod("three", QUERY)]));
    let reason = cluster.wait_until_unschedulable("three");
    assert!(reason.contains("cannot allocate all claims"), "{reason}");
    give_back(&cluster, "one");
    cluster.wait_for_phase("three", "Succeeded");
    assert_eq!(cluster.logs("three"), (32 << 10).to_string());
    give_back(&cluster, "two");
    give_back(&cluster, "three");
    wait_until("no lease", || node::leases().is_empty());
    assert!(claim_files().is_empty(), "{:?}", claim_files());
}

pub(crate) fn claim_files() -> Vec<String> {
    let names = fs::read_dir("/run/cdi").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with("fgpu.dev-claim")).collect()
}

/// The example of the page, with two containers.
fn containers_of_a_claim_share_it() {
    let cluster = Cluster::start();
    let _plugin = Plugin::start(&cluster);
    let script = format!("[\"sh\", \"-c\", \"{QUERY}\"]");
    let example = SHARE.replace("image: debian\n", "image: debian13:lab\n").replace("[nvidia-smi]", &script);
    cluster.apply(&example);
    cluster.wait_for_phase("notebook", "Succeeded");
    let quarter = (node::gpus()[0].share(250_000) >> 20).to_string();
    for container in ["notebook", "helper"] {
        let log = cluster.kubectl(&["logs", "notebook", "--container", container]);
        assert_eq!(log.ok(), quarter);
    }
    cluster.delete("pod/notebook");
    cluster.delete("resourceclaim/quarter");
    wait_until("no lease", || node::leases().is_empty());
}

fn a_gpu_is_used_by_bytes_or_by_shares() {
    let cluster = Cluster::start();
    let _plugin = Plugin::start(&cluster);
    cluster.apply(&list(&[
        claim("bytes", "fgpu", &json!({"memory": "1Gi"}), &Value::Null),
        pod("bytes", "sleep 1000"),
    ]));
    cluster.wait_for_phase("bytes", "Running");
    cluster.apply(&list(&[
        claim("share", "fgpu-share", &json!({"share": "10"}), &Value::Null),
        pod("share", QUERY),
    ]));
    cluster.wait_until_unschedulable("share");
    give_back(&cluster, "bytes");
    cluster.wait_for_phase("share", "Succeeded");
    assert_eq!(cluster.logs("share"), (node::gpus()[0].share(100_000) >> 20).to_string());
    give_back(&cluster, "share");
    wait_until("no lease", || node::leases().is_empty());
}

fn what_is_killed_comes_back_and_nothing_is_lost() {
    let cluster = Cluster::start();
    let mut plugin = Plugin::start(&cluster);
    let small = |name: &str| {
        list(&[claim(name, "fgpu", &json!({"memory": "1Gi"}), &Value::Null), pod(name, "sleep 1000")])
    };
    cluster.apply(&small("stays"));
    cluster.apply(&small("goes"));
    cluster.wait_for_phase("stays", "Running");
    cluster.wait_for_phase("goes", "Running");
    assert_eq!(held(), [1024, 1024]);
    plugin.kill();
    Component::Kubelet.kill();
    Component::ApiServer.kill();
    run(["fgpu", "gc"]).ok();
    assert_eq!(held(), [1024, 1024], "nobody says that a claim is gone");
    component::start();
    // Its pod ends without a kubelet's call that could be answered.
    cluster.kubectl(&["delete", "pod/goes", "--grace-period=1", "--wait=false"]).ok();
    plugin.run();
    cluster.wait("pod/goes", "delete");
    cluster.delete("resourceclaim/goes");
    wait_until("one lease", || held() == [1024]);
    let log = cluster.kubectl(&["exec", "stays", "--", "sh", "-c", QUERY]);
    assert_eq!(log.ok(), "1024");
    give_back(&cluster, "stays");
    wait_until("no lease", || node::leases().is_empty());
}

fn wrong_parameters_are_told() {
    let cluster = Cluster::start();
    let _plugin = Plugin::start(&cluster);
    let wrong = json!({"apiVersion": "fgpu.dev/v1", "kind": "FgpuConfig", "compute": "burst"});
    cluster.apply(&list(&[claim("wrong", "fgpu", &json!({"memory": "1Gi"}), &wrong), pod("wrong", QUERY)]));
    cluster.wait("pod/wrong", "condition=PodScheduled=True");
    let told =
        || cluster.events("wrong").into_iter().find(|event| event.contains("request gpu: its parameters"));
    wait_until("an event of the pod", || told().is_some());
    let event = told().unwrap_or_default();
    assert!(event.contains("unknown variant `burst`, expected one of `cap`, `share`, `off`"), "{event}");
    assert_eq!(held(), [0u64; 0]);
    let about = ["--field-selector", "involvedObject.kind=ResourceClaim,involvedObject.name=wrong"];
    let of_claim = || cluster.kubectl(&[&["get", "events"], &about[..]].concat()).ok().to_owned();
    wait_until("an event of the claim", || of_claim().contains("FailedPrepare"));
    assert!(of_claim().contains("unknown variant `burst`"), "{}", of_claim());
    give_back(&cluster, "wrong");
}

/// And annotations work beside it, on a GPU that is not offered.
fn gates_that_are_off_are_named() {
    let cluster = Cluster::with_gates("DRAConsumableCapacity=false");
    let _plugin = Plugin::start(&cluster);
    wait_until("the gate's name", || told().contains("feature gate DRAConsumableCapacity off"));
    label(&cluster, "gpu.fgpu.dev/gpus=1");
    wait_until("one GPU less", || node::pool().len() == 1);
    let annotated = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "quarter", "annotations": {"fgpu/fraction": "0.25"}},
        "spec": {"restartPolicy": "Never", "runtimeClassName": "fgpu", "containers": [
            {"name": "main", "image": "debian13:lab", "command": ["sh", "-c", QUERY]}]},
    });
    cluster.apply(&annotated.to_string());
    cluster.wait_for_phase("quarter", "Succeeded");
    assert_eq!(cluster.logs("quarter"), (node::gpus()[0].share(250_000) >> 20).to_string());
    cluster.delete("pod/quarter");
    run(["fgpu", "gc"]).ok();
    label(&cluster, "gpu.fgpu.dev/gpus-");
}

pub(crate) fn label(cluster: &Cluster, words: &str) {
    cluster.kubectl(&["label", "--overwrite", &format!("node/{NODE}"), words]).ok();
}
