//! Running tests in the environments from outside.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use serde_json::Value;

/// The argument that tells this program that it is inside.
pub const INSIDE: &str = "--inside";
/// Where this program is to be found inside.
const PROGRAM: &str = "/opt/lab-suite";

/// A Debian suite over a version of cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Environment {
    /// `trixie` or `forky`.
    pub suite: &'static str,
    /// `v1` or `v2`.
    pub cgroup: &'static str,
    /// What there is of fgpu.
    pub fgpu: Fgpu,
}

/// What an environment has of fgpu when it is entered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fgpu {
    /// It is installed and configured.
    Installed,
    /// Nothing but the packages of `make packages`, in [`PACKAGES`].
    Packages,
    /// It is installed and configured, and there are programs from elsewhere that use GPUs, in
    /// [`FRAMEWORKS`].
    Frameworks,
    /// It is installed and configured, and there are the programs of a Kubernetes cluster: tests/cluster.
    Cluster(Engine),
    /// As `Cluster` with containerd, on a virtual machine with systemd: tests/cluster/vm.
    Machine,
}

impl Fgpu {
    /// The engine of the cluster's node, if there is a cluster.
    const fn engine(self) -> Option<Engine> {
        match self {
            Fgpu::Cluster(engine) => Some(engine),
            Fgpu::Machine => Some(Engine::Containerd),
            _ => None,
        }
    }
}

/// The container engine of a cluster's node, by the name of its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// `containerd`, with the lab's configuration.
    Containerd,
    /// `crio`.
    Crio,
}

impl Engine {
    /// The variable of an environment that has this one's name.
    pub const VARIABLE: &str = "ENGINE";

    /// The program's name.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Containerd => "containerd",
            Engine::Crio => "crio",
        }
    }
}

/// Where an environment has the packages.
pub const PACKAGES: &str = "/opt/packages";
/// Where an environment with a cluster has fgpu-dra.
pub const DRA: &str = "/usr/bin/fgpu-dra";
/// Where an environment has what `frameworks/fetch` made.
pub const FRAMEWORKS: &str = "/opt/frameworks";

impl Environment {
    /// All of them; each two run side by side.
    pub const ALL: [Environment; 6] = [
        Environment { suite: "trixie", cgroup: "v2", fgpu: Fgpu::Packages },
        Environment { suite: "forky", cgroup: "v2", fgpu: Fgpu::Packages },
        Environment { suite: "trixie", cgroup: "v2", fgpu: Fgpu::Installed },
        Environment { suite: "forky", cgroup: "v1", fgpu: Fgpu::Installed },
        Environment { suite: "trixie", cgroup: "v1", fgpu: Fgpu::Installed },
        Environment { suite: "forky", cgroup: "v2", fgpu: Fgpu::Installed },
    ];
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fgpu {
            Fgpu::Installed => write!(f, "{}-{}", self.suite, self.cgroup),
            Fgpu::Packages => write!(f, "{}-packages", self.suite),
            Fgpu::Frameworks => write!(f, "{}-frameworks", self.suite),
            Fgpu::Cluster(engine) => write!(f, "{}-{}", self.suite, engine.name()),
            Fgpu::Machine => write!(f, "{}-vm", self.suite),
        }
    }
}

/// Makes what these environments and their containers are made of, unless it is there.
///
/// # Errors
///
/// What could not be made; why has been printed.
pub fn make<'a>(environments: impl Iterator<Item = &'a Environment>) -> Result<(), String> {
    let run = |program: &str, arguments: &[&str]| {
        let status =
            Command::new(format!("{}/{program}", env!("CARGO_MANIFEST_DIR"))).args(arguments).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("tests/lab/{program} {}: {status}", arguments.join(" "))),
            Err(error) => Err(format!("tests/lab/{program}: {error}")),
        }
    };
    for environment in environments {
        run("build", &[environment.suite])?;
        if environment.fgpu == Fgpu::Frameworks {
            run("frameworks/fetch", &[])?;
        }
        if environment.fgpu.engine().is_some() {
            run("../cluster/build", &[])?;
        }
    }
    run("images", &[])
}

/// An environment that is entered when the first test asks for it and left when dropped.
///
/// It belongs to one thread: an environment dies with the thread that entered it (`enter` asks the kernel for
/// that), and it runs one test at a time.
#[derive(Debug)]
pub struct Room {
    /// Gone only while dropping.
    requests: Option<Sender<Request>>,
    thread: Option<JoinHandle<()>>,
}

/// A test's name, and where to say what came of it.
type Request = (String, Sender<Result<(), String>>);

impl Room {
    /// A room for an environment, not yet entered.
    pub fn new(environment: Environment) -> Self {
        let (requests, receiver) = mpsc::channel();
        let thread = thread::spawn(move || serve(environment, &receiver));
        Self { requests: Some(requests), thread: Some(thread) }
    }

    /// Runs a test by its name inside.
    ///
    /// # Errors
    ///
    /// Why it failed.
    pub fn run(&self, test: &str) -> Result<(), String> {
        let (answer, receiver) = mpsc::channel();
        let gone = "the environment's thread is gone";
        let requests = self.requests.as_ref().ok_or(gone)?;
        requests.send((test.to_owned(), answer)).map_err(|_| gone)?;
        receiver.recv().map_err(|_| gone)?
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.requests = None;
        // Wait until it has left: the end of this program would be a kill.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(environment: Environment, requests: &Receiver<Request>) {
    let mut visit: Option<Result<Visit, String>> = None;
    for (test, answer) in requests {
        // One that cannot be entered twice is not tried again for each test; one that broke down is, and one
        // in which a test left what the next would stumble over.
        let begin = || Visit::begin(environment).or_else(|_| Visit::begin(environment));
        let result = match visit.get_or_insert_with(begin) {
            Err(why) => Err(why.clone()),
            Ok(there) => match there.ask(&test) {
                Ok(Answer { failure, tidy }) => {
                    if !tidy {
                        visit = None;
                    }
                    failure.map_or(Ok(()), Err)
                }
                Err(error) => {
                    visit = None;
                    Err(format!("{environment} broke down in this test: {error}"))
                }
            },
        };
        // The asker may have been interrupted; nobody else wants the answer.
        let _ = answer.send(result);
    }
}

/// What came of a test.
struct Answer {
    failure: Option<String>,
    /// Whether nothing of it is left.
    tidy: bool,
}

/// A copy of this program inside.
struct Visit {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Visit {
    fn begin(environment: Environment) -> Result<Self, String> {
        let fail = |error: &dyn fmt::Display| format!("cannot enter {environment}: {error}");
        let program = std::env::current_exe().map_err(|error| fail(&error))?;
        let enter = if environment.fgpu == Fgpu::Machine { "../cluster/vm" } else { "enter" };
        let mut command = Command::new(format!("{}/{enter}", env!("CARGO_MANIFEST_DIR")));
        command.args([environment.suite, environment.cgroup]);
        if environment.fgpu == Fgpu::Packages {
            let packages = std::env::var_os("FGPU_PACKAGES")
                .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/packages").into());
            command.env("FGPU_INSTALL", "/nowhere").arg("--bind").arg(packages).arg(PACKAGES);
        }
        let lab = std::env::var_os("FGPU_LAB")
            .unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../.lab").into());
        let lab = Path::new(&lab);
        if environment.fgpu == Fgpu::Frameworks {
            command.arg("--bind").arg(lab.join("frameworks")).arg(FRAMEWORKS);
        }
        let mut variables = Vec::new();
        if let Some(engine) = environment.fgpu.engine() {
            variables.push(format!("{}={}", Engine::VARIABLE, engine.name()));
            let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../cluster/inside");
            command
                .args(["--bind", scripts, "/cluster"])
                .args([
                    "--bind",
                    concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes"),
                    "/opt/deploy",
                ])
                .arg("--bind")
                .arg(lab.join("cluster"))
                .arg("/opt/cluster");
            // Beside the folder of this program: `make cluster` builds it first.
            if let Some(plugin) = program.ancestors().nth(2).map(|folder| folder.join("fgpu-dra"))
                && plugin.exists()
            {
                command.arg("--bind").arg(plugin).arg(DRA);
            }
        }
        let mut child = command
            .arg("--bind")
            .arg(program)
            .args([PROGRAM, "--", "env"])
            .args(variables)
            .args([PROGRAM, INSIDE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| fail(&error))?;
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("standard output was asked to be a pipe"));
        let mut visit = Self { child, requests, answers };
        match visit.answer() {
            Ok(line) if line["ready"] == true => Ok(visit),
            Ok(line) => Err(fail(&format!("it says {line}"))),
            Err(error) => Err(fail(&format!("{error}; what it printed stands above"))),
        }
    }

    fn ask(&mut self, test: &str) -> io::Result<Answer> {
        let requests = self.requests.as_mut().expect("open until the visit ends");
        writeln!(requests, "{test}")?;
        let answer = self.answer()?;
        let failure = answer["failure"].as_str().map(str::to_owned);
        Ok(Answer { failure, tidy: answer["tidy"] == true })
    }

    fn answer(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended"));
        }
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        // The copy inside ends with its input, and everything there with it.
        self.requests = None;
        let _ = self.child.wait();
    }
}
