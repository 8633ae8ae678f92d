//! The cluster by itself, without fgpu.

use fgpu_cluster::Cluster;
use fgpu_cluster::account::Account;
use fgpu_cluster::component::{self, Component};
use fgpu_lab::command::run;
use fgpu_lab::daemons;
use fgpu_lab::inside::Test;
use fgpu_lab::outside::Engine;
use serde_json::json;

pub(crate) const TESTS: &[Test] = &[
    Test::baseline("pods::a_pod_prints_to_its_log", a_pod_prints_to_its_log),
    Test::baseline("pods::a_pod_speaks_to_the_api_server", a_pod_speaks_to_the_api_server),
    Test::baseline("pods::a_job_of_two_completes", a_job_of_two_completes),
    Test::baseline("pods::an_account_may_do_what_its_rules_say", an_account_may_do_what_its_rules_say),
    Test::baseline("pods::a_pod_survives_every_component", a_pod_survives_every_component),
];

fn a_pod_prints_to_its_log() {
    let cluster = Cluster::start();
    cluster.apply(
        "{apiVersion: v1, kind: Pod, metadata: {name: plain}, spec: {restartPolicy: Never, \
         containers: [{name: main, image: 'busybox:lab', command: [sh, -c, 'echo hello from $HOSTNAME']}]}}",
    );
    cluster.wait_for_phase("plain", "Succeeded");
    assert_eq!(cluster.logs("plain"), "hello from plain");
    let events = cluster.events("plain");
    assert!(events.iter().any(|event| event.starts_with("Scheduled: ")), "{events:?}");
    cluster.delete("pod/plain");
    cluster.kubectl(&["get", "pod/plain"]).refused();
}

/// A pod has a network of its own, and the service `kubernetes` answers there with the cluster's certificate.
fn a_pod_speaks_to_the_api_server() {
    let cluster = Cluster::start();
    // The image's busybox checks no certificate. A request in plain text is refused with a sentence.
    let script = r#"ip -4 -o address show dev eth0 | sed 's/.*inet //; s/ .*//'
        printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 10 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT
        cat /var/run/secrets/kubernetes.io/serviceaccount/ca.crt"#;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "caller"},
        "spec": {"restartPolicy": "Never", "containers": [
            {"name": "main", "image": "busybox:lab", "command": ["sh", "-c", script]}]},
    });
    cluster.apply(&pod.to_string());
    cluster.wait_for_phase("caller", "Succeeded");
    let log = cluster.logs("caller");
    assert!(log.starts_with("10.244.1."), "{log}");
    assert!(log.contains("Client sent an HTTP request to an HTTPS server"), "{log}");
    let authority = run(["cat", "/opt/cluster/pki/ca.crt"]);
    assert!(log.ends_with(authority.ok()), "{log}");
}

fn a_job_of_two_completes() {
    let cluster = Cluster::start();
    cluster.apply(
        "{apiVersion: batch/v1, kind: Job, metadata: {name: two}, spec: {completions: 2, parallelism: 2, \
         template: {spec: {restartPolicy: Never, \
         containers: [{name: main, image: 'busybox:lab', command: ['true']}]}}}}",
    );
    cluster.wait("job/two", "condition=Complete");
    let status = cluster.get("job/two")["status"].clone();
    assert_eq!((&status["succeeded"], &status["failed"]), (&json!(2), &json!(null)));
}

fn an_account_may_do_what_its_rules_say() {
    let cluster = Cluster::start();
    let resources = json!(["resourceslices"]);
    let rules = json!([{"apiGroups": ["resource.k8s.io"], "resources": resources, "verbs": ["get", "list"]}]);
    let account = Account::create(&cluster, "reader", &rules);
    let config = format!("--kubeconfig={}", account.kubeconfig.display());
    cluster.kubectl(&["get", "resourceslices", &config]).ok();
    let refused = cluster.kubectl(&["get", "pods", &config]);
    assert!(refused.refused().contains("serviceaccount:default:reader"), "{}", refused.story());
}

/// SIGKILL of all, the container engine too. The cluster that comes up again knows the pod, whose container
/// never ended.
fn a_pod_survives_every_component() {
    let cluster = Cluster::start();
    cluster.apply(
        "{apiVersion: v1, kind: Pod, metadata: {name: stays}, spec: {\
         containers: [{name: main, image: 'busybox:lab', command: [sleep, '1000']}]}}",
    );
    cluster.wait_for_phase("stays", "Running");
    let container = || cluster.get("pod/stays")["status"]["containerStatuses"][0].clone();
    let before = container();
    Component::ALL.into_iter().for_each(Component::kill);
    match component::engine() {
        Engine::Containerd => daemons::kill(&["containerd"]),
        Engine::Crio => Component::Crio.kill(),
    }
    daemons::start();
    component::start();
    cluster.wait("pod/stays", "condition=Ready");
    let after = container();
    assert!(before["containerID"].is_string(), "{before}");
    assert_eq!((&after["containerID"], &after["restartCount"]), (&before["containerID"], &json!(0)));
    cluster.delete("pod/stays");
}
