//! A root directory that stands for a node.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(crate) const DOCKER: &str = "etc/docker/daemon.json";
pub(crate) const CONTAINERD: &str = "etc/containerd/config.toml";
pub(crate) const PODMAN: &str = "etc/containers/containers.conf.d/50-fgpu.conf";
pub(crate) const CRIO: &str = "etc/crio/crio.conf.d/50-fgpu.conf";
pub(crate) const PROGRAMS: [&str; 3] = ["fgpu-hook", "fgpu-runtime", "containerd-shim-fgpu-v2"];

/// A node with our programs installed and nothing configured.
pub(crate) struct Node {
    pub(crate) root: tempfile::TempDir,
}

impl Node {
    pub(crate) fn new() -> Self {
        let node = Self { root: tempfile::tempdir().unwrap() };
        fs::set_permissions(node.root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        for program in PROGRAMS {
            node.put(&format!("usr/bin/{program}"), "");
        }
        node
    }

    pub(crate) fn with(path: &str, text: &str) -> Self {
        let node = Self::new();
        node.put(path, text);
        node
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A Docker that says this version.
    pub(crate) fn docker(&self, version: &str) {
        self.put("usr/bin/dockerd", &format!("#!/bin/sh\necho Docker version {version}, build 0123456\n"));
        fs::set_permissions(self.path("usr/bin/dockerd"), fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    pub(crate) fn text(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    pub(crate) fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.arg("setup").args(arguments).arg("--root").arg(self.root.path());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(Path::new(env!("CARGO_BIN_EXE_fgpu")), arguments).output().unwrap()
    }

    /// Runs with one folder read-only, in a mount namespace of its own.
    pub(crate) fn run_with_read_only(&self, folder: &str, arguments: &[&str]) -> Output {
        let script = "mount --bind \"$0\" \"$0\" && mount -o remount,bind,ro \"$0\" && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(self.path(folder));
        command
            .arg(env!("CARGO_BIN_EXE_fgpu"))
            .arg("setup")
            .args(arguments)
            .arg("--root")
            .arg(self.root.path());
        command.output().unwrap()
    }

    /// Runs what must succeed without a warning; its stdout.
    #[track_caller]
    pub(crate) fn good(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""), "{arguments:?}");
        text(&output.stdout)
    }

    /// Runs what must be refused and leave every file as it is; its stderr.
    #[track_caller]
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let before = self.everything();
        let output = self.run(arguments);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert_eq!(self.everything(), before, "{arguments:?}");
        assert!(stderr.starts_with("fgpu: internal: ") && stderr.lines().count() == 1, "{stderr}");
        stderr
    }

    /// Every file and directory with its content, mode and inode.
    pub(crate) fn everything(&self) -> BTreeMap<PathBuf, (Vec<u8>, u32, u64)> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.root.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let metadata = fs::symlink_metadata(&path).unwrap();
                let content = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
                if metadata.is_dir() {
                    folders.push(path.clone());
                }
                found.insert(path, (content, metadata.mode(), metadata.ino()));
            }
        }
        found
    }

    /// The same without inodes, which a rename changes.
    pub(crate) fn listing(&self) -> BTreeMap<PathBuf, (Vec<u8>, u32)> {
        self.everything().into_iter().map(|(path, (content, mode, _))| (path, (content, mode))).collect()
    }

    /// Sets up, which must change something; again, which must not; and undoes, which must give what was.
    #[track_caller]
    pub(crate) fn there_and_back(&self, arguments: &[&str]) {
        let before = self.listing();
        let shown = self.good(&[arguments, &["--dry-run"]].concat());
        assert!(
            shown.starts_with("--- ") && shown.ends_with("Nothing was changed (--dry-run).\n"),
            "{shown}"
        );
        assert_eq!(self.listing(), before, "a dry run changes nothing");

        let done = self.good(arguments);
        let diff = |text: &str| text.split("\n\n").next().unwrap().to_owned();
        assert_eq!(diff(&done), diff(&shown), "what was shown is done");
        assert!(done.contains("\nwrote ") && done.contains("\nNext:\n"), "{done}");

        let between = self.everything();
        assert_eq!(self.good(arguments), "It is set up already; nothing was changed.\n");
        assert_eq!(self.everything(), between, "a second run touches nothing");

        let undone = self.good(&[arguments[0], "--undo"]);
        assert!(undone.starts_with("--- "), "{undone}");
        let mut after = self.listing();
        if !before.contains_key(&self.path("etc")) {
            after.remove(&self.path("etc"));
        }
        assert_eq!(after, before);
        assert_eq!(self.good(&[arguments[0], "--undo"]), "Nothing of ours is there; nothing was changed.\n");
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}
