//! `fgpu resize`: another share for a container that runs.

use fgpu_lab::command::{Output, run};
use fgpu_lab::docker;
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};

use crate::limit::number;

pub(crate) const TESTS: &[Test] = &[
    Test::once("resize::running_process_gets_more", running_process_gets_more),
    Test::once("resize::less_than_is_used_ends_nobody", less_than_is_used_ends_nobody),
    Test::once("resize::there_must_be_room", there_must_be_room),
    Test::docker("resize::restart_asks_anew", restart_asks_anew),
];

fn resize(id: &str, words: &[&str]) -> Output {
    run([&["fgpu", "resize", id], words].concat())
}

/// A container with half of GPU 0 whose `alloc` does `words`, the first `hold` of which ends with [`go_on`].
fn start(words: &str) -> docker::Container {
    let command = format!("while [ ! -e /tmp/go ]; do sleep 0.02; done | alloc {words}; exec sleep 1000");
    docker::container("debian13")
        .under(FrontEnd::Shim)
        .annotation("fgpu/fraction", "0.5")
        .annotation("fgpu/device", "0")
        .command(["sh", "-c", &command])
        .start()
}

fn go_on(container: &docker::Container) {
    container.exec(["touch", "/tmp/go"]).ok();
}

fn running_process_gets_more() {
    let container = start("fill hold fill info");
    let before = container.wait_for_log("hold");
    let said = resize(&container.id[..12], &["--fraction", "0.75"]).ok().to_owned();
    assert!(said.contains("50% → 75% of the SMs"), "{said}");
    go_on(&container);
    let after = container.wait_for_log("info ");
    let [first, second] = [&before, &after]
        .map(|log| number(log.lines().rfind(|line| line.starts_with("fill")).unwrap_or_default(), "bytes="));
    let [half, more] = [500_000, 750_000].map(|ppm| node::gpus()[0].share(ppm));
    assert!(first <= half && second <= more - first, "{before} {after}");
    assert!(first + second >= more / 100 * 99, "{before} {after}");
    assert_eq!(number(&after, "total="), more);
    assert_eq!(node::only_lease().shares[0].1, more);
    // What is not named stays.
    resize(&container.id, &["--cores", "10%"]).ok();
    assert_eq!((node::only_lease().shares[0].1, node::only_lease().shares[0].2), (more, 100_000));
    let query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"];
    assert_eq!(container.exec(query).ok(), (more >> 20).to_string());
}

fn less_than_is_used_ends_nobody() {
    let container = start("take 1073741824 hold take 1048576 free take 1048576");
    container.wait_for_log("hold");
    let output = resize(&container.id, &["--memory", "512Mi"]);
    output.ok();
    assert!(
        output.stderr.starts_with("fgpu: warning: ") && output.stderr.contains("uses 1."),
        "{}",
        output.story()
    );
    go_on(&container);
    let said = container.wait_for_log("free");
    assert!(said.contains("take bytes=1048576 error=2"), "{said}");
    let said = container.wait_for_log("take bytes=1048576 error=0");
    assert!(said.ends_with("error=0\n"), "{said}");
    assert_eq!(container.inspect("{{.State.Running}}"), "true");
}

fn there_must_be_room() {
    let container = start("hold");
    let neighbour = start("hold");
    let before = node::leases();
    for (words, code) in [
        (&["--fraction", "0.6"][..], "no-capacity"),
        (&["--memory", "1Ti"], "too-large"),
        (&["--fraction", "2"], "invalid-request"),
    ] {
        let output = resize(&container.id, words);
        assert!(output.refused().starts_with(&format!("fgpu: {code}: ")), "{}", output.story());
    }
    assert!(resize("no-such-container", &["--fraction", "0.1"]).refused().contains("no-such-container"));
    assert_eq!(node::leases(), before);
    neighbour.remove();
    resize(&container.id, &["--fraction", "0.6"]).ok();
    assert_eq!(node::only_lease().shares[0].2, 600_000);
}

/// A container that starts again asks for what its annotations say: only its engine keeps anything of it over
/// its end.
fn restart_asks_anew(front_end: FrontEnd) {
    let container = docker::container("debian13").under(front_end).annotation("fgpu/fraction", "0.25");
    let container = container.command(["sleep", "1000"]).start();
    resize(&container.id, &["--fraction", "0.5"]).ok();
    assert_eq!(node::only_lease().shares[0].2, 500_000);
    container.docker(&["restart", "--time", "0"]).ok();
    assert_eq!(node::only_lease().shares[0].2, 250_000);
    let query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"];
    assert_eq!(container.exec(query).ok(), (node::gpus()[0].share(250_000) >> 20).to_string());
}
