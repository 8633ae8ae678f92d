//! `/etc/fgpu/config.toml`: every key optional, an unknown key is an error that names its line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fgpu_allocator::Rules;
use fgpu_spec::{Code, Compute, Defaults, Error, Policy, Seen, Vocabulary};
use serde::Deserialize;

mod file;

/// Where the configuration is read from. There is no environment variable for it: a front end runs with the
/// environment of a container engine that is not ours.
pub const PATH: &str = "/etc/fgpu/config.toml";

/// Where a real runtime may be that is not in PATH: CRI-O's packages have theirs here.
pub const RUNTIME_FOLDERS: [&str; 1] = ["/usr/libexec/crio"];

/// The longest `fgpu/wait` unless `wait-max` says otherwise. Kubelet and CRI-O give up on a create after two
/// minutes or more (kubelet `runtime-request-timeout`, CRI-O `container_create_timeout`).
const WAIT_MAX: Duration = Duration::from_secs(90);

/// What memory that processes outside of fgpu hold is to placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Foreign {
    /// It is not free.
    #[default]
    Avoid,
    /// It is granted nevertheless.
    Ignore,
}

/// `log-level` of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Nothing. To set tracing up takes 0.2 ms of a process.
    #[default]
    Off,
    /// What became of each share.
    Info,
    /// Each step, and how long it took.
    Debug,
}

/// The node's configuration with its defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `policy`: how GPUs are chosen.
    pub policy: Policy,
    /// `units-per-gpu`: what `fgpu/units` counts.
    pub units_per_gpu: Option<u32>,
    /// `reserve-memory`, in bytes per GPU: never granted.
    pub reserve_memory: u64,
    /// `wait-default`: `fgpu/wait` of a request that is silent.
    pub wait_default: Duration,
    /// `wait-max`: the longest `fgpu/wait`.
    pub wait_max: Duration,
    /// `accept-env`: whether `FGPU_*` in the container's environment count as annotations.
    pub accept_env: bool,
    /// `aliases`: other systems whose annotations count.
    pub aliases: Vec<Vocabulary>,
    /// `allow-none`: whether `fgpu/isolation=none` is allowed.
    pub allow_none: bool,
    /// `state-dir`: where leases live.
    pub state_dir: PathBuf,
    /// `log-dir`: where the record of grants is kept.
    pub log_dir: PathBuf,
    /// `log-level`: how much is told of each step ([`crate::diagnostics`]).
    pub log_level: LogLevel,
    /// `library-dir`: where this boot's copies of the quota libraries are. Programs are mapped from there.
    pub library_dir: PathBuf,
    /// `runtimes`: the real OCI runtimes, names or paths, in order of preference.
    pub runtimes: Vec<PathBuf>,
    /// `[driver] root`: where the driver's user-space files are (`/run/nvidia/driver` for a driver
    /// container).
    pub driver_root: PathBuf,
    /// `[driver] extra`: further paths below the driver root that every container with a GPU gets.
    pub driver_extra: Vec<PathBuf>,
    /// `[quota] compute`: what `fgpu/compute` is when the request is silent.
    pub compute: Compute,
    /// `[placement] foreign`: memory that processes outside of fgpu hold.
    pub foreign: Foreign,
    /// `[mig] use-existing`: whether MIG instances that fgpu did not make may be used. They are never
    /// destroyed.
    pub mig_use_existing: bool,
    /// `[mig] keep`: how long an instance that fgpu made is kept for the next request.
    pub mig_keep: Duration,
    /// `[exceeded] act`: what `fgpu watch-exceeded` does.
    pub exceeded: Exceeded,
    /// `[owner."name"] max-gpus`.
    pub owner_max_gpus: BTreeMap<String, u32>,
    /// `[slurm]`: what Slurm gives out on this node.
    pub slurm: Slurm,
}

/// What Slurm's numbers mean on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slurm {
    /// `shards-per-gpu`: how many shards a whole GPU has.
    pub shards_per_gpu: u32,
    /// `gpus`: the device nodes of Slurm's GPUs in the order of its `gres.conf`. Empty: all of the node, by
    /// their numbers.
    pub gpus: Vec<PathBuf>,
}

impl Default for Slurm {
    fn default() -> Self {
        Self { shards_per_gpu: 100, gpus: Vec::new() }
    }
}

/// What is done about a container that uses more than its share, seen from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exceeded {
    /// It is recorded and shown.
    #[default]
    Report,
    /// Its processes are killed, besides.
    Stop,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            units_per_gpu: None,
            reserve_memory: 0,
            wait_default: Duration::ZERO,
            wait_max: WAIT_MAX,
            accept_env: false,
            aliases: Vec::new(),
            allow_none: false,
            state_dir: PathBuf::from("/run/fgpu"),
            log_dir: PathBuf::from("/var/log/fgpu"),
            log_level: LogLevel::default(),
            library_dir: PathBuf::from("/var/lib/fgpu"),
            runtimes: vec![PathBuf::from("runc"), PathBuf::from("crun")],
            driver_root: PathBuf::from("/"),
            driver_extra: Vec::new(),
            compute: Compute::default(),
            foreign: Foreign::default(),
            mig_use_existing: false,
            mig_keep: Duration::ZERO,
            exceeded: Exceeded::Report,
            owner_max_gpus: BTreeMap::new(),
            slurm: Slurm::default(),
        }
    }
}

impl Config {
    /// Reads [`PATH`]; a file that is not there is an empty one.
    ///
    /// # Errors
    /// [`Code::Internal`] with the file, the line and the reason.
    pub fn load() -> Result<Self, Error> {
        Self::load_from(Path::new(PATH))
    }

    /// Reads another file than [`PATH`].
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_from(path: &Path) -> Result<Self, Error> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text)
                .map_err(|reason| Error::new(Code::Internal, format!("{}: {reason}", path.display()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(Error::io("read", path, &error)),
        }
    }

    /// `runtimes` of [`PATH`] whatever else is in it: the default if the file or that key cannot be read.
    pub fn runtimes() -> Vec<PathBuf> {
        #[derive(Deserialize)]
        struct File {
            runtimes: Vec<PathBuf>,
        }
        let runtimes = part().map(|file: File| file.runtimes).filter(|runtimes| !runtimes.is_empty());
        runtimes.unwrap_or_else(|| Self::default().runtimes)
    }

    /// `state-dir` of [`PATH`], read in the same way.
    pub fn state_dir() -> PathBuf {
        #[derive(Deserialize)]
        #[serde(rename_all = "kebab-case")]
        struct File {
            state_dir: PathBuf,
        }
        let state_dir = part().map(|file: File| file.state_dir).filter(|path| path.is_absolute());
        state_dir.unwrap_or_else(|| Self::default().state_dir)
    }

    /// What the configuration says where a request is silent.
    pub fn defaults(&self) -> Defaults {
        Defaults {
            policy: self.policy,
            compute: self.compute,
            units_per_gpu: self.units_per_gpu,
            wait_default: self.wait_default,
            wait_max: self.wait_max,
            allow_none: self.allow_none,
            aliases: self.aliases.clone(),
        }
    }

    /// What the allocator must respect beside the request, and what was last seen of the GPUs.
    pub fn rules(&self) -> Rules {
        let seen = fgpu_driver::health::read(&self.state_dir).map(|health| health.gpus).unwrap_or_default();
        let as_it_counts = |seen: Seen| match self.foreign {
            Foreign::Avoid => (seen.uuid.clone(), seen),
            Foreign::Ignore => (seen.uuid.clone(), Seen { foreign: 0, outsiders: Vec::new(), ..seen }),
        };
        Rules {
            reserve_memory: self.reserve_memory,
            owner_max_gpus: self.owner_max_gpus.clone(),
            mig_use_existing: self.mig_use_existing,
            seen: seen.into_iter().map(as_it_counts).collect(),
        }
    }
}

/// The keys of [`PATH`] that `T` has.
fn part<T: for<'de> Deserialize<'de>>() -> Option<T> {
    toml::from_str(&std::fs::read_to_string(PATH).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
    }

    #[test]
    fn every_key_is_read() {
        let config = Config::parse(
            r#"
            policy = "spread"
            units-per-gpu = 5
            reserve-memory = "512MiB"
            wait-default = "20s"
            wait-max = "30s"
            accept-env = true
            aliases = ["kai", "backend.ai"]
            allow-none = true
            state-dir = "/var/lib/fgpu"
            log-dir = "/srv/log"
            log-level = "debug"
            library-dir = "/srv/lib"
            runtimes = ["/opt/runc"]
            [driver]
            root = "/run/nvidia/driver"
            extra = ["/run/thing"]
            [quota]
            compute = "share"
            [exceeded]
            act = "stop"
            [owner."team-a"]
            max-gpus = 2
            [slurm]
            shards-per-gpu = 8
            gpus = ["/dev/nvidia1"]
            "#,
        )
        .unwrap();
        assert_eq!(config.policy, Policy::Spread);
        assert_eq!(config.units_per_gpu, Some(5));
        assert_eq!(config.reserve_memory, 512 << 20);
        assert_eq!(config.wait_max, Duration::from_secs(30));
        assert_eq!(config.wait_default, Duration::from_secs(20));
        assert!(config.accept_env && config.allow_none);
        assert_eq!(config.aliases, [Vocabulary::Kai, Vocabulary::BackendAi]);
        assert_eq!(config.defaults().aliases, config.aliases);
        assert_eq!(config.state_dir, Path::new("/var/lib/fgpu"));
        assert_eq!(config.log_dir, Path::new("/srv/log"));
        assert_eq!(config.log_level, LogLevel::Debug);
        assert_eq!(config.library_dir, Path::new("/srv/lib"));
        assert_eq!(config.runtimes, [PathBuf::from("/opt/runc")]);
        assert_eq!(config.driver_root, Path::new("/run/nvidia/driver"));
        assert_eq!(config.driver_extra, [PathBuf::from("/run/thing")]);
        assert_eq!(config.compute, Compute::Share);
        assert_eq!(config.exceeded, Exceeded::Stop);
        assert_eq!(config.owner_max_gpus["team-a"], 2);
        assert_eq!(config.slurm, Slurm { shards_per_gpu: 8, gpus: vec!["/dev/nvidia1".into()] });
    }

    #[test]
    fn an_unknown_key_is_an_error_that_names_its_line() {
        let error = Config::parse("policy = \"pack\"\nunits = 5\n").unwrap_err();
        assert!(error.starts_with("line 2: units = 5: unknown field `units`"), "{error}");
        let error = Config::parse("[driver]\nrood = \"/\"\n").unwrap_err();
        assert!(error.starts_with("line 2: rood = \"/\": unknown field `rood`"), "{error}");
    }

    #[test]
    fn wrong_values_are_errors() {
        for (text, word) in [
            ("policy = \"best\"", "best"),
            ("units-per-gpu = 0", "at least 1"),
            ("reserve-memory = \"lots\"", "reserve-memory"),
            ("wait-max = \"soon\"", "wait-max"),
            ("wait-default = \"-1s\"", "wait-default"),
            ("state-dir = \"run/fgpu\"", "absolute"),
            ("log-dir = \"log\"", "absolute"),
            ("library-dir = \"lib\"", "absolute"),
            ("runtimes = []", "at least one"),
            ("aliases = [\"runai\"]", "kai, hami, volcano, backend.ai, nvidia"),
            ("[exceeded]\nact = \"kill\"", "`report` or `stop`"),
            ("[slurm]\nshards-per-gpu = 0", "at least 1"),
            ("[slurm]\ngpus = [\"nvidia1\"]", "absolute"),
            ("aliases = \"kai\"", "line 1: aliases = \"kai\": invalid type"),
            ("\n\nwait-max = 5", "line 3: wait-max = 5: invalid type"),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
