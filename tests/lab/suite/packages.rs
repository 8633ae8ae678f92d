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
use fgpu_lab::{podman, process, systemd};
use serde_json::Value;

use crate::limit::assert_filled;

pub(crate) const TESTS: &[Test] = &[
    Test::packaged("packages::install_run_undo_purge", install_run_undo_purge),
    Test::packaged("packages::programs_run_on_debian_11", programs_run_on_debian_11),
    Test::packaged("packages::upgrade_keeps_containers", upgrade_keeps_containers),
    Test::packaged("packages::upgrade_undone_keeps_containers", upgrade_undone_keeps_containers),
    Test::packaged("packages::removal_keeps_containers", removal_keeps_containers),
    Test::packaged("packages::dpkg_killed_at_every_command", dpkg_killed_at_every_command),
    Test::packaged("packages::state_has_a_file_system_of_its_own", state_has_a_file_system_of_its_own),
];

/// Every file, folder and link of the root file system with its mode, owner and content, but what runs, what
/// engines store, and the records of dpkg and apt that every installation changes.
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
    let query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"];
    let quarter = docker::container("debian13").options(["--runtime=fgpu", "--annotation", annotation]);
    quarter.command(query).run().ok().to_owned()
}

fn install_run_undo_purge() {
    let before = listing();
    assert!(!Path::new("/usr/bin/fgpu").exists() && !Path::new("/etc/fgpu").exists());
    let installed = install(&current());
    for unit in [
        "timers.target.wants/fgpu-gc.timer",
        "multi-user.target.wants/fgpu-cdi.service",
        "multi-user.target.wants/fgpu-inventory.service",
        "local-fs.target.wants/run-fgpu.mount",
    ] {
        assert!(Path::new("/etc/systemd/system").join(unit).is_symlink(), "{unit} is enabled");
    }
    assert!(
        run(["dpkg", "--verify", "fgpu"]).ok().lines().all(|line| line.ends_with("c /etc/fgpu/config.toml"))
    );
    let refused = docker::container("debian13").options(["--runtime=fgpu"]).command(["true"]).run();
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
        let old = docker::container("debian11").options(["--volume", &volume]);
        let output = old.command(["sh", "-c", &script]).run();
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

    /// Another package in the place of the one that started them, which they do not notice.
    #[track_caller]
    fn exchange(&self, package: &str) {
        let files =
            ["/usr/bin/containerd-shim-fgpu-v2", "/usr/bin/fgpu-hook", "/usr/lib/fgpu/libfgpu-cuda.so"];
        let inodes = || files.map(|path| fs::metadata(path).map(|file| file.ino()).unwrap_or_default());
        let old = inodes();
        apt(&["install", "--allow-downgrades", package]).ok();
        assert!(inodes().iter().zip(old).all(|(new, old)| *new != old), "the files are others now");
        let edited = fs::read_to_string("/etc/fgpu/config.toml").unwrap_or_default();
        assert!(edited.contains("/opt/fgpu-sim"), "what was configured stays");
        self.assert_untouched();
        run(["fgpu", "gc"]).ok();
        self.assert_untouched();
        let status: Value =
            serde_json::from_str(run(["fgpu", "status", "--json"]).ok()).expect("status is JSON");
        assert_eq!(status["leases"].as_array().map(Vec::len), Some(3), "{status}");
    }

    /// Each ends through the files that are there now, and gives back.
    #[track_caller]
    fn end(self) {
        self.shim.docker(&["stop", "--time", "0"]).ok();
        wait_until("the end of the shim's lease", || node::leases().len() == 2);
        self.runtime.docker(&["stop", "--time", "0"]).ok();
        wait_until("the end of the runtime's lease", || node::leases().len() == 1);
        podman::podman(&["stop", "--time", "0", "hook"]).ok();
        node::wait_until_free();
        docker::remove_all();
        podman::remove_all();
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
    tenants.exchange(&current());
    // The new program changes what the old one granted.
    run(["fgpu", "resize", &tenants.shim.id, "--fraction", "0.125"]).ok();
    assert_filled(tenants.shim.exec(["alloc", "fill"]).ok(), node::gpus()[0].share(125_000));
    // Newcomers beside them are the new version's.
    let rest = docker::container("debian13").under(FrontEnd::Shim).annotation("fgpu/fraction", "0.375");
    let rest = rest.annotation("fgpu/device", "0").command(["alloc", "fill"]).run();
    assert_filled(rest.ok(), node::gpus()[0].share(375_000));
    tenants.end();
}

fn upgrade_undone_keeps_containers() {
    let _installed = install(&previous());
    apt(&["install", &current()]).ok();
    let tenants = Tenants::start();
    tenants.exchange(&previous());
    tenants.end();
}

fn removal_keeps_containers() {
    let installed = install(&current());
    let tenants = Tenants::start();
    let removal = apt(&["remove", "fgpu"]);
    removal.ok();
    let said = format!("{}{}", removal.stdout, removal.stderr);
    assert!(said.contains("fgpu: containers that hold a share run on"), "{said}");
    assert!(said.contains("fgpu: docker's configuration names fgpu"), "{said}");
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

/// A script of ours that dpkg runs.
struct Script<'a> {
    name: &'a str,
    /// What runs it.
    command: &'a [&'a str],
    /// What is done after it was killed.
    again: &'a [&'a str],
    /// dpkg's word for what is the case then; none if it knows nothing of the package any more.
    then: &'a str,
    /// What makes the command possible once more.
    back: &'a [&'a str],
}

/// dpkg and the script of ours that it runs, killed before each command of the script; what an administrator
/// does then ends well.
fn dpkg_killed_at_every_command() {
    let before = listing();
    let package = install(&current());
    let status = || shell("dpkg-query -W -f '${db:Status-Status}' fgpu 2>/dev/null").stdout;
    let mut kills = [0; 3];
    // Installed dozens of times: with our scripts and what they need.
    let deb = "/run/lab/fgpu_thin.deb";
    let pack = format!(
        "rm -rf /run/lab/package && dpkg-deb -R {} /run/lab/package && cd /run/lab/package && \
         rm -rf usr/lib/fgpu usr/share usr/bin/[!f]* usr/bin/fgpu-* && \
         dpkg-deb -Znone --root-owner-group -b . {deb} && rm -rf /run/lab/package",
        current()
    );
    shell(&pack).ok();
    let cases = [
        Script {
            name: "postinst",
            command: &["dpkg", "--configure", "fgpu"],
            again: &["dpkg", "--configure", "-a"],
            then: "installed",
            back: &["dpkg", "--unpack", deb],
        },
        Script {
            name: "prerm",
            command: &["dpkg", "--remove", "fgpu"],
            again: &["dpkg", "--remove", "fgpu"],
            then: "config-files",
            back: &["dpkg", "-i", deb],
        },
        Script {
            name: "postrm",
            command: &["dpkg", "--purge", "fgpu"],
            again: &["dpkg", "--purge", "fgpu"],
            then: "",
            back: &["dpkg", "-i", deb],
        },
    ];
    for (script, kills) in cases.iter().zip(&mut kills) {
        for step in 1.. {
            run(script.back).ok();
            let path = format!("/var/lib/dpkg/info/fgpu.{}", script.name);
            let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
            let trap =
                format!("#!/bin/bash\ntrap '[ $((++step)) != {step} ] || kill -KILL $PPID $$' DEBUG\n");
            fs::write(&path, text.replacen("#!/bin/sh\n", &trap, 1)).expect("dpkg's scripts can be written");
            let output = run(script.command);
            if output.status == 0 {
                break;
            }
            assert_eq!(output.status, 137, "{} {step}: {}", script.name, output.story());
            *kills += 1;
            if Path::new(&path).exists() {
                fs::write(&path, &text).expect("dpkg's scripts can be written");
            }
            run(script.again).ok();
            assert_eq!(status(), script.then, "{} killed before command {step}", script.name);
            assert_eq!(run(["dpkg", "--audit"]).ok(), "");
        }
    }
    assert!(kills.iter().all(|&kills| kills > 2), "each script was killed several times: {kills:?}");
    drop(package);
    let after = listing();
    assert_eq!(before.symmetric_difference(&after).collect::<Vec<_>>(), Vec::<&String>::new());
}

/// Where systemd is, containers cannot fill the host's /run; and nothing is ever mounted over a state in use.
fn state_has_a_file_system_of_its_own() {
    let installed = install(&current());
    assert!(Path::new("/etc/systemd/system/local-fs.target.wants/run-fgpu.mount").is_symlink());
    let systemd = systemd::start();
    let start = || systemd.run(&["systemctl", "start", "run-fgpu.mount"]).ok().to_owned();
    let mounted = || systemd.run(&["findmnt", "--noheadings", "--output", "FSTYPE,OPTIONS", "/run/fgpu"]);
    systemd.run(&["mkdir", "-p", "/run/fgpu"]).ok();
    start();
    let options = mounted().ok().to_owned();
    for option in ["tmpfs", "nosuid", "nodev", "noexec", "mode=755", "size=524288k"] {
        assert!(options.contains(option), "{option} in {options}");
    }
    // The timer's service, which sees little else of the node, works in it: a folder of no lease goes with
    // its mounts.
    let gc = || systemd.run(&["systemctl", "start", "fgpu-gc.service"]).ok().to_owned();
    gc();
    systemd.run(&["test", "-e", "/run/fgpu/lock"]).ok();
    // Refused, since there is no device node beside this systemd; a state that has been used has a file of
    // leases.
    systemd.run(&["fgpu", "run", "--fraction=0.25", "true"]).refused();
    systemd.run(&["test", "-e", "/run/fgpu/allocations.json"]).ok();
    let orphan = "/run/fgpu/containers/00112233445566778899aabbccddeeff";
    let own = format!("{orphan}/own");
    systemd.run(&["mkdir", "-p", &own]).ok();
    systemd.run(&["mount", "-t", "tmpfs", "own", &own]).ok();
    systemd.run(&["mkdir", &format!("{own}/files")]).ok();
    systemd.run(&["mount", "-t", "tmpfs", "files", &format!("{own}/files")]).ok();
    gc();
    systemd.run(&["test", "!", "-e", orphan]).ok();
    assert_eq!(systemd.run(&["grep", "-c", "/own", "/proc/self/mountinfo"]).stdout.trim(), "0");
    let refused = systemd.run(&["systemctl", "stop", "run-fgpu.mount"]);
    assert!(refused.refused().contains("refused"), "{}", refused.story());

    // In use without it: an upgrade from a version that had no such unit.
    systemd.run(&["umount", "--recursive", "/run/fgpu"]).ok();
    systemd.run(&["touch", "/run/fgpu/allocations.json"]).ok();
    start();
    assert_ne!(mounted().status, 0, "mounted over a state in use: {}", mounted().story());
    systemd.run(&["test", "-e", "/run/fgpu/allocations.json"]).ok();
    systemd.run(&["rm", "/run/fgpu/allocations.json"]).ok();
    // The lab's policy forbids a package to start anything.
    let configure = "mv /usr/sbin/policy-rc.d /run/lab && /var/lib/dpkg/info/fgpu.postinst configure; mv /run/lab/policy-rc.d /usr/sbin";
    systemd.run(&["sh", "-c", configure]).ok();
    assert!(mounted().ok().contains("tmpfs"), "installed where nothing is in use, it is mounted at once");

    systemd.run(&["dpkg", "--purge", "fgpu"]).ok();
    systemd.run(&["test", "!", "-e", "/run/fgpu"]).ok();
    drop(systemd);
    drop(installed);
}
