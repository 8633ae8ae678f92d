//! Podman, which calls the OCI runtime by itself: no containerd and no shim.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::capture::{self, Folder};
use crate::command::{Output, run, wait_until};

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

/// A container that runs.
#[derive(Debug)]
pub struct Container {
    engine: Vec<String>,
    name: String,
    folder: Folder,
}

/// `podman run --detach` of one of the lab's images, as a container called `name` that sleeps.
#[track_caller]
pub fn start(image: &str, runtime: &str, name: &str, options: &[&str]) -> Container {
    start_by(&["podman", "--runtime", runtime].map(str::to_owned), image, name, options)
}

/// The same by another Podman: `engine` are the words before `run`.
#[track_caller]
pub fn start_by(engine: &[String], image: &str, name: &str, options: &[&str]) -> Container {
    USED.store(true, Ordering::Relaxed);
    load(image);
    let folder = Folder::new();
    let volume = format!("{}:{}", folder.path(), capture::INSIDE);
    let image = format!("localhost/{image}");
    let container = Container { engine: engine.to_vec(), name: name.to_owned(), folder };
    let head = ["run", "--detach", "--name", name, "--volume", &volume];
    container.call(&[&head[..], options, &[&image, "sleep", "1000"]].concat()).ok();
    container
}

impl Container {
    /// `podman exec`.
    #[track_caller]
    pub fn exec(&self, words: &[&str]) -> Output {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let (name, words) = self.folder.wrap(&words);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        self.folder.collect(&name, self.call(&[&["exec", &self.name][..], &words].concat()))
    }

    /// A field, in `podman inspect`'s template language.
    #[track_caller]
    pub fn inspect(&self, template: &str) -> String {
        self.call(&["inspect", "--format", template, &self.name]).ok().to_owned()
    }

    /// `podman rm --force`.
    #[track_caller]
    pub fn remove(self) {
        self.call(&["rm", "--force", "--time", "0", &self.name]).ok();
        wait_until("the end of a name", || self.call(&["container", "exists", &self.name]).status == 1);
    }

    #[track_caller]
    fn call(&self, words: &[&str]) -> Output {
        let head = ["env", "PODMAN_IGNORE_CGROUPSV1_WARNING=1"];
        run(head.into_iter().chain(self.engine.iter().map(String::as_str)).chain(words.iter().copied()))
    }
}

/// Another command of `podman`.
#[track_caller]
pub fn podman(words: &[&str]) -> Output {
    // On v1 it warns of its age with every command.
    run(["env", "PODMAN_IGNORE_CGROUPSV1_WARNING=1", "podman"].iter().chain(words))
}

/// Removes a container if it is there, and waits until there can be another one of its name: it may be
/// cleaned up meanwhile by what Podman runs at a container's end.
#[track_caller]
pub fn remove(name: &str) {
    podman(&["rm", "--force", "--ignore", "--time", "0", name]).ok();
    wait_until("the end of a name", || podman(&["container", "exists", name]).status == 1);
}

/// Removes every container.
#[track_caller]
pub fn remove_all() {
    if USED.swap(false, Ordering::Relaxed) {
        // It must be asked twice about one whose conmon was killed.
        let remove = || podman(&["rm", "--all", "--force", "--time", "0"]);
        if remove().status != 0 {
            remove().ok();
        }
    }
}

/// Brings an image of the lab into Podman, once.
#[track_caller]
pub fn load(image: &str) {
    static LOADED: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if loaded.get_or_insert_default().insert(image.to_owned()) {
        let path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/programs";
        podman(&["import", "--change", path, &format!("/opt/images/{image}.tar"), image]).ok();
    }
}
