//! Nodes to test on, and programs to test with.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

const SIM: &str = env!("CARGO_BIN_EXE_fgpu-sim");

/// The workspace of the simulated driver.
pub(crate) fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A folder for what is made once and kept between runs.
fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// Runs a program to its end and gives its standard output; fails the test if the program fails.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// The folder with the two libraries, built like these tests.
pub(crate) fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(workspace()).args(["build", "--locked", "-p", "sim-nvml", "-p", "sim-cuda"]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        run(&mut cargo);
        Path::new(SIM).parent().unwrap().to_owned()
    })
}

/// Likewise, with what came after 550 (feature `newer`).
fn newer_libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = kept("newer");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(workspace()).args(["build", "--locked", "-p", "sim-nvml", "-p", "sim-cuda"]);
        cargo.args(["--features", "sim-cuda/newer", "--target-dir"]).arg(&target);
        run(&mut cargo);
        target.join("debug")
    })
}

/// NVIDIA's own files as Debian packages them: `nvidia-smi`, `libnvidia-ml.so`, `libcuda.so`.
pub(crate) fn debian(file: &str) -> PathBuf {
    static FETCHED: OnceLock<PathBuf> = OnceLock::new();
    let folder = FETCHED.get_or_init(|| {
        let folder = kept("nvidia");
        run(Command::new(workspace().join("fetch-nvidia-smi")).arg(&folder));
        folder
    });
    folder.join(file)
}

/// A Python search path with nvidia-ml-py.
pub(crate) fn python_path() -> &'static Path {
    static FETCHED: OnceLock<PathBuf> = OnceLock::new();
    FETCHED.get_or_init(|| {
        let folder = kept("python");
        if !folder.join("pynvml.py").exists() {
            let pip = ["-m", "pip", "install", "--quiet", "--no-deps", "nvidia-ml-py", "--target"];
            run(Command::new("python3").args(pip).arg(&folder));
        }
        folder
    })
}

/// The program in `client.c`.
pub(crate) fn client() -> &'static Path {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| {
        let program = kept("client");
        let source = workspace().join("tool/tests/suite/client.c");
        // The prototypes of CUDA's functions are not declared: calls are made as the arguments say.
        run(Command::new("gcc")
            .args(["-Wall", "-O1", "-std=gnu17", "-o"])
            .arg(&program)
            .arg(source)
            .arg("-ldl"));
        program
    })
}

/// A node in a folder of its own.
pub(crate) struct Node {
    root: TempDir,
}

impl Node {
    /// A node as described in `nodes/`.
    pub(crate) fn install(description: &str) -> Self {
        Self::install_file(&workspace().join("nodes").join(description))
    }

    /// A node as described by a text.
    pub(crate) fn describe(toml: &str) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), toml).unwrap();
        Self::install_file(file.path())
    }

    /// A node as described by a text, whose driver may be newer than 550.
    pub(crate) fn describe_newer(toml: &str) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), toml).unwrap();
        let node = Self { root: tempfile::tempdir().unwrap() };
        node.install_with(file.path(), newer_libraries());
        node
    }

    fn install_file(description: &Path) -> Self {
        let node = Self { root: tempfile::tempdir().unwrap() };
        node.install_over(description);
        node
    }

    /// Another node in the place of this one.
    pub(crate) fn becomes(&self, description: &str) {
        self.install_over(&workspace().join("nodes").join(description));
    }

    fn install_over(&self, description: &Path) {
        self.install_with(description, libraries());
    }

    fn install_with(&self, description: &Path, libraries: &Path) {
        let mut install = Command::new(SIM);
        install.args(["install", "--config"]).arg(description).arg("--root").arg(self.root.path());
        install.arg("--libraries").arg(libraries).arg("--nvidia-smi").arg(debian("nvidia-smi"));
        run(&mut install);
    }

    /// Something below the node's root.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// A program that finds the node's libraries.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.path("usr/lib/x86_64-linux-gnu"));
        command.env_remove("CUDA_VISIBLE_DEVICES");
        command
    }

    /// The node's nvidia-smi.
    pub(crate) fn smi(&self, arguments: &[&str]) -> String {
        run(self.command(self.path("usr/bin/nvidia-smi")).args(arguments))
    }

    /// `fgpu-sim set`.
    pub(crate) fn set(&self, arguments: &[&str]) {
        run(Command::new(SIM).arg("set").arg("--root").arg(self.root.path()).args(arguments));
    }

    /// `fgpu-sim status --json`.
    pub(crate) fn status(&self) -> serde_json::Value {
        let text = run(Command::new(SIM).args(["status", "--json", "--root"]).arg(self.root.path()));
        serde_json::from_str(&text).unwrap()
    }

    /// A client with a context on the first GPU.
    pub(crate) fn client(&self) -> Client {
        let mut client = Client::start(&mut self.command(client()));
        client.succeed("init");
        client.succeed("context 0");
        client
    }
}

/// A running client; it ends when it is dropped.
pub(crate) struct Client {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Client {
    /// Starts the client by a command that ends in it.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().unwrap());
        Self { child, to, from }
    }

    /// Gives a command and returns the answer: the `CUresult` and the rest of the line.
    pub(crate) fn ask(&mut self, command: &str) -> (i32, String) {
        self.send(command);
        self.answer()
    }

    /// Gives a command without waiting for its answer.
    pub(crate) fn send(&mut self, command: &str) {
        writeln!(self.to.as_mut().unwrap(), "{command}").unwrap();
    }

    /// Waits for an answer.
    pub(crate) fn answer(&mut self) -> (i32, String) {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        let line = line.trim_end();
        let (code, rest) = line.split_once(' ').unwrap_or((line, ""));
        (code.parse().unwrap_or_else(|_| panic!("answer {line:?}")), rest.to_owned())
    }

    /// Gives a command that must succeed and returns the rest of the answer.
    pub(crate) fn succeed(&mut self, command: &str) -> String {
        let (code, rest) = self.ask(command);
        assert_eq!(code, 0, "{command}");
        rest
    }

    /// Free and total bytes of the current GPU.
    pub(crate) fn info(&mut self) -> (u64, u64) {
        let answer = self.succeed("info");
        let (free, total) = answer.split_once(' ').unwrap();
        (free.parse().unwrap(), total.parse().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the client as nobody can prevent.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The end of its input is its end.
        drop(self.to.take());
        let _ = self.child.wait();
    }
}
