//! What the cluster knows, for who looks why a test failed.

use fgpu_lab::command::run;

use crate::cluster::KUBECTL;
use crate::component::{self, Component};

/// Lines of each log: a component says most of what matters at its end.
const LINES: &str = "--lines=40";

/// Prints the objects of the default namespace and the ends of all logs to standard error.
pub(crate) fn print() {
    let commands: [&[&str]; 4] = [
        &["get", "nodes,pods,resourceclaims,resourceslices,deviceclasses", "--output=wide"],
        &["describe", "pods"],
        &["get", "resourceclaims,resourceslices", "--output=yaml"],
        &["get", "events", "--sort-by=.lastTimestamp"],
    ];
    for command in commands {
        let output = run(KUBECTL.iter().chain(command));
        eprintln!("cluster: kubectl {}\n{}{}", command.join(" "), output.stdout, output.stderr);
    }
    let components = Component::ALL.map(Component::name);
    for name in components.into_iter().chain([component::engine().name()]) {
        let path = format!("/var/log/lab/{name}.log");
        eprintln!("cluster: {path}\n{}", run(["tail", LINES, &path]).stdout);
    }
}
