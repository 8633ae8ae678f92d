//! Pods, through containerd's CRI service.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::capture::{self, Folder};
use crate::command::{Output, run, wait_until};
use crate::ctr;

const CLIENT: &str = "/lab/cri";

/// Whether there may be a pod to remove.
static USED: AtomicBool = AtomicBool::new(false);

/// A pod whose sandbox runs.
#[derive(Debug)]
pub struct Pod {
    id: String,
    config: Value,
}

impl Pod {
    /// Starts a sandbox for a runtime handler of `inside/containerd.toml`.
    #[track_caller]
    pub fn start(name: &str, runtime: &str, annotations: &[(&str, &str)]) -> Self {
        USED.store(true, Ordering::Relaxed);
        ctr::load("k8s.io", "pause");
        let annotations: Value = annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let config = json!({"name": name, "runtime": runtime, "annotations": annotations});
        Self { id: call("run-pod", &config).ok().to_owned(), config }
    }

    /// Makes a container in it.
    #[track_caller]
    pub fn create(&self, name: &str, image: &str, command: &[&str]) -> Container {
        self.create_with(name, image, command, &[])
    }

    /// Makes a container in it that has these CDI devices of ours.
    #[track_caller]
    pub fn create_with(&self, name: &str, image: &str, command: &[&str], devices: &[&str]) -> Container {
        let devices: Vec<_> = devices.iter().map(|name| format!("fgpu.dev/gpu={name}")).collect();
        ctr::load("k8s.io", image);
        // The kubelet hands the container's own annotations; fgpu's stand on the pod.
        let folder = Folder::new();
        let asked = json!({
            "pod": self.id, "pod-config": self.config, "name": name, "image": ctr::reference(image), "command": command,
            "mounts": {capture::INSIDE: folder.path()}, "devices": devices,
        });
        Container { id: call("create", &asked).ok().to_owned(), folder }
    }

    /// Stops and removes it with all that is in it.
    #[track_caller]
    pub fn remove(self) {
        call("stop-pod", &json!({"id": self.id})).ok();
        call("remove-pod", &json!({"id": self.id})).ok();
    }
}

/// A container of a pod.
#[derive(Debug)]
pub struct Container {
    /// CRI's id of it, which is also containerd's.
    pub id: String,
    folder: Folder,
}

impl Container {
    /// Starts it.
    #[track_caller]
    pub fn start(&self) -> Output {
        call("start", &json!({"id": self.id}))
    }

    /// A client that is starting it.
    #[track_caller]
    pub fn starting(&self) -> Child {
        let mut client = Command::new(CLIENT);
        client.args(["start", &json!({"id": self.id}).to_string()]);
        client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        client.spawn().unwrap_or_else(|error| panic!("cannot run {CLIENT}: {error}"))
    }

    /// Runs a command in it.
    #[track_caller]
    pub fn exec(&self, command: &[&str]) -> Output {
        let words: Vec<_> = command.iter().map(|word| (*word).to_owned()).collect();
        let (name, command) = self.folder.wrap(&words);
        self.folder.collect(&name, call("exec", &json!({"id": self.id, "command": command})))
    }

    /// Gives it another share of the cpu, as the kubelet does for a resize in place.
    #[track_caller]
    pub fn resize(&self, cpu_shares: u32) -> Output {
        call("resize", &json!({"id": self.id, "cpu-shares": cpu_shares}))
    }

    /// Stops it and waits until it has ended.
    #[track_caller]
    pub fn stop(&self) {
        call("stop", &json!({"id": self.id})).ok();
        wait_until("the end of a pod's container", || self.status() == "exited");
    }

    /// `created`, `running`, `exited` or `unknown`.
    #[track_caller]
    pub fn status(&self) -> String {
        call("status", &json!({"id": self.id})).ok().to_owned()
    }
}

/// Removes every pod.
#[track_caller]
pub fn remove_all() {
    if !USED.swap(false, Ordering::Relaxed) {
        return;
    }
    for id in call("list-pods", &json!({})).ok().lines() {
        call("stop-pod", &json!({"id": id})).ok();
        call("remove-pod", &json!({"id": id})).ok();
    }
}

#[track_caller]
fn call(word: &str, asked: &Value) -> Output {
    run([CLIENT, word, &asked.to_string()])
}
