//! containerd, through its own client.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::capture::{self, Folder};
use crate::command::{Output, run, shell};
use crate::docker;

/// Whether there may be a container to remove.
static USED: AtomicBool = AtomicBool::new(false);

/// `ctr run` of one of the lab's images in containerd's `default` namespace, as a container called `id`.
/// `options` stand before the image. The output is what the command printed, or if it was not even started,
/// what ctr said.
#[track_caller]
pub fn container(image: &str, id: &str, options: &[&str], command: &[&str]) -> Output {
    let folder = Folder::new();
    let (name, command) = folder.wrap(&command.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    let mount = format!("type=bind,src={},dst={},options=rbind:rw", folder.path(), capture::INSIDE);
    let options: Vec<_> = ["--mount", &mount].iter().chain(options).copied().collect();
    let command: Vec<_> = command.iter().map(String::as_str).collect();
    folder.collect(&name, container_plainly(image, id, &options, &command))
}

/// The same with nothing added. The output is what ctr handed through.
#[track_caller]
pub fn container_plainly(image: &str, id: &str, options: &[&str], command: &[&str]) -> Output {
    USED.store(true, Ordering::Relaxed);
    load("default", image);
    let image = reference(image);
    // ctr 2.x asks for a share of the cpu unless told not to, and v2 may have no cpu controller here.
    let head = ["ctr", "run", "--cpu-shares", "0"].iter().chain(options).copied();
    run(head.chain([image.as_str(), id]).chain(command.iter().copied()))
}

/// Another command of `ctr`.
#[track_caller]
pub fn ctr(words: &[&str]) -> Output {
    run(["ctr"].iter().chain(words))
}

/// Removes every container of the `default` namespace.
#[track_caller]
pub fn remove_all() {
    if !USED.swap(false, Ordering::Relaxed) {
        return;
    }
    for id in ctr(&["containers", "list", "--quiet"]).ok().lines() {
        // A container may have no task; what matters is that it is gone afterwards.
        ctr(&["tasks", "delete", "--force", id]);
        ctr(&["containers", "delete", id]).ok();
    }
}

/// The name under which containerd knows an image of the lab.
pub fn reference(image: &str) -> String {
    format!("docker.io/library/{image}:latest")
}

/// Brings an image of the lab into a namespace of containerd, once.
#[track_caller]
pub fn load(namespace: &str, image: &str) {
    static LOADED: Mutex<Option<HashSet<(String, String)>>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if loaded.get_or_insert_default().insert((namespace.to_owned(), image.to_owned())) {
        docker::load(image);
        shell(&format!("docker save {image} | ctr --namespace {namespace} images import -")).ok();
    }
}
