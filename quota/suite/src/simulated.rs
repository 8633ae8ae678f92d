//! Containers whose driver is the simulated one (`tests/driver`), which has contexts, pools, graphs and code.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fmt::Write};

use fgpu_wire::limits::{self, GpuLimit};

use crate::{Container, NONCE, run, target_dir};

/// The workspace of the simulated driver.
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/driver")
}

/// The folder with `fgpu-sim` and the two libraries.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = target_dir().join("simulated");
        let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        run(Command::new(cargo)
            .args(["build", "--quiet", "--locked", "-p", "fgpu-sim", "-p", "sim-cuda", "-p", "sim-nvml"])
            .args(["--features", "sim-cuda/newer"])
            .arg("--manifest-path")
            .arg(workspace().join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&target));
        target.join("debug")
    })
}

/// What the simulated driver's `cuGetProcAddress` answers: lines of a name, the CUDA version from which on,
/// the function, and the function for per-thread default streams.
pub fn versions() -> String {
    let read = |file| fs::read_to_string(workspace().join(file)).expect("is there");
    read("cuda/versions.txt") + &read("cuda/newer/versions.txt")
}

/// A function's entry in the log of the simulated driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calls {
    /// `call`, `missing` (it is not simulated) or `unknown` (there is nothing of that name).
    pub kind: String,
    /// The function, or `TABLE:SLOT` of a private table.
    pub name: String,
    /// How often it was called.
    pub count: u64,
    /// How often that took device memory.
    pub charges: u64,
}

impl Container {
    /// Makes the simulated driver count calls.
    pub fn count_calls(&self) {
        run(Command::new(built().join("fgpu-sim"))
            .args(["calls", "--start", "--root"])
            .arg(self.path("fgpu")));
    }

    /// The calls since.
    pub fn calls(&self) -> Vec<Calls> {
        let text =
            run(Command::new(built().join("fgpu-sim")).args(["calls", "--root"]).arg(self.path("fgpu")));
        let number = |word: Option<&str>| word.and_then(|word| word.parse().ok()).expect("a number");
        let line = |line: &str| {
            let mut words = line.rsplitn(3, ' ');
            let (charges, count) = (number(words.next()), number(words.next()));
            let (kind, name) = words.next().and_then(|rest| rest.split_once(' ')).expect("kind and name");
            Calls { kind: kind.into(), name: name.into(), count, charges }
        };
        text.lines().map(line).collect()
    }

    /// A container on a node whose GPUs' contexts take so many bytes each, as its limits say. Needs root: the
    /// node has device nodes.
    pub fn simulated(gpus: &[GpuLimit], context: u64) -> Self {
        Self::simulated_among(gpus, context, gpus)
    }

    /// The same, on a node that has `all` GPUs, in this order.
    pub fn simulated_among(gpus: &[GpuLimit], context: u64, all: &[GpuLimit]) -> Self {
        let container = Self::without_driver("gcc", gpus);
        let mut page = limits::encode(&NONCE, gpus);
        let mut node = String::from("cuda-version = \"13.5\"\n");
        for number in 0..gpus.len() {
            limits::put_context(&mut page, number, context);
        }
        for gpu in all {
            let mut uuid: String = gpu.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
            for place in [20, 16, 12, 8] {
                uuid.insert(place, '-');
            }
            let _ = writeln!(node, "[[gpu]]\npreset = \"a30\"\nuuid = \"GPU-{uuid}\"");
            let _ = writeln!(node, "context-mib = {}\nminor = {}", context >> 20, gpu.minor);
        }
        container.put("fgpu/limits", &page);
        let description = container.path("node.toml");
        fs::write(&description, node).expect("ours");
        // The library takes the folder above its own for the node's root.
        run(Command::new(built().join("fgpu-sim"))
            .args(["install", "--config"])
            .arg(&description)
            .arg("--root")
            .arg(container.path("fgpu"))
            .arg("--libraries")
            .arg(built()));
        for (file, library) in [("libsim_cuda.so", "libcuda.so.1"), ("libsim_nvml.so", "libnvidia-ml.so.1")] {
            fs::copy(built().join(file), container.path("fgpu/driver").join(library)).expect("built");
        }
        container
    }
}
