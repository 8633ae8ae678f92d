//! The `nvidia-uvm` module, which nothing loads before the first CUDA program of a boot.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::files::find_program;

const NODE: &str = "/dev/nvidia-uvm";

/// Makes `/dev/nvidia-uvm` and `/dev/nvidia-uvm-tools` if they do not exist.
///
/// On the host libcuda has them made by the setuid program `nvidia-modprobe` when it is first used. In a
/// container it cannot, and without them CUDA does not start; so a node whose first CUDA program of the boot
/// is in a container needs this. Needs root.
///
/// Only for the driver root `/`: a driver container loads the module itself. Returns why there is still no
/// node, if there is none; that is no reason to stop, as a container may not want to compute.
pub fn ensure(root: &Path) -> Option<String> {
    if root != Path::new("/") {
        return None;
    }
    let Some(program) = find_program(root, "nvidia-modprobe") else {
        return (!Path::new(NODE).exists())
            .then(|| format!("{NODE} does not exist and nvidia-modprobe, which makes it, is not installed"));
    };
    make(Path::new(NODE), &program)
}

fn make(node: &Path, program: &Path) -> Option<String> {
    if node.exists() {
        return None;
    }
    let run = Command::new(program)
        .args(["-u", "-c", "0"])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let how = match run {
        _ if node.exists() => return None,
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    Some(format!("{} -u -c 0 did not make {}: {how}", program.display(), node.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::fake::Root;

    /// Written by a shell: a file that this process has open for writing while another test forks cannot be
    /// executed (ETXTBSY).
    fn script(root: &Root, text: &str) -> PathBuf {
        let path = root.path().join("nvidia-modprobe");
        let mut shell = Command::new("sh");
        shell.args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$1\" >\"$0\" && chmod 755 \"$0\""]);
        assert!(shell.arg(&path).arg(text).status().unwrap().success());
        path
    }

    #[test]
    fn the_program_is_asked_once_for_the_node() {
        let root = Root::new();
        let node = root.path().join("nvidia-uvm");
        let program = script(&root, &format!("echo \"$@\" >>'{0}'; : >'{0}-tools'", node.display()));
        assert_eq!(make(&node, &program), None);
        assert_eq!(make(&node, &program), None);
        assert_eq!(fs::read_to_string(&node).unwrap(), "-u -c 0\n");
    }

    #[test]
    fn a_program_that_fails_is_reported() {
        let root = Root::new();
        let node = root.path().join("nvidia-uvm");
        let told = make(&node, &script(&root, "exit 3")).unwrap();
        assert!(told.contains("exit status: 3"), "{told}");
        let told = make(&node, &root.path().join("missing")).unwrap();
        assert!(told.contains("No such file"), "{told}");
    }
}
