//! A node with simulated GPUs in MIG mode.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fgpu_allocator::{Applicant, Key, Lease, Process, Rules, Store};
use fgpu_driver::nvml::mig::{GpuInstance, MigGpu};
use fgpu_spec::{Defaults, Error, Inventory, Nonce, Request, Tier};
use tempfile::TempDir;

use crate::simulated::{simulator, succeed};

/// Runs a program to its end.
pub(crate) fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn install(folder: &Path, gpus: &str) {
    std::fs::write(folder.join("node.toml"), gpus).unwrap();
    let mut install = Command::new(simulator().join("fgpu-sim"));
    install
        .args(["install", "--config"])
        .arg(folder.join("node.toml"))
        .arg("--root")
        .arg(folder.join("root"));
    succeed(install.arg("--libraries").arg(simulator()));
}

/// A node.
pub(crate) struct Node {
    folder: TempDir,
    pub(crate) store: Store,
    pub(crate) inventory: Inventory,
    pub(crate) rules: Rules,
}

impl Node {
    /// So many GPUs of this preset, in MIG mode, and a configuration with these lines.
    pub(crate) fn new(preset: &str, count: u32, config: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("fgpu-mig-").tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        install(folder.path(), &format!("[[gpu]]\npreset = \"{preset}\"\ncount = {count}\nmig = true\n"));
        let text = format!(
            "state-dir = {:?}\nlog-dir = {:?}\nlibrary-dir = \"/nowhere\"\n{config}\n[driver]\nroot = {:?}\n",
            at("state"),
            at("log"),
            at("root")
        );
        std::fs::write(at("config.toml"), text).unwrap();
        let mut fgpu = Command::new(env!("CARGO_BIN_EXE_fgpu"));
        succeed(fgpu.arg("--config").arg(at("config.toml")).args(["inventory", "--refresh"]));
        let store = Store::open(&at("state")).unwrap();
        let inventory = fgpu_driver::cached(&at("root"), &at("state")).unwrap().unwrap();
        let rules = Rules { mig_use_existing: config.contains("use-existing = true"), ..Rules::default() };
        Self { folder, store, inventory, rules }
    }

    /// A file of its own; its state directory is `state`, its driver root `root`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Other GPUs in the place of those that it has.
    pub(crate) fn install(&self, gpus: &str) {
        install(self.folder.path(), gpus);
    }

    /// What `fgpu doctor` finds of leases and instances: the names of the checks.
    pub(crate) fn findings(&self) -> Vec<String> {
        let answer: serde_json::Value =
            serde_json::from_slice(&self.fgpu(&["doctor", "--json"]).stdout).unwrap();
        let names = answer["findings"].as_array().unwrap().iter().map(|one| one["check"].as_str().unwrap());
        let ours = |name: &&str| name.starts_with("mig-") || name.contains("driver-part");
        names.filter(ours).map(str::to_owned).collect()
    }

    /// Injects faults into a GPU, or takes them back (0).
    pub(crate) fn fault(&self, gpu: usize, fault: &str, value: u64) {
        let mut sim = Command::new(simulator().join("fgpu-sim"));
        sim.arg("set").arg("--root").arg(self.path("root")).args(["--gpu", &gpu.to_string()]);
        succeed(sim.arg(format!("{fault}={value}")));
    }

    /// The command line.
    pub(crate) fn fgpu(&self, words: &[&str]) -> Output {
        let mut fgpu = Command::new(env!("CARGO_BIN_EXE_fgpu"));
        run(fgpu.arg("--config").arg(self.path("config.toml")).args(words))
    }

    /// A step of the driver's part of a grant, to be started.
    pub(crate) fn step(&self, words: &[&str]) -> Command {
        let mut fgpu = Command::new(env!("CARGO_BIN_EXE_fgpu"));
        fgpu.arg("driver").arg("--state-dir").arg(self.path("state"));
        fgpu.arg("--root").arg(self.path("root")).args(words);
        fgpu
    }

    pub(crate) fn set_up(&self, nonce: &Nonce) -> Output {
        run(&mut self.step(&["set-up", &nonce.to_string()]))
    }

    pub(crate) fn tear_down(&self, nonce: &Nonce) -> Output {
        run(&mut self.step(&["tear-down", &nonce.to_string()]))
    }

    pub(crate) fn reserve(&self, id: &str, annotations: &[(&str, &str)]) -> Result<Lease, Error> {
        self.reserve_for(id, annotations, i32::try_from(std::process::id()).unwrap())
    }

    /// Reserves in the name of another process.
    pub(crate) fn reserve_for(
        &self,
        id: &str,
        annotations: &[(&str, &str)],
        maker: i32,
    ) -> Result<Lease, Error> {
        let annotations: BTreeMap<String, String> =
            annotations.iter().map(|(key, value)| (format!("fgpu/{key}"), (*value).to_owned())).collect();
        let request = Request::parse(&annotations, None, &Defaults::default())?.unwrap();
        let applicant = Applicant {
            key: Key { namespace: "test".into(), id: id.into() },
            bundle: "/".into(),
            maker: Process::of(maker).unwrap(),
            pid_file: None,
            anchor: None,
        };
        self.store.reserve(&self.inventory, &self.rules, &request, &[Tier::Mig], &applicant)
    }

    pub(crate) fn lease(&self, nonce: &Nonce) -> Option<Lease> {
        self.store.leases().unwrap().into_iter().find(|lease| lease.grant.nonce == *nonce)
    }

    /// Does something with a GPU as the administrator would.
    pub(crate) fn with_gpu<T>(&self, gpu: usize, work: impl FnOnce(&MigGpu<'_>) -> T) -> T {
        let nvml = fgpu_driver::nvml::open(&self.path("root")).unwrap();
        work(&MigGpu::open(&nvml, &self.inventory.gpus[gpu]).unwrap())
    }

    /// The instances of all GPUs.
    pub(crate) fn instances(&self) -> Vec<GpuInstance> {
        let all = 0..self.inventory.gpus.len();
        all.flat_map(|gpu| self.with_gpu(gpu, |gpu| gpu.instances().unwrap())).collect()
    }

    /// Nothing is left: no lease, no instance, no capability in /proc.
    pub(crate) fn assert_clean(&self, when: &str) {
        assert_eq!(self.store.leases().unwrap(), [], "{when}");
        assert_eq!(self.instances(), [], "{when}");
        for gpu in &self.inventory.gpus {
            let folder = format!("root/proc/driver/nvidia/capabilities/gpu{}/mig", gpu.minor);
            let left = std::fs::read_dir(self.path(&folder)).map_or(0, |entries| entries.count());
            assert_eq!(left, 0, "{when}: {folder}");
        }
    }
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
