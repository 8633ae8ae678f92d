//! What `fgpu doctor` says that mends a fault, followed to the letter on the node that has it.

use std::fs;
use std::process::Command;

use crate::node::Node;

/// What is on every node, and changes files alone.
const PLAIN: [&str; 17] = [
    "chmod",
    "chown",
    "find",
    "sed",
    "rm",
    "mkdir",
    "mv",
    "echo",
    "for",
    "do",
    "done",
    "{",
    "}",
    "test",
    "ln",
    "ls",
    "fgpu setup",
];

/// The lines to follow: of alternatives the last, and not the restart of an engine that no test has.
fn lines<'a>(mends: &[&'a str]) -> Vec<&'a str> {
    let other = mends.iter().find_map(|line| line.strip_prefix("or: ").or(line.strip_prefix("or for now: ")));
    if let Some(line) = other {
        return vec![line];
    }
    let elsewhere = ["systemctl re", "docker run ", "and NVreg"];
    mends.iter().copied().filter(|line| !elsewhere.iter().any(|start| line.starts_with(start))).collect()
}

/// Whether all of it is done with plain commands.
pub(crate) fn can_be_followed(mends: &[&str]) -> bool {
    let plain =
        |command: &str| PLAIN.iter().any(|word| command == *word || command.starts_with(&format!("{word} ")));
    let line = |line: &&str| {
        let line = line.split("   #").next().unwrap_or(line);
        line.split(['&', ';']).map(str::trim).filter(|command| !command.is_empty()).all(plain)
    };
    let lines = lines(mends);
    !lines.is_empty() && lines.iter().all(line)
}

/// Follows it as root of the node: below its own root lies this machine's, for the programs.
pub(crate) fn follow(node: &Node, mends: &[&str]) {
    let script = "set -e; root=$1; mount -t tmpfs none /mnt; mkdir /mnt/upper /mnt/work /mnt/merged; \
        cp -a \"$root/.\" /mnt/upper; cp \"$2\" /mnt/upper/usr/bin/fgpu; \
        mount -t overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work none /mnt/merged; \
        mount -t proc none /mnt/merged/proc; mknod /mnt/merged/dev/null c 1 3; \
        chroot /mnt/merged sh -ec \"$3\"; rm /mnt/merged/dev/null; umount -R /mnt/merged; rm /mnt/upper/usr/bin/fgpu; \
        find /mnt/upper -type c ! -path '*/dev/*' -delete; \
        find \"$root\" -mindepth 1 -delete; cp -a /mnt/upper/. \"$root\"";
    let commands = lines(mends).join("\n");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(node.root.path());
    let output = command.arg(env!("CARGO_BIN_EXE_fgpu")).arg(&commands).output().unwrap();
    assert!(output.status.success(), "{commands}: {output:?}");
    assert!(fs::exists(node.path("etc")).unwrap());
}
