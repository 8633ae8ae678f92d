//! What goes around the libraries is seen from outside.

use std::fs;

use fgpu_lab::command::{Output, run, shell, wait_until};
use fgpu_lab::docker::{self, Container};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};
use serde_json::Value;

pub(crate) const TESTS: &[Test] = &[Test::both(
    "exceeded::a_tenant_beyond_its_limit_is_reported_and_stopped",
    a_tenant_beyond_its_limit_is_reported_and_stopped,
)];

/// Loads the real driver from where it lies, takes so many bytes of it and waits.
const AROUND: &str = r#"exec alloc --lib "$(echo /run/fgpu/driver-*/cuda)" take "$0" wait"#;

fn start(front_end: FrontEnd, name: &str, command: &[&str]) -> Container {
    let quarter = docker::container("debian13").under(front_end).annotation("fgpu/fraction", "0.25");
    quarter.annotation("fgpu/device", "0").options(["--name", name]).command(command.iter().copied()).start()
}

fn events() -> Vec<Value> {
    let output: Output = run(["fgpu", "events", "--json", "--event", "exceeded"]);
    output.ok().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn marked() -> Vec<String> {
    let status: Value = serde_json::from_str(run(["fgpu", "status", "--json"]).ok()).expect("JSON");
    let leases = status["leases"].as_array().expect("a list").iter();
    let marked = leases.filter(|lease| !lease["exceeded"].is_null());
    marked.map(|lease| lease["container"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Started as its unit would be, which this environment has not.
fn watch() {
    shell("fgpu watch-exceeded >/run/lab/watch.out 2>&1 & echo $! >/run/lab/watch.pid").ok();
}

/// It ends by itself when it has seen that no container is left.
fn wait_until_nobody_watches() {
    wait_until("the end of the watcher", || {
        shell("kill -0 $(cat /run/lab/watch.pid) 2>/dev/null").status != 0
    });
    assert!(!std::path::Path::new("/run/fgpu/exceeded.json").exists());
}

fn a_tenant_beyond_its_limit_is_reported_and_stopped(front_end: FrontEnd) {
    let granted = node::gpus()[0].share(250_000);
    let twice = (granted * 2).to_string();
    let before = events().len();
    // Within its grant, to the last byte that there is.
    let within = start(front_end, "within", &["alloc", "fill", "wait"]);
    let around = ["sh", "-c", AROUND, &twice];
    {
        let above = start(front_end, "above", &around);
        watch();
        wait_until("a mark", || !marked().is_empty());
        assert_eq!(marked(), std::slice::from_ref(&above.id));
        let events = events();
        assert_eq!(events.len(), before + 1);
        assert_eq!(
            (&events[before]["container"], &events[before]["stopped"]),
            (&above.id.clone().into(), &false.into())
        );
        assert!(events[before]["used_memory"][0].as_u64().expect("bytes") >= granted * 2);
        run(["docker", "rm", "--force", "above"]).ok();
        wait_until("the end of a mark", || marked().is_empty());
    }
    run(["docker", "rm", "--force", "within"]).ok();
    node::wait_until_free();
    wait_until_nobody_watches();

    let usual = fs::read_to_string("/etc/fgpu/config.toml").expect("it is there");
    fs::write("/etc/fgpu/config.toml", format!("{usual}\n[exceeded]\nact = \"stop\"\n"))
        .expect("/etc is writable");
    let within_again = start(front_end, "within", &["alloc", "fill", "wait"]);
    let above = start(front_end, "above", &around);
    watch();
    wait_until("the end of who goes around", || {
        run(["docker", "inspect", "--format", "{{.State.ExitCode}} {{.State.Running}}", "above"]).ok()
            == "137 false"
    });
    wait_until("an event", || events().len() == before + 2);
    let last = &events()[before + 1];
    assert_eq!((&last["container"], &last["stopped"]), (&above.id.clone().into(), &true.into()));
    assert_eq!(node::only_lease().id, within_again.id);
    fs::write("/etc/fgpu/config.toml", usual).expect("/etc is writable");
    run(["docker", "rm", "--force", "within", "above"]).ok();
    node::wait_until_free();
    wait_until_nobody_watches();
    drop(within);
}
