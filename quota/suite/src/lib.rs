//! Tests of the quota libraries from outside.
//!
//! The libraries under test are built in release mode, as they are shipped. The real ones behind them are
//!
//! - stand-ins in C (`c/stand-in-*.c`), for the limit and the ledger themselves;
//! - the simulated driver (`tests/driver`), for contexts, pools, graphs, code, the matrix of all allocations,
//!   and programs on NVIDIA's runtime library;
//! - NVIDIA's own, without a GPU, for `cuGetProcAddress`.
//!
//! The programs that use them are in C, too (`c/*.c`), like those that load libcuda. The paths
//! below `/run/fgpu` are absolute, so every program runs in a mount namespace of its own with a `/run` of its
//! own: root, or a kernel that allows user namespaces to every user.

mod nvidia;
mod simulated;

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, process};

use fgpu_wire::Seal;
use fgpu_wire::ledger::{self, Usage};
use fgpu_wire::limits::{self, COMPUTE_CAP, GpuLimit};
use fgpu_wire::turns;

pub use nvidia::{cudart, cudart_program, libc, nvidia_ml_py, nvidia_smi};
pub use simulated::{Calls, versions};

/// The nonce of all test grants.
pub const NONCE: [u8; 16] = [0x5a; 16];
const MIB: u64 = 1 << 20;

/// The libraries under test, in release mode.
pub fn libraries() -> &'static [PathBuf; 2] {
    static BUILT: OnceLock<[PathBuf; 2]> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = target_dir();
        let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        run(Command::new(cargo)
            .args(["build", "--quiet", "--release", "-p", "fgpu-quota-cuda", "-p", "fgpu-quota-nvml"])
            .arg("--manifest-path")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
            .arg("--target-dir")
            .arg(&target));
        ["cuda", "nvml"].map(|name| target.join(format!("release/libfgpu_{name}.so")))
    })
}

/// `target`, found from this test program's place in it.
fn target_dir() -> PathBuf {
    let program = env::current_exe().expect("a running program has a path");
    let profile = program.ancestors().find(|path| path.ends_with("debug") || path.ends_with("release"));
    profile.and_then(Path::parent).expect("cargo puts tests below target/PROFILE").to_owned()
}

/// Runs a command that must succeed; returns its standard output.
pub fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// A directory with everything that a container with a share has, removed at the end.
pub struct Container {
    root: PathBuf,
    compiler: &'static str,
    /// For a neighbour: the directory of the container that has the driver.
    host: Option<PathBuf>,
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// GPU number `number` of the stand-ins, with so many MiB.
pub fn gpu(number: u8, mib: u64) -> GpuLimit {
    GpuLimit {
        uuid: [0xa0 + number; 16],
        memory: mib * MIB,
        cores_ppm: 250_000,
        compute: COMPUTE_CAP,
        minor: number.into(),
    }
}

impl Container {
    /// A container with these GPUs.
    pub fn new(gpus: &[GpuLimit]) -> Self {
        Self::built_by("gcc", gpus)
    }

    /// A container whose programs and stand-ins are made by this compiler, for another libc.
    pub fn built_by(compiler: &'static str, gpus: &[GpuLimit]) -> Self {
        let container = Self::without_driver(compiler, gpus);
        for (source, library) in
            [("stand-in-cuda.c", "libcuda.so.1"), ("stand-in-nvml.c", "libnvidia-ml.so.1")]
        {
            let out = container.path("fgpu/driver").join(library);
            let soname = format!("-Wl,-soname,{library}");
            container.compile(source, &out, &["-shared", "-fPIC", "-Wl,-Bsymbolic", &soname]);
        }
        container
    }

    /// A container with these GPUs and no real libraries yet.
    fn without_driver(compiler: &'static str, gpus: &[GpuLimit]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fgpu-quota-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let container = Self { root: env::temp_dir().join(name), compiler, host: None };
        for folder in ["lib", "fgpu/driver", "bin"] {
            fs::create_dir_all(container.path(folder)).expect("a temporary directory can be made");
        }
        // Where an unsealed library looks for the real one. Programs are linked with `fgpu/driver`.
        for (unsealed, real) in [
            (Seal::unsealed_cuda(), "../driver/libcuda.so.1"),
            (Seal::unsealed_nvml(), "../driver/libnvidia-ml.so.1"),
        ] {
            let place = container.path(unsealed.strip_prefix("/run/").expect("its place"));
            fs::create_dir_all(place.parent().expect("has one")).expect("ours");
            std::os::unix::fs::symlink(real, place).expect("ours");
        }
        // Any user may be in the container.
        let held = File::create(container.path("fgpu/driver/held")).expect("new");
        held.set_len(4096).expect("has room");
        fs::set_permissions(container.path("fgpu/driver/held"), PermissionsExt::from_mode(0o666))
            .expect("ours");
        fs::create_dir(container.path("fgpu/turns")).expect("ours");
        container.write_grant(&NONCE, gpus);

        let [cuda, nvml] = libraries();
        fs::copy(cuda, container.path("lib/libcuda.so.1")).expect("built");
        fs::copy(nvml, container.path("lib/libnvidia-ml.so.1")).expect("built");
        container
    }

    /// Another container on the same node: its own share, the same driver and boards. It must not outlive the
    /// first one.
    pub fn neighbour(&self, nonce: [u8; 16], gpus: &[GpuLimit]) -> Self {
        let root = self.root.with_extension(format!("{:02x}", nonce[0]));
        fs::create_dir_all(root.join("bin")).expect("a temporary directory can be made");
        fs::create_dir_all(root.join("fgpu")).expect("ours");
        let neighbour = Self { root, compiler: self.compiler, host: Some(self.root.clone()) };
        neighbour.write_grant(&nonce, gpus);
        neighbour
    }

    /// Seals the libraries as a host does: for a random path, and for the file system that the limits are on.
    pub fn seal(&self, random: u64) {
        let device = fs::metadata(self.path("fgpu/limits")).expect("ours").dev();
        let seal = Seal { random, device };
        for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
            let path = self.path("lib").join(library);
            let mut bytes = fs::read(&path).expect("ours");
            seal.apply(&mut bytes).expect("not sealed yet");
            fs::write(&path, bytes).expect("ours");
        }
        let unsealed = Path::new(Seal::unsealed_cuda()).parent().expect("a folder");
        let place = |path: &Path| self.path("").join(path.strip_prefix("/run").expect("its place"));
        fs::rename(place(unsealed), place(Path::new(&seal.to_string()))).expect("ours");
    }

    /// The places of a grant on the boards of its GPUs, the first that are free.
    fn take_places(&self, nonce: &[u8; 16], gpus: &[GpuLimit]) {
        for gpu in gpus {
            let path = self.host().join(format!("fgpu/turns/{}-index", gpu.minor));
            let mut index =
                fs::read(&path).map_or(turns::new_index(), |bytes| bytes.try_into().expect("an index"));
            let free = turns::grants(&index).expect("an index").position(|grant| *grant == [0; 16]);
            let place = free.expect("a node has room for 64");
            index[turns::grant_at(place)..][..16].copy_from_slice(nonce);
            fs::write(&path, index).expect("ours");
            let place = self.place(gpu.minor, place);
            fs::write(&place, [0; turns::SIZE]).expect("ours");
            fs::set_permissions(&place, PermissionsExt::from_mode(0o666)).expect("ours");
        }
    }

    /// A place on the board of the GPU with this minor number.
    pub fn place(&self, minor: u32, place: usize) -> PathBuf {
        self.host().join(format!("fgpu/turns/{minor}-{place}"))
    }

    /// The grant's files.
    fn write_grant(&self, nonce: &[u8; 16], gpus: &[GpuLimit]) {
        fs::write(self.path("fgpu/limits"), limits::encode(nonce, gpus)).expect("ours");
        let ledger = File::create(self.path("fgpu/ledger")).expect("new");
        ledger.set_len(ledger::SIZE as u64).expect("sparse");
        self.put("fgpu/ledger", &ledger::encode(nonce));
        fs::set_permissions(self.path("fgpu/ledger"), PermissionsExt::from_mode(0o666)).expect("ours");
        self.take_places(nonce, gpus);
    }

    /// The directory of the container that has the driver.
    fn host(&self) -> &Path {
        self.host.as_deref().unwrap_or(&self.root)
    }

    /// A path below the container's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Writes at the start of an existing file.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        use std::os::unix::fs::FileExt;
        let file = File::options().write(true).open(self.path(name)).expect("is there");
        file.write_all_at(bytes, 0).expect("has room");
    }

    /// Writes the limits in place, as a resize does.
    pub fn write_limits(&self, gpus: &[GpuLimit]) {
        let path = self.path("fgpu/limits");
        File::options().create(true).truncate(false).write(true).open(path).expect("ours");
        self.put("fgpu/limits", &limits::encode(&NONCE, gpus));
    }

    fn compile(&self, source: &str, out: &Path, arguments: &[&str]) {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(source);
        run(Command::new(self.compiler)
            .args(["-std=gnu17", "-O1", "-g", "-Wall", "-Wno-unused-result", "-Wno-unused-function", "-o"])
            .arg(out)
            .arg(source)
            .args(arguments)
            .args(["-ldl", "-pthread"]));
    }

    /// Makes a program: `c/NAME.c`, linked with the named libraries as a program for a GPU is.
    pub fn program(&self, name: &str, libraries: &[&str], defines: &[&str]) -> PathBuf {
        let out = self.path("bin").join(name);
        let folder = format!("-L{}", self.host().join("fgpu/driver").display());
        let mut arguments = vec![folder.as_str()];
        let libraries: Vec<String> = libraries.iter().map(|library| format!("-l:{library}")).collect();
        arguments.extend(defines);
        arguments.extend(libraries.iter().map(String::as_str));
        self.compile(&format!("{name}.c"), &out, &arguments);
        out
    }

    /// A command in the container: its own `/run`, our libraries where the loader finds them first.
    pub fn command(&self, program: &Path) -> Command {
        self.unshare(&[], program)
    }

    /// The same, as the first process of a pid namespace: its children end with it.
    pub fn command_as_init(&self, program: &Path) -> Command {
        self.unshare(&["--pid", "--fork", "--kill-child", "--mount-proc"], program)
    }

    fn unshare(&self, arguments: &[&str], program: &Path) -> Command {
        let mut command = Command::new("unshare");
        if !is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        let mount = "mount -t tmpfs none /run && mkdir /run/fgpu && mount --bind \"$0\" /run/fgpu && \
             if [ \"$0\" != \"$1\" ]; then mount --bind \"$1/limits\" /run/fgpu/limits && mount --bind \"$1/ledger\" /run/fgpu/ledger; fi && \
             shift && exec \"$@\"";
        command.args(["--mount", "--propagation", "private"]).args(arguments);
        command.args(["sh", "-c", mount]).arg(self.host().join("fgpu")).arg(self.path("fgpu"));
        command.arg(program).env("LD_LIBRARY_PATH", self.host().join("lib"));
        command
    }

    /// Runs a program in the container; it must succeed. Returns its standard output.
    pub fn run(&self, program: &Path, arguments: &[&str]) -> String {
        run(self.command(program).args(arguments))
    }

    /// What the host reads in the ledger.
    pub fn with_usage<T>(&self, with: impl FnOnce(Usage<'_>) -> T) -> T {
        let bytes = fs::read(self.path("fgpu/ledger")).expect("is there");
        with(ledger::usage(&bytes).expect("a ledger"))
    }
}

fn is_root() -> bool {
    run(Command::new("id").arg("-u")).trim() == "0"
}

/// How often a randomised test is repeated: `FGPU_TRIALS`, if it is set.
pub fn trials(default: u32) -> String {
    env::var("FGPU_TRIALS").unwrap_or_else(|_| default.to_string())
}
