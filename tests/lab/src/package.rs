//! The .deb of fgpu, installed and removed by apt in an environment that has only packages.

use std::fs;

use crate::command::{Output, run, shell};
use crate::daemons;
use crate::outside::PACKAGES;

/// The package that `make packages` made.
#[track_caller]
pub fn current() -> String {
    let output = shell(&format!("ls {PACKAGES}/fgpu_*.deb"));
    let path = output.ok();
    assert_eq!(path.lines().count(), 1, "one package is expected: {path}");
    path.to_owned()
}

/// A package of the past, under a lower version than the current one: what `packaging/previous` built, if it
/// did, else the current one.
#[track_caller]
pub fn previous() -> String {
    let built = shell(&format!("ls {PACKAGES}/previous/fgpu_*.deb"));
    let built = if built.status == 0 { built.ok().to_owned() } else { current() };
    let path = "/run/lab/fgpu_previous.deb";
    let script = format!(
        "rm -rf /run/lab/package && dpkg-deb -R {built} /run/lab/package && \
         sed -i 's/^Version: .*/Version: 0.0.1-1/' /run/lab/package/DEBIAN/control && \
         dpkg-deb -Znone --root-owner-group -b /run/lab/package {path} && rm -rf /run/lab/package"
    );
    shell(&script).ok();
    path.to_owned()
}

/// The package installed. It is purged when this is dropped.
#[derive(Debug)]
pub struct Installed(());

/// `apt install PATH`, and what the administrator of a node with the simulated driver sets.
#[track_caller]
pub fn install(path: &str) -> Installed {
    let installed = Installed(());
    apt(&["install", "--allow-downgrades", path]).ok();
    let config = fs::read_to_string(CONFIG).unwrap_or_else(|error| panic!("{CONFIG}: {error}"));
    let own = "[driver]\nroot = \"/opt/fgpu-sim\"\nextra = [\"/run/nvidia-sim\"]";
    let edited = config.replacen("[driver]", own, 1);
    assert_ne!(edited, config, "{CONFIG} has a table [driver]");
    fs::write(CONFIG, edited).unwrap_or_else(|error| panic!("{CONFIG}: {error}"));
    // As fgpu-cdi.service does where systemd is. A package of the past may not have it.
    run(["fgpu", "cdi", "--write"]);
    installed
}

const CONFIG: &str = "/etc/fgpu/config.toml";

/// `apt-get WORDS`, without questions.
#[track_caller]
pub fn apt(words: &[&str]) -> Output {
    // A file that was edited is kept: what apt would ask.
    let head =
        ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-y", "-o", "Dpkg::Options::=--force-confold"];
    run(head.iter().chain(words))
}

/// Starts containerd and dockerd anew, as an administrator does after `fgpu setup`.
#[track_caller]
pub fn restart_engines() {
    run(["/lab/daemons", "stop"]).ok();
    daemons::start();
}

impl Drop for Installed {
    fn drop(&mut self) {
        // A test may have removed it; what is left is found by the next test's own check.
        apt(&["purge", "fgpu"]);
    }
}
