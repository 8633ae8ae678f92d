//! `packaging/prepare` on machines that lack something: one line says what to do, and nothing is installed or
//! built. What it installs is shown by `tests/lab/bare`. Needs root, for machines are made of namespaces.

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml's allow-unwrap-in-tests does not reach the helpers of a test"
)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// A checkout and a PATH of its own.
struct Machine {
    folder: TempDir,
}

/// What `prepare` itself runs.
const PROGRAMS: &[&str] = &[
    "bash", "cat", "cp", "cut", "df", "dirname", "du", "env", "id", "mkdir", "mount", "sed", "setpriv", "sh",
    "sort", "tail", "unshare", "awk",
];
/// What it looks for beside that for `make demo`.
const DEMO: &[&str] = &["cc", "ld", "debootstrap", "ip", "apt-get"];

impl Machine {
    /// One with Rust, and with these programs as far as `prepare` looks at them: it asks whether they are
    /// there.
    fn with(programs: &[&str]) -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap() };
        for folder in ["checkout/packaging", "bin"] {
            fs::create_dir_all(machine.path(folder)).unwrap();
        }
        // Somebody else than root may look at it.
        fs::set_permissions(machine.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for file in ["packaging/prepare", "Cargo.toml"] {
            fs::copy(top().join(file), machine.path("checkout").join(file)).unwrap();
        }
        for program in PROGRAMS {
            let found =
                ["/usr/bin", "/usr/sbin", "/bin", "/sbin"].map(|folder| Path::new(folder).join(program));
            let found = found.into_iter().find(|path| path.exists());
            symlink(found.unwrap_or_else(|| panic!("no {program} here")), machine.path("bin").join(program))
                .unwrap();
        }
        for program in programs {
            machine.program(program, "true");
        }
        machine.program("rustc", &format!("echo rustc {}.0", env!("CARGO_PKG_RUST_VERSION")));
        machine.program("cargo", "true");
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn without(&self, name: &str) {
        fs::remove_file(self.path("bin").join(name)).unwrap();
    }

    /// What `prepare` says of a goal, run by a shell command in which `$P` is `prepare`. It must refuse, and
    /// leave the checkout as it was.
    fn refusal(&self, command: &str) -> String {
        let output = Command::new(self.path("bin/unshare"))
            .args(["--mount", "--propagation", "private", "sh", "-euc", command])
            .env_clear()
            .env("PATH", self.path("bin"))
            .env("HOME", self.path("home"))
            .env("P", self.path("checkout/packaging/prepare"))
            .env("C", self.path("checkout"))
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        assert_eq!(said.lines().count(), 1, "{command}: {said}");
        assert!(!self.path("checkout/.lab").exists() && !self.path("checkout/target").exists(), "{command}");
        said.strip_prefix("prepare: ").unwrap_or_else(|| panic!("{said}")).trim_end().to_owned()
    }
}

const RUST: &str = env!("CARGO_PKG_RUST_VERSION");

#[test]
fn somebody_else_than_root_is_told() {
    let machine = Machine::with(DEMO);
    for goal in ["demo", "test", "unit", "lab", "bench", "upgrade-test"] {
        let said =
            machine.refusal(&format!("setpriv --reuid 65534 --regid 65534 --clear-groups bash $P {goal}"));
        assert_eq!(said, format!("make {goal} needs root: run it as root, or with sudo"));
    }
}

#[test]
fn rust_that_is_missing_or_too_old_is_told_with_the_command() {
    let machine = Machine::with(DEMO);
    let command = "rustup update stable && rustup default stable";
    for goal in ["build", "demo", "test", "lint", "unit", "packages", "lab"] {
        machine.program("rustc", "echo 'rustc 1.63.0 (4b91a6ea7 2022-08-08)'");
        let said = machine.refusal(&format!("bash $P {goal}"));
        assert!(said.starts_with(&format!("Rust {RUST} or newer is needed, and ")), "{said}");
        assert!(said.ends_with(&format!("/rustc is 1.63.0: install rustup, then run: {command}")), "{said}");
    }
    machine.program("rustup", "false");
    let said = machine.refusal("bash $P demo");
    assert_eq!(said, format!("Rust {RUST} or newer is needed, and rustc is 1.63.0: run: {command}"));
    // rustup without a toolchain: its rustc is there and fails.
    machine.program("rustc", "echo 'rustup could not choose a version of rustc to run' >&2; exit 1");
    assert_eq!(machine.refusal("bash $P demo"), format!("Rust {RUST} or newer is missing: run: {command}"));
    machine.without("rustup");
    for program in ["rustc", "cargo"] {
        machine.without(program);
        let said = machine.refusal("bash $P test");
        assert!(said.starts_with(&format!("Rust {RUST} or newer is missing: install rustup")), "{said}");
        assert!(said.ends_with(command), "{said}");
        let said = machine.refusal("SUDO_USER=somebody bash $P demo");
        let again = "sudo --preserve-env=HOME env \"PATH=$PATH\" make demo";
        assert_eq!(said, format!("root has no Rust {RUST}: if somebody has it, run: {again}"));
    }
}

#[test]
fn too_little_disk_is_told() {
    let machine = Machine::with(DEMO);
    for goal in ["build", "demo", "test", "lint", "unit", "packages", "package-tests", "lab"] {
        let said = machine.refusal(&format!(
            "mkdir -p $C.small; mount -t tmpfs -o size=64m small $C.small; cp -r $C/packaging $C/Cargo.toml $C.small;
             bash $C.small/packaging/prepare {goal}"
        ));
        let command = if goal == "build" { "make".to_owned() } else { format!("make {goal}") };
        assert!(said.starts_with(&format!("{command} needs ")), "{said}");
        assert!(said.contains(" MiB of disk in ") && said.ends_with(" are free: make room"), "{said}");
    }
}

#[test]
fn another_system_than_debian_12_or_newer_is_told() {
    let machine = Machine::with(DEMO);
    for (release, named) in [
        ("ID=ubuntu\nVERSION_ID=24.04\nPRETTY_NAME='Ubuntu 24.04 LTS'", "Ubuntu 24.04 LTS"),
        (
            "ID=debian\nVERSION_ID=11\nPRETTY_NAME='Debian GNU/Linux 11 (bullseye)'",
            "Debian GNU/Linux 11 (bullseye)",
        ),
        ("ID=fedora\nVERSION_ID=43\nPRETTY_NAME='Fedora Linux 43'", "Fedora Linux 43"),
        ("NAME=something", "another system"),
    ] {
        fs::write(machine.path("os-release"), release).unwrap();
        for goal in ["demo", "test", "lab"] {
            let said =
                machine.refusal(&format!("mount --bind $C/../os-release /etc/os-release; bash $P {goal}"));
            assert_eq!(said, format!("make {goal} needs Debian 12 or newer, and this is {named}"));
        }
    }
}

#[test]
fn a_root_that_may_not_make_namespaces_is_told() {
    let machine = Machine::with(DEMO);
    for goal in ["demo", "test", "lab", "bench"] {
        let said = machine.refusal(&format!("setpriv --bounding-set -sys_admin bash $P {goal}"));
        assert!(said.starts_with("this root may not make namespaces and mounts: "), "{said}");
        assert!(
            said.contains(&format!("make {goal} on a machine, or in a container with --privileged")),
            "{said}"
        );
    }
}

#[test]
fn packages_that_cannot_be_installed_are_named() {
    let machine = Machine::with(&["apt-get"]);
    let said = machine.refusal("setpriv --reuid 65534 --regid 65534 --clear-groups bash $P build");
    assert_eq!(said, "missing; run as root: apt-get install gcc binutils libc6-dev");
    machine.without("apt-get");
    assert_eq!(
        machine.refusal("bash $P build"),
        "missing, and there is no apt-get to install it: what Debian calls gcc binutils libc6-dev"
    );
    let said = machine.refusal("bash $P demo");
    assert!(said.ends_with("gcc binutils libc6-dev debootstrap iproute2 python3 python3-pip"), "{said}");
    // `kill` is a word of every shell, and the program is what tests start.
    let said = machine.refusal("bash $P unit");
    assert!(said.ends_with("gcc binutils libc6-dev musl-tools python3 python3-pip procps"), "{said}");
}

/// Nothing is built before the machine has been looked at, and what CI runs is what everybody runs.
#[test]
fn every_goal_prepares_the_machine_first() {
    for goal in [
        "demo",
        "test",
        "lint",
        "unit",
        "packages",
        "package-tests",
        "lab",
        "bench",
        "upgrade-test",
        "all",
        "lab-tree",
    ] {
        let output =
            Command::new("make").args(["--dry-run", "--directory"]).arg(top()).arg(goal).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let first = said.lines().find(|line| !line.starts_with("make")).unwrap();
        let named = if matches!(goal, "all" | "lab-tree") { "build" } else { goal };
        assert_eq!(first, format!("packaging/prepare {named}"), "{goal}");
    }
    let ci = fs::read_to_string(top().join(".ci/run")).unwrap();
    assert!(ci.ends_with("exec make test\n"), "{ci}");
}

/// The lab takes its root file systems from the mirror of this machine's apt, in whatever way that is written
/// down.
#[test]
fn the_mirror_is_found_in_every_kind_of_source() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    let here = folder.path().display();
    let packages = "Package: one\nVersion: 1\nArchitecture: amd64\nFilename: one.deb\nSize: 1\n";
    let sum = "9ed09af397bfa8f9d59755d6a830e00552f4dafe920f37bf8099e911e156bf4e";
    for (archive, label) in [("debian", "Debian"), ("security", "Debian-Security"), ("ours", "Ours")] {
        let suite = at(archive).join("dists/stable");
        fs::create_dir_all(suite.join("main/binary-amd64")).unwrap();
        fs::write(suite.join("main/binary-amd64/Packages"), packages).unwrap();
        let release = format!(
            "Label: {label}\nSuite: stable\nComponents: main\nArchitectures: amd64\nDate: Thu, 01 Jan 2026 00:00:00 UTC\n\
             SHA256:\n {sum} {} main/binary-amd64/Packages\n",
            packages.len()
        );
        fs::write(suite.join("Release"), release).unwrap();
    }
    fs::write(at("mirrors.list"), format!("# one a line\n\nfile:{here}/debian\tpriority:1\nfile:/nowhere\n"))
        .unwrap();
    for folder in ["lists/partial", "cache/archives/partial", "parts", "lab"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    let apt = format!(
        "Dir::Etc::SourceList \"{here}/sources.list\"; Dir::Etc::SourceParts \"{here}/parts\";\n\
         Dir::State::Lists \"{here}/lists\"; Dir::Cache \"{here}/cache\"; APT::Sandbox::User \"root\";\n\
         APT::Architecture \"amd64\"; APT::Architectures {{ \"amd64\"; }};\n"
    );
    fs::write(at("apt.conf"), apt).unwrap();
    let others = format!(
        "deb [trusted=yes] file:{here}/ours stable main\ndeb [trusted=yes] file:{here}/security stable main\n"
    );
    for source in [
        format!("deb [trusted=yes] file:{here}/debian stable main"),
        format!("deb [trusted=yes] mirror+file:{here}/mirrors.list stable main"),
        format!("deb [trusted=yes] mirror+file://{here}/mirrors.list stable main"),
        format!(
            "# deb cdrom:[Debian GNU/Linux 13]/ stable main\ndeb [trusted=yes] file:{here}/debian/ stable main"
        ),
    ] {
        fs::write(at("sources.list"), format!("{others}{source}\n")).unwrap();
        let script = format!(". {}/tests/lab/common.sh; mirror", top().display());
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).env("APT_CONFIG", at("apt.conf")).env("FGPU_LAB", at("lab"));
        let output = shell.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(
            said,
            format!("file:{here}/debian\n"),
            "{source}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
