//! NVIDIA's own files, fetched from Debian's archive and PyPI, and kept between runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::{env, fs};

use crate::{Container, run, target_dir};

fn kept(name: &str) -> PathBuf {
    let folder = target_dir().join("nvidia").join(name);
    fs::create_dir_all(&folder).expect("the target folder is ours");
    folder
}

/// Files as a Debian suite packages them: NVIDIA's `libcuda.so`, `libnvidia-ml.so` and `nvidia-smi`, and the
/// folder `libc`.
fn debian(suite: &str, file: &str) -> PathBuf {
    /// One test fetches, the others wait.
    static FETCHING: Mutex<()> = Mutex::new(());
    let _fetching = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = kept(suite);
    let fetch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/driver/fetch-nvidia-smi");
    run(Command::new(fetch).arg(&folder).arg(suite));
    folder.join(file)
}

/// A Python search path with nvidia-ml-py.
pub fn nvidia_ml_py() -> PathBuf {
    let folder = kept("nvidia-ml-py");
    if !folder.join("pynvml.py").exists() {
        let install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target"];
        run(Command::new("python3").args(install).arg(&folder).arg("nvidia-ml-py"));
    }
    folder
}

/// The real nvidia-smi, of the version that the simulated driver has.
pub fn nvidia_smi() -> PathBuf {
    debian("trixie", "nvidia-smi")
}

/// The folder with the C library and the loader of a Debian suite.
pub fn libc(suite: &str) -> PathBuf {
    debian(suite, "libc")
}

/// The programs on NVIDIA's runtime library of both versions, and the library (`tests/driver/cudart/make`).
fn runtime() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = env::var_os("FGPU_LAB").map_or_else(|| top.join(".lab"), PathBuf::from).join("cudart");
        run(Command::new(top.join("tests/driver/cudart/make")).arg(&folder));
        folder.join("programs").canonicalize().expect("made")
    })
}

/// NVIDIA's runtime library of that major version.
pub fn cudart(version: &str) -> PathBuf {
    runtime().join(format!("libcudart.so.{version}"))
}

/// A program that uses every call of NVIDIA's runtime library that takes memory: `12.9`, `13.5`, or either
/// with `-static`.
pub fn cudart_program(version: &str) -> PathBuf {
    runtime().join(format!("cudart-{version}"))
}

impl Container {
    /// A container over the real libcuda of a Debian suite. There is no GPU, but the library answers which
    /// functions it has.
    pub fn of_debian(suite: &str) -> Self {
        let container = Self::without_driver("gcc", &[]);
        fs::copy(debian(suite, "libcuda.so"), container.path("fgpu/driver/libcuda.so.1")).expect("fetched");
        container
    }

    /// The same, with a spy (`c/spy.c`) before our library.
    pub fn spied(suite: &str) -> Self {
        let container = Self::of_debian(suite);
        fs::create_dir_all(container.path("spy")).expect("ours");
        let out = container.path("spy/libcuda.so.1");
        container.compile("spy.c", &out, &["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]);
        container
    }

    /// A program whose libcuda is the spy.
    pub fn spied_command(&self, program: &Path) -> Command {
        let mut command = self.command(program);
        command.env("LD_LIBRARY_PATH", self.path("spy"));
        command.env("FGPU_TEST_OURS", self.path("lib/libcuda.so.1"));
        command
    }
}
