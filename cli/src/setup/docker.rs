//! Docker: a member of `runtimes` in `/etc/docker/daemon.json`, and `features.cdi` for a Docker that has CDI
//! devices turned off unless it is told to.

use fgpu_spec::{Code, Error};
use serde_json::Value;

use super::change::{Change, Member};
use super::file::System;
use super::json::{Object, Wrong, line};
use super::{Plan, Wish, made};
use crate::version::{DOCKER_WITH_CDI, DOCKER_WITH_CDI_ON, DOCKER_WITH_SHIMS, Version};

const PATH: &str = "/etc/docker/daemon.json";
const SHIM: &str = "io.containerd.fgpu.v2";
/// `features.cdi` in the record of what was made.
const CDI: &str = "/etc/docker/daemon.json#features.cdi";

/// What daemon.json shall be.
///
/// # Errors
/// `internal` if daemon.json cannot be read or has a runtime `fgpu` that is not ours, or if Docker is too
/// old.
pub(super) fn plan(system: &System, wish: Wish) -> Result<Plan, Error> {
    let before = system.read(PATH)?;
    let made = made::read(system)?;
    // Docker takes an empty file for an absent one.
    let text = before.as_deref().filter(|text| !text.trim().is_empty());
    let edit = Edit { system, text: text.unwrap_or("{}") };
    let (after, member) = match wish {
        Wish::Undo => {
            let features = made.contains(CDI).then_some(Member::Removed(CDI));
            let rest = match features {
                Some(_) => edit.without("features", "cdi", |value, _| Ok(value == "true"))?,
                None => Some(edit.text.to_owned()),
            };
            let rest = match &rest {
                Some(text) => Edit { system, text }.without_runtime()?,
                None => None,
            };
            // What is left is removed only where nothing was before: `{}` may be the administrator's.
            (rest.or_else(|| (!made.contains(PATH)).then(|| edit.nothing())), features)
        }
        Wish::Do { runtime } => {
            let version = system.docker_version();
            // Both are looked at before either is changed: what is wrong is told with the file's own line.
            let is_undecided = needs_feature(version) && edit.get("features", "cdi")?.is_none();
            let after = edit.set_runtime(runtime, version)?;
            let after = match is_undecided {
                true => Edit { system, text: &after }.with("features", "cdi", "true")?,
                false => after,
            };
            let member = is_undecided.then_some(Member::Set(CDI));
            (Some(if text.is_none() { after + "\n" } else { after }), member)
        }
    };
    let after = if after.as_deref() == Some(edit.text) && text.is_none() { before.clone() } else { after };
    let restart = match member {
        Some(_) => "systemctl restart docker       # a reload does not turn CDI devices on or off",
        None => "systemctl reload docker        # containers go on running",
    };
    let bin = system.program("containerd-shim-fgpu-v2");
    let mut warnings = super::missing(system, &["containerd-shim-fgpu-v2", "fgpu-runtime"]);
    if !["/usr/bin/", "/usr/local/bin/"].iter().any(|usual| bin.starts_with(usual)) {
        warnings.push(format!("containerd looks for {bin} in its PATH; it may not find it there"));
    }
    Ok(Plan {
        changes: vec![Change { path: PATH.into(), before, after, member }],
        warnings: if wish == Wish::Undo { Vec::new() } else { warnings },
        next: vec![
            restart.into(),
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

    /// The text with our runtime.
    fn set_runtime(&self, runtime: bool, version: Option<Version>) -> Result<String, Error> {
        if let Some((value, at)) = self.get("runtimes", "fgpu")? {
            let kind = self.kind(value).ok_or_else(|| self.foreign(at))?;
            if kind.is_runtime == runtime || !runtime {
                return Ok(self.text.to_owned());
            }
            if !kind.is_alone {
                return Err(self.foreign(at));
            }
        }
        if !runtime {
            refuse_old_docker(version)?;
        }
        let value = match runtime {
            true => format!("{{ \"path\": {} }}", Value::from(self.system.program("fgpu-runtime"))),
            false => format!("{{ \"runtimeType\": \"{SHIM}\" }}"),
        };
        self.with("runtimes", "fgpu", &value)
    }

    /// The text without our runtime; `None` if nothing is left.
    fn without_runtime(&self) -> Result<Option<String>, Error> {
        self.without("runtimes", "fgpu", |value, at| {
            match self.kind(value).is_some_and(|kind| kind.is_alone) {
                true => Ok(true),
                false => Err(self.foreign(at)),
            }
        })
    }

    /// The text and the place of a member of a member.
    fn get(&self, outer: &str, key: &str) -> Result<Option<(&str, usize)>, Error> {
        let root = Object::root(self.text).map_err(|wrong| self.wrong(&wrong))?;
        let inner = root.object(outer).map_err(|wrong| self.wrong(&wrong))?;
        Ok(inner.and_then(|inner| inner.get(key)))
    }

    /// The text with a member of a member.
    fn with(&self, outer: &str, key: &str, value: &str) -> Result<String, Error> {
        let root = Object::root(self.text).map_err(|wrong| self.wrong(&wrong))?;
        Ok(match root.object(outer).map_err(|wrong| self.wrong(&wrong))? {
            Some(inner) => inner.with(key, value),
            None => {
                let (inner, step) = root.indents();
                root.with(outer, &format!("{{\n{inner}{step}\"{key}\": {value}\n{inner}}}"))
            }
        })
    }

    /// The text without a member of a member, if `is_ours` says so; `None` if nothing is left.
    fn without(
        &self,
        outer: &str,
        key: &str,
        is_ours: impl Fn(&str, usize) -> Result<bool, Error>,
    ) -> Result<Option<String>, Error> {
        let root = Object::root(self.text).map_err(|wrong| self.wrong(&wrong))?;
        let inner = root.object(outer).map_err(|wrong| self.wrong(&wrong))?;
        let Some((inner, (value, at))) = inner.as_ref().and_then(|inner| Some((inner, inner.get(key)?)))
        else {
            return Ok(Some(self.text.to_owned()));
        };
        if !is_ours(value, at)? {
            return Ok(Some(self.text.to_owned()));
        }
        if !inner.is_only(key) {
            return Ok(Some(inner.without(key)));
        }
        Ok(if root.is_only(outer) { None } else { Some(root.without(outer)) })
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

/// Whether our runtime is in daemon.json.
///
/// # Errors
/// As [`plan`].
pub(super) fn has_runtime(system: &System) -> Result<bool, Error> {
    let text = system.read(PATH)?.unwrap_or_default();
    let edit = Edit { system, text: if text.trim().is_empty() { "{}" } else { &text } };
    Ok(edit.set_runtime(false, None)? == edit.text)
}

/// Whether this Docker knows CDI devices only where daemon.json says so.
fn needs_feature(version: Option<Version>) -> bool {
    version.is_some_and(|version| (DOCKER_WITH_CDI..DOCKER_WITH_CDI_ON).contains(&version))
}

/// An older dockerd does not start with `runtimeType` in its configuration.
fn refuse_old_docker(version: Option<Version>) -> Result<(), Error> {
    match version {
        Some(version) if version < DOCKER_WITH_SHIMS => Err(Error::new(
            Code::Internal,
            format!(
                "Docker {version} knows no shims, {DOCKER_WITH_SHIMS} is the first that does; use `fgpu setup docker --runtime`, \
                 and `accept-env` in /etc/fgpu/config.toml, as it has no --annotation either; nothing was changed"
            ),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// daemon.json as it is set up for a Docker of this version.
    fn planned(version: &str, text: &str) -> Result<String, Error> {
        let root = tempfile::tempdir().unwrap();
        let system = System::new(Some(root.path())).unwrap();
        system.docker.set(Version::find(version)).unwrap();
        system.write(PATH, text).unwrap();
        let plan = plan(&system, Wish::Do { runtime: false })?;
        Ok(plan.changes.into_iter().next().unwrap().after.unwrap())
    }

    fn without_feature(text: &str) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        let system = System::new(Some(root.path())).unwrap();
        Edit { system: &system, text }.without("features", "cdi", |value, _| Ok(value == "true")).unwrap()
    }

    #[test]
    fn the_feature_is_set_where_nobody_has_decided_and_is_taken_out_again() {
        for text in [
            "{}",
            "{\n  \"features\": {\n    \"buildkit\": true\n  }\n}",
            "{ \"debug\": true }",
            "{\"runtimes\": {}}",
        ] {
            let with = planned("26.1.5", text).unwrap();
            let value: Value = serde_json::from_str(&with).unwrap();
            assert_eq!(value["features"]["cdi"], true);
            assert_eq!(without_feature(&with).unwrap(), planned("28.2.0", text).unwrap());
        }
        for decided in ["true", "false"] {
            let text = format!("{{\"features\": {{\"cdi\": {decided}}}}}");
            assert_eq!(planned("26.1.5", &text).unwrap(), planned("28.2.0", &text).unwrap());
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_the_line_of_the_file() {
        let error = planned("26.1.5", "{\n  \"features\": 5\n}").unwrap_err();
        assert!(error.message.contains("daemon.json:2: "), "{error}");
    }

    #[test]
    fn versions_that_need_the_feature() {
        let needing = |line: &str| needs_feature(Version::find(line));
        assert!(needing("Docker version 26.1.5+dfsg1, build a72d7cd\n"));
        assert!(needing("Docker version 28.1.1, build 0123456"));
        assert!(!needing("Docker version 28.2.0, build 0123456"));
        assert!(!needing("Docker version 20.10.24+dfsg1, build 297e128\n"));
        assert!(!needs_feature(None));
    }
}
