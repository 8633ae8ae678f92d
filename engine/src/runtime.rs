//! The real runtime: which program it is, how it reads its words, and where it keeps what.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fgpu_spec::{Code, Error};

use crate::config::RUNTIME_FOLDERS;
use command_line::{CommandLine, Grammar, Unclear};

pub mod command_line;
mod log;
mod options;

pub use log::Log;

/// The runtimes that are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// opencontainers/runc.
    Runc,
    /// containers/crun, and krun, which is the same program.
    Crun,
    /// youki-dev/youki.
    Youki,
    /// One that is not known by its name, a wrapper for example.
    Other,
}

impl Kind {
    /// By a file's name: `runc`, `docker-runc`, `runc.real`, `crun-wasm`, `krun`.
    fn of_name(name: &OsStr) -> Option<Self> {
        let name = name.to_str()?;
        name.split(|letter: char| !letter.is_ascii_alphanumeric()).find_map(|part| match part {
            "runc" => Some(Self::Runc),
            "crun" | "krun" => Some(Self::Crun),
            "youki" => Some(Self::Youki),
            _ => None,
        })
    }

    /// What a path leads to tells more than the path: /usr/bin/runc may be a link to crun
    /// (update-alternatives).
    fn of_program(path: &Path) -> Self {
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let names = [target.file_name(), path.file_name()];
        names.into_iter().flatten().find_map(Self::of_name).unwrap_or(Self::Other)
    }

    fn grammars(self) -> &'static [Grammar] {
        match self {
            Self::Runc => &[Grammar::GoV1, Grammar::GoV3],
            Self::Crun => &[Grammar::Argp],
            Self::Youki => &[Grammar::Clap],
            Self::Other => &[Grammar::GoV1, Grammar::GoV3, Grammar::Argp, Grammar::Clap],
        }
    }
}

/// What a runtime takes from its environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    /// `XDG_RUNTIME_DIR`, if it is not empty.
    pub xdg: Option<OsString>,
    /// Whether it is the host's root, in no user namespace.
    pub root: bool,
    /// The working directory.
    pub folder: PathBuf,
}

impl Environment {
    /// This process's own, which the runtime inherits.
    pub fn own() -> Self {
        // A folder that has been removed has no name, and nothing in it.
        let folder = std::env::current_dir().unwrap_or_else(|_| "/proc/self/cwd".into());
        Self {
            xdg: std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()),
            root: is_host_root(),
            folder,
        }
    }
}

/// Whether this process is the host's root, in no user namespace (user_namespaces(7), `uid_map`).
pub(crate) fn is_host_root() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    rustix::process::geteuid().is_root() && map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// The real runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// The program, absolute.
    pub path: PathBuf,
    /// How it reads its words.
    pub kind: Kind,
}

impl Runtime {
    /// The first of the configured runtimes that is there and is not this program.
    pub fn find(names: &[PathBuf]) -> Result<Self, Error> {
        let identity = |path: &Path| std::fs::metadata(path).ok().map(|stat| (stat.dev(), stat.ino()));
        let own = identity(Path::new("/proc/self/exe"));
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
        let candidates = names.iter().flat_map(|name| {
            let directories = std::env::split_paths(&path).chain(RUNTIME_FOLDERS.map(PathBuf::from));
            let directories = directories.collect::<Vec<_>>();
            // `join` with an absolute name is that name.
            directories.into_iter().map(move |directory| directory.join(name))
        });
        let usable = |path: &PathBuf| path.is_absolute() && identity(path).is_some_and(|id| Some(id) != own);
        match candidates.into_iter().find(usable) {
            Some(path) => Ok(Self { kind: Kind::of_program(&path), path }),
            None => {
                let names: Vec<_> = names.iter().map(|name| name.display().to_string()).collect();
                let message = format!(
                    "none of the runtimes {} is in PATH or {}; see runtimes in {}",
                    names.join(", "),
                    RUNTIME_FOLDERS.join(", "),
                    crate::config::PATH
                );
                Err(Error::new(Code::Internal, message))
            }
        }
    }

    /// What a command line means to it.
    pub fn read(&self, words: &[OsString]) -> Result<CommandLine, Unclear> {
        command_line::read(words, self.kind.grammars())
    }

    /// Its state directory. Whether the words, the environment and the version of a runtime lead there is not
    /// certain; no lease depends on it.
    pub fn root(&self, line: &CommandLine, environment: &Environment) -> PathBuf {
        let below_xdg = |name: &str| environment.xdg.as_ref().map(|path| Path::new(path).join(name));
        let default = match self.kind {
            // libcrun does not look at its user (status.c, `get_run_directory`).
            Kind::Crun => below_xdg("crun").unwrap_or_else(|| "/run/crun".into()),
            Kind::Youki if environment.root => "/run/youki".into(),
            Kind::Youki => below_xdg("youki").unwrap_or_else(|| "/run/youki".into()),
            // main.go, `shouldHonorXDGRuntimeDir`.
            Kind::Runc | Kind::Other if environment.root => "/run/runc".into(),
            Kind::Runc | Kind::Other => below_xdg("runc").unwrap_or_else(|| "/run/runc".into()),
        };
        // crun enters the bundle before it looks for its root.
        let base = match (self.kind, line.verb.makes()) {
            (Kind::Crun, true) => bundle(line, environment),
            _ => environment.folder.clone(),
        };
        clean(&base.join(line.root.as_ref().unwrap_or(&default)))
    }

    /// Container ids are unique below one state directory, so that names the namespace:
    /// `docker/runtime-runc/moby`.
    pub fn namespace(&self, line: &CommandLine, environment: &Environment) -> String {
        let root = self.root(line, environment).display().to_string();
        let short = root.strip_prefix("/var/run/").or_else(|| root.strip_prefix("/run/")).unwrap_or(&root);
        short.to_owned()
    }

    /// Where it writes down which process the container's init is, if nothing else is asked of it.
    pub fn state_file(&self, line: &CommandLine, environment: &Environment) -> Option<PathBuf> {
        let name = match self.kind {
            Kind::Runc | Kind::Youki => "state.json",
            Kind::Crun => "status",
            Kind::Other => return None,
        };
        Some(self.root(line, environment).join(&line.id).join(name))
    }

    /// The pid file that its caller asks for.
    ///
    /// # Errors
    /// A relative path counts from the bundle with crun and from the working directory with others: with a
    /// runtime that is not known it cannot be told.
    pub fn pid_file(
        &self,
        line: &CommandLine,
        environment: &Environment,
    ) -> Result<Option<PathBuf>, Unclear> {
        let Some(path) = &line.pid_file else { return Ok(None) };
        let bundle = bundle(line, environment);
        let base = match self.kind {
            Kind::Crun => bundle,
            Kind::Runc | Kind::Youki => environment.folder.clone(),
            Kind::Other if path.is_absolute() || bundle == environment.folder => bundle,
            Kind::Other => {
                let why = format!("the pid file {} is a relative path", path.display());
                return Err(Unclear(why));
            }
        };
        Ok(Some(base.join(path)))
    }

    /// The file that it reads for the bundle's config.json.
    pub fn config(&self, line: &CommandLine, environment: &Environment) -> PathBuf {
        match &line.config {
            // crun counts it from the working directory, but for the very name (run_create.c).
            Some(path) if path != Path::new("config.json") => environment.folder.join(path),
            _ => bundle(line, environment).join("config.json"),
        }
    }
}

/// Writes an error into the log file that a runtime was given with this command line (without `argv[0]`), if
/// any, and if it says where that is: a relative path counts from the runtime's working directory.
pub fn log_for(command_line: &[OsString], error: &Error) {
    let log = Log::of(command_line);
    if log.is_absolute() {
        log.error(error);
    }
}

/// The bundle's folder.
pub fn bundle(line: &CommandLine, environment: &Environment) -> PathBuf {
    match &line.bundle {
        Some(path) => environment.folder.join(path),
        None => environment.folder.clone(),
    }
}

/// A path without `.` and `..` and a slash at its end, as Go's `filepath.Clean` has it: one name for one
/// folder.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(clean.pop()),
            std::path::Component::CurDir => {}
            part => clean.push(part),
        }
    }
    clean
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn runtime(kind: Kind) -> Runtime {
        Runtime { path: "/usr/bin/x".into(), kind }
    }

    fn environment(xdg: Option<&str>, root: bool) -> Environment {
        Environment { xdg: xdg.map(OsString::from), root, folder: "/cwd".into() }
    }

    fn read(runtime: &Runtime, line: &str) -> CommandLine {
        runtime.read(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_runtime_is_told_by_its_name_and_by_what_the_name_leads_to() {
        let folder = tempfile::tempdir().unwrap();
        for (name, kind) in [
            ("runc", Kind::Runc),
            ("docker-runc", Kind::Runc),
            ("docker-runc-current", Kind::Runc),
            ("runc.real", Kind::Runc),
            (".runc-wrapped", Kind::Runc),
            ("runc_1.1.15", Kind::Runc),
            ("crun", Kind::Crun),
            ("crun-wasm", Kind::Crun),
            ("crun.distrib", Kind::Crun),
            ("krun", Kind::Crun),
            ("youki", Kind::Youki),
            ("youki-0.7", Kind::Youki),
            ("runsc", Kind::Other),
            ("nvidia-container-runtime", Kind::Other),
            ("mycrunner", Kind::Other),
        ] {
            assert_eq!(Kind::of_program(&folder.path().join(name)), kind, "{name}");
        }
        let at = |name: &str| folder.path().join(name);
        for folder in ["crio", "alternatives"] {
            std::fs::create_dir(at(folder)).unwrap();
        }
        std::fs::write(at("crio/crun"), "").unwrap();
        std::fs::write(at("wrapper"), "").unwrap();
        symlink(at("crio/crun"), at("alternatives/oci")).unwrap();
        symlink(at("alternatives/oci"), at("oci-runtime")).unwrap();
        symlink(at("alternatives/oci"), at("runc")).unwrap();
        symlink(at("wrapper"), at("youki")).unwrap();
        assert_eq!(Kind::of_program(&at("oci-runtime")), Kind::Crun);
        assert_eq!(Kind::of_program(&at("runc")), Kind::Crun, "what a link leads to counts");
        assert_eq!(Kind::of_program(&at("youki")), Kind::Youki, "else the link's own name");
    }

    #[test]
    fn the_state_directory_is_the_runtimes_own() {
        let xdg = Some("/run/user/0");
        for (kind, line, xdg, root, state) in [
            (Kind::Runc, "create a", None, true, "/run/runc/a/state.json"),
            (Kind::Runc, "create a", xdg, true, "/run/runc/a/state.json"),
            (Kind::Runc, "create a", xdg, false, "/run/user/0/runc/a/state.json"),
            (Kind::Crun, "create a", None, true, "/run/crun/a/status"),
            (Kind::Crun, "create a", xdg, true, "/run/user/0/crun/a/status"),
            (Kind::Crun, "--root /r create a", xdg, true, "/r/a/status"),
            (Kind::Crun, "--root r create a", xdg, true, "/cwd/r/a/status"),
            (Kind::Crun, "--root r create -b b a", xdg, true, "/cwd/b/r/a/status"),
            (Kind::Crun, "--root r create -b /b a", None, true, "/b/r/a/status"),
            (Kind::Runc, "--root r create -b /b a", None, true, "/cwd/r/a/state.json"),
            (Kind::Runc, "--root ../r/./x/ create a", None, true, "/r/x/a/state.json"),
            (Kind::Youki, "create a", xdg, true, "/run/youki/a/state.json"),
            (Kind::Youki, "create a", xdg, false, "/run/user/0/youki/a/state.json"),
            (Kind::Youki, "-r /y create a", None, true, "/y/a/state.json"),
        ] {
            let runtime = runtime(kind);
            let found = runtime.state_file(&read(&runtime, line), &environment(xdg, root));
            assert_eq!(found, Some(state.into()), "{kind:?} {line}");
        }
        let other = runtime(Kind::Other);
        assert_eq!(other.state_file(&read(&other, "create a"), &environment(None, true)), None);
    }

    #[test]
    fn the_namespace_is_the_state_directory() {
        for (kind, line, namespace) in [
            (Kind::Runc, "--root /var/run/docker/runtime-fgpu/moby create a", "docker/runtime-fgpu/moby"),
            (Kind::Runc, "create a", "runc"),
            (Kind::Crun, "create a", "user/0/crun"),
            (Kind::Crun, "delete a", "user/0/crun"),
            (Kind::Crun, "--root r delete a", "/cwd/r"),
            (Kind::Runc, "--root /srv/x/ create a", "/srv/x"),
            (Kind::Youki, "-r/srv/x create a", "/srv/x"),
            (Kind::Other, "create a", "runc"),
        ] {
            let runtime = runtime(kind);
            let found = runtime.namespace(&read(&runtime, line), &environment(Some("/run/user/0"), true));
            assert_eq!(found, namespace, "{kind:?} {line}");
        }
    }

    #[test]
    fn a_relative_pid_file_and_config_count_from_where_the_runtime_counts_them() {
        let environment = environment(None, true);
        for (kind, line, pid_file, config) in [
            (Kind::Runc, "create -b b --pid-file p a", "/cwd/p", "/cwd/b/config.json"),
            (Kind::Youki, "create -b b -p p a", "/cwd/p", "/cwd/b/config.json"),
            (Kind::Crun, "create -b b --pid-file p a", "/cwd/b/p", "/cwd/b/config.json"),
            (Kind::Crun, "create -b /b --pid-file /p a", "/p", "/b/config.json"),
            (Kind::Crun, "create -b /b -f c.json --pid-file ./p a", "/b/p", "/cwd/c.json"),
            (Kind::Crun, "create -b /b -f config.json --pid-file p a", "/b/p", "/b/config.json"),
            (Kind::Crun, "create -b /b -f /c --pid-file p a", "/b/p", "/c"),
            (Kind::Other, "create -b /b --pid-file /p a", "/p", "/b/config.json"),
            (Kind::Other, "create --pid-file p a", "/cwd/p", "/cwd/config.json"),
        ] {
            let runtime = runtime(kind);
            let line = read(&runtime, line);
            let found = runtime.pid_file(&line, &environment).unwrap();
            assert_eq!(found, Some(pid_file.into()), "{kind:?} {line:?}");
            assert_eq!(runtime.config(&line, &environment), Path::new(config), "{kind:?} {line:?}");
        }
        let other = runtime(Kind::Other);
        let line = read(&other, "create -b /b --pid-file p a");
        assert!(other.pid_file(&line, &environment).is_err(), "nobody knows from where it counts");
    }

    #[test]
    fn the_real_runtime_is_found_in_order_and_is_never_ourselves() {
        let own = std::fs::read_link("/proc/self/exe").unwrap();
        assert_eq!(Runtime::find(&[own, "/bin/sh".into()]).unwrap().path, Path::new("/bin/sh"));
        let error = Runtime::find(&["no-such-runtime".into()]).unwrap_err();
        assert!(error.message.contains("no-such-runtime"), "{error}");
    }
}
