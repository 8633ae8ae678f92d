//! `fgpu watch-exceeded` on a simulated node: real processes that load the driver by its own path, the lists
//! that its NVML gives, real cgroups. Needs root.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fgpu_allocator::{Applicant, Key, Process, Rules, Store};
use fgpu_spec::{Defaults, Inventory, Nonce, Request, Tier};
use serde_json::Value;
use tempfile::TempDir;

#[path = "simulated/build.rs"]
mod simulated;

use simulated::{simulator, succeed};

const GIB: u64 = 1 << 30;

/// A program that allocates.
fn alloc() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/lab/programs/alloc.c");
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("alloc");
        succeed(Command::new("cc").arg("-o").arg(&program).arg(source).arg("-ldl"));
        program
    })
}

struct Node {
    folder: TempDir,
    store: Store,
    inventory: Inventory,
    cgroups: Vec<PathBuf>,
}

/// A container: its lease, and its one process.
struct Container {
    nonce: Nonce,
    process: Child,
    /// What it says goes nowhere, and must have somewhere to go.
    _output: BufReader<ChildStdout>,
}

impl Node {
    fn new(config: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("fgpu-exceeded-").tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("node.toml"), "[[gpu]]\npreset = \"h100-80\"\ncount = 2\n").unwrap();
        let mut install = Command::new(simulator().join("fgpu-sim"));
        install.args(["install", "--config"]).arg(at("node.toml")).arg("--root").arg(at("root"));
        succeed(install.arg("--libraries").arg(simulator()));
        let text = format!(
            "state-dir = {:?}\nlog-dir = {:?}\n[driver]\nroot = {:?}\n{config}\n",
            at("state"),
            at("log"),
            at("root")
        );
        fs::write(at("config.toml"), text).unwrap();
        let mut fgpu = Command::new(env!("CARGO_BIN_EXE_fgpu"));
        succeed(fgpu.arg("--config").arg(at("config.toml")).args(["inventory", "--refresh"]));
        let store = Store::open(&at("state")).unwrap();
        let inventory = fgpu_driver::cached(&at("root"), &at("state")).unwrap().unwrap();
        Self { folder, store, inventory, cgroups: Vec::new() }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut fgpu = Command::new(env!("CARGO_BIN_EXE_fgpu"));
        fgpu.arg("--config").arg(self.folder.path().join("config.toml")).args(words);
        fgpu
    }

    fn watch(&self) -> Child {
        let log = fs::File::create(self.folder.path().join("watch.log")).unwrap();
        let mut watch = self.command(&["watch-exceeded"]);
        watch.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
    }

    /// A container with 4 GiB of a GPU, that takes `bytes` of it from the driver itself.
    fn container(&mut self, id: &str, gpu: usize, bytes: u64) -> Container {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fgpu-exceeded-{}-{count}", std::process::id());
        let tree = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"];
        let tree = tree.into_iter().find(|tree| Path::new(tree).join("cgroup.procs").exists()).unwrap();
        let cgroup = Path::new(tree).join(&name);
        fs::create_dir(&cgroup).unwrap();
        self.cgroups.push(cgroup.clone());
        let library = self.inventory.files.iter().find(|file| file.name == "libcuda.so.1").unwrap();
        let script = "echo $$ >\"$0\"/cgroup.procs && exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&cgroup).arg(alloc());
        command.arg("--lib").arg(&library.host).args(["--device", &gpu.to_string()]);
        command
            .args(["take", &bytes.to_string(), "wait"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, format!("take bytes={bytes} error=0\n"));

        let annotations = [("fgpu/memory", "4Gi"), ("fgpu/cores", "10%"), ("fgpu/device", &gpu.to_string())];
        let annotations: BTreeMap<String, String> =
            annotations.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let request = Request::parse(&annotations, None, &Defaults::default()).unwrap().unwrap();
        let init = Process::of(process.id().cast_signed()).unwrap();
        let applicant = Applicant {
            key: Key { namespace: "test".into(), id: id.into() },
            bundle: "/".into(),
            maker: init,
            pid_file: None,
            anchor: None,
        };
        let lease = self
            .store
            .reserve(&self.inventory, &Rules::default(), &request, &[Tier::Quota], &applicant)
            .unwrap();
        let nonce = lease.grant.nonce;
        fs::create_dir_all(self.store.container_dir(&nonce)).unwrap();
        assert!(self.store.activate(&nonce, Some(init), Some(name)).unwrap());
        Container { nonce, process, _output: output }
    }

    /// Ends a container as its runtime would.
    fn end(&self, mut container: Container) {
        let _ = container.process.kill();
        container.process.wait().unwrap();
        self.store.release(&container.nonce).unwrap();
        // The store knows nothing of a simulated container's files.
        let _ = fs::remove_dir_all(self.store.container_dir(&container.nonce));
    }

    fn marked(&self) -> Vec<String> {
        let status: Value =
            serde_json::from_slice(&succeed(&mut self.command(&["status", "--json"])).stdout).unwrap();
        let leases = status["leases"].as_array().unwrap().iter();
        let marked = leases.filter(|lease| !lease["exceeded"].is_null());
        marked.map(|lease| lease["container"].as_str().unwrap().to_owned()).collect()
    }

    fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("log/events.jsonl")).unwrap_or_default();
        let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.filter(|event| event["event"] == "exceeded").collect()
    }

    fn finds_exceeded(&self) -> bool {
        let output = self.command(&["doctor", "--json"]).output().unwrap();
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut findings = answer["findings"].as_array().unwrap().iter();
        findings.any(|finding| finding["check"] == "share-exceeded")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // It waits for ever, whatever became of the test.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for cgroup in &self.cgroups {
            // A killed process leaves its cgroup a moment later.
            let until = Instant::now() + Duration::from_secs(10);
            while fs::remove_dir(cgroup).is_err() && cgroup.exists() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "{what} does not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn only_the_tenant_that_exceeds_its_limit_is_named() {
    let mut node = Node::new("");
    let within = node.container("within", 0, 3 * GIB);
    let other = node.container("other", 1, 4 * GIB);
    let mut watch = node.watch();
    let above = node.container("above", 0, 8 * GIB);
    wait_until("a mark", || !node.marked().is_empty());
    assert_eq!(node.marked(), ["above"]);
    assert!(node.finds_exceeded());
    let text = String::from_utf8(succeed(&mut node.command(&["status"])).stdout).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("exceeded")).collect();
    assert!(lines.len() == 1 && lines[0].contains("above"), "{text}");
    // It is said once, and what is only reported lives.
    let more = node.container("more", 1, 9 * GIB);
    wait_until("a second mark", || node.marked().len() == 2);
    let events = node.events();
    let named: Vec<_> = events.iter().map(|event| event["container"].as_str().unwrap()).collect();
    assert_eq!(named, ["above", "more"]);
    assert_eq!(events[0]["stopped"], false);
    assert!(events[0]["used_memory"][0].as_u64().unwrap() >= 8 * GIB, "{}", events[0]);
    assert_eq!(events[0]["gpus"][0]["memory"], 4 * GIB);
    let text =
        String::from_utf8(succeed(&mut node.command(&["events", "--event", "exceeded"])).stdout).unwrap();
    assert!(text.contains("uses 8."), "{text}");

    node.end(more);
    wait_until("the end of a mark", || node.marked() == ["above"]);
    for mut container in [within, other, above] {
        assert!(container.process.try_wait().unwrap().is_none(), "nobody was stopped");
        node.end(container);
    }
    // With the last container it ends by itself, and leaves nothing.
    assert!(watch.wait().unwrap().success());
    assert!(!node.folder.path().join("state/exceeded.json").exists());
    assert!(!node.finds_exceeded());
}

#[test]
fn a_tenant_that_exceeds_its_limit_can_be_stopped() {
    let mut node = Node::new("[exceeded]\nact = \"stop\"");
    let mut within = node.container("within", 0, 4 * GIB);
    let mut above = node.container("above", 0, 6 * GIB);
    let mut watch = node.watch();
    let ended = above.process.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9));
    wait_until("an event", || !node.events().is_empty());
    let events = node.events();
    assert_eq!(events.len(), 1);
    assert_eq!((&events[0]["container"], &events[0]["stopped"]), (&"above".into(), &true.into()));
    assert!(within.process.try_wait().unwrap().is_none());
    node.end(above);
    node.end(within);
    assert!(watch.wait().unwrap().success());
}

#[test]
fn without_a_container_there_is_nothing_to_watch() {
    let node = Node::new("");
    succeed(&mut node.command(&["watch-exceeded"]));
    assert!(node.events().is_empty() && !node.folder.path().join("state/exceeded.json").exists());
}
