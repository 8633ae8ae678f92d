//! What changes of a GPU while the driver stays loaded, and what it is to those who ask for a share.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fgpu_lab::command::{Output, run, wait_until};
use fgpu_lab::docker;
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};

use crate::run::WITH_NODES;

pub(crate) const TESTS: &[Test] = &[
    Test::both(
        "health::a_lost_gpu_serves_nothing_until_it_is_back",
        a_lost_gpu_serves_nothing_until_it_is_back,
    ),
    Test::once("health::memory_of_an_outsider_is_not_granted", memory_of_an_outsider_is_not_granted),
];

fn look() {
    run(["fgpu", "driver", "--state-dir", "/run/fgpu", "--root", "/opt/fgpu-sim", "health"]).ok();
}

/// A container that ends at once.
fn ask(front_end: FrontEnd, annotations: &[(&str, &str)]) -> Output {
    let run = docker::container("busybox").under(front_end).command(["true"]);
    annotations.iter().fold(run, |run, (key, value)| run.annotation(key, value)).run()
}

/// A GPU that is lost, until dropped.
struct Lost(());

impl Lost {
    fn set(code: &str) -> Output {
        let set = ["/opt/fgpu-sim.dist/fgpu-sim", "set", "--root", "/opt/fgpu-sim", "--gpu", "0"];
        run([&set[..], &[&format!("nvml-device={code}")]].concat())
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        Self::set("0");
        look();
    }
}

fn a_lost_gpu_serves_nothing_until_it_is_back(front_end: FrontEnd) {
    let first = [("fgpu/fraction", "0.25"), ("fgpu/device", "0")];
    // With an inventory in which it is well.
    ask(front_end, &first).ok();
    {
        let _lost = Lost(());
        Lost::set("15").ok();
        look();
        let refused = ask(front_end, &first);
        assert!(refused.refused().contains("fgpu: gpu-unhealthy: "), "{}", refused.story());
        assert!(refused.refused().contains("GPU 0 cannot be used: it is lost"), "{}", refused.story());
        // Nor does a wait for it keep anybody else from the others.
        let waits = [&first[..], &[("fgpu/wait", "60s")]].concat();
        assert!(ask(front_end, &waits).refused().contains("fgpu: gpu-unhealthy: "));
        assert_eq!(node::waiting(), 0);
        ask(front_end, &[("fgpu/fraction", "0.25")]).ok();
        assert!(run(["fgpu", "status"]).ok().contains("GPU 0 serves nothing: it is lost"));
        assert!(run(["fgpu", "explain", "fraction=0.25", "device=0"]).refused().contains("gpu-unhealthy"));
    }
    ask(front_end, &first).ok();
    node::wait_until_free();
}

/// A program beside all containers that has allocated, until dropped.
struct Outsider(Child);

impl Outsider {
    fn start(bytes: u64) -> Self {
        if !Path::new("/opt/programs/alloc").exists() {
            run(["tar", "-C", "/", "-xf", "/opt/images/debian13.tar", "./opt/programs"]).ok();
        }
        let library =
            run(["sh", "-c", "ls /opt/fgpu-sim/usr/lib/*/libcuda.so.[0-9]*.[0-9]*"]).ok().to_owned();
        let bytes = bytes.to_string();
        let words = ["/opt/programs/alloc", "--lib", library.trim(), "take", &bytes, "hold"];
        let mut child = Command::new("unshare")
            .args([&["-m", "sh", "-c", WITH_NODES, "sh"][..], &words].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare is there");
        let mut said = String::new();
        let mut byte = [0];
        let out = child.stdout.as_mut().expect("piped");
        while !said.contains("hold") && out.read(&mut byte).is_ok_and(|count| count == 1) {
            said.push(char::from(byte[0]));
        }
        assert!(said.contains("hold"), "{said}");
        Self(child)
    }
}

impl Drop for Outsider {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        // What the driver says of him is gone with him, for the tests that follow.
        look();
    }
}

fn memory_of_an_outsider_is_not_granted() {
    let whole = [("fgpu/fraction", "1"), ("fgpu/device", "0")];
    ask(FrontEnd::Shim, &whole).ok();
    node::wait_until_free();
    let outsider = Outsider::start(8 << 30);
    look();
    let said = format!("is held by processes outside fgpu: pid {} alloc", outsider.0.id());
    let refused = ask(FrontEnd::Shim, &whole);
    assert!(refused.refused().contains("fgpu: no-capacity: "), "{}", refused.story());
    assert!(refused.refused().contains(&said), "{}", refused.story());
    assert!(run(["fgpu", "status"]).ok().contains(&said));
    // What is left is granted, and who is inside is no outsider.
    let container = docker::container("debian13")
        .under(FrontEnd::Shim)
        .annotation("fgpu/fraction", "0.5")
        .annotation("fgpu/device", "0")
        .command(["sh", "-c", "alloc fill; sleep 1000 | alloc take 1073741824 hold"])
        .start();
    container.wait_for_log("hold");
    node::wait_until_recorded();
    look();
    let status: serde_json::Value =
        serde_json::from_str(run(["fgpu", "status", "--json"]).ok()).expect("it is JSON");
    let gpu = &status["gpus"][0];
    assert_eq!(gpu["foreign_processes"].as_array().map(Vec::len), Some(1), "{gpu}");
    let foreign = gpu["foreign_memory"].as_u64().unwrap_or_default();
    assert!((8 << 30..10 << 30).contains(&foreign), "{gpu}");
    container.remove();
    node::wait_until_free();
    // Each create has somebody look, and the next one knows.
    drop(outsider);
    wait_until("what the outsider held is free", || ask(FrontEnd::Shim, &whole).status == 0);
    // It is the administrator's choice.
    node::wait_until_free();
    let _outsider = Outsider::start(8 << 30);
    look();
    let _ignored = node::configure("placement.foreign = \"ignore\"");
    ask(FrontEnd::Shim, &whole).ok();
}
