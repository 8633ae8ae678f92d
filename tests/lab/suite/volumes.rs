//! Volumes over /run, where a share has its files: docs/run-volume.md.

use fgpu_lab::command::{Output, run};
use fgpu_lab::inside::Test;
use fgpu_lab::{docker, hooks, node, podman};

pub(crate) const TESTS: &[Test] = &[Test::once("volumes::over_run", over_run)];

const SEEN: &str = "nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits && ls /run/fgpu";

fn runs(engine: &[&str], options: &[&str]) -> Output {
    let ask = ["--annotation", "fgpu/fraction=0.25"];
    run([engine, &ask, options, &["debian13", "sh", "-c", SEEN]].concat())
}

fn over_run() {
    run(["fgpu", "inventory"]).ok();
    let _installed = hooks::install();
    docker::load("debian13");
    podman::load("debian13");
    let engines = [&["docker", "run", "--rm", "--runtime=fgpu"][..], &["podman", "run", "--rm"]];
    std::fs::create_dir_all("/tmp/over-run").expect("the root file system can be written");
    let granted = (node::gpus()[0].share(250_000) >> 20).to_string();
    for engine in engines {
        for volume in
            ["/run:/run", "/run:/run:ro", "/tmp/over-run:/run", "/var/run:/var/run", "/run/fgpu:/run/fgpu"]
        {
            let output = runs(engine, &["-v", volume]);
            let lines: Vec<_> = output.ok().lines().collect();
            assert_eq!(lines[0], granted, "{}", output.story());
            assert!(lines.contains(&"ledger") && !lines.contains(&"allocations.json"), "{}", output.story());
        }
        assert!(runs(engine, &["--tmpfs", "/run"]).ok().starts_with(&granted));
        node::wait_until_free();
    }
    let shared = runs(engines[1], &["-v", "/run:/run:rshared"]);
    assert!(shared.status != 0 && shared.stderr.contains("fgpu: denied: "), "{}", shared.story());
    node::wait_until_free();
    assert!(std::fs::exists("/run/fgpu/allocations.json").expect("/run can be read"));
    run(["rm", "-rf", "/tmp/over-run"]).ok();
}
