//! What Prometheus gets of a node: `fgpu metrics`, the units that serve it, the alert rules and the dashboards.
//!
//! Debian's Prometheus and promtool are in forky.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fgpu_lab::command::{run, shell, wait_until};
use fgpu_lab::docker;
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};
use fgpu_lab::panels::{self, Dashboard, Series};
use fgpu_lab::systemd;
use serde_json::Value;

pub(crate) const TESTS: &[Test] = &[
    Test::once("metrics::promtool_has_nothing_to_say", promtool_has_nothing_to_say),
    Test::once("metrics::counts_survive_the_processes", counts_survive_the_processes),
    Test::once("metrics::nothing_is_loaded_locked_or_written", nothing_is_loaded_locked_or_written),
    Test::once("metrics::the_units_serve_them", the_units_serve_them),
    Test::once("metrics::prometheus_sees_what_status_says", prometheus_sees_what_status_says),
];

const RULES: &str = "/usr/share/fgpu/prometheus";
const METRICS: &str = "127.0.0.1:9974";
const PROMETHEUS: &str = "127.0.0.1:9090";

fn is_forky() -> bool {
    std::env::var("FGPU_LAB_ENVIRONMENT").expect("boot sets it").starts_with("forky")
}

fn holder(name: &str, fraction: &str, owner: &str, script: &str) -> docker::Run {
    docker::container("debian13")
        .under(FrontEnd::Shim)
        .annotation("fgpu/fraction", fraction)
        .annotation("fgpu/owner", owner)
        .options(["--name", name])
        .command(["sh", "-c", script])
}

/// The value of the one sample whose line begins so.
#[track_caller]
fn sample(page: &str, start: &str) -> f64 {
    let found: Vec<&str> = page.lines().filter(|line| line.starts_with(start)).collect();
    let [line] = found[..] else { panic!("{start}: {found:?} of {page}") };
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

fn promtool_has_nothing_to_say() {
    if !is_forky() {
        return;
    }
    let _container = holder("web", "0.25", "team-a", "alloc take 1048576; exec sleep 1000").start();
    let check = |what: &str| {
        let output = shell(&format!("{what} | promtool check metrics"));
        assert!(output.ok().is_empty() && output.stderr.is_empty(), "{}", output.story());
    };
    check("fgpu metrics");
    run(["fgpu", "metrics", "--textfile", "/tmp/fgpu.prom"]).ok();
    check("cat /tmp/fgpu.prom");
    let page = run(["fgpu", "metrics"]);
    assert!(
        page.ok()
            .contains(r#"holder="web",container="web",engine="docker",namespace="",pod="",owner="team-a""#),
        "{}",
        page.story()
    );
    run(["promtool", "check", "rules", &format!("{RULES}/fgpu-rules.yml")]).ok();
    run(["promtool", "test", "rules", &format!("{RULES}/fgpu-rules-test.yml")]).ok();
    // Each alert has its test.
    let read = |name: &str| fs::read_to_string(format!("{RULES}/{name}")).expect("it is installed");
    let (rules, tests) = (read("fgpu-rules.yml"), read("fgpu-rules-test.yml"));
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 8, "{alerts:?}");
    for alert in alerts {
        let fires = format!("alertname: {alert}\n        exp_alerts:\n          - exp_labels");
        assert!(tests.contains(&fires), "no test has {alert} fire");
    }
}

fn counts_survive_the_processes() {
    let count = |start: &str| sample(run(["fgpu", "metrics"]).ok(), start);
    let refusals = r#"fgpu_refusals_total{code="too-large"}"#;
    let names = ["fgpu_grants_total", r#"fgpu_releases_total{how="released"}"#, refusals];
    let before = names.map(count);
    for _ in 0..3 {
        run(["fgpu", "run", "-n", "64", "--", "true"]).refused();
        holder("web", "0.25", "a", "true").run().ok();
        node::wait_until_free();
    }
    let after = names.map(count);
    let more: Vec<f64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(more, [3.0, 3.0, 3.0]);
}

/// What a create could wait for, or a driver feel.
fn nothing_is_loaded_locked_or_written() {
    let _container = holder("web", "0.25", "a", "exec sleep 1000").start();
    node::wait_until_recorded();
    run(["strace", "-f", "-o", "/tmp/trace", "fgpu", "metrics"]).ok();
    let trace = fs::read_to_string("/tmp/trace").expect("strace writes it");
    assert!(trace.contains("/run/fgpu/allocations.json"), "{trace}");
    for line in trace.lines() {
        let opens = line.contains("open");
        let writes =
            opens && (line.contains("O_WRONLY") || line.contains("O_RDWR") || line.contains("O_CREAT"));
        assert!(!(writes && line.contains("/run/fgpu")), "{line}");
        assert!(!(opens && line.contains("libnvidia")), "{line}");
        for call in
            [" flock(", " rename", " unlink", " mkdir(\"/run/fgpu/", " bpf(", " execve(\"/usr/bin/nvidia"]
        {
            assert!(!line.contains(call), "{line}");
        }
    }
}

/// The socket and the timer, below a systemd, whose sandbox they have.
fn the_units_serve_them() {
    let environment = std::env::var("FGPU_LAB_ENVIRONMENT").expect("boot sets it");
    if environment == "forky-v1" {
        return;
    }
    let systemd = systemd::start();
    systemd.run(&["systemctl", "start", "fgpu-metrics.socket"]).ok();
    systemd.run(&["fgpu", "inventory", "--refresh"]).ok();
    let gpus = node::gpus().len();
    let page = scrape("GET", "/metrics", "");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{page}");
    assert_eq!(page.lines().filter(|line| line.starts_with("fgpu_gpu_info{")).count(), gpus, "{page}");
    let open = scrape("GET", "/metrics", "Accept: application/openmetrics-text; version=1.0.0\r\n");
    assert!(open.contains("application/openmetrics-text") && open.ends_with("# EOF\n"), "{open}");
    assert!(scrape("POST", "/metrics", "").starts_with("HTTP/1.1 405 "));
    // Clients that say nothing hold their places, and nothing else.
    let silent: Vec<_> = (0..4).map(|_| TcpStream::connect(METRICS).expect("it listens")).collect();
    assert!(scrape("GET", "/metrics", "").starts_with("HTTP/1.1 200 OK"));
    drop(silent);
    let many: Vec<_> = (0..300).map(|_| TcpStream::connect(METRICS)).collect();
    drop(many);
    wait_until("a scrape after a flood", || try_scrape("GET", "/metrics", "").starts_with("HTTP/1.1 200 OK"));

    let folder = "/var/lib/prometheus/node-exporter";
    systemd.run(&["mkdir", "-p", folder]).ok();
    systemd.run(&["chown", "nobody", folder]).ok();
    systemd.run(&["systemctl", "start", "fgpu-textfile.timer"]).ok();
    wait_until("the textfile", || {
        fs::read_to_string(format!("{folder}/fgpu.prom")).is_ok_and(|text| text.contains("fgpu_gpu_info{"))
    });
    let failed = systemd.run(&["systemctl", "--failed", "--plain", "--no-legend"]);
    assert!(!failed.ok().contains("fgpu"), "{}", failed.story());
    systemd.run(&["rm", "-r", folder]).ok();
}

/// An HTTP answer, whole.
#[track_caller]
fn scrape(method: &str, path: &str, headers: &str) -> String {
    let answer = try_scrape(method, path, headers);
    assert!(!answer.is_empty(), "no answer to {method} {path}");
    answer
}

fn try_scrape(method: &str, path: &str, headers: &str) -> String {
    ask(METRICS, &format!("{method} {path} HTTP/1.1\r\nHost: node\r\n{headers}\r\n"))
}

/// What a server answers before it closes the connection.
fn ask(address: &str, request: &str) -> String {
    let mut answer = Vec::new();
    if let Ok(mut stream) = TcpStream::connect(address) {
        let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
        let _ = stream.write_all(request.as_bytes());
        let _ = stream.read_to_end(&mut answer);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// A process that ends with this.
struct Ending(Child);

impl Ending {
    fn start(words: &[&str]) -> Self {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().unwrap_or_else(|error| panic!("{words:?}: {error}")))
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The answer of Prometheus' API to a query.
#[track_caller]
fn query(path: &str, expression: &str, more: &str) -> Vec<Series> {
    let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let request = format!("GET /api/v1/{path}?query={encoded}{more} HTTP/1.0\r\n\r\n");
    let answer = ask(PROMETHEUS, &request);
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    let value: Value =
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{expression}: {error}: {answer}"));
    assert_eq!(value["status"], "success", "{expression}: {body}");
    panels::series(&value["data"]["result"])
}

/// How long containers come and go.
const WHILE: Duration = Duration::from_secs(120);

/// Two minutes of a node with tenants: no panel is empty, and its numbers are those of `fgpu status`.
fn prometheus_sees_what_status_says() {
    if std::env::var("FGPU_LAB_ENVIRONMENT").expect("boot sets it") != "forky-v2" {
        return;
    }
    let configuration = format!(
        "global: {{scrape_interval: 2s, evaluation_interval: 5s}}\n\
         rule_files: [{RULES}/fgpu-rules.yml]\n\
         scrape_configs: [{{job_name: fgpu, static_configs: [{{targets: ['{METRICS}']}}]}}]\n"
    );
    fs::write("/tmp/prometheus.yml", configuration).expect("/tmp can be written");
    // As the socket unit does it.
    let _server = Ending::start(&[
        "systemd-socket-activate",
        "--accept",
        "--inetd",
        "-l",
        METRICS,
        "fgpu",
        "metrics",
        "--http",
    ]);
    let listen = format!("--web.listen-address={PROMETHEUS}");
    let _prometheus = Ending::start(&[
        "prometheus",
        "--config.file=/tmp/prometheus.yml",
        "--storage.tsdb.path=/tmp/prometheus",
        &listen,
    ]);
    let begin = Instant::now();
    let script = "while :; do spin 100000000 1000000 >/dev/null; done";
    let _trainer = holder("trainer", "0.5", "research", script)
        .annotation("fgpu/device", "0")
        .annotation("fgpu/compute", "cap")
        .start();
    let _chat = holder("chat", "0.25", "assistants", "exec alloc take 2147483648 wait")
        .annotation("fgpu/device", "1")
        .start();
    let mut round = 0;
    while begin.elapsed() < WHILE {
        round += 1;
        let short = holder("batch", "0.5", "research", "timeout 3 alloc take 1073741824 wait; true")
            .annotation("fgpu/device", "1")
            .start();
        run(["fgpu", "run", "-n", "64", "--", "true"]).refused();
        // Room comes when the short one ends.
        let asks = ["fgpu/fraction=0.75", "fgpu/device=1", "fgpu/wait=1m"];
        let asks = asks.iter().flat_map(|ask| ["--annotation", ask]);
        let words = ["docker", "run", "--rm", "--runtime", "fgpu"].into_iter().chain(asks);
        let mut waiter = Ending::start(&words.chain(["debian13", "true"]).collect::<Vec<_>>());
        short.wait_for_end();
        short.remove();
        assert!(waiter.0.wait().expect("it is a child").success(), "the waiter has got its share");
        sleep(Duration::from_secs(1));
    }
    assert!(round > 5, "{round} rounds");
    wait_until("two leases", || node::leases().len() == 2);
    // Every scrape from here on is of the same state.
    sleep(Duration::from_secs(6));
    let status: Value = serde_json::from_str(run(["fgpu", "status", "--json"]).ok()).expect("JSON");
    for dashboard in [Dashboard::node(), Dashboard::fleet()] {
        let end = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("it is later")
            .as_secs();
        let range = format!("&start={}&end={end}&step=2", end - 130);
        let mut answers = Vec::new();
        for panel in &dashboard.panels {
            let mut of_panel = Vec::new();
            for (number, target) in panel.targets.iter().enumerate() {
                let all = query("query_range", target, &range);
                assert!(
                    all.iter().any(|series| !series.points.is_empty()),
                    "{}: {target} has nothing",
                    panel.title
                );
                of_panel.push(all);
                let now: f64 = query("query", target, "").iter().filter_map(Series::last).sum();
                let Some((wanted, within)) = expected(&status, &panel.title, number) else { continue };
                assert!(
                    (now - wanted).abs() <= within,
                    "{}: {target} is {now}, and fgpu status says {wanted}: {status}",
                    panel.title
                );
            }
            answers.push(of_panel);
        }
        let caption = format!("{}, with simulated GPUs", dashboard.title);
        let picture = panels::picture(&dashboard, &answers, &caption);
        fs::write(format!("/tmp/{}.svg", dashboard.uid), picture).expect("/tmp can be written");
    }
    let firing = query("query", "ALERTS", "");
    assert!(firing.is_empty(), "nothing is wrong with this node: {firing:?}");
    let refused = shell("fgpu events --json --event refused | wc -l");
    let counted: f64 = query("query", "sum(fgpu_refusals_total)", "").iter().filter_map(Series::last).sum();
    assert_eq!(refused.ok(), format!("{counted}"));
    assert!(counted >= f64::from(round), "{counted} of {round}");
}

/// What a panel's query number so is in `fgpu status`, and how far it may be from that; `None` for what happens in
/// a time.
fn expected(status: &Value, title: &str, number: usize) -> Option<(f64, f64)> {
    let list = |key: &str| status[key].as_array().cloned().unwrap_or_default();
    let sum = |all: Vec<Value>, key: &str| all.iter().filter_map(|one| one[key].as_f64()).sum::<f64>();
    let gpus = |key: &str| sum(list("gpus"), key);
    let shares = |key: &str| {
        list("leases")
            .iter()
            .map(|lease| sum(lease["gpus"].as_array().cloned().unwrap_or_default(), key))
            .sum::<f64>()
    };
    let count = list("gpus").len() as f64;
    let exact = |value: f64| Some((value, 1e-6));
    match (title, number) {
        ("Memory granted", _) => exact(gpus("granted_memory") / gpus("usable_memory")),
        ("SM time granted", _) => exact(gpus("granted_cores_ppm") / 1e6 / count),
        ("Leases", _) => exact(list("leases").len() as f64),
        ("Waiting" | "Queue", _) => exact(list("queue").len() as f64),
        ("Unhealthy GPUs" | "Nodes down", _) => exact(0.0),
        ("Nodes", _) => exact(1.0),
        ("GPUs", _) => exact(count),
        ("Memory of each GPU", 0) => exact(gpus("granted_memory")),
        ("Memory of each GPU", 1) => exact(gpus("used_memory")),
        ("Memory of each GPU", 2) => exact(gpus("foreign_memory")),
        ("Memory of each GPU", 3) => exact(gpus("usable_memory")),
        ("SM time granted of each GPU", _) => exact(gpus("granted_cores_ppm") / 1e6),
        ("Memory used by holders", _) => exact(shares("used_memory")),
        // The one is of a minute, the other of some seconds.
        ("SM time used by holders" | "SM time used by owner", _) => {
            Some((shares("used_cores_ppm") / 1e6, 0.1))
        }
        ("Memory held by owner", _) => exact(shares("memory")),
        ("Largest share that fits", _) => {
            let free = |gpu: &Value| Some(gpu["usable_memory"].as_f64()? - gpu["granted_memory"].as_f64()?);
            exact(list("gpus").iter().filter_map(free).fold(0.0, f64::max))
        }
        ("GPUs known since" | "Refusals" | "Grants and ends" | "Who holds what", _) => None,
        (other, _) => panic!("{other}: say what it should show"),
    }
}
