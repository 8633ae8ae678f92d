//! `make bench`, the part that runs inside the lab: what fgpu adds to a create, to a `docker run` and to memory.
//!
//! Every figure is a difference of medians of two ways of doing the same thing, taken in turns in one run, so that
//! what else the machine does meets both. Run by `tests/lab/bench`; prints one Markdown table row per figure.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: usize = 150;
const DOCKER_ROUNDS: usize = 100;

fn main() {
    println!("| figure | without | with | added | limit |\n|---|---|---|---|---|");
    for (real, limit) in [("crun", "3 ms"), ("runc", "5 ms")] {
        if works(real) {
            create(real, limit);
        } else {
            println!("| create, {real} | does not run in this environment | | | {limit} |");
        }
    }
    docker_run();
    resident();
}

/// crun refuses the hybrid hierarchy of a cgroup v1 environment.
fn works(real: &str) -> bool {
    let bundle = bundle(real, false);
    let ok = run(real, &["create", "--bundle", &bundle, "fgpu-bench-probe"]).is_ok();
    let _ = run(real, &["delete", "--force", "fgpu-bench-probe"]);
    ok
}

fn create(real: &str, limit: &str) {
    std::fs::create_dir_all("/etc/fgpu").expect("/etc/fgpu can be made");
    let config = std::fs::read_to_string("/etc/fgpu/config.toml").unwrap_or_default();
    std::fs::write("/etc/fgpu/config.toml", format!("runtimes = [\"{real}\"]\n{config}"))
        .expect("the configuration can be written");
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let id = format!("fgpu-bench-{round}");
        let mut ways = [(real, &mut without, false), ("fgpu-runtime", &mut with, true)];
        ways.rotate_left(round % 2);
        for (program, times, annotated) in ways {
            let bundle = bundle(real, annotated);
            let start = Instant::now();
            run(program, &["create", "--bundle", &bundle, &id])
                .unwrap_or_else(|error| panic!("{program}: {error}"));
            times.push(start.elapsed());
            run(program, &["delete", "--force", &id]).unwrap_or_else(|error| panic!("{program}: {error}"));
        }
    }
    std::fs::write("/etc/fgpu/config.toml", config).expect("the configuration can be written back");
    row(&format!("create, {real}"), median(without), median(with), limit);
}

fn docker_run() {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..DOCKER_ROUNDS {
        // What one container leaves to be cleaned up meets the next one: each way comes first as often.
        let mut ways = [("runc", &mut without), ("fgpu", &mut with)];
        ways.rotate_left(round % 2);
        for (runtime, times) in ways {
            let start = Instant::now();
            let mut words = vec!["run", "--rm", "--network", "none", "--runtime", runtime];
            if runtime == "fgpu" {
                words.extend(["--annotation", "fgpu/fraction=0.25"]);
            }
            words.extend(["busybox", "true"]);
            run("docker", &words).unwrap_or_else(|error| panic!("docker: {error}"));
            times.push(start.elapsed());
        }
    }
    row("docker run --rm", median(without), median(with), "5 ms");
}

/// Resident memory of the relay that stands beside one running container.
fn resident() {
    let name = "fgpu-bench-resident";
    let words = ["run", "-d", "--name", name, "--network", "none", "--runtime", "fgpu", "--annotation"];
    let words: Vec<_> = words.into_iter().chain(["fgpu/fraction=0.25", "busybox", "sleep", "600"]).collect();
    run("docker", &words).unwrap_or_else(|error| panic!("docker: {error}"));
    let relays: Vec<u64> = std::fs::read_dir("/proc")
        .expect("/proc is mounted")
        .flatten()
        .filter_map(|entry| {
            let program = std::fs::read_link(entry.path().join("exe")).ok()?;
            program.ends_with("containerd-shim-fgpu-v2").then_some(())?;
            let status = std::fs::read_to_string(entry.path().join("status")).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.trim().trim_end_matches(" kB").parse().ok()
        })
        .collect();
    let _ = run("docker", &["rm", "-f", name]);
    println!("| resident memory of the relay | | {} KiB | | 4096 KiB |", relays.iter().sum::<u64>());
}

/// A bundle with busybox' root. Written anew each time, since an edited one is what the first create left.
fn bundle(real: &str, annotated: bool) -> String {
    let folder = format!("/tmp/fgpu-bench-{}", if annotated { "with" } else { "without" });
    if !Path::new(&folder).join("rootfs/bin/busybox").exists() {
        std::fs::create_dir_all(format!("{folder}/rootfs/bin")).expect("a bundle can be made");
        std::fs::copy("/bin/busybox", format!("{folder}/rootfs/bin/busybox")).expect("busybox is in the lab");
    }
    let _ = std::fs::remove_file(format!("{folder}/config.json"));
    let status = Command::new(real).arg("spec").current_dir(&folder).status();
    assert!(status.is_ok_and(|status| status.success()), "{real} spec");
    let path = format!("{folder}/config.json");
    let text = std::fs::read_to_string(&path).expect("spec writes config.json");
    let mut spec: serde_json::Value = serde_json::from_str(&text).expect("spec writes JSON");
    spec["process"]["terminal"] = false.into();
    spec["process"]["args"] = serde_json::json!(["/bin/busybox", "sleep", "600"]);
    spec["process"]["rlimits"] = serde_json::json!([]);
    if annotated {
        spec["annotations"] = serde_json::json!({"fgpu/fraction": "0.25"});
    }
    std::fs::write(path, spec.to_string()).expect("config.json can be written");
    folder
}

fn run(program: &str, words: &[&str]) -> Result<(), String> {
    let mut command = Command::new(program);
    // A created container keeps its standard streams: a pipe of ours would never end.
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{words:?}: {status}")),
        Err(error) => Err(format!("{words:?}: {error}")),
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn row(figure: &str, without: Duration, with: Duration, limit: &str) {
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    let (without, with) = (milliseconds(without), milliseconds(with));
    println!("| {figure} | {without:.2} ms | {with:.2} ms | {:.2} ms | {limit} |", with - without);
}
