//! Docker: a member of `runtimes` in `/etc/docker/daemon.json`.

use std::process::{Command, Stdio};

use fgpu_spec::{Code, Error};
use serde_json::Value;

use super::change::Change;
use super::file::System;
use super::json::{Object, Wrong, line};
use super::{Plan, Wish, made};

const PATH: &str = "/etc/docker/daemon.json";
const SHIM: &str = "io.containerd.fgpu.v2";
/// The first Docker that knows `runtimeType` in daemon.json, and `--annotation`.
const FIRST_WITH_SHIMS: u32 = 24;

/// What daemon.json shall be.
///
/// # Errors
/// `internal` if daemon.json cannot be read or has a runtime `fgpu` that is not ours, or if Docker is too
/// old.
pub(super) fn plan(system: &System, wish: Wish) -> Result<Plan, Error> {
    let before = system.read(PATH)?;
    let made = made::read(system)?.contains(PATH);
    // Docker takes an empty file for an absent one.
    let text = before.as_deref().filter(|text| !text.trim().is_empty());
    let edit = Edit { system, text: text.unwrap_or("{}") };
    let after = match wish {
        // What is left is removed only where nothing was before: `{}` may be the administrator's.
        Wish::Undo => edit.undo()?.or_else(|| (!made).then(|| edit.nothing())),
        Wish::Do { runtime } => Some(edit.set(text.is_none(), runtime)?),
    };
    let after = if after.as_deref() == Some(edit.text) && text.is_none() { before.clone() } else { after };
    let bin = system.program("containerd-shim-fgpu-v2");
    let mut warnings = super::missing(system, &["containerd-shim-fgpu-v2", "fgpu-runtime"]);
    if !["/usr/bin/", "/usr/local/bin/"].iter().any(|usual| bin.starts_with(usual)) {
        warnings.push(format!("containerd looks for {bin} in its PATH; it may not find it there"));
    }
    Ok(Plan {
        changes: vec![Change { path: PATH.into(), before, after }],
        warnings: if wish == Wish::Undo { Vec::new() } else { warnings },
        next: vec![
            "systemctl reload docker        # containers go on running".into(),
            "docker run --rm --runtime=fgpu --annotation fgpu/fraction=0.25 IMAGE nvidia-smi".into(),
        ],
    })
}

struct Edit<'a> {
    system: &'a System,
    text: &'a str,
}

impl Edit<'_> {
    fn wrong(&self, wrong: &Wrong) -> Error {
        self.system.wrong(PATH, line(self.text, wrong.at), &wrong.reason)
    }

    fn set(&self, fresh: bool, runtime: bool) -> Result<String, Error> {
        let root = Object::root(self.text).map_err(|wrong| self.wrong(&wrong))?;
        let runtimes = root.object("runtimes").map_err(|wrong| self.wrong(&wrong))?;
        let there = runtimes.as_ref().and_then(|runtimes| runtimes.get("fgpu"));
        if let Some((value, at)) = there {
            let kind = self.kind(value).ok_or_else(|| self.foreign(at))?;
            if kind.is_runtime == runtime || !runtime {
                return Ok(self.text.to_owned());
            }
            if !kind.is_alone {
                return Err(self.foreign(at));
            }
        }
        if !runtime {
            refuse_old_docker(self.system)?;
        }
        let value = match runtime {
            true => format!("{{ \"path\": {} }}", Value::from(self.system.program("fgpu-runtime"))),
            false => format!("{{ \"runtimeType\": \"{SHIM}\" }}"),
        };
        let text = match &runtimes {
            Some(runtimes) => runtimes.with("fgpu", &value),
            None => {
                let (inner, step) = root.indents();
                root.with("runtimes", &format!("{{\n{inner}{step}\"fgpu\": {value}\n{inner}}}"))
            }
        };
        Ok(if fresh { text + "\n" } else { text })
    }

    /// The text without our runtime; `None` if nothing is left.
    fn undo(&self) -> Result<Option<String>, Error> {
        let root = Object::root(self.text).map_err(|wrong| self.wrong(&wrong))?;
        let runtimes = root.object("runtimes").map_err(|wrong| self.wrong(&wrong))?;
        let Some((runtimes, (value, at))) = runtimes.as_ref().and_then(|all| Some((all, all.get("fgpu")?)))
        else {
            return Ok(Some(self.text.to_owned()));
        };
        if !self.kind(value).is_some_and(|kind| kind.is_alone) {
            return Err(self.foreign(at));
        }
        if !runtimes.is_only("fgpu") {
            return Ok(Some(runtimes.without("fgpu")));
        }
        Ok(if root.is_only("runtimes") { None } else { Some(root.without("runtimes")) })
    }

    /// A configuration that sets nothing, and ends as the text does.
    fn nothing(&self) -> String {
        if self.text.ends_with('\n') { "{}\n".into() } else { "{}".into() }
    }

    /// What a value of `runtimes.fgpu` is, if it is one of those that are written here.
    fn kind(&self, value: &str) -> Option<Kind> {
        let Ok(Value::Object(value)) = serde_json::from_str(value) else { return None };
        let is_alone = value.len() == 1;
        let text = |key| value.get(key).and_then(Value::as_str);
        match (text("runtimeType"), text("path")) {
            (Some(SHIM), None) => Some(Kind { is_runtime: false, is_alone }),
            (None, Some(path)) if path.ends_with("/fgpu-runtime") => {
                Some(Kind { is_runtime: true, is_alone })
            }
            _ => None,
        }
    }

    fn foreign(&self, at: usize) -> Error {
        let reason = "the runtime fgpu is not as `fgpu setup docker` writes it; change or remove it by hand";
        self.system.wrong(PATH, line(self.text, at), reason)
    }
}

struct Kind {
    /// Through `path`, and not through the shim.
    is_runtime: bool,
    /// Whether nothing else is set.
    is_alone: bool,
}

/// An older dockerd does not start with `runtimeType` in its configuration.
fn refuse_old_docker(system: &System) -> Result<(), Error> {
    if !system.is_this_node() {
        return Ok(());
    }
    let output = Command::new("dockerd").arg("--version").stdin(Stdio::null()).output();
    let Some(version) = output.ok().and_then(|output| String::from_utf8(output.stdout).ok()) else {
        return Ok(());
    };
    match major(&version) {
        Some(major) if major < FIRST_WITH_SHIMS => Err(Error::new(
            Code::Internal,
            format!(
                "Docker {major} knows no shims, {FIRST_WITH_SHIMS} is the first that does; use `fgpu setup docker --runtime`, \
                 and `accept-env` in /etc/fgpu/config.toml, as it has no --annotation either; nothing was changed"
            ),
        )),
        _ => Ok(()),
    }
}

/// The first number of `Docker version 26.1.5, build …`.
fn major(version: &str) -> Option<u32> {
    version.strip_prefix("Docker version ")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(major("Docker version 26.1.5+dfsg1, build a72d7cd\n"), Some(26));
        assert_eq!(major("Docker version 20.10.24+dfsg1, build 297e128\n"), Some(20));
        assert_eq!(major("podman version 5.4.2\n"), None);
    }
}
