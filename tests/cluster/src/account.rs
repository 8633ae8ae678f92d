//! Service accounts, for programs of a test that speak to the API server.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::Cluster;

/// The node's name, as fields of a resource slice want it.
pub const NODE: &str = "node1";

/// The administrator's kubeconfig, of which the others take the server and its certificate.
const ADMIN: &str = "/opt/cluster/pki/admin.conf";

/// A service account of the default namespace.
#[derive(Debug, Clone)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// A kubeconfig that has its token, which is good for a day.
    pub kubeconfig: PathBuf,
}

impl Account {
    /// Makes one that may do what `rules` of a ClusterRole say:
    /// `[{"apiGroups": […], "resources": […], "verbs": […]}]`. It ends with the test.
    #[track_caller]
    pub fn create(cluster: &Cluster, name: &str, rules: &Value) -> Self {
        let account = |kind: &str| json!({"kind": kind, "name": name, "namespace": "default"});
        let metadata = json!({"name": name});
        let named =
            |version: &str, kind: &str| json!({"apiVersion": version, "kind": kind, "metadata": metadata});
        let mut role = named("rbac.authorization.k8s.io/v1", "ClusterRole");
        role["rules"] = rules.clone();
        let mut binding = named("rbac.authorization.k8s.io/v1", "ClusterRoleBinding");
        binding["roleRef"] =
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
        binding["subjects"] = json!([account("ServiceAccount")]);
        let objects = [named("v1", "ServiceAccount"), role, binding];
        cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string());
        Self { name: name.to_owned(), kubeconfig: kubeconfig(cluster, name) }
    }

    /// Takes one that there is already, for example one of a chart.
    #[track_caller]
    pub fn existing(cluster: &Cluster, name: &str) -> Self {
        Self { name: name.to_owned(), kubeconfig: kubeconfig(cluster, name) }
    }
}

/// Writes the kubeconfig of a service account, with a token that is bound to the node: the claims of the
/// token say which node its holder is on, as a pod's do, and rules for `associated-node` ask for that.
#[track_caller]
fn kubeconfig(cluster: &Cluster, name: &str) -> PathBuf {
    let bound = ["--bound-object-kind=Node", &format!("--bound-object-name={NODE}")].map(str::to_owned);
    let token = cluster.kubectl(&["create", "token", name, "--duration=24h", &bound[0], &bound[1]]);
    let view = cluster.kubectl(&["config", "view", "--raw", "--output=json", "--kubeconfig", ADMIN]);
    let mut config: Value = serde_json::from_str(view.ok()).expect("kubectl prints JSON");
    config["users"] = json!([{"name": name, "user": {"token": token.ok()}}]);
    config["contexts"] = json!([{"name": "lab", "context": {"cluster": "lab", "user": name}}]);
    let path = PathBuf::from(format!("/run/lab/{name}.conf"));
    fs::write(&path, config.to_string()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path
}
