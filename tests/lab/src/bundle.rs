//! Bundles, and containers made of them by runc or crun alone: no engine stands between a test and the
//! runtime, so it can say what no engine lets it say, and see what the runtime itself says.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::capture::{self, Folder};
use crate::command::{Output, run, shell};
use crate::systemd::Systemd;

/// What a hook needs of the environment, when a test has nothing else to say.
pub const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// `fgpu-hook`, as the package installs it.
pub const HOOK: &str = "/usr/bin/fgpu-hook";

/// Containers that there may be, by the words that call their runtime, and id.
static MADE: Mutex<Vec<(Vec<String>, String)>> = Mutex::new(Vec::new());

/// A bundle, and the container that a runtime makes of it.
#[derive(Debug)]
pub struct Bundle {
    /// The container's id.
    pub id: String,
    /// The bundle's folder.
    pub path: PathBuf,
    /// Its config.json, which [`Bundle::create`] writes.
    pub spec: Value,
    runtime: Vec<String>,
    folder: Folder,
}

/// A bundle of one of the lab's images, whose process sleeps.
#[track_caller]
pub fn bundle(runtime: &str, image: &str) -> Bundle {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let id = format!("bundle-{}", LAST.fetch_add(1, Ordering::Relaxed));
    let path = PathBuf::from("/run/lab/bundles").join(&id);
    let folder = Folder::new();
    let spec = spec(&root(image), folder.path());
    fs::create_dir_all(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Bundle { id, path, spec, runtime: vec![runtime.to_owned()], folder }
}

impl Bundle {
    /// With options of the runtime, before its command.
    pub fn options(mut self, words: &[&str]) -> Self {
        self.runtime.extend(words.iter().map(|word| (*word).to_owned()));
        self
    }

    /// Below a systemd, with a scope of its for a cgroup.
    pub fn below(mut self, systemd: &Systemd) -> Self {
        self.runtime.splice(0..0, systemd.enter());
        self.runtime.push("--systemd-cgroup".to_owned());
        self.spec["linux"]["cgroupsPath"] = format!("system.slice:lab:{}", self.id).into();
        self
    }

    /// In the namespaces of a systemd, with a cgroup of the runtime's own making.
    pub fn beside(mut self, systemd: &Systemd) -> Self {
        self.runtime.splice(0..0, systemd.enter());
        self.spec["linux"]["cgroupsPath"] = format!("/lab/{}", self.id).into();
        self
    }

    /// With an annotation.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.spec["annotations"][key] = value.into();
        self
    }

    /// With a hook at a stage, after those that are there.
    pub fn hook(mut self, stage: &str, words: &[&str]) -> Self {
        // No `timeout`: see packaging/hooks.d/README.md.
        let hook = json!({"path": words[0], "args": words, "env": [PATH]});
        let hooks = &mut self.spec["hooks"][stage];
        match hooks.as_array_mut() {
            Some(hooks) => hooks.push(hook),
            None => *hooks = json!([hook]),
        }
        self
    }

    /// With `fgpu-hook` at a stage and at poststop, as packaging/hooks.d has it.
    pub fn fgpu(self, stage: &str) -> Self {
        self.hook(stage, &[HOOK, stage, "--timeout", "100"]).hook("poststop", &[HOOK, "poststop"])
    }

    /// With other changes of its spec.
    pub fn edit(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.spec);
        self
    }

    /// With a command that prints into the folder of [`Bundle::run`].
    fn command(&mut self, words: &[&str]) -> String {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let (name, words) = self.folder.wrap(&words);
        self.spec["process"]["args"] = json!(words);
        name
    }

    /// `run`: creates and starts it, waits for its end and deletes it. The output is what the command
    /// printed, or if it was not even started, what the runtime said.
    #[track_caller]
    pub fn run(mut self, words: &[&str]) -> Output {
        let name = self.command(words);
        self.write();
        let output = self.call(&["run", "--bundle", &self.path.to_string_lossy(), &self.id]);
        self.folder.collect(&name, output)
    }

    /// `create`. The runtime's output; the container's own goes nowhere.
    #[track_caller]
    pub fn create(&self) -> Output {
        self.write();
        self.call(&["create", "--bundle", &self.path.to_string_lossy(), &self.id])
    }

    /// `create` and `start` of what is to run until it is ended.
    #[track_caller]
    pub fn start(self) -> Self {
        self.create().ok();
        self.call(&["start", &self.id]).ok();
        self
    }

    /// `exec`.
    #[track_caller]
    pub fn exec(&self, words: &[&str]) -> Output {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let (name, words) = self.folder.wrap(&words);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        self.folder.collect(&name, self.call(&[&["exec", &self.id][..], &words].concat()))
    }

    /// Another command of the runtime, on it.
    #[track_caller]
    pub fn runtime(&self, words: &[&str]) -> Output {
        self.call(&[words, &[&self.id]].concat())
    }

    /// `delete --force`.
    #[track_caller]
    pub fn delete(&self) {
        self.call(&["delete", "--force", &self.id]).ok();
    }

    /// The process id of its init.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        let state = self.runtime(&["state"]);
        let state: Value = serde_json::from_str(state.ok()).unwrap_or_else(|error| panic!("state: {error}"));
        state["pid"]
            .as_i64()
            .and_then(|pid| i32::try_from(pid).ok())
            .unwrap_or_else(|| panic!("no pid in {state}"))
    }

    /// Its status in the runtime's words; empty if there is none.
    #[track_caller]
    pub fn status(&self) -> String {
        let state: Value = serde_json::from_str(&self.runtime(&["state"]).stdout).unwrap_or_default();
        state["status"].as_str().unwrap_or_default().to_owned()
    }

    /// The command line that creates it, for who starts it by himself. Writes config.json.
    #[track_caller]
    pub fn create_line(&self) -> Vec<String> {
        self.write();
        let words = ["create", "--bundle", &self.path.to_string_lossy(), &self.id].map(str::to_owned);
        self.runtime.iter().cloned().chain(words).collect()
    }

    #[track_caller]
    fn write(&self) {
        let path = self.path.join("config.json");
        fs::write(&path, self.spec.to_string()).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        made().push((self.runtime.clone(), self.id.clone()));
    }

    /// A created container keeps its runtime's standard streams: files, as a pipe would stay open as long as
    /// it lives.
    #[track_caller]
    fn call(&self, words: &[&str]) -> Output {
        let [out, err] = ["out", "err"].map(|name| self.path.join(name));
        let script = format!(r#"exec "$@" >{} 2>{}"#, out.display(), err.display());
        let head = ["sh", "-c", &script, "sh"].into_iter().chain(self.runtime.iter().map(String::as_str));
        let mut output = run(head.chain(words.iter().copied()));
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        output.stdout = read(out);
        output.stderr = read(err);
        output
    }
}

fn made() -> std::sync::MutexGuard<'static, Vec<(Vec<String>, String)>> {
    MADE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Removes every container of a bundle.
#[track_caller]
pub fn remove_all() {
    for (runtime, id) in made().drain(..) {
        // Most are gone by now, which is no error of `--force` in all runtimes.
        let words = ["delete", "--force", &id].map(str::to_owned);
        run(runtime.into_iter().chain(words));
    }
}

/// The runtimes of this environment.
pub fn runtimes() -> &'static [&'static str] {
    &["runc", "crun"]
}

/// The root file system of an image, unpacked once.
#[track_caller]
pub fn root(image: &str) -> PathBuf {
    static UNPACKED: Mutex<()> = Mutex::new(());
    let _one = UNPACKED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let root = Path::new("/var/lib/containers/lab-roots").join(image);
    if !root.exists() {
        let (new, root) = (root.with_extension("new"), root.display());
        let new = new.display();
        // What a runtime with a user namespace could not make there.
        shell(&format!(
            "mkdir -p {new}{} && tar -C {new} -xf /opt/images/{image}.tar && mv {new} {root}",
            capture::INSIDE
        ))
        .ok();
    }
    root
}

/// What `runc spec` writes, with what the lab needs.
#[track_caller]
fn spec(root: &Path, output: &str) -> Value {
    static STOCK: Mutex<Option<Value>> = Mutex::new(None);
    let mut stock = STOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut spec = stock
        .get_or_insert_with(|| {
            shell("mkdir -p /run/lab/spec && cd /run/lab/spec && rm -f config.json && runc spec").ok();
            let text = fs::read_to_string("/run/lab/spec/config.json").expect("runc wrote it");
            serde_json::from_str(&text).expect("runc writes JSON")
        })
        .clone();
    spec["root"] = json!({"path": root, "readonly": false});
    let process = &mut spec["process"];
    process["terminal"] = false.into();
    process["args"] = json!(["sleep", "1000"]);
    process["rlimits"] = json!([]);
    process["env"] = json!([format!("{PATH}:/opt/programs")]);
    for set in ["bounding", "effective", "permitted"] {
        let set = process["capabilities"][set].as_array_mut().expect("runc lists capabilities");
        set.push("CAP_MKNOD".into());
    }
    let mounts = spec["mounts"].as_array_mut().expect("runc lists mounts");
    mounts.push(json!({
        "destination": capture::INSIDE, "type": "bind", "source": output, "options": ["rbind", "rw"],
    }));
    mounts.push(json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["dev"]}));
    spec
}
