//! The .deb on a machine that has not heard of fgpu: installed, used, upgraded and removed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fgpu_lab::command::{run, shell, wait_until};
use fgpu_lab::docker::{self, Container};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd, Lease};
use fgpu_lab::package::{apt, current, install, previous, restart_engines};
use fgpu_lab::{podman, process};

use crate::limit::assert_filled;

pub(crate) const TESTS: &[Test] = &[
    Test::packaged("packages::install_run_undo_purge", install_run_undo_purge),
    Test::packaged("packages::programs_run_on_debian_11", programs_run_on_debian_11),
    Test::packaged("packages::upgrade_keeps_containers", upgrade_keeps_containers),
    Test::packaged("packages::removal_keeps_containers", removal_keeps_containers),
];

/// Every file, folder and link of the root file system with its mode, owner and content, but what runs, what engines
/// store, and the records of dpkg and apt that every installation changes.
#[track_caller]
fn listing() -> BTreeSet<String> {
    let left_out = [
        "/var/lib/docker",
        "/var/lib/containerd",
        "/var/lib/containers",
        "/var/log/lab",
        "/var/lib/dpkg/status",
        "/var/lib/dpkg/status-old",
        "/var/lib/dpkg/available",
        "/var/lib/dpkg/info/format",
        "/var/log/dpkg.log",
        "/var/log/apt",
        "/var/log/alternatives.log",
        "/var/cache/apt",
        "/var/lib/apt",
        "/var/cache/ldconfig",
        "/etc/ld.so.cache",
        "/opt",
    ];
    let prune: Vec<_> = left_out.iter().map(|path| format!("-path {path}")).collect();
    let prune = prune.join(" -o ");
    let script = format!(
        "find / -xdev \\( {prune} \\) -prune -o -type f -printf '%p\\0' | xargs -0 sha1sum | sed 's/^/content /'; \
         find / -xdev \\( {prune} \\) -prune -o -printf '%y %m %U:%G %p %l\\n'"
    );
    shell(&script).ok().lines().map(str::to_owned).collect()
}

#[track_caller]
fn smi(annotation: &str) -> String {
    docker::load("debian13");
    let query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"];
    let head = ["docker", "run", "--rm", "--runtime=fgpu", "--annotation", annotation, "debian13"];
    run(head.iter().chain(&query)).ok().to_owned()
}

fn install_run_undo_purge() {
    let before = listing();
    assert!(!Path::new("/usr/bin/fgpu").exists() && !Path::new("/etc/fgpu").exists());
    let installed = install(&current());
    for unit in ["timers.target.wants/fgpu-gc.timer", "multi-user.target.wants/fgpu-inventory.service"] {
        assert!(Path::new("/etc/systemd/system").join(unit).is_symlink(), "{unit} is enabled");
    }
    assert!(
        run(["dpkg", "--verify", "fgpu"]).ok().lines().all(|line| line.ends_with("c /etc/fgpu/config.toml"))
    );
    let refused = run(["docker", "run", "--rm", "--runtime=fgpu", "debian13", "true"]);
    assert!(refused.status != 0, "an installation wires no engine: {}", refused.story());

    run(["fgpu", "setup", "docker"]).ok();
    restart_engines();
    let gpu = &node::gpus()[0];
    assert_eq!(smi("fgpu/fraction=0.25"), (gpu.share(250_000) >> 20).to_string());
    assert_eq!(smi("fgpu/fraction=0.5"), (gpu.share(500_000) >> 20).to_string());
    node::wait_until_free();
    // What events and others of its programs keep is there now.
    run(["fgpu", "gc"]).ok();

    run(["fgpu", "setup", "docker", "--undo"]).ok();
    restart_engines();
    drop(installed);
    let after = listing();
    let difference: Vec<_> = before.symmetric_difference(&after).collect();
    assert_eq!(difference, Vec::<&String>::new(), "the file system is as it was");
    assert!(!Path::new("/run/fgpu").exists(), "nobody holds anything, so nothing is kept");
}

/// Debian 11 has glibc 2.31. The statement for 2.28 is made by the versions of symbols, in packages.rs.
fn programs_run_on_debian_11() {
    let _installed = install(&current());
    docker::load("debian11");
    for (program, said) in [
        ("fgpu --version", "fgpu "),
        ("fgpu-hook", "usage: fgpu-hook"),
        ("fgpu-runtime --version", "fgpu: "),
        ("containerd-shim-fgpu-v2 -v", "containerd-shim-fgpu-v2: "),
    ] {
        // Alone, so that no real runtime of this machine is found beside it.
        let name = program.split(' ').next().unwrap_or_default();
        let volume = format!("/usr/bin/{name}:/host/{name}:ro");
        let script = format!("/host/{program} 2>&1; true");
        let output = run(["docker", "run", "--rm", "--volume", &volume, "debian11", "sh", "-c", &script]);
        assert!(output.ok().starts_with(said), "{program}: {}", output.story());
    }
}

/// A container of each front end, a quarter of GPU 0 for each.
struct Tenants {
    shim: Container,
    runtime: Container,
    hook: podman::Container,
    leases: Vec<Lease>,
    inits: Vec<i32>,
    quarter: u64,
}

impl Tenants {
    #[track_caller]
    fn start() -> Self {
        // Both of Docker's ways at once, which `fgpu setup` does not write.
        fs::copy("/lab/daemon.json", "/etc/docker/daemon.json").expect("daemon.json can be written");
        restart_engines();
        let tenant = |front_end| {
            let run = docker::container("debian13").under(front_end).annotation("fgpu/fraction", "0.25");
            run.annotation("fgpu/device", "0").command(["sleep", "1000"]).start()
        };
        let options = ["--annotation", "fgpu/fraction=0.25", "--annotation", "fgpu/device=0"];
        let (shim, runtime) = (tenant(FrontEnd::Shim), tenant(FrontEnd::Runtime));
        let hook = podman::start("debian13", "crun", "hook", &options);
        wait_until("the inits of three leases", || node::inits().len() == 3);
        let quarter = node::gpus()[0].share(250_000);
        let tenants = Self { shim, runtime, hook, leases: node::leases(), inits: node::inits(), quarter };
        tenants.assert_untouched();
        tenants
    }

    /// They run, hold what they held and are limited to it.
    #[track_caller]
    fn assert_untouched(&self) {
        assert!(self.inits.iter().all(|init| process::lives(*init)), "a container ended");
        assert_eq!(node::leases(), self.leases);
        assert_filled(self.shim.exec(["alloc", "fill"]).ok(), self.quarter);
        assert_filled(self.runtime.exec(["alloc", "fill"]).ok(), self.quarter);
        assert_filled(self.hook.exec(&["alloc", "fill"]).ok(), self.quarter);
    }
}

impl Drop for Tenants {
    fn drop(&mut self) {
        // As `boot` wrote it.
        let plain = "jq 'del(.runtimes)' /lab/daemon.json >/etc/docker/daemon.json";
        shell(plain).ok();
    }
}

fn upgrade_keeps_containers() {
    let _installed = install(&previous());
    let tenants = Tenants::start();
    let files = ["/usr/bin/containerd-shim-fgpu-v2", "/usr/bin/fgpu-hook", "/usr/lib/fgpu/libfgpu-cuda.so"];
    let inodes = || files.map(|path| fs::metadata(path).map(|file| file.ino()).unwrap_or_default());
    let old = inodes();

    apt(&["install", &current()]).ok();
    assert!(inodes().iter().zip(old).all(|(new, old)| *new != old), "the files are others now");
    let edited = fs::read_to_string("/etc/fgpu/config.toml").unwrap_or_default();
    assert!(edited.contains("/opt/fgpu-sim"), "what was configured stays");
    tenants.assert_untouched();
    run(["fgpu", "gc"]).ok();
    tenants.assert_untouched();
    // The new program changes what the old one granted.
    run(["fgpu", "resize", &tenants.shim.id, "--fraction", "0.125"]).ok();
    assert_filled(tenants.shim.exec(["alloc", "fill"]).ok(), node::gpus()[0].share(125_000));
    // Newcomers beside them are the new version's.
    let rest = docker::container("debian13").under(FrontEnd::Shim).annotation("fgpu/fraction", "0.375");
    let rest = rest.annotation("fgpu/device", "0").command(["alloc", "fill"]).run();
    assert_filled(rest.ok(), node::gpus()[0].share(375_000));

    // Each ends through the new files, and gives back.
    tenants.shim.docker(&["stop", "--time", "0"]).ok();
    wait_until("the end of the shim's lease", || node::leases().len() == 2);
    tenants.runtime.docker(&["stop", "--time", "0"]).ok();
    wait_until("the end of the runtime's lease", || node::leases().len() == 1);
    podman::podman(&["stop", "--time", "0", "hook"]).ok();
    node::wait_until_free();
    docker::remove_all();
    podman::remove_all();
}

fn removal_keeps_containers() {
    let installed = install(&current());
    let tenants = Tenants::start();
    let removal = apt(&["remove", "fgpu"]);
    removal.ok();
    let said = format!("{}{}", removal.stdout, removal.stderr);
    assert!(said.contains("fgpu: containers that hold a share run on"), "{said}");
    assert!(!Path::new("/usr/bin/fgpu").exists() && Path::new("/etc/fgpu/config.toml").exists());
    // What was started with a runtime that is gone cannot be entered any more; it lives.
    assert!(tenants.inits.iter().all(|init| process::lives(*init)));
    assert_eq!(node::leases(), tenants.leases);
    assert_filled(tenants.shim.exec(["alloc", "fill"]).ok(), tenants.quarter);
    assert_filled(tenants.hook.exec(&["alloc", "fill"]).ok(), tenants.quarter);
    // The relay is a process of the old files: it needs none of them to give back.
    tenants.shim.docker(&["stop", "--time", "0"]).ok();
    wait_until("the end of the shim's lease", || node::leases().len() == 2);

    // Even a purge keeps what says who holds what.
    drop(installed);
    assert!(!Path::new("/etc/fgpu").exists() && !Path::new("/var/log/fgpu").exists());
    assert_eq!(node::leases().len(), 2);
    assert_filled(tenants.hook.exec(&["alloc", "fill"]).ok(), tenants.quarter);

    let _installed = install(&current());
    assert_eq!(node::leases().len(), 2);
    tenants.runtime.docker(&["stop", "--time", "0"]).ok();
    podman::podman(&["stop", "--time", "0", "hook"]).ok();
    run(["fgpu", "gc"]).ok();
    assert_eq!(node::leases(), []);
    docker::remove_all();
    podman::remove_all();
}
