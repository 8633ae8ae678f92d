//! The node that is looked at.

use std::path::{Path, PathBuf};

use fgpu_engine::config::{Config, PATH};
use fgpu_spec::Error;

use crate::setup::System;
use crate::version::DOCKER_WITH_SHIMS;

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
        self.system.find(name)
    }

    /// What `program --version` prints first, if it is there and answers in time.
    pub(super) fn version_line(&self, name: &str) -> Option<String> {
        self.system.say(name, &["--version"])
    }

    /// Whether Docker is older than its `--annotation`.
    pub(super) fn has_old_docker(&self) -> bool {
        self.system.docker_version().is_some_and(|version| version < DOCKER_WITH_SHIMS)
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
