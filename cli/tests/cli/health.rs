//! GPUs that are lost, and memory that others hold.

use super::*;

/// As a create has it done, which does not wait for it.
fn look_at_gpus(node: &Node) {
    let (state, root) = (node.state(), node.root());
    let words =
        ["driver", "--state-dir", state.to_str().unwrap(), "--root", root.to_str().unwrap(), "health"];
    node.good(&words);
}

#[test]
fn a_gpu_that_is_lost_after_the_inventory_serves_nothing_until_it_is_back() {
    let node = Node::with_gpus("0,0");
    node.good(&["inventory", "--refresh"]);
    let standin = |gpus: &str| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../driver/src/nvml/standin.c");
        let version = format!("-DVERSION=\"{VERSION}\"");
        let defines =
            [format!("-DGPUS={gpus}"), version, "-DINIT=0".into(), "-DMEMORY_2".into(), "-DMIG=0".into()];
        node.library("libnvidia-ml", &source, &defines);
    };
    let granted = |device: &str| node.json(&["explain", "--json", "fraction=1", device])["granted"].clone();
    assert_eq!(granted("device=0"), true);
    for lost in ["15,0", "16,0"] {
        standin(lost);
        assert_eq!(granted("device=0"), true, "nobody has looked");
        look_at_gpus(&node);
        let error = node.bad(&["explain", "fraction=0.5", "device=0"], "gpu-unhealthy");
        assert!(error.contains("GPU 0 cannot be used: it "), "{error}");
        node.bad(&["explain", "count=2"], "gpu-unhealthy");
        let answer = node.json(&["explain", "--json", "fraction=0.5"]);
        assert_eq!(answer["gpus"][0]["reason"], "it is lost or must be reset");
        assert_eq!(
            (&answer["gpus"][0]["granted"], &answer["gpus"][1]["granted"]),
            (&false.into(), &true.into())
        );
        let status = node.good(&["status"]);
        assert!(status.contains(" unhealthy ") && status.contains("GPU 0 serves nothing: it "), "{status}");
        let status = node.json(&["status", "--json"]);
        assert!(status["gpus"][0]["unhealthy"].is_string() && status["gpus"][1]["unhealthy"].is_null());
        standin("0,0");
        look_at_gpus(&node);
        assert_eq!(granted("device=0"), true);
    }
}

#[test]
fn memory_that_somebody_outside_holds_is_shown_and_not_free() {
    let meter = tempfile::NamedTempFile::new().unwrap();
    let used = format!("-DUSED=\"{}\"", meter.path().display());
    let node = Node::with_nvml(&["-DGPUS=0".into(), "-DINIT=0".into(), "-DCOMPUTE=2".into(), used]);
    node.good(&["inventory", "--refresh"]);
    let free = || node.json(&["explain", "--json", "memory=1Gi"])["gpus"][0]["free_memory"].as_u64().unwrap();
    let whole = free();
    let mut outsider = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(meter.path(), format!("8000 {}", outsider.id())).unwrap();
    look_at_gpus(&node);
    assert_eq!(free(), whole - (8000 << 20));
    let who = format!("is held by processes outside fgpu: pid {} sleep", outsider.id());
    let status = node.good(&["status"]);
    assert!(status.contains(&format!("7.8 GiB of GPU 0 {who}.")), "{status}");
    let shown = node.json(&["status", "--json"]);
    assert_eq!(shown["gpus"][0]["foreign_memory"], 8000u64 << 20);
    assert_eq!(shown["gpus"][0]["foreign_processes"][0]["name"], "sleep");
    assert!(node.good(&["explain", "memory=1Gi"]).contains("Not free: 7.8 GiB of GPU 0 is held by"));
    assert_eq!(node.json(&["explain", "--json", "memory=1Gi"])["gpus"][0]["foreign_memory"], 8000u64 << 20);
    let error = node.bad(&["explain", "memory=20Gi"], "no-capacity");
    assert!(error.contains(&format!("8000 MiB of GPU 0 {who}")), "{error}");
    // A configuration that says so grants it nevertheless.
    let config = fs::read_to_string(node.config()).unwrap();
    fs::write(node.config(), format!("{config}[placement]\nforeign = \"ignore\"\n")).unwrap();
    assert_eq!(free(), whole);
    fs::write(node.config(), config).unwrap();
    // Memory in use with nobody behind it keeps no share away.
    outsider.kill().unwrap();
    outsider.wait().unwrap();
    assert_eq!(free(), whole, "who has ended holds nothing, though nobody has looked since");
    look_at_gpus(&node);
    assert_eq!(free(), whole);
}
