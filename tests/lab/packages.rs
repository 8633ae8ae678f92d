//! What is in the packages of `make packages`, looked at from outside: with dpkg, rpm, readelf, lintian and
//! rpmlint. What they do to a machine is in suite/packages.rs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest C library that the programs are to run on: RHEL 8's; Debian 11 has 2.31.
const GLIBC: (u32, u32) = (2, 28);

fn folder() -> PathBuf {
    let usual = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/packages");
    std::env::var_os("FGPU_PACKAGES").unwrap_or_else(|| usual.into()).into()
}

/// The package whose name ends with `suffix`.
fn package(suffix: &str) -> String {
    let folder = folder();
    let entries =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}: make packages", folder.display()));
    let names = entries.filter_map(|entry| entry.ok()?.path().to_str().map(str::to_owned));
    let found: Vec<_> = names.filter(|name| name.ends_with(suffix)).collect();
    assert_eq!(found.len(), 1, "one {suffix} in {}: {found:?}", folder.display());
    found[0].clone()
}

fn deb() -> String {
    package(".deb")
}

fn rpm() -> String {
    package(".rpm")
}

/// What a command prints; panics if it fails.
#[track_caller]
fn output(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).env("LC_ALL", "C.UTF-8").output();
    let output = output.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{words:?}: {}\n{said}{complained}", output.status);
    said.into_owned()
}

/// An empty folder of a test's own.
fn fresh(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    folder
}

/// The files of the .deb, unpacked.
fn unpacked(name: &str) -> PathBuf {
    let folder = fresh(name);
    output(&["dpkg-deb", "-x", &deb(), folder.to_str().expect("a path of this test is text")]);
    folder
}

/// Every file below a folder, by its path from there.
fn files(folder: &Path) -> BTreeMap<String, PathBuf> {
    let list = output(&["find", folder.to_str().expect("a path of this test is text"), "-type", "f"]);
    let path = |line: &str| {
        let path = PathBuf::from(line);
        let name = path.strip_prefix(folder).expect("find prints what is below").display().to_string();
        (name, path)
    };
    list.lines().map(path).collect()
}

/// The programs and libraries of the package.
fn objects(root: &Path) -> Vec<PathBuf> {
    let is_elf = |path: &PathBuf| fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"));
    let found: Vec<_> = files(root).into_values().filter(is_elf).collect();
    assert_eq!(found.len(), 7, "four programs, two libraries and a plugin: {found:?}");
    found
}

#[test]
fn every_program_runs_on_glibc_2_28() {
    let root = unpacked("glibc");
    for object in objects(&root) {
        let path = object.to_str().expect("a path of this test is text");
        let name = object.file_name().and_then(|name| name.to_str()).expect("a file has a name");
        let symbols = output(&["readelf", "--wide", "--dyn-syms", path]);
        let versions = symbols.split("GLIBC_").skip(1).filter_map(|rest| {
            let text: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
            let (major, minor) = text.split_once('.')?;
            Some((major.parse::<u32>().ok()?, minor.split('.').next()?.parse::<u32>().ok()?))
        });
        let newest = versions.max();
        if ["fgpu", "fgpu.so"].contains(&name) {
            assert!(newest.is_some_and(|newest| newest <= GLIBC), "{name} needs {newest:?}");
            let needed = output(&["readelf", "--dynamic", path]);
            let needed: Vec<_> = needed.lines().filter(|line| line.contains("(NEEDED)")).collect();
            let known =
                ["libc.so.6", "ld-linux-", "libpthread.so.0", "libdl.so.2", "libm.so.6", "librt.so.1"];
            assert!(needed.iter().all(|line| known.iter().any(|name| line.contains(name))), "{needed:?}");
        } else {
            assert_eq!(newest, None, "{name} is to need no C library");
        }
    }
}

#[test]
fn no_path_of_the_building_machine_is_in_a_program() {
    let root = unpacked("paths");
    let checkout =
        fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).expect("the checkout is there");
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".into());
    for needle in [checkout.to_str().expect("a path is text"), &format!("{home}/.cargo")] {
        for object in objects(&root) {
            let bytes = fs::read(&object).expect("an unpacked file can be read");
            let found = bytes.windows(needle.len()).position(|window| window == needle.as_bytes());
            assert_eq!(found, None, "{needle} is in {}", object.display());
        }
    }
}

#[test]
fn both_packages_have_the_same_files() {
    let root = unpacked("same-deb");
    let other = fresh("same-rpm");
    let script = format!("cd {} && rpm2cpio {} | cpio -id --quiet", other.display(), rpm());
    output(&["sh", "-c", &script]);
    // What each of the two families keeps elsewhere.
    let own = |name: &String| {
        ["usr/share/doc/", "usr/share/licenses/", "usr/share/lintian/"]
            .iter()
            .any(|dir| name.starts_with(dir))
    };
    let zsh = |name: String| name.replace("zsh/vendor-completions", "zsh/site-functions");
    let deb: BTreeMap<_, _> = files(&root).into_iter().map(|(name, path)| (zsh(name), path)).collect();
    let rpm = files(&other);
    let names = |files: &BTreeMap<String, PathBuf>| -> Vec<String> {
        files.keys().filter(|name| !own(name)).cloned().collect()
    };
    assert_eq!(names(&deb), names(&rpm));
    for name in names(&deb) {
        assert!(fs::read(&deb[&name]).ok() == fs::read(&rpm[&name]).ok(), "{name} is the same file");
    }
    for wanted in [
        "usr/bin/containerd-shim-fgpu-v2",
        "usr/lib/systemd/system/fgpu-cdi.service",
        "usr/lib/systemd/system/fgpu-gc.timer",
        "usr/lib/systemd/system/fgpu-inventory.service",
        "usr/lib/systemd/system/fgpu-metrics.socket",
        "usr/lib/systemd/system/fgpu-metrics@.service",
        "usr/lib/systemd/system/fgpu-textfile.timer",
        "usr/lib/systemd/system/fgpu-watch.path",
        "usr/lib/systemd/system/fgpu-watch.service",
        "usr/lib/systemd/system/run-fgpu.mount",
        "usr/lib/tmpfiles.d/fgpu.conf",
        "usr/share/containers/oci/hooks.d/fgpu-poststop.json",
        "usr/share/fgpu/grafana/fgpu-node.json",
        "usr/share/fgpu/prometheus/fgpu-rules.yml",
        "usr/share/man/man1/fgpu.1.gz",
        "usr/share/man/man1/fgpu-setup.1.gz",
        "usr/share/man/man5/fgpu-config.5.gz",
        "usr/share/man/man7/fgpu-annotations.7.gz",
        "usr/share/man/man8/fgpu-runtime.8.gz",
        "usr/share/bash-completion/completions/fgpu",
        "etc/fgpu/config.toml",
    ] {
        assert!(deb.contains_key(wanted), "{wanted} is missing");
    }
    for program in deb.keys().filter_map(|name| name.strip_prefix("usr/bin/")) {
        let page = |section: u8| format!("usr/share/man/man{section}/{program}.{section}.gz");
        assert!(deb.contains_key(&page(1)) || deb.contains_key(&page(8)), "{program} has no man page");
    }
    // In a directory that CRI-O reads this file would keep CRI-O from starting.
    assert!(deb.keys().all(|name| !name.contains("oci/hooks.d/precreate")));
}

#[test]
fn metadata_name_the_architecture_and_the_oldest_libc() {
    let machine = output(&["uname", "-m"]);
    let (debian, other) = match machine.trim() {
        "x86_64" => ("amd64", "arm64"),
        "aarch64" => ("arm64", "amd64"),
        machine => panic!("no packages are made for {machine}"),
    };
    let field = |name: &str| output(&["dpkg-deb", "-f", &deb(), name]).trim().to_owned();
    assert_eq!(field("Architecture"), debian);
    assert_eq!(field("Depends"), "libc6 (>= 2.28)");
    assert_ne!(debian, other);
    let query = |format: &str| output(&["rpm", "-qp", "--qf", format, &rpm()]);
    assert_eq!(query("%{ARCH}"), machine.trim());
    assert_eq!(field("Version"), format!("{}-1", query("%{VERSION}")));
    let requires = output(&["rpm", "-qp", "--requires", &rpm()]);
    assert!(requires.lines().any(|line| line == "glibc >= 2.28"), "{requires}");
    assert!(!requires.contains("libcuda"), "a host needs none of what a container has: {requires}");
    assert_eq!(output(&["rpm", "-qp", "--configfiles", &rpm()]).trim(), "/etc/fgpu/config.toml");
}

#[test]
fn the_same_tree_makes_the_same_packages() {
    let again = fresh("again");
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/build");
    // Another time zone, another mask, another locale, another moment.
    let script = format!("umask 077; TZ=Asia/Tokyo LC_ALL=C FGPU_OUT={} {build}", again.display());
    output(&["sh", "-c", &script]);
    let sum = |path: &str| output(&["sha256sum", path]).split(' ').next().map(str::to_owned);
    for package in [deb(), rpm()] {
        let name = Path::new(&package).file_name().expect("a package has a name");
        let other = again.join(name);
        assert_eq!(sum(&package), sum(other.to_str().expect("a path of this test is text")), "{package}");
    }
}

/// Built in another folder they are the same bytes. Of the whole packages `make reproduce` shows it, which
/// takes minutes; the libraries are those that a folder's path has got into once.
#[test]
fn the_libraries_are_the_same_from_any_folder() {
    let checkout = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let copy = fresh("libraries");
    let script = format!(
        "cd {checkout} && git ls-files -z --cached --others --exclude-standard Makefile Cargo.toml packaging quota | \
         tar --null --files-from=- -cf - | tar -C {} -xf -",
        copy.display()
    );
    output(&["sh", "-c", &script]);
    for folder in [Path::new(checkout), &copy] {
        output(&["sh", "-c", &format!("unset CARGO_TARGET_DIR; make -C {} quota", folder.display())]);
    }
    for name in ["libfgpu_cuda.so", "libfgpu_nvml.so"] {
        let library = |folder: &Path| fs::read(folder.join("quota/target/release").join(name));
        let (one, other) = (library(Path::new(checkout)), library(&copy));
        assert!(one.is_ok() && other.is_ok(), "{name} is there");
        assert!(one.ok() == other.ok(), "{name} depends on the folder that it was built in");
    }
    let _ = fs::remove_dir_all(copy);
}

#[test]
fn the_other_architecture_is_named_as_well() {
    let (target, debian, machine) = match std::env::consts::ARCH {
        "x86_64" => ("aarch64-unknown-linux-gnu", "arm64", "aarch64"),
        _ => ("x86_64-unknown-linux-gnu", "amd64", "x86_64"),
    };
    let out = fresh("other");
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/build");
    // Only the metadata are looked at: the programs in them are this machine's.
    output(&["env", &format!("FGPU_OUT={}", out.display()), &format!("TARGET={target}"), build]);
    let found = |suffix: &str| {
        let files = files(&out);
        files
            .into_values()
            .find(|path| path.to_string_lossy().ends_with(suffix))
            .expect("a package")
            .display()
            .to_string()
    };
    assert_eq!(output(&["dpkg-deb", "-f", &found(".deb"), "Architecture"]).trim(), debian);
    assert_eq!(output(&["rpm", "-qp", "--qf", "%{ARCH}", &found(".rpm")]), machine);
    let _ = fs::remove_dir_all(out);
}

#[test]
fn lintian_finds_nothing() {
    let said = output(&["lintian", "--display-info", "--fail-on", "none", &deb()]);
    // Without systemd the first container looks which GPUs there are. No override says so: Debian 13's
    // lintian has no such tag any more and refuses one of a tag that it does not know.
    let found = said
        .lines()
        .filter(|line| !line.contains(" package-supports-alternative-init-but-no-init.d-script "));
    assert_eq!(found.collect::<Vec<_>>().join("\n"), "");
}

#[test]
fn rpmlint_finds_nothing() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/rpm/rpmlint.toml");
    let said = output(&["rpmlint", "--strict", "--config", config, &rpm()]);
    assert!(said.contains("0 errors, 0 warnings"), "{said}");
}

/// Those that the lab runs (suite/docs.rs) are all that there are.
#[test]
fn every_page_is_run() {
    let docs =
        fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs")).expect("there is documentation");
    let names = docs.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut there: Vec<_> =
        names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}")).collect();
    there.extend(["README.md", "SECURITY.md"].map(str::to_owned));
    there.sort();
    let mut run: Vec<_> = fgpu_lab::markdown::PAGES.iter().map(|(path, _)| (*path).to_owned()).collect();
    run.sort();
    assert_eq!(there, run);
    for (path, text) in fgpu_lab::markdown::PAGES {
        assert!(fgpu_lab::markdown::blocks(text).is_ok(), "{path}: {:?}", fgpu_lab::markdown::blocks(text));
    }
}

/// A root with a shell and nothing else, in which rpm installs, upgrades and removes.
#[test]
fn rpm_installs_and_removes() {
    let root = fresh("rpm-root");
    let path = root.to_str().expect("a path of this test is text");
    output(&[concat!(env!("CARGO_MANIFEST_DIR"), "/images")]);
    let image = std::env::var("FGPU_LAB")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../.lab").into());
    output(&["tar", "-C", path, "-xf", &format!("{image}/image/busybox.tar")]);
    let rpm_in = |words: &[&str]| {
        let head = ["rpm", "--root", path, "--dbpath", "/var/lib/rpm"];
        output(&head.iter().chain(words).copied().collect::<Vec<_>>())
    };
    let before: Vec<_> = files(&root).into_keys().collect();
    rpm_in(&["--initdb"]);
    // The root knows of no glibc.
    rpm_in(&["-i", "--nodeps", &rpm()]);
    assert_eq!(rpm_in(&["-V", "--nodeps", "fgpu"]), "", "every file is as the package says");
    assert!(root.join("run/fgpu").is_dir(), "the scriptlet made the state directory");
    for (mode, file) in
        [(0o755, "usr/bin/fgpu"), (0o644, "etc/fgpu/config.toml"), (0o755, "usr/lib/fgpu/libfgpu-cuda.so")]
    {
        use std::os::unix::fs::PermissionsExt;
        let metadata = fs::metadata(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(metadata.permissions().mode() & 0o7777, mode, "{file}");
    }
    let said =
        output(&["chroot", path, "/usr/bin/fgpu-hook", "poststop", "00000000000000000000000000000000"]);
    assert_eq!(said, "", "a static program runs in a root without a C library");
    rpm_in(&["-U", "--nodeps", "--replacepkgs", &rpm()]);
    assert_eq!(rpm_in(&["-V", "--nodeps", "fgpu"]), "");

    // A lease is held: what says so stays.
    let lease = root.join("run/fgpu/allocations.json");
    fs::write(&lease, "{\"leases\":[\n{\"nonce\":\"0\"}\n]}\n").expect("the state directory can be written");
    rpm_in(&["-e", "--nodeps", "fgpu"]);
    assert!(lease.exists());
    rpm_in(&["-i", "--nodeps", &rpm()]);
    fs::write(&lease, "{\"leases\":[\n]}\n").expect("the state directory can be written");
    rpm_in(&["-e", "--nodeps", "fgpu"]);
    assert!(!root.join("run/fgpu").exists());
    // rpm's own records; and what a scriptlet that writes to /dev/null makes where no /dev is mounted.
    let own = |name: &String| name.starts_with("var/lib/rpm") || name == "dev/null";
    let after: Vec<_> = files(&root).into_keys().filter(|name| !own(name)).collect();
    assert_eq!(before, after);
    let _ = fs::remove_dir_all(root);
}
