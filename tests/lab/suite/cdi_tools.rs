//! CDI devices in the files of other tools: Compose and the Dev Container CLI.

use std::fs;
use std::thread;

use fgpu_lab::command::{run, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::{docker, node};
use serde_json::{Value, json};

use crate::cdi::QUERY;
use crate::hook::assert_nothing_is_left;

pub(crate) const TESTS: &[Test] = &[
    Test::once("cdi_tools::compose_shares_a_gpu_and_the_third_service_waits", compose_shares_a_gpu),
    Test::once("cdi_tools::a_dev_container_has_its_share", a_dev_container_has_its_share),
];

/// Two halves of the node's one GPU, and a third half, which waits until a service stops.
fn compose_shares_a_gpu() {
    const PROJECT: [&str; 4] = ["docker", "compose", "--project-directory", "/run/lab/compose"];
    let _node = node::simulated("a100-40.toml");
    docker::load("debian13");
    let service = |name: &str| {
        format!(
            "  {name}:\n    image: debian13\n    network_mode: none\n    stop_signal: KILL\n    command: sleep 1000\n    \
             devices: [\"fgpu.dev/gpu=0.5\"]\n"
        )
    };
    let waiting = "    annotations:\n      fgpu/wait: 5m\n    depends_on: [one, two]\n";
    let text = format!("services:\n{}{}{}{waiting}", service("one"), service("two"), service("three"));
    fs::create_dir_all("/run/lab/compose").expect("/run can be written");
    fs::write("/run/lab/compose/compose.yaml", &text).expect("/run can be written");
    let compose = |words: &[&str]| run(PROJECT.iter().chain(words));
    if !knows_devices() {
        let up = compose(&["up", "--detach"]);
        assert!(up.refused().contains("no such file or directory"), "{}", up.story());
        compose(&["down"]).ok();
        return;
    }
    let up = thread::spawn(move || run(PROJECT.iter().chain(&["up", "--detach"])));
    wait_until("two services and one that waits", || node::leases().len() == 2 && node::waiting() == 1);
    let look = compose(&["exec", "-T", "one", "sh", "-c", QUERY]);
    let granted = node::gpus()[0].share(500_000);
    assert_eq!(look.ok(), (granted >> 20).to_string());
    compose(&["stop", "one"]).ok();
    up.join().expect("compose ends").ok();
    assert_eq!((node::leases().len(), node::waiting()), (2, 0));
    assert_eq!(compose(&["exec", "-T", "three", "sh", "-c", QUERY]).ok(), (granted >> 20).to_string());
    compose(&["down"]).ok();
    node::wait_until_free();
    assert_nothing_is_left();
}

/// Compose before 2.30 takes a CDI device for a file (docker/compose#12184).
fn knows_devices() -> bool {
    let version = run(["docker", "compose", "version", "--short"]);
    let mut numbers = version.ok().split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(2), Some(30))
}

/// The file of docs/dev-containers.md, with the lab's image, by the CLI that editors use.
fn a_dev_container_has_its_share() {
    const FOLDER: &str = "/run/lab/workspace";
    const CLI: [&str; 2] =
        ["/opt/fgpu-sim.dist/devcontainer/node", "/opt/fgpu-sim.dist/devcontainer/cli/devcontainer.js"];
    let page = include_str!("../../../docs/dev-containers.md");
    let text = page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("it has one");
    let mut config: Value = serde_json::from_str(text).expect("it is JSON");
    config["image"] = json!("debian13");
    // Else the CLI builds an image from this one, for which there is no registry.
    config["updateRemoteUserUID"] = json!(false);
    docker::load("debian13");
    fs::create_dir_all(format!("{FOLDER}/.devcontainer")).expect("/run can be written");
    fs::write(format!("{FOLDER}/.devcontainer/devcontainer.json"), config.to_string()).expect("as above");
    let cli = |words: &[&str]| {
        run(CLI.iter().chain(&words[..1]).chain(&["--workspace-folder", FOLDER]).chain(&words[1..]))
    };
    let up: Value = serde_json::from_str(cli(&["up"]).ok()).expect("it prints JSON");
    let lease = node::only_lease();
    assert_eq!(up["containerId"], lease.id);
    let look = cli(&["exec", "sh", "-c", QUERY]);
    assert_eq!(look.ok(), (node::gpus()[0].share(250_000) >> 20).to_string(), "{}", look.story());
    run(["docker", "rm", "--force", &lease.id]).ok();
    node::wait_until_free();
    run(["rm", "-rf", FOLDER]).ok();
    assert_nothing_is_left();
}
