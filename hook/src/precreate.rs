//! `fgpu-hook precreate`: Podman's own stage, in which the spec can still be changed.
//!
//! Podman writes the spec to the hook and takes what it answers (hooks.d, stage `precreate`), with the bundle
//! as working directory and before it starts conmon (seen with 5.4 and 5.8). So this is `prepare` for a
//! `config.json` that is not written yet; the container's id is the name of the folder around its bundle,
//! `…/<id>/userdata`.
//!
//! The lease's maker is Podman, whose child this is: the hook itself ends before the container is made.
//! Podman writes the init's pid to `pidfile` beside the container's `.containerenv`, which is where the
//! reconciler finds it when Podman has ended. Release is the poststop hook that we add to the spec; a create
//! that fails after this stage keeps its lease until that Podman ends, which for `podman system service` may
//! be later than for a command.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use fgpu_allocator::{Applicant, Key, Process};
use fgpu_engine::bundle;
use fgpu_engine::config::Config;
use fgpu_engine::diagnostics::{self, Format, Sink};
use fgpu_engine::edit::Edit;
use fgpu_engine::grant::asks;
use fgpu_engine::prepare::prepare;
use fgpu_engine::signals::HeldSignals;
use fgpu_engine::watch::{Patience, Watch};
use fgpu_spec::{Code, Document, Error};
use serde::Deserialize;

use crate::entry::{self, Stage};
use crate::stop::{Deadline, WORK};

/// Reads a spec from `input` and writes it to `output`, edited if it asks for a share.
///
/// # Errors
/// Every code of [`fgpu_spec::Code`]; nothing has been written then and nothing is reserved.
pub(crate) fn precreate(input: impl Read, mut output: impl Write, timeout: Duration) -> Result<(), Error> {
    // Before anything else changes it. A folder that has been removed has no name.
    let folder = std::env::current_dir();
    entry::enter(Stage::Edit)?;
    let deadline =
        Deadline::set(timeout, "fgpu: timed-out: the hook's own time limit passed; try again\n", 1)?;
    let text = bundle::text(input, Path::new("the spec on standard input"))?;
    let mut document = Document::parse(&text)?;
    let config = Config::load();
    diagnostics::start(diagnostics::level(&config), Format::Text, Sink::journal());
    let mut answer = |document: &Document| {
        output
            .write_all(document.to_string().as_bytes())
            .and_then(|()| output.flush())
            .map_err(|error| Error::new(Code::Internal, format!("cannot answer with the spec: {error}")))
    };
    if !asks(&config, &document) {
        return answer(&document);
    }
    let folder = folder.map_err(|error| Error::io("find the bundle", Path::new("."), &error))?;
    let (id, namespace) = identity(&folder)?;
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
    let maker = parent.and_then(Process::of).ok_or_else(|| {
        Error::new(Code::Internal, "precreate is run by Podman, which is gone; nothing was reserved")
    })?;
    let applicant = Applicant {
        key: Key { namespace: namespace.into(), id: id.into() },
        bundle: folder.clone(),
        maker,
        pid_file: pid_file(&text),
        anchor: None,
    };
    let watch = Watch::default().process(maker, "podman");
    let mut edit = Edit {
        bundle: &folder,
        rootfs: &[],
        poststop: true,
        patience: Some(Patience { longest: deadline.left(WORK), watch }),
        guard: HeldSignals::new,
        write: &mut answer,
    };
    match prepare(config, &applicant, &mut document, &mut edit)? {
        Some(given) if given.is_new => Ok(()),
        // Podman takes whatever the hook answers for the spec.
        _ => answer(&document),
    }
}

/// The container's id and the namespace of its lease, both from the bundle's path.
fn identity(bundle: &Path) -> Result<(&str, &str), Error> {
    let id = match bundle.file_name() {
        Some(name) if name == "userdata" => bundle.parent().and_then(Path::file_name).and_then(OsStr::to_str),
        _ => None,
    };
    id.zip(bundle.to_str()).ok_or_else(|| {
        let message = format!(
            "precreate is run by Podman in a bundle …/<id>/userdata, and not in {}; use the createRuntime hook",
            bundle.display()
        );
        Error::new(Code::Internal, message)
    })
}

/// Where Podman writes the init's pid: in its run directory, from which it also binds `.containerenv`.
fn pid_file(spec: &str) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Spec {
        mounts: Vec<Mount>,
    }
    #[derive(Deserialize)]
    struct Mount {
        destination: String,
        source: Option<PathBuf>,
    }
    let spec: Spec = serde_json::from_str(spec).ok()?;
    let mount = spec.mounts.into_iter().find(|mount| mount.destination == "/run/.containerenv")?;
    Some(mount.source?.parent()?.join("pidfile"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn podmans_bundle_tells_the_id() {
        let bundle = Path::new("/var/lib/containers/storage/overlay-containers/4dc5/userdata");
        assert_eq!(identity(bundle).unwrap(), ("4dc5", bundle.to_str().unwrap()));
        for other in ["/", "/userdata", "/tmp/bundle"] {
            assert!(identity(Path::new(other)).is_err(), "{other}");
        }
    }

    #[test]
    fn the_pid_file_is_beside_containerenv() {
        let spec = r#"{"mounts":[{"destination":"/proc","type":"proc"},
            {"destination":"/run/.containerenv","source":"/run/containers/4dc5/userdata/.containerenv"}]}"#;
        assert_eq!(pid_file(spec), Some("/run/containers/4dc5/userdata/pidfile".into()));
        for other in ["", "{}", r#"{"mounts":[]}"#, r#"{"mounts":[{"destination":"/run/.containerenv"}]}"#] {
            assert_eq!(pid_file(other), None, "{other}");
        }
    }
}
