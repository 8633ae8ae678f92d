//! The simulated driver, built for tests of the command.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Runs a program to its end, which must be a good one.
pub(crate) fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The folder with `fgpu-sim` and the two libraries.
pub(crate) fn simulator() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("simulated");
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/driver/Cargo.toml");
        let packages = ["-p", "fgpu-sim", "-p", "sim-cuda", "-p", "sim-nvml"];
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked"]).args(packages);
        succeed(cargo.arg("--manifest-path").arg(manifest).arg("--target-dir").arg(&target));
        target.join("debug")
    })
}
