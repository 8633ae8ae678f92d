//! The files that `fgpu setup` reads and changes.

use std::cell::OnceCell;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use fgpu_spec::{Code, Error};

use crate::version::Version;

/// The node that is set up: this one, or an image of one below a directory.
pub(crate) struct System {
    root: PathBuf,
    /// Where our programs are, as the node sees it.
    programs: PathBuf,
    /// What [`System::docker_version`] found.
    pub(super) docker: OnceCell<Option<Version>>,
}

impl System {
    /// This node, or the one below `root`. Our programs are expected beside this one, below a root in
    /// `/usr/bin`.
    ///
    /// # Errors
    /// `internal` if `root` is no directory or this program cannot be found.
    pub(crate) fn new(root: Option<&Path>) -> Result<Self, Error> {
        if let Some(root) = root {
            let root = fs::canonicalize(root).map_err(|error| Error::io("open", root, &error))?;
            return Ok(Self { root, programs: "/usr/bin".into(), docker: OnceCell::new() });
        }
        let own = Path::new("/proc/self/exe");
        let program = fs::read_link(own).map_err(|error| Error::io("read", own, &error))?;
        let programs = program.parent().unwrap_or(Path::new("/usr/bin")).to_owned();
        Ok(Self { root: "/".into(), programs, docker: OnceCell::new() })
    }

    /// Whether it is the node that this program runs on.
    pub(crate) fn is_this_node(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Where the node's `path`, which is absolute, is for us.
    pub(crate) fn place(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// `path` for messages and diffs.
    pub(crate) fn shown(&self, path: &str) -> String {
        self.place(path).display().to_string()
    }

    /// The path of a program of ours, as the node sees it.
    pub(crate) fn program(&self, name: &str) -> String {
        self.programs.join(name).display().to_string()
    }

    /// The directories in which a program of the node is looked for: this process's PATH, or the usual ones
    /// of another node.
    pub(crate) fn program_directories(&self) -> Vec<PathBuf> {
        const USUAL: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        let here = self.is_this_node().then(|| std::env::var_os("PATH")).flatten();
        std::env::split_paths(&here.unwrap_or_else(|| USUAL.into()))
            .filter(|path| path.is_absolute())
            .collect()
    }

    /// Whether there is something at `path`.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.place(path).exists()
    }

    /// The text of a file; `None` if it is not there.
    ///
    /// # Errors
    /// `internal` if it is no regular file, cannot be read, or is not UTF-8.
    pub(crate) fn read(&self, path: &str) -> Result<Option<String>, Error> {
        let place = self.place(path);
        let failed = |error: &io::Error| Error::io("read", &place, error);
        match fs::metadata(&place) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if place.is_symlink() {
                    return Err(self.wrong(path, 0, "it is a link to nothing"));
                }
                return Ok(None);
            }
            Err(error) => return Err(failed(&error)),
            Ok(metadata) if !metadata.is_file() => return Err(self.wrong(path, 0, "it is no regular file")),
            Ok(_) => {}
        }
        let bytes = fs::read(&place).map_err(|error| failed(&error))?;
        String::from_utf8(bytes).map(Some).map_err(|error| {
            let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = good.split(|&byte| byte == b'\n').count();
            self.wrong(path, line, "it is not UTF-8")
        })
    }

    /// The files of a directory whose name ends with `suffix`, in the order of their names; none if it is not
    /// there.
    ///
    /// # Errors
    /// `internal` if it cannot be read.
    pub(crate) fn list(&self, directory: &str, suffix: &str) -> Result<Vec<String>, Error> {
        let place = self.place(directory);
        let failed = |error: &io::Error| Error::io("read", &place, error);
        let entries = match fs::read_dir(&place) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|error| failed(&error))?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| failed(&error))?;
            let name = entry.file_name();
            if let Some(name) = name.to_str()
                && name.ends_with(suffix)
                && entry.path().is_file()
            {
                files.push(format!("{directory}/{name}"));
            }
        }
        files.sort();
        Ok(files)
    }

    /// Every file in a directory and below it, in the order of a walk: a folder where its name stands among
    /// the files. None if it is not there. A link to a folder is not followed.
    ///
    /// # Errors
    /// `internal` if a folder cannot be read.
    pub(crate) fn walk(&self, directory: &str) -> Result<Vec<String>, Error> {
        let place = self.place(directory);
        let failed = |error: &io::Error| Error::io("read", &place, error);
        let entries = match fs::read_dir(&place) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|error| failed(&error))?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| failed(&error))?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = format!("{directory}/{name}");
            if entry.file_type().map_err(|error| failed(&error))?.is_dir() {
                files.extend(self.walk(&path)?);
            } else if entry.path().is_file() {
                files.push(path);
            }
        }
        // By components, as a walk has them: `a/z` before `a.conf`.
        files.sort_by(|one, other| Path::new(one).cmp(Path::new(other)));
        Ok(files)
    }

    /// Writes a file of the node, all or nothing, with the mode and owner of the one before it (else 0644).
    /// A link is followed.
    ///
    /// # Errors
    /// `internal` if it cannot be written or leads outside of the node.
    pub(crate) fn write(&self, path: &str, text: &str) -> Result<(), Error> {
        let (root, place) = (self.root.as_path(), self.place(path));
        let failed = |error: io::Error| Error::io("write", &place, &error);
        let parent = place.parent().unwrap_or(root);
        fs::create_dir_all(parent).map_err(|error| Error::io("create", parent, &error))?;
        // The rename would replace a link, so it is followed first; the file may not be there yet.
        let parent = fs::canonicalize(parent).map_err(failed)?;
        let target = match fs::canonicalize(&place) {
            Ok(target) => target,
            Err(_) => parent.join(place.file_name().unwrap_or_default()),
        };
        if !target.starts_with(root) {
            let reason =
                format!("{} leads to {}, outside of {}", place.display(), target.display(), root.display());
            return Err(Error::new(Code::Internal, reason));
        }
        let directory = target.parent().unwrap_or(root);
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        // Neither `.json` nor `.conf` at its end: no program reads it while it is there.
        let temporary = directory.join(format!(".{name}.fgpu-{}", std::process::id()));
        let written = replace(&temporary, &target, text).and_then(|()| File::open(directory)?.sync_all());
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written.map_err(failed)
    }

    /// An error in a file; `line` 0 is the whole of it.
    pub(crate) fn wrong(&self, path: &str, line: usize, reason: &str) -> Error {
        let place = self.shown(path);
        let place = if line == 0 { place } else { format!("{place}:{line}") };
        Error::new(Code::Internal, format!("{place}: {reason}; nothing was changed"))
    }
}

fn replace(temporary: &Path, target: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(temporary)?;
    file.write_all(text.as_bytes())?;
    let mode = match fs::metadata(target) {
        Ok(old) => {
            fchown(&file, Some(old.uid()), Some(old.gid()))?;
            old.mode() & 0o7777
        }
        Err(_) => 0o644,
    };
    file.set_permissions(Permissions::from_mode(mode))?;
    file.sync_all()?;
    fs::rename(temporary, target)
}
