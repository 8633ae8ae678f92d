//! The node as fgpu sees it: its GPUs and who holds them.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::command::{run, wait_until};

/// How a container comes to fgpu.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontEnd {
    /// `containerd-shim-fgpu-v2`.
    Shim,
    /// `fgpu-runtime`.
    Runtime,
    /// A CDI device, which has `fgpu-hook` run in the container of the engine's own runtime.
    Cdi,
}

impl FrontEnd {
    /// Its name in Docker's daemon.json, and as a handler of CRI.
    pub const fn docker_runtime(self) -> &'static str {
        match self {
            FrontEnd::Shim => "fgpu",
            FrontEnd::Runtime => "fgpu-oci",
            FrontEnd::Cdi => "runc",
        }
    }

    /// How a container asks for a share of a GPU, as messages quote it.
    pub fn asks(self, fraction: &str) -> String {
        match self {
            FrontEnd::Cdi => format!("--device fgpu.dev/gpu={fraction}"),
            _ => format!("fgpu/fraction={fraction}"),
        }
    }
}

/// A lease, as far as tests care.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The container's id.
    pub id: String,
    /// The grant's name.
    pub nonce: String,
    /// UUID, bytes and ppm of each GPU.
    pub shares: Vec<(String, u64, u64)>,
}

/// A GPU of the node.
#[derive(Debug, Clone)]
pub struct Gpu {
    /// Its UUID.
    pub uuid: String,
    /// The minor number of its device node.
    pub minor: u64,
    /// Bytes that can be granted.
    pub usable: u64,
}

impl Gpu {
    /// The bytes of a share of it: floored to 1 MiB.
    pub fn share(&self, ppm: u64) -> u64 {
        let bytes = u128::from(self.usable) * u128::from(ppm) / 1_000_000;
        u64::try_from(bytes).expect("a share is no more than its GPU") & !((1 << 20) - 1)
    }
}

/// The node's GPUs, by index.
#[track_caller]
pub fn gpus() -> Vec<Gpu> {
    let path = "/run/fgpu/inventory.json";
    if !Path::new(path).exists() {
        run(["fgpu", "inventory", "--refresh"]).ok();
    }
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
    let inventory: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"));
    let number = |gpu: &Value, key: &str| gpu[key].as_u64().unwrap_or_else(|| panic!("no {key} in {gpu}"));
    let gpu = |gpu: &Value| Gpu {
        uuid: gpu["uuid"].as_str().unwrap_or_default().to_owned(),
        minor: number(gpu, "minor"),
        usable: (number(gpu, "total_memory") - number(gpu, "reserved_memory")) & !((1 << 20) - 1),
    };
    inventory["gpus"].as_array().unwrap_or_else(|| panic!("no gpus in {inventory}")).iter().map(gpu).collect()
}

const LEASES: &str = "/run/fgpu/allocations.json";

/// The allocator file; `None` while there is none.
#[track_caller]
fn allocations() -> Option<Value> {
    let read = || match fs::read_to_string(LEASES) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => panic!("cannot read {LEASES}: {error}"),
    };
    // A reader that does not take the lock may see two changes pass while it reads, and with them half of
    // each: what it reads twice in a row is whole.
    let mut tries = 0;
    loop {
        let text = read()?;
        match serde_json::from_str(&text) {
            Ok(file) if read().is_some_and(|again| again == text) => return Some(file),
            Err(error) if tries == 1000 => panic!("{LEASES}: {error}: {text}"),
            _ if tries == 1000 => panic!("{LEASES} changes all the time"),
            _ => tries += 1,
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// The namespace of a pool's key.
const POOL: &str = "kubernetes";

/// The UUIDs of the GPUs that are held for claims of Kubernetes.
#[track_caller]
pub fn pool() -> Vec<String> {
    let leases = raw_leases();
    let pools = leases.iter().filter(|lease| lease["key"]["namespace"] == POOL);
    let gpus = pools.flat_map(|lease| list(&lease["gpus"]));
    gpus.map(|gpu| gpu["uuid"].as_str().unwrap_or_default().to_owned()).collect()
}

/// The leases as the allocator file has them.
#[track_caller]
fn raw_leases() -> Vec<Value> {
    allocations().map(|file| list(&file["leases"])).unwrap_or_default()
}

/// How many requests wait for room.
#[track_caller]
pub fn waiting() -> usize {
    // The list is there only while somebody waits.
    allocations().map_or(0, |file| file["queue"].as_array().map_or(0, Vec::len))
}

/// Whether an instance is being made for some lease.
#[track_caller]
pub fn is_making_instances() -> bool {
    raw_leases().iter().any(|lease| lease.to_string().contains(r#""stage":"creating""#))
}

#[track_caller]
fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_else(|| panic!("{LEASES}: no list in {value}"))
}

/// All leases of containers and claims, from the allocator file itself: what the product's own commands say is
/// tested elsewhere. The pool of a cluster's plugin takes nothing and is none of these.
#[track_caller]
pub fn leases() -> Vec<Lease> {
    let text =
        |value: &Value| value.as_str().unwrap_or_else(|| panic!("{LEASES}: no text in {value}")).to_owned();
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{LEASES}: no number in {value}"));
    raw_leases()
        .iter()
        .filter(|lease| lease["key"]["namespace"] != POOL)
        .map(|lease| Lease {
            id: text(&lease["key"]["id"]),
            nonce: text(&lease["nonce"]),
            shares: list(&lease["gpus"])
                .iter()
                .map(|gpu| (text(&gpu["uuid"]), number(&gpu["memory"]), number(&gpu["cores_ppm"])))
                .collect(),
        })
        .collect()
}

/// The process ids of the inits that leases name by now: one may be recorded a moment after its container
/// started.
#[track_caller]
pub fn inits() -> Vec<i32> {
    let init = |lease: &Value| i32::try_from(lease["init"]["pid"].as_i64()?).ok();
    raw_leases().iter().filter_map(init).collect()
}

/// Waits until every lease names its container's init: what writes to the state directory for a start is over
/// then.
#[track_caller]
pub fn wait_until_recorded() {
    wait_until("the records of inits", || raw_leases().iter().all(|lease| lease["init"]["pid"].is_i64()));
}

/// The one lease that there is.
#[track_caller]
pub fn only_lease() -> Lease {
    let mut leases = leases();
    assert!(leases.len() == 1, "should be one lease: {leases:?}");
    leases.remove(0)
}

/// Waits until there is no lease.
#[track_caller]
pub fn wait_until_free() {
    wait_until("the end of all leases", || leases().is_empty());
}

/// Panics if some GPU is granted beyond what it has.
#[track_caller]
pub fn assert_not_overcommitted(gpus: &[Gpu], leases: &[Lease]) {
    for gpu in gpus {
        let shares = leases.iter().flat_map(|lease| &lease.shares).filter(|share| share.0 == gpu.uuid);
        let (memory, cores) = shares.fold((0, 0), |sum, share| (sum.0 + share.1, sum.1 + share.2));
        assert!(memory <= gpu.usable && cores <= 1_000_000, "{} is over-committed: {leases:?}", gpu.uuid);
    }
}

/// The node's configuration with more lines at its top, until dropped.
#[derive(Debug)]
pub struct Configured(());

/// Adds lines to the node's configuration.
#[track_caller]
pub fn configure(lines: &str) -> Configured {
    let usual = fs::read_to_string(USUAL).unwrap_or_else(|error| panic!("cannot read {USUAL}: {error}"));
    write(CONFIG, &format!("{lines}\n{usual}"));
    Configured(())
}

impl Drop for Configured {
    fn drop(&mut self) {
        let usual = fs::read_to_string(USUAL).unwrap_or_else(|error| panic!("cannot read {USUAL}: {error}"));
        write(CONFIG, &usual);
    }
}

const CONFIG: &str = "/etc/fgpu/config.toml";
const USUAL: &str = "/lab/fgpu.toml";

fn write(path: &str, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("cannot write {path}: {error}"));
}

/// A file that is as it was before when this is dropped, so that a test that fails leaves it to the next one.
#[derive(Debug)]
pub struct Kept {
    path: &'static str,
    text: String,
}

/// Keeps a file's text.
#[track_caller]
pub fn keep(path: &'static str) -> Kept {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("cannot read {path}: {error}"));
    Kept { path, text }
}

impl Drop for Kept {
    fn drop(&mut self) {
        write(self.path, &self.text);
    }
}

/// Another simulated node than the usual one; that is there again when this is dropped.
pub struct Simulated(());

/// Simulates the node that a file of tests/driver/nodes describes.
#[track_caller]
pub fn simulated(name: &str) -> Simulated {
    run(["/lab/simulate", name]).ok();
    Simulated(())
}

impl Drop for Simulated {
    fn drop(&mut self) {
        run(["/lab/simulate"]);
    }
}
