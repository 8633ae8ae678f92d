//! The programs of the cluster, run by `inside/cluster`.

use std::{env, fs};

use fgpu_lab::command::{run, wait_until};
use fgpu_lab::outside::Engine;
use fgpu_lab::process;

const SCRIPT: &str = "/cluster/cluster";

/// A program of the cluster. containerd is none: [`fgpu_lab::daemons`] has that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// The store, of which the API server is the only client.
    Etcd,
    /// The API server.
    ApiServer,
    /// The controllers, which make pods of Jobs and Deployments, and claims of their templates.
    ControllerManager,
    /// The scheduler, which allocates claims.
    Scheduler,
    /// The node's agent.
    Kubelet,
    /// The node's container engine, where that is CRI-O.
    Crio,
}

impl Component {
    /// Those of every cluster, in the order in which they start.
    pub const ALL: [Component; 5] = [
        Component::Etcd,
        Component::ApiServer,
        Component::ControllerManager,
        Component::Scheduler,
        Component::Kubelet,
    ];

    /// Its program's name, which is also its log's.
    pub const fn name(self) -> &'static str {
        match self {
            Component::Etcd => "etcd",
            Component::ApiServer => "kube-apiserver",
            Component::ControllerManager => "kube-controller-manager",
            Component::Scheduler => "kube-scheduler",
            Component::Kubelet => "kubelet",
            Component::Crio => "crio",
        }
    }

    /// Its process id.
    #[track_caller]
    pub fn pid(self) -> i32 {
        let status = run([SCRIPT, "status"]);
        let prefix = format!("{} ", self.name());
        let line = status.ok().lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_default();
        line.parse().unwrap_or_else(|_| panic!("{} does not run: {}", self.name(), status.stdout))
    }

    /// SIGKILLs it and waits for its end. It stays down until [`start`].
    #[track_caller]
    pub fn kill(self) {
        let pid = self.pid();
        process::kill(pid);
        wait_until("the end of a killed component", || !process::lives(pid));
    }

    /// What it wrote since it was started first.
    #[track_caller]
    pub fn log(self) -> String {
        let path = format!("/var/log/lab/{}.log", self.name());
        let text = fs::read(&path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// The container engine of this environment's node.
pub fn engine() -> Engine {
    let name = env::var(Engine::VARIABLE).unwrap_or_default();
    if name == Engine::Crio.name() { Engine::Crio } else { Engine::Containerd }
}

/// Starts those that do not run, and waits until the node is ready.
#[track_caller]
pub fn start() {
    run([SCRIPT, "start"]).ok();
}

/// Ends all of them. Containers and what etcd has stay.
#[track_caller]
pub fn stop() {
    run([SCRIPT, "stop"]).ok();
}

/// SIGKILLs all of them, as the end of a machine does.
#[track_caller]
pub fn kill_all() {
    let engine = (engine() == Engine::Crio).then_some(Component::Crio);
    for component in Component::ALL.into_iter().rev().chain(engine) {
        component.kill();
    }
}

/// Starts all of them anew with these feature gates, as the option `--feature-gates` has them.
#[track_caller]
pub(crate) fn restart_with_gates(gates: &str) {
    stop();
    run(["env", &format!("FEATURE_GATES={gates}"), SCRIPT, "start"]).ok();
}
