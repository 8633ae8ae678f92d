//! `make bench`, the part that runs inside the lab: what fgpu adds to a create, to a `docker run` and to
//! memory.
//!
//! Two ways of doing the same thing are timed in turns in one run; what is added is the median over the
//! rounds of the difference within a round, so that what else the machine does meets both, with its 95%
//! interval: a `docker run` takes ten milliseconds more or less from one to the next. Run by
//! `tests/lab/bench`; prints one Markdown table row per figure. `fgpu-bench docker [ROUNDS]` measures a
//! `docker run` alone, beside one under the stock runtime with as many files mounted by `-v`, and one with a
//! CDI device whose hooks do nothing;
//! `fgpu-bench create` measures a create alone, `fgpu-bench metrics` a scrape of many leases.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ROUNDS: usize = 200;
const DOCKER_ROUNDS: usize = 400;
const LEASES: usize = 400;
/// How many creates are timed with a scraper, and how many without one, before it is the other's turn.
const BLOCK: usize = 10;
/// What a container of ours has mounted more than another, files most of it.
const MOUNTS: usize = 12;
/// A CDI device with as many hooks as one of ours. They do nothing: what is left is what the engine and runc
/// take for hooks.
const IDLE_DEVICE: &str = r#"{"cdiVersion": "0.5.0", "kind": "bench.dev/hooks", "devices": [{"name": "idle", "containerEdits":
    {"hooks": [{"hookName": "createRuntime", "path": "/bin/busybox", "args": ["busybox", "true"]},
               {"hookName": "poststop", "path": "/bin/busybox", "args": ["busybox", "true"]}]}}]}"#;
/// The argument with which this program is a hook.
const TIMED: &str = "--time-hook";
/// The argument with which this program computes for 22 ms, as long as a scrape of [`LEASES`] leases takes.
const COMPUTE: &str = "--compute";
const TIMES: &str = "/tmp/fgpu-bench-times";

fn main() {
    if std::env::args().nth(1).as_deref() == Some(TIMED) {
        return time_hook();
    }
    if std::env::args().nth(1).as_deref() == Some(COMPUTE) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(22) {
            std::hint::spin_loop();
        }
        return;
    }
    println!("| figure | without | with | added | limit |\n|---|---|---|---|---|");
    if std::env::args().nth(1).as_deref() == Some("docker") {
        let rounds = std::env::args().nth(2).map(|text| text.parse().expect("a number of rounds"));
        return docker_run(rounds.unwrap_or(DOCKER_ROUNDS), true);
    }
    if std::env::args().nth(1).as_deref() == Some("metrics") {
        return metrics();
    }
    for (real, limit) in [("crun", "3 ms"), ("runc", "5 ms")] {
        if works(real) {
            create(real, limit);
        } else {
            println!("| create, {real} | does not run in this environment | | | {limit} |");
        }
    }
    if std::env::args().nth(1).as_deref() == Some("create") {
        return;
    }
    for (node, gpus, limit) in [("h100-80-x2.toml", 2, "5 ms"), ("h100-80-x8.toml", 8, "10 ms")] {
        run("/lab/simulate", &[node]).unwrap_or_else(|error| panic!("simulate: {error}"));
        run("fgpu", &["inventory", "--refresh"]).unwrap_or_else(|error| panic!("fgpu: {error}"));
        for real in ["crun", "runc"].into_iter().filter(|real| works(real)) {
            hook(real, gpus, limit);
        }
    }
    run("/lab/simulate", &[]).unwrap_or_else(|error| panic!("simulate: {error}"));
    docker_run(DOCKER_ROUNDS, false);
    resident();
    metrics();
}

/// crun refuses the hybrid hierarchy of a cgroup v1 environment.
fn works(real: &str) -> bool {
    let bundle = bundle(real, &Way::Plain);
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
        let mut ways = [(real, &mut without, Way::Plain), ("fgpu-runtime", &mut with, Way::Annotated)];
        ways.rotate_left(round % 2);
        for (program, times, way) in ways {
            let bundle = bundle(real, &way);
            let start = Instant::now();
            run(program, &["create", "--bundle", &bundle, &id])
                .unwrap_or_else(|error| panic!("{program}: {error}"));
            times.push(start.elapsed());
            run(program, &["delete", "--force", &id]).unwrap_or_else(|error| panic!("{program}: {error}"));
        }
    }
    std::fs::write("/etc/fgpu/config.toml", config).expect("the configuration can be written back");
    row(&format!("create, {real}"), without, with, limit);
}

/// A create with `fgpu-hook`, against one with a hook that does nothing; and the hook by itself, from its
/// start to its end.
fn hook(real: &str, gpus: u32, limit: &str) {
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let id = "fgpu-bench-hook";
    let create = |way: &Way, times: Option<&mut Vec<Duration>>| {
        let bundle = bundle(real, way);
        let start = Instant::now();
        run(real, &["create", "--bundle", &bundle, id]).unwrap_or_else(|error| panic!("{real}: {error}"));
        if let Some(times) = times {
            times.push(start.elapsed());
        }
        run(real, &["delete", "--force", id]).unwrap_or_else(|error| panic!("{real}: {error}"));
    };
    for round in 0..ROUNDS {
        let mut ways = [(Way::NoHook, &mut without), (Way::Hook(gpus), &mut with)];
        ways.rotate_left(round % 2);
        for (way, times) in ways {
            create(&way, Some(times));
        }
    }
    row(&format!("create with the hook, {gpus} GPUs, {real}"), without, with, limit);
    let _ = std::fs::remove_file(TIMES);
    (0..ROUNDS).for_each(|_| create(&Way::TimedHook(gpus), None));
    let text = std::fs::read_to_string(TIMES).expect("the hook was timed");
    let times = text.lines().map(|line| Duration::from_nanos(line.parse().expect("nanoseconds"))).collect();
    let time = median(times).as_secs_f64() * 1e3;
    println!("| the hook's own time, {gpus} GPUs, {real} | | {time:.2} ms | | {limit} |");
}

/// Runs the hook with this process' standard input, and writes down how long it took.
fn time_hook() {
    use std::io::Write;
    let start = Instant::now();
    let status = Command::new("/usr/bin/fgpu-hook").arg("createRuntime").status();
    let time = start.elapsed().as_nanos();
    assert!(status.is_ok_and(|status| status.success()), "the hook fails");
    let file = std::fs::OpenOptions::new().create(true).append(true).open(TIMES);
    file.and_then(|mut file| writeln!(file, "{time}")).expect("the time can be written");
}

fn docker_run(rounds: usize, alone: bool) {
    let mounts = (0..MOUNTS).map(|number| format!("--volume=/bin/busybox:/mounted/{number}:ro"));
    let mounts: Vec<String> = mounts.collect();
    let mut ways = vec![
        vec!["--runtime=runc"],
        vec!["--runtime=fgpu", "--annotation=fgpu/fraction=0.25"],
        vec!["--device=fgpu.dev/gpu=0.25"],
    ];
    if alone {
        ways.push([vec!["--runtime=runc"], mounts.iter().map(String::as_str).collect()].concat());
        std::fs::create_dir_all("/etc/cdi").expect("/etc/cdi can be made");
        std::fs::write("/etc/cdi/bench.json", IDLE_DEVICE).expect("/etc/cdi can be written");
        ways.push(vec!["--device=bench.dev/hooks=idle"]);
    }
    let mut times = vec![Vec::new(); ways.len()];
    for round in 0..rounds {
        for number in 0..ways.len() {
            // What one container leaves to be cleaned up meets the next one: each way comes first, and after
            // each other one, as often.
            let forth = (round + number) % ways.len();
            let number = if round / ways.len() % 2 == 0 { forth } else { ways.len() - 1 - forth };
            // Without a network of its own: dockerd's hook for one is two fifths of the time and tells
            // nothing here.
            let words =
                [&["run", "--rm", "--network=host"], &ways[number][..], &["busybox", "true"]].concat();
            let start = Instant::now();
            run("docker", &words).unwrap_or_else(|error| panic!("docker: {error}"));
            times[number].push(start.elapsed());
        }
    }
    let figures = [
        ("docker run --rm", "5 ms"),
        ("docker run --rm, a CDI device", "5 ms"),
        ("docker run --rm, runc and twelve -v", ""),
        ("docker run --rm, a CDI device with two idle hooks", ""),
    ];
    for (with, (figure, limit)) in times[1..].iter().zip(figures) {
        row(figure, times[0].clone(), with.clone(), limit);
    }
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

/// A scrape of [`LEASES`] leases: its time, its memory, and creates while somebody scrapes ten times a second
/// against creates while nobody does.
fn metrics() {
    let real = if works("crun") { "crun" } else { "runc" };
    let create = |id: &str| {
        let bundle = bundle(real, &Way::Small);
        let start = Instant::now();
        run("fgpu-runtime", &["create", "--bundle", &bundle, id])
            .unwrap_or_else(|error| panic!("{id}: {error}"));
        start.elapsed()
    };
    let delete = |id: &str| {
        run("fgpu-runtime", &["delete", "--force", id]).unwrap_or_else(|error| panic!("{id}: {error}"))
    };
    let held: Vec<String> = (0..LEASES).map(|number| format!("fgpu-bench-held-{number}")).collect();
    held.iter().for_each(|id| {
        create(id);
    });
    let timed = |words: &[&str]| {
        let start = Instant::now();
        run("fgpu", words).unwrap_or_else(|error| panic!("fgpu: {error}"));
        start.elapsed()
    };
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS / 4 {
        without.push(timed(&["--version"]));
        with.push(timed(&["metrics"]));
    }
    row(&format!("fgpu metrics of {LEASES} leases, against fgpu --version"), without, with, "");
    println!("| peak memory of fgpu metrics, {LEASES} leases | | {} KiB | | |", peak());

    // As fgpu-metrics@.service has it; and what computes as long and touches nothing of ours.
    let scrape = ["-n", "10", "fgpu", "metrics"];
    let compute = ["-n", "10", "/opt/fgpu-bench", COMPUTE];
    for (what, beside) in [("a scrape", &scrape), ("a program that computes as long", &compute)] {
        let (is_busy, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let (mut without, mut with) = (Vec::new(), Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    if is_busy.load(Ordering::Relaxed) {
                        run("nice", beside).unwrap_or_else(|error| panic!("{beside:?}: {error}"));
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
            for block in 0..2 * ROUNDS / BLOCK {
                is_busy.store(block % 2 == 1, Ordering::Relaxed);
                // What the block before began has ended.
                std::thread::sleep(Duration::from_millis(200));
                for round in 0..BLOCK {
                    let id = format!("fgpu-bench-{block}-{round}");
                    let time = create(&id);
                    if block % 2 == 1 { &mut with } else { &mut without }.push(time);
                    delete(&id);
                }
            }
            ended.store(true, Ordering::Relaxed);
        });
        row(&format!("create, {real}, {LEASES} leases, beside {what} each 100 ms"), without, with, "");
    }
    held.iter().for_each(|id| delete(id));
}

/// The most memory that `fgpu metrics` has resident, KiB: it waits in the middle of its answer, which is larger than
/// a pipe.
fn peak() -> u64 {
    let mut child =
        Command::new("fgpu").arg("metrics").stdout(Stdio::piped()).spawn().expect("fgpu is installed");
    let read = |key: &str| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().to_owned();
        line.trim().trim_end_matches(" kB").to_owned()
    };
    std::thread::sleep(Duration::from_secs(2));
    let most = read("VmHWM:").parse().unwrap_or(0);
    drop(child.stdout.take());
    let _ = child.wait();
    most
}

/// What a bundle asks for.
#[derive(Debug)]
enum Way {
    /// Nothing.
    Plain,
    /// A quarter of a GPU, by its annotation alone.
    Annotated,
    /// Nothing, and it has a hook that does nothing.
    NoHook,
    /// A quarter of that many GPUs, from `fgpu-hook`.
    Hook(u32),
    /// So little of a GPU that hundreds fit.
    Small,
    /// A quarter of so many GPUs, by way of [`time_hook`].
    TimedHook(u32),
}

/// A bundle with busybox' root. Written anew each time, since an edited one is what the first create left.
fn bundle(real: &str, way: &Way) -> String {
    let plain = matches!(way, Way::Plain | Way::NoHook);
    let folder = format!("/tmp/fgpu-bench-{}", if plain { "without" } else { "with" });
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
    let hook = |words: &[&str]| serde_json::json!([{"path": words[0], "args": words, "env": ["PATH=/usr/bin:/bin"]}]);
    let hooks = match way {
        Way::Plain | Way::Annotated | Way::Small => None,
        Way::NoHook => Some(hook(&["/bin/busybox", "true"])),
        Way::Hook(_) => Some(hook(&["/usr/bin/fgpu-hook", "createRuntime"])),
        Way::TimedHook(_) => Some(hook(&["/opt/fgpu-bench", TIMED])),
    };
    if let Some(create) = hooks {
        spec["hooks"] = serde_json::json!({"createRuntime": create});
    }
    match way {
        Way::Plain | Way::NoHook => {}
        Way::Annotated => spec["annotations"] = serde_json::json!({"fgpu/fraction": "0.25"}),
        Way::Small => spec["annotations"] = serde_json::json!({"fgpu/memory": "128Mi"}),
        Way::Hook(gpus) | Way::TimedHook(gpus) => {
            spec["annotations"] =
                serde_json::json!({"fgpu/fraction": "0.25", "fgpu/count": gpus.to_string()});
            spec["hooks"]["poststop"] = hook(&["/usr/bin/fgpu-hook", "poststop"]);
        }
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

fn median<T: Ord>(mut times: Vec<T>) -> T {
    times.sort();
    let middle = times.len() / 2;
    times.swap_remove(middle)
}

fn row(figure: &str, without: Vec<Duration>, with: Vec<Duration>, limit: &str) {
    let signed = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
    let rounds = without.iter().zip(&with);
    let added: Vec<_> = rounds.map(|(without, with)| signed(*with) - signed(*without)).collect();
    let (mean, about) = trimmed(added.clone());
    let [least, added, most] = middle(added).map(|nanoseconds| nanoseconds as f64 / 1e6);
    let milliseconds = |times| median::<Duration>(times).as_secs_f64() * 1e3;
    let (without, with) = (milliseconds(without), milliseconds(with));
    println!(
        "| {figure} | {without:.2} ms | {with:.2} ms | {added:.2} ms ({least:.2} to {most:.2}), {mean:.2} ± {about:.2} | {limit} |"
    );
}

/// The mean without the outermost twentieths, milliseconds, and half of its 95% interval (from the winsorised
/// variance, as for Yuen's test).
fn trimmed(mut values: Vec<i64>) -> (f64, f64) {
    values.sort_unstable();
    let (count, cut) = (values.len(), values.len() / 20);
    let kept: Vec<f64> = values[cut..count - cut].iter().map(|&value| value as f64 / 1e6).collect();
    let mean = kept.iter().sum::<f64>() / kept.len() as f64;
    let ends = kept.first().into_iter().chain(kept.last()).flat_map(|end| std::iter::repeat_n(end, cut));
    let winsorised: Vec<f64> = ends.chain(&kept).copied().collect();
    let middle = winsorised.iter().sum::<f64>() / count as f64;
    let squares: f64 = winsorised.iter().map(|value| (value - middle).powi(2)).sum();
    let error = (squares / (count - 1).max(1) as f64).sqrt() * (count as f64).sqrt() / kept.len() as f64;
    (mean, 1.96 * error)
}

/// The median between the ends of its 95% interval: how many of n values lie below the true median is
/// binomial, n/2 with a standard deviation of √n/2, whatever their distribution.
fn middle(mut values: Vec<i64>) -> [i64; 3] {
    values.sort_unstable();
    let (half, reach) = (values.len() / 2, (0.98 * (values.len() as f64).sqrt()).ceil() as usize);
    [half.saturating_sub(reach), half, half + reach].map(|at| values[at.min(values.len() - 1)])
}
