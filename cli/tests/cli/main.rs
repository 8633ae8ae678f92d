//! The command as a user runs it, on a node whose driver is a stand-in: a root with the names of a driver's
//! files and the NVML that the driver crate's tests have.

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml's allow-unwrap-in-tests does not reach the helpers of a test"
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use fgpu_allocator::{Applicant, Key, Lease, Process, Rules, Store};
use fgpu_spec::{Defaults, Inventory, Request, Tier};
use serde_json::Value;

mod health;

mod explain;

const VERSION: &str = "550.163.01";

/// A node with a driver root, a state directory and a configuration that names both.
struct Node {
    folder: tempfile::TempDir,
}

impl Node {
    fn without_driver() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // For the user `nobody` of one test.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let node = Self { folder };
        fs::create_dir(node.root()).unwrap();
        let log = node.folder.path().join("log");
        let text = format!(
            "state-dir = {:?}\nlog-dir = {log:?}\nlibrary-dir = {log:?}\n[driver]\nroot = {:?}\n",
            node.state(),
            node.root()
        );
        fs::write(node.config(), text).unwrap();
        node
    }

    /// With GPUs as the stand-in describes them: a comma list of the error of each, 0 for none.
    fn with_gpus(gpus: &str) -> Self {
        Self::with_nvml(&[format!("-DGPUS={gpus}"), "-DINIT=0".into()])
    }

    fn with_nvml(defines: &[String]) -> Self {
        let node = Self::without_driver();
        let proc = node.root().join("proc/driver/nvidia");
        fs::create_dir_all(&proc).unwrap();
        let text = format!(
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Tue Apr  8 12:41:17 UTC 2025\n"
        );
        fs::write(proc.join("version"), text).unwrap();
        let standin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../driver/src/nvml/standin.c");
        let version = format!("-DVERSION=\"{VERSION}\"");
        let log = format!("-DLOG=\"{}\"", node.probes().display());
        let all = [defines, &[version, log, "-DMEMORY_2".into(), "-DMIG=0".into()]].concat();
        node.library("libnvidia-ml", &standin, &all);
        node.library("libcuda", Path::new("/dev/null"), &[]);
        node
    }

    fn library(&self, name: &str, source: &Path, defines: &[String]) {
        let folder = self.root().join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        fs::create_dir_all(&folder).unwrap();
        let status = Command::new("cc") // the linker that Rust needs anyway
            .args(["-shared", "-fPIC", &format!("-Wl,-soname,{name}.so.1"), "-o"])
            .arg(folder.join(format!("{name}.so.{VERSION}")))
            .args(defines)
            .args(["-x", "c"])
            .arg(source)
            .status()
            .unwrap();
        assert!(status.success());
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("config.toml")
    }

    /// Adds keys to the configuration.
    fn configure(&self, keys: &str) {
        let text = fs::read_to_string(self.config()).unwrap();
        fs::write(self.config(), format!("{keys}{text}")).unwrap();
    }

    /// Where the stand-in writes a byte per initialisation.
    fn probes(&self) -> PathBuf {
        self.folder.path().join("probes")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fgpu"));
        command.arg("--config").arg(self.config()).args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs what must succeed; its stdout.
    fn good(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        text(output.stdout)
    }

    /// Runs what must fail with `code`; its stderr.
    fn bad(&self, arguments: &[&str], code: &str) -> String {
        let output = self.run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        let stderr = text(output.stderr);
        let last = stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with(&format!("fgpu: {code}: ")), "{arguments:?}: {stderr}");
        stderr
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.good(arguments)).unwrap()
    }

    fn store(&self) -> Store {
        Store::open(&self.state()).unwrap()
    }

    /// A lease of a quarter for a container that `maker` is creating.
    fn lease(&self, id: &str, maker: Process) -> Lease {
        self.lease_with(id, maker, None)
    }

    /// The same of one whose runtime writes the init's pid into this file.
    fn lease_with(&self, id: &str, maker: Process, pid_file: Option<PathBuf>) -> Lease {
        let inventory: Inventory = serde_json::from_value(self.json(&["inventory", "--json"])).unwrap();
        let annotations = [("fgpu/fraction".to_owned(), "0.25".to_owned())].into();
        let request = Request::parse(&annotations, None, &Defaults::default()).unwrap().unwrap();
        let applicant = Applicant {
            key: Key { namespace: "test".into(), id: id.into() },
            bundle: "/bundle".into(),
            maker,
            pid_file,
            anchor: None,
        };
        self.store().reserve(&inventory, &Rules::default(), &request, &[Tier::Quota], &applicant).unwrap()
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// A process that was and is no more.
fn dead() -> Process {
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let process = Process::of(i32::try_from(child.id()).unwrap()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    process
}

#[test]
fn usage_errors_are_2_and_help_teaches() {
    let node = Node::without_driver();
    for wrong in
        [&["frobnicate"][..], &["explain"], &["explain", "fraction"], &["release"], &["gc", "--force"]]
    {
        assert_eq!(node.run(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let help = node.good(&["--help"]);
    for word in ["docker run --runtime=fgpu", "Exit codes", "status", "explain", "inventory", "release", "gc"]
    {
        assert!(help.contains(word), "{word}");
    }
    assert!(node.good(&["status", "--help"]).contains("--watch"));
}

#[test]
fn a_configuration_that_is_not_there_is_named() {
    let node = Node::without_driver();
    fs::remove_file(node.config()).unwrap();
    assert!(node.bad(&["status"], "internal").contains("config.toml does not exist"));
}

#[test]
fn without_a_driver_there_is_no_gpu() {
    if Path::new("/proc/driver/nvidia/version").exists() {
        return; // a node with a driver answers for every root
    }
    let node = Node::without_driver();
    for command in
        [&["inventory"][..], &["inventory", "--refresh"], &["explain", "fraction=0.25"], &["status"]]
    {
        assert!(node.bad(command, "no-gpu").contains("no NVIDIA driver is loaded"), "{command:?}");
    }
}

#[test]
fn the_inventory_is_made_once_and_found_fresh() {
    let node = Node::with_gpus("0,0");
    let made = node.json(&["inventory", "--json"]);
    assert_eq!(made["gpus"][1]["minor"], 5);
    assert_eq!(made["files"][0]["name"], "libcuda.so.1");
    assert!(node.good(&["inventory"]).contains("Driver 550.163.01, CUDA 12.4"));
    assert_eq!(fs::read(node.probes()).unwrap().len(), 1, "the second look did not probe");
    node.good(&["inventory", "--refresh"]);
    assert_eq!(fs::read(node.probes()).unwrap().len(), 2);
}

/// A user who could write there could take and free any share.
#[test]
fn the_umask_of_who_comes_first_decides_nothing() {
    let node = Node::with_gpus("0");
    for umask in ["000", "077"] {
        let inner = node.command(&["inventory"]);
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("umask {umask}; exec \"$0\" \"$@\"")]);
        assert!(shell.arg(inner.get_program()).args(inner.get_args()).output().unwrap().status.success());
        assert_eq!(fs::metadata(node.state()).unwrap().permissions().mode() & 0o7777, 0o755, "{umask}");
        fs::remove_dir_all(node.state()).unwrap();
    }
}

#[test]
fn sixteen_at_once_make_one_probe() {
    let node = Node::with_gpus("0");
    let spawn = |_| node.command(&["inventory"]).stdout(Stdio::piped()).spawn().unwrap();
    let children: Vec<_> = (0..16).map(spawn).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(text(output.stdout).contains("Stand-in"));
    }
    assert_eq!(fs::read(node.probes()).unwrap().len(), 1);
}

#[test]
fn a_lost_gpu_is_a_warning_and_a_lost_node_an_error() {
    let node = Node::with_gpus("0,15");
    let output = node.run(&["inventory", "--refresh"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(output.stderr).starts_with("fgpu: warning: GPU 1 is left out: cannot open it: device fell off")
    );
    Node::with_gpus("15").bad(&["inventory"], "gpu-unhealthy");
}

#[test]
fn a_driver_that_crashes_kills_only_the_probe() {
    let node = Node::with_nvml(&["-DGPUS=0".into(), "-DINIT=*(volatile int *)8".into()]);
    assert!(node.bad(&["inventory"], "driver-error").contains("signal: 11"));
    assert!(!node.state().join("inventory.json").exists());
}

#[test]
fn status_shows_the_grants() {
    let node = Node::with_gpus("0");
    assert!(node.good(&["status"]).ends_with("No container holds a share.\n"));
    let lease = node.lease("web", Process::current().unwrap());
    let shown = node.good(&["status"]);
    assert!(shown.contains("test/web     0     -  5.8 GiB     -  25%  quota"), "{shown}");
    let status = node.json(&["status", "--json"]);
    assert_eq!(status["gpus"][0]["granted_cores_ppm"], 250_000);
    assert_eq!(status["leases"][0]["grant"], lease.grant.nonce.to_string());
}

#[test]
fn a_share_in_use_is_released_only_by_force() {
    let node = Node::with_gpus("0");
    let lease = node.lease("web", Process::current().unwrap());
    assert!(node.bad(&["release", "web"], "denied").contains("test/web is in use"));
    assert_eq!(node.store().leases().unwrap().len(), 1);
    let nonce = lease.grant.nonce.to_string();
    assert_eq!(
        node.good(&["release", "--force", "test/web"]),
        format!("released test/web (grant {nonce})\n")
    );
    assert!(node.store().leases().unwrap().is_empty());
    node.bad(&["release", "web"], "invalid-request");
    node.bad(&["release", &nonce], "invalid-request");
}

/// As Podman's precreate leaves it until somebody reconciles: its maker has ended, and only the runtime knows
/// its init.
#[test]
fn a_container_whose_init_nobody_wrote_down_is_in_use() {
    let node = Node::with_gpus("0");
    let pid_file = node.folder.path().join("pidfile");
    let lease = node.lease_with("web", dead(), Some(pid_file.clone()));
    let mut init = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write(&pid_file, init.id().to_string()).unwrap();
    assert!(node.bad(&["release", "web"], "denied").contains("test/web is in use: what it has allocated"));
    assert_eq!(node.store().leases().unwrap(), [lease]);
    init.kill().unwrap();
    init.wait().unwrap();
    assert!(node.good(&["release", "web"]).starts_with("released test/web (grant "));
}

#[test]
fn gc_frees_the_dead_and_keeps_the_living() {
    let node = Node::with_gpus("0");
    node.lease("living", Process::current().unwrap());
    node.lease("gone", dead());
    assert!(node.good(&["gc"]).starts_with("released test/gone (grant "));
    assert_eq!(node.good(&["gc"]), "nothing to release\n");
    assert_eq!(node.good(&["gc", "--quiet"]), "");
    assert_eq!(node.json(&["gc", "--json"]), serde_json::json!({ "schema": 1, "released": [] }));
    let gone = node.lease("gone again", dead());
    let expected = serde_json::json!({ "schema": 1, "released": [{
        "namespace": "test", "container": "gone again", "grant": gone.grant.nonce, "owner": null,
        "request": "fgpu/fraction=0.25",
    }] });
    assert_eq!(node.json(&["gc", "--json"]), expected);
    node.lease("gone", dead());
    assert!(node.good(&["gc", "-q"]).starts_with("released test/gone (grant "));
    let left = node.store().leases().unwrap();
    assert_eq!(left.iter().map(|lease| lease.key.id.as_str()).collect::<Vec<_>>(), ["living"]);
}

#[test]
fn a_damaged_allocator_file_is_rebuilt() {
    let node = Node::with_gpus("0");
    node.lease("web", Process::current().unwrap());
    let file = node.state().join("allocations.json");
    let mut damaged = fs::read(&file).unwrap();
    let end = damaged.len() - 2;
    damaged[end] ^= 1;
    fs::write(&file, damaged).unwrap();
    assert!(node.bad(&["status"], "state-corrupt").contains("fgpu gc --rebuild"));
    assert!(node.good(&["gc", "--rebuild"]).contains("1 leases hold"));
    assert!(node.good(&["status"]).contains("test/web"));
}

#[test]
fn everybody_may_look() {
    if fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own)).unwrap() != 0 {
        return; // only root can become somebody else
    }
    let node = Node::with_gpus("0");
    // The build folder may be root's alone. Copied by another process: a file that this one has open for
    // writing while another test forks cannot be executed (ETXTBSY).
    let program = node.folder.path().join("fgpu");
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_fgpu")).arg(&program).status().unwrap().success());
    let nobody = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("--config").arg(node.config());
        command.args(arguments).uid(65534).gid(65534).output().unwrap()
    };
    let stale = nobody(&["inventory"]);
    assert_eq!(stale.status.code(), Some(1));
    assert!(text(stale.stderr).contains("run `fgpu inventory --refresh` as root"));
    assert!(!node.state().exists(), "looking makes nothing");

    node.lease("web", Process::current().unwrap());
    for (arguments, word) in [(&["inventory"], "Stand-in"), (&["status"], "test/web")] {
        let output = nobody(arguments);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert!(text(output.stdout).contains(word));
    }
    let said = text(nobody(&["status", "--json"]).stderr);
    assert_eq!(said, "fgpu: warning: only root can read what containers have in use\n");
    let file = node.state().join("allocations.json");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, "damaged").unwrap();
    assert!(text(nobody(&["status"]).stderr).starts_with("fgpu: state-corrupt: "));
    fs::write(&file, whole).unwrap();
    for arguments in [&["inventory", "--refresh"][..], &["gc"], &["release", "--force", "web"]] {
        let output = nobody(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let words = text(output.stderr);
        assert!(
            words.ends_with("Permission denied (os error 13); run it as root\n"),
            "{arguments:?}: {words}"
        );
    }
    assert_eq!(node.store().leases().unwrap().len(), 1);
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let node = Node::with_gpus("0");
    node.good(&["inventory"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = node.command(&["inventory"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((status.status.code(), text(status.stderr)), (Some(0), String::new()));
}
