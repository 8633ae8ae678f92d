//! A container as a runtime has it when hooks run: a process in a mount namespace of its own, in which the
//! root is mounted, with a /dev and a /proc, and which waits before it changes its root.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{Mode, OFlags, ResolveFlags, Stat, fstat, open, openat2};
use rustix::io::Errno;

use crate::node::Node;

static NUMBER: AtomicUsize = AtomicUsize::new(0);

pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) bundle: PathBuf,
    pub(crate) rootfs: PathBuf,
    process: Option<Child>,
}

impl Container {
    /// Makes the bundle; the root file system is an empty directory.
    pub(crate) fn new(node: &Node, annotations: &[(&str, &str)]) -> Self {
        let id = format!("c{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let bundle = node.path("bundles").join(&id);
        let rootfs = bundle.join("rootfs");
        fs::create_dir_all(&rootfs).unwrap();
        let annotations: serde_json::Map<String, serde_json::Value> =
            annotations.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let config = serde_json::json!({
            "ociVersion": "1.2.0",
            "root": {"path": "rootfs"},
            "annotations": annotations,
            "linux": {"namespaces": [{"type": "mount"}]},
        });
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        Self { id, bundle, rootfs, process: None }
    }

    /// Adds the hooks of these claims' CDI devices to its spec.
    pub(crate) fn uses(self, claims: &[&str]) -> Self {
        let hook = |claim: &&str| serde_json::json!({"path": "/usr/bin/fgpu-hook", "args": ["fgpu-hook", "createRuntime", "--claim", claim]});
        self.configured(|config| config["hooks"]["createRuntime"] = claims.iter().map(hook).collect())
    }

    /// Puts it into a cgroup, as far as its spec says.
    pub(crate) fn within(self, cgroup: &str) -> Self {
        let path = format!("{cgroup}/{}", self.id);
        self.configured(|config| config["linux"]["cgroupsPath"] = path.into())
    }

    fn configured(self, change: impl FnOnce(&mut serde_json::Value)) -> Self {
        let path = self.bundle.join("config.json");
        let mut config = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut config);
        fs::write(&path, config.to_string()).unwrap();
        self
    }

    /// Starts its process. `script` mounts what this container has beside its root, in its namespace; `$R` is
    /// the root.
    pub(crate) fn start(&mut self, script: &str) {
        let script = format!("mount --bind $R $R; {script}\necho ready; read wait");
        let unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", &script];
        self.process = Some(self.spawn_ready(&unshare));
    }

    /// The same with a user namespace, in which the container's root is `owner` on the host.
    pub(crate) fn start_owned_by(&mut self, owner: u32, script: &str) {
        std::os::unix::fs::chown(&self.rootfs, Some(owner), Some(owner)).unwrap();
        // One process makes the namespaces. It has no id in them and cannot mount; the next one enters as
        // their root.
        let unshare =
            ["unshare", "--user", "--mount", "--propagation", "private", "sh", "-c", "echo ready; read wait"];
        let mut maker = self.spawn_ready(&unshare);
        let pid = maker.id().to_string();
        for map in ["uid_map", "gid_map"] {
            fs::write(format!("/proc/{pid}/{map}"), format!("0 {owner} 65536\n")).unwrap();
        }
        let script = format!("mount --bind $R $R; {script}\necho ready; read wait");
        let enter = ["nsenter", "--user", "--mount", "--target", &pid, "--setuid", "0", "--setgid", "0"];
        self.process = Some(self.spawn_ready(&[&enter[..], &["sh", "-euc", &script]].concat()));
        maker.kill().unwrap();
        maker.wait().unwrap();
    }

    /// Starts a program and waits until it says `ready`.
    fn spawn_ready(&self, words: &[&str]) -> Child {
        let mut process = Command::new(words[0])
            .args(&words[1..])
            .env("R", &self.rootfs)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{words:?}");
        process
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Ends its process.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// The state that a runtime writes to its hooks.
    pub(crate) fn state(&self) -> String {
        let pid = self.process.as_ref().map_or(0, Child::id);
        serde_json::json!({
            "ociVersion": "1.2.0", "id": self.id, "status": "creating", "pid": pid, "bundle": self.bundle,
        })
        .to_string()
    }

    /// Runs the hook on it.
    pub(crate) fn hook(&self, node: &Node, words: &[&str]) -> Output {
        self.run(&mut node.hook(words))
    }

    pub(crate) fn run(&self, hook: &mut Command) -> Output {
        self.spawn(hook).wait_with_output().unwrap()
    }

    pub(crate) fn spawn(&self, hook: &mut Command) -> Child {
        let mut hook =
            hook.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        hook.stdin.take().unwrap().write_all(self.state().as_bytes()).unwrap();
        hook
    }

    /// What is at a path for a process in the container: links are resolved in its root.
    pub(crate) fn open(&self, path: &str) -> rustix::io::Result<OwnedFd> {
        let inside = format!("/proc/{}/root{}", self.pid(), self.rootfs.display());
        let root = open(inside, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        loop {
            match openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::IN_ROOT) {
                // A rename or a mount anywhere on the machine met a `..` of the path: openat2(2) says to ask
                // again.
                Err(Errno::AGAIN) => {}
                found => return found,
            }
        }
    }

    pub(crate) fn stat(&self, path: &str) -> rustix::io::Result<Stat> {
        fstat(self.open(path)?)
    }

    /// Whether the container finds this file of the host at `path`. An overlay has another device number, and
    /// the files' inode numbers.
    pub(crate) fn has(&self, path: &str, host: &Path) -> bool {
        let of = |stat: rustix::fs::Stat| (stat.st_ino, stat.st_mode, stat.st_rdev, stat.st_size);
        self.stat(path).is_ok_and(|inside| of(inside) == of(rustix::fs::stat(host).unwrap()))
    }

    pub(crate) fn mounts(&self) -> String {
        fs::read_to_string(format!("/proc/{}/mountinfo", self.pid())).unwrap()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.kill();
    }
}
