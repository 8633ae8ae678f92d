//! A running cluster, through kubectl.

use std::thread;
use std::time::Duration;

use fgpu_lab::command::{Output, run_with};
use fgpu_lab::node;
use serde_json::Value;

use crate::{component, report};

pub(crate) const KUBECTL: [&str; 2] = ["/cluster/cluster", "kubectl"];

/// Seconds after which kubectl gives up a wait: far above what any takes on a busy machine.
const PATIENCE: &str = "--timeout=120s";

/// What a test or its programs may have made, in the order of deletion: a claim is kept while a pod uses it. Of
/// some kinds the cluster has objects of its own; of these only what carries the mark is deleted.
const KINDS: [(&str, &str); 6] = [
    ("deployments,daemonsets,jobs", "--all"),
    ("pods", "--all"),
    ("resourceclaims,resourceclaimtemplates", "--all"),
    ("resourceslices,deviceclasses", "--all"),
    ("serviceaccounts,configmaps,secrets", MARKED),
    (
        "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings",
        MARKED,
    ),
];

/// What the objects of [`Cluster::apply`] are marked with, so that the end of a test finds them.
const MARK: &str = "fgpu-lab/test=yes";
const MARKED: &str = "--selector=fgpu-lab/test=yes";

/// A cluster that runs. Its drop deletes what was applied, and after a panic prints what the cluster knows.
#[derive(Debug)]
pub struct Cluster {
    gates: bool,
}

impl Cluster {
    /// A cluster: what runs of one stays as it is.
    #[track_caller]
    pub fn start() -> Self {
        component::start();
        Self { gates: false }
    }

    /// A cluster with feature gates of the test's own, for example `DRAConsumableCapacity=false`.
    #[track_caller]
    pub fn with_gates(gates: &str) -> Self {
        component::restart_with_gates(gates);
        Self { gates: true }
    }

    /// Runs kubectl as the cluster's administrator.
    #[track_caller]
    pub fn kubectl(&self, arguments: &[&str]) -> Output {
        self.kubectl_with(arguments, "")
    }

    /// The same with a standard input, for `--filename=-`.
    #[track_caller]
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Output {
        run_with(KUBECTL.iter().chain(arguments), input)
    }

    /// Creates or changes the objects of a YAML or JSON text.
    #[track_caller]
    pub fn apply(&self, text: &str) {
        self.try_apply(text).ok();
    }

    /// The same, where the API server may refuse.
    #[track_caller]
    pub fn try_apply(&self, text: &str) -> Output {
        let labelled = self.kubectl_with(&["label", "--local", "--filename=-", "--output=json", MARK], text);
        if labelled.status != 0 {
            return labelled;
        }
        self.kubectl_with(&["apply", "--filename=-"], &labelled.stdout)
    }

    /// An object as the API server has it, for example `pod/trainer`.
    #[track_caller]
    pub fn get(&self, object: &str) -> Value {
        let got = self.kubectl(&["get", object, "--output=json"]);
        serde_json::from_str(got.ok()).unwrap_or_else(|error| panic!("{error}: {}", got.story()))
    }

    /// Waits until an object is as `kubectl wait --for` says it: `condition=PodScheduled=False`,
    /// `jsonpath={.status.phase}=Running`, `delete`. The object may not be there yet.
    #[track_caller]
    pub fn wait(&self, object: &str, until: &str) {
        if until != "delete" {
            self.kubectl(&["wait", object, "--for=create", PATIENCE]).ok();
        }
        self.kubectl(&["wait", object, &format!("--for={until}"), PATIENCE]).ok();
    }

    /// Waits until a pod is `Running`, `Succeeded` or `Failed`.
    #[track_caller]
    pub fn wait_for_phase(&self, pod: &str, phase: &str) {
        self.wait(&format!("pod/{pod}"), &format!("jsonpath={{.status.phase}}={phase}"));
    }

    /// Waits until the scheduler has found no place for a pod, and returns its reason.
    #[track_caller]
    pub fn wait_until_unschedulable(&self, pod: &str) -> String {
        self.wait(&format!("pod/{pod}"), "condition=PodScheduled=False");
        let pod = self.get(&format!("pod/{pod}"));
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let scheduled = conditions.iter().find(|condition| condition["type"] == "PodScheduled");
        let message = scheduled.and_then(|condition| condition["message"].as_str());
        message.unwrap_or_else(|| panic!("no reason in {pod}")).to_owned()
    }

    /// What a pod's container printed, without the white space around it.
    #[track_caller]
    pub fn logs(&self, pod: &str) -> String {
        self.kubectl(&["logs", pod]).ok().to_owned()
    }

    /// The events of a pod, `REASON: MESSAGE` each, the latest last.
    #[track_caller]
    pub fn events(&self, pod: &str) -> Vec<String> {
        const LINE: &str = r#"jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}"#;
        let about = format!("involvedObject.kind=Pod,involvedObject.name={pod}");
        let found = self.kubectl(&[
            "get",
            "events",
            "--field-selector",
            &about,
            "--sort-by=.lastTimestamp",
            "--output",
            LINE,
        ]);
        found.ok().lines().map(str::to_owned).collect()
    }

    /// Deletes an object and waits until it is gone. A pod gets a second to end.
    #[track_caller]
    pub fn delete(&self, object: &str) {
        let soon: &[&str] = if object.starts_with("pod/") { &["--grace-period=1"] } else { &[] };
        self.kubectl(&[&["delete", object, PATIENCE], soon].concat()).ok();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            report::print();
        }
        // Not `ok`: a second panic would end the program, and what is left shows in the next test.
        for (kinds, which) in KINDS {
            let grace: &[&str] = match kinds {
                "pods" => &["--grace-period=1"],
                "deployments,daemonsets,jobs" => &["--cascade=foreground"],
                _ => &[],
            };
            let deleted = self.kubectl(&[&["delete", kinds, which, PATIENCE], grace].concat());
            if deleted.status != 0 {
                eprintln!("cluster: {}", deleted.story());
            }
        }
        // What a plugin that has ended, or that a panic left, held for claims.
        run_with(["pkill", "-KILL", "-x", "fgpu-dra"], "");
        if !node::pool().is_empty() {
            run_with(["fgpu", "release", "--force", "kubernetes/node1"], "");
        }
        // A pod's share ends with its cgroup, which the kubelet removes within seconds and gc sees. What does
        // not go is found by the lab.
        for _ in 0..100 {
            if run_with(["fgpu", "gc"], "").status != 0 || node::leases().is_empty() {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
        if self.gates {
            component::stop();
        }
    }
}
