//! The systemd units of packaging/: systemd understands them, and what they run does what they are for.

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml's allow-unwrap-in-tests does not reach the helpers of a test"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fgpu_allocator::{Applicant, Key, Process, Rules, Store};
use fgpu_spec::{Defaults, Gpu, Inventory, Nonce, Request, Tier};

const FGPU: &str = env!("CARGO_BIN_EXE_fgpu");

fn units() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/systemd");
    let mut units: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    units.sort();
    units
}

/// The values of a key in a unit.
fn values<'a>(unit: &'a str, key: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix('=')).collect()
}

fn unit(name: &str) -> String {
    let path = units().into_iter().find(|path| path.ends_with(name)).unwrap();
    fs::read_to_string(path).unwrap()
}

/// What a unit runs, with the program that was built here and a node of the test's own.
fn run(name: &str, config: &Path) -> std::process::Output {
    let text = unit(name);
    let [command] = values(&text, "ExecStart")[..] else { panic!("{name} runs one command") };
    let arguments = command.strip_prefix("/usr/bin/fgpu ").unwrap().split(' ');
    Command::new(FGPU).arg("--config").arg(config).args(arguments).output().unwrap()
}

/// A lease whose maker is `maker`, with its folder, as a front end or a hook leaves it that is killed before
/// the container has an init.
fn lease(store: &Store, id: &str, maker: Process) -> Nonce {
    let gpu = Gpu {
        uuid: "GPU-0".into(),
        index: 0,
        minor: 0,
        model: "A100".into(),
        pci: String::new(),
        numa: None,
        total_memory: 40 << 30,
        reserved_memory: 0,
        mig_enabled: false,
        context_memory: None,
        compute_capability: None,
        mig_profiles: Vec::new(),
    };
    let inventory = Inventory {
        version: 1,
        boot_id: String::new(),
        root: "/".into(),
        driver_version: String::new(),
        cuda_version: 0,
        gpus: vec![gpu],
        driver_limits: false,
        topology: fgpu_spec::Topology::default(),
        files: Vec::new(),
    };
    let annotations = [("fgpu/fraction".to_owned(), "0.25".to_owned())].into();
    let request = Request::parse(&annotations, None, &Defaults::default()).unwrap().unwrap();
    let bundle = format!("/var/lib/containers/storage/overlay-containers/{id}/userdata");
    let applicant = Applicant {
        key: Key { namespace: bundle.clone(), id: id.into() },
        bundle: bundle.into(),
        maker,
        pid_file: None,
        anchor: None,
    };
    let lease = store.reserve(&inventory, &Rules::default(), &request, &[Tier::Quota], &applicant).unwrap();
    let folder = store.container_dir(&lease.grant.nonce);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("ledger"), [0; 4096]).unwrap();
    lease.grant.nonce
}

#[test]
fn the_timer_clears_what_a_killed_hook_left_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (state, config) = (folder.path().join("state"), folder.path().join("config.toml"));
    let log = folder.path().join("log");
    fs::write(&config, format!("state-dir = {state:?}\nlog-dir = {log:?}\n")).unwrap();
    let store = Store::open(&state).unwrap();

    let mut hook = Command::new("sleep").arg("1000").spawn().unwrap();
    let hook_process = Process::of(i32::try_from(hook.id()).unwrap()).unwrap();
    let killed = lease(&store, "killed", hook_process);
    let living = lease(&store, "living", Process::current().unwrap());

    let output = run("fgpu-gc.service", &config);
    assert_eq!((output.status.code(), output.stdout), (Some(0), Vec::new()), "both still hold theirs");
    assert_eq!(store.leases().unwrap().len(), 2);

    hook.kill().unwrap();
    hook.wait().unwrap();
    let output = run("fgpu-gc.service", &config);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text, format!("released killed (grant {killed})\n"));
    let left: Vec<_> = store.leases().unwrap().into_iter().map(|lease| lease.grant.nonce).collect();
    assert_eq!(left, [living]);
    assert!(!store.container_dir(&killed).exists() && store.container_dir(&living).exists());
    assert_eq!(run("fgpu-gc.service", &config).stdout, b"", "nothing is left, and nothing is said of it");
}

#[test]
fn the_timer_is_for_the_service_and_the_service_may_write_only_its_own_directories() {
    let timer = unit("fgpu-gc.timer");
    assert!(values(&timer, "Unit").is_empty(), "it is the service of its name");
    assert_eq!(values(&timer, "OnUnitActiveSec"), ["1min"]);
    let service = unit("fgpu-gc.service");
    let writes = ["/run", "-/sys/fs/bpf"];
    assert_eq!(values(&service, "ReadWritePaths"), writes, "systemd binds no folder that is a mount point");
    assert!(values(&service, "RuntimeDirectory").is_empty(), "it would bind the state over itself");
    assert_eq!(values(&service, "LogsDirectory"), ["fgpu"]);
    assert_eq!(values(&service, "ProtectSystem"), ["strict"]);
    let conditions = service.lines().filter(|line| line.starts_with("Condition"));
    assert_eq!(conditions.count(), 0, "the timer does not count from a start that a condition stopped");
    // What is hidden is taken for dead, and given to somebody else.
    for hiding in ["ProcSubset", "ProtectProc", "ProtectHome", "PrivateTmp", "PrivateUsers", "PrivatePIDs"] {
        assert!(values(&service, hiding).is_empty(), "{hiding}");
    }
    assert!(values(&service, "CapabilityBoundingSet")[0].contains("CAP_SYS_PTRACE"));
}

#[test]
fn systemd_understands_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return; // a machine without systemd
    }
    let folder = tempfile::tempdir().unwrap();
    for path in units() {
        // The program need not be installed.
        let text = fs::read_to_string(&path).unwrap().replace("/usr/bin/fgpu", FGPU);
        let copy = folder.path().join(path.file_name().unwrap());
        fs::write(&copy, text).unwrap();
    }
    for entry in fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let mut command = Command::new("systemd-analyze");
        let output =
            command.args(["verify", "--man=no", "--recursive-errors=no"]).arg(&path).output().unwrap();
        // Other units of the machine may have faults of their own.
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let ours: Vec<_> = said.lines().filter(|line| line.contains("fgpu-")).collect();
        assert!(output.status.success() && ours.is_empty(), "{}: {said}", path.display());
    }
}
