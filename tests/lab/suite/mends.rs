//! What `fgpu doctor` says that mends a fault, followed to the letter below a real systemd, where the command
//! tests of the doctor cannot follow it: packages, units and mounts. (A `reboot` is followed nowhere.)

use std::fs;

use fgpu_lab::command::run;
use fgpu_lab::inside::Test;
use fgpu_lab::package::{current, install};
use fgpu_lab::systemd::{self, Systemd};
use serde_json::Value;

pub(crate) const TESTS: &[Test] = &[Test::packaged("mends::are_followed", are_followed)];

/// Where the package lies that a mend installs again.
const FOLDER: &str = "/root/mends";

/// A fault: the check that finds it, and the commands that plant it.
const FAULTS: &[(&str, &str)] = &[
    ("library-damaged", "truncate --size=1000 /usr/lib/fgpu/libfgpu-cuda.so"),
    ("library-damaged", "cp /bin/true /usr/lib/fgpu/libfgpu-nvml.so"),
    ("library-mode", "chmod 0600 /usr/lib/fgpu/libfgpu-nvml.so"),
    ("installation-incomplete", "rm /usr/bin/fgpu-hook"),
    ("installation-incomplete", "rm /usr/lib/fgpu/libfgpu-cuda.so"),
    ("program-not-executable", "chmod 0644 /usr/bin/containerd-shim-fgpu-v2"),
    ("gc-timer-off", "systemctl disable --now fgpu-gc.timer"),
    ("state-dir-shared", "systemctl disable run-fgpu.mount && umount /run/fgpu"),
    ("state-dir-read-only", "systemctl start run-fgpu.mount && mount -o remount,ro /run/fgpu"),
    ("hidepid", "mount -o remount,hidepid=2 /proc"),
    (
        "unit-failed",
        "cp /etc/fgpu/config.toml /root && echo nonsense >>/etc/fgpu/config.toml; systemctl start fgpu-gc; \
         mv /root/config.toml /etc/fgpu/config.toml",
    ),
    ("inventory-missing", "rm -f /run/fgpu/inventory.json"),
    ("cdi-missing", "rm /run/cdi/fgpu.json"),
];

/// What is found, with its mends.
#[track_caller]
fn findings(systemd: &Systemd) -> Vec<(String, Vec<String>)> {
    let output = systemd.run(&["fgpu", "doctor", "--json"]);
    let answer: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{}", output.story()));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let finding = |finding: &Value| {
        let mends = finding["mend"].as_array().map(|mends| mends.iter().map(text).collect());
        (text(&finding["check"]), mends.unwrap_or_default())
    };
    answer["findings"]
        .as_array()
        .unwrap_or_else(|| panic!("{}", output.story()))
        .iter()
        .map(finding)
        .collect()
}

/// Runs a line as an administrator types it in the folder with the package.
#[track_caller]
fn follow(systemd: &Systemd, line: &str) {
    let output = systemd.run(&["sh", "-ec", &format!("cd {FOLDER}; {line}")]);
    assert_eq!(output.status, 0, "{line}: {}", output.story());
}

fn are_followed() {
    let package = current();
    fs::create_dir_all(FOLDER).expect("the root file system can be written");
    run(["cp", &package, FOLDER]).ok();
    let installed = install(&package);
    let systemd = systemd::start();
    follow(
        &systemd,
        "mkdir -p /run/fgpu; systemctl start run-fgpu.mount; fgpu inventory --refresh >/dev/null; \
         systemctl start fgpu-cdi.service",
    );
    let names = |found: &[(String, Vec<String>)]| found.iter().map(|one| one.0.clone()).collect::<Vec<_>>();
    // Engines do not run below this systemd.
    let usual = names(&findings(&systemd));
    for (check, plant) in FAULTS {
        assert!(!usual.contains(&(*check).to_owned()), "{check} is there before it is planted: {usual:?}");
        systemd.run(&["sh", "-c", plant]);
        let found = findings(&systemd);
        let Some((_, mends)) = found.iter().find(|one| one.0 == *check) else {
            panic!("{check} is not found after {plant}: {:?}", names(&found));
        };
        // The first line of some is a look at the cause, the last of others for a node without systemd.
        let elsewhere = ["journalctl ", "or, "];
        let lines = mends.iter().filter(|line| !elsewhere.iter().any(|start| line.starts_with(start)));
        lines.for_each(|line| follow(&systemd, line));
        let after = names(&findings(&systemd));
        assert!(!after.contains(&(*check).to_owned()), "{check} is there after {mends:?}");
    }
    assert_eq!(names(&findings(&systemd)), usual);
    drop(systemd);
    drop(installed);
    run(["rm", "-rf", FOLDER]).ok();
}
