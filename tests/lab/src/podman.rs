//! Podman, which calls the OCI runtime by itself: no containerd and no shim.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::capture::{self, Folder};
use crate::command::{Output, run};

/// Whether there may be a container to remove.
static USED: AtomicBool = AtomicBool::new(false);

/// `podman run` of one of the lab's images under `runtime` (a name or a path). The output is what the command
/// printed, or if it was not even started, what Podman said.
#[track_caller]
pub fn container(image: &str, runtime: &str, options: &[&str], command: &[&str]) -> Output {
    USED.store(true, Ordering::Relaxed);
    load(image);
    let folder = Folder::new();
    let (name, command) = folder.wrap(&command.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    let volume = format!("{}:{}", folder.path(), capture::INSIDE);
    let image = format!("localhost/{image}");
    let head = ["--runtime", runtime, "run", "--volume", &volume];
    let words: Vec<_> = head.iter().chain(options).copied().chain([image.as_str()]).collect();
    let command: Vec<_> = command.iter().map(String::as_str).collect();
    folder.collect(&name, podman(&[words, command].concat()))
}

/// Another command of `podman`.
#[track_caller]
pub fn podman(words: &[&str]) -> Output {
    // On v1 it warns of its age with every command.
    run(["env", "PODMAN_IGNORE_CGROUPSV1_WARNING=1", "podman"].iter().chain(words))
}

/// Removes every container.
#[track_caller]
pub fn remove_all() {
    if USED.swap(false, Ordering::Relaxed) {
        podman(&["rm", "--all", "--force", "--time", "0"]).ok();
    }
}

/// Brings an image of the lab into Podman, once.
#[track_caller]
fn load(image: &str) {
    static LOADED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if loaded.get_or_insert_default().insert(image.to_owned()) {
        let path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/programs";
        podman(&["import", "--change", path, &format!("/opt/images/{image}.tar"), image]).ok();
    }
}
