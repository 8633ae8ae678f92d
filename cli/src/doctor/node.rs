//! The node that is looked at.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fgpu_engine::config::{Config, PATH};
use fgpu_spec::Error;

use crate::setup::System;

/// How long a program may take to say its version, and a daemon to answer: one that is slow on a busy node is
/// not to be restarted.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A node.
pub(super) struct Node {
    pub(super) system: System,
    /// Its configuration, or the default where it is wrong.
    pub(super) config: Config,
    /// What is wrong with the configuration.
    pub(super) config_error: Option<Error>,
}

impl Node {
    /// This node, or the one below `root`; with the configuration at `config`, or the node's own.
    ///
    /// # Errors
    /// `internal` if `root` is no directory.
    pub(super) fn new(root: Option<&Path>, config: Option<&Path>) -> Result<Self, Error> {
        let system = System::new(root)?;
        let path = config.map_or_else(|| system.place(PATH), Path::to_owned);
        let (config, config_error) = match Config::load_from(&path) {
            Ok(config) => (config, None),
            Err(error) => (Config::default(), Some(error)),
        };
        Ok(Self { system, config, config_error })
    }

    /// Where the node's `path` is for us.
    pub(super) fn place(&self, path: impl AsRef<Path>) -> PathBuf {
        self.system.place(&path.as_ref().to_string_lossy())
    }

    /// Whether there is something at `path`.
    pub(super) fn has(&self, path: &str) -> bool {
        self.system.has(path)
    }

    /// The text of a file that can be read.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        std::fs::read(self.place(path)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The names in a directory that can be read, sorted.
    pub(super) fn names(&self, directory: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.place(directory)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Where a program of the node is, as we see it.
    pub(super) fn program(&self, name: &str) -> Option<PathBuf> {
        let directories = self.system.program_directories();
        let mut places = directories.iter().map(|directory| self.place(directory.join(name)));
        places.find(|place| place.is_file())
    }

    /// What `program --version` prints first, if it is there and answers in time.
    pub(super) fn version_line(&self, name: &str) -> Option<String> {
        self.say(name, &["--version"])
    }

    /// The first line that a program of the node prints, if it is there and answers in time.
    pub(super) fn say(&self, name: &str, arguments: &[&str]) -> Option<String> {
        let mut child = Command::new(self.program(name)?)
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let start = Instant::now();
        while child.try_wait().ok()?.is_none() {
            if start.elapsed() > PATIENCE {
                // Its end is of no more interest.
                let _ = child.kill().and_then(|()| child.wait());
                return None;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut text = String::new();
        std::io::Read::read_to_string(&mut child.stdout?, &mut text).ok()?;
        text.lines().next().map(str::to_owned)
    }

    /// The state directory, as we see it.
    pub(super) fn state_dir(&self) -> PathBuf {
        self.place(&self.config.state_dir)
    }

    /// Whether systemd runs the node (sd_booted(3)).
    pub(super) fn has_systemd(&self) -> bool {
        self.has("/run/systemd/system")
    }
}
