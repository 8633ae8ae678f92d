//! Containers that seem to ask for a share and hold none: a key that is written otherwise, a label in place
//! of an annotation, an annotation that no program of fgpu has seen. Nothing is refused there, so nothing
//! else says it.
//!
//! Found in the files that engines keep of running containers, as names are (names.rs); no engine is asked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fgpu_allocator::names::{Names, TASKS, of_annotations, read};
use fgpu_allocator::proc::{parse_stat, runs};
use fgpu_allocator::{Key, Lease};
use fgpu_spec::{Code, Error, container_name, escape_for_display, is_sandbox, key_reference, opts_out};
use serde::{Deserialize, Serialize};

use crate::find;

/// Where Podman and CRI-O have the bundles of containers: `ID/userdata/config.json`.
const STORAGE: [&str; 2] = [STORAGE_RUN, "/var/lib/containers/storage/overlay-containers"];
/// Where both have the pid files: `ID/userdata/pidfile`.
const STORAGE_RUN: &str = "/run/containers/storage/overlay-containers";
/// What Docker keeps of all of its containers.
const DOCKER: &str = "/var/lib/docker/containers";

/// A container that runs, as its engine's files have it.
#[derive(Debug, Default)]
struct Container {
    key: Option<Key>,
    name: Option<String>,
    annotations: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    env: Vec<String>,
    engine: &'static str,
}

/// Why a container has no share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Overlooked {
    /// Its name, or the short form of its id.
    pub(crate) container: String,
    /// What was written, and why it asks for nothing.
    pub(crate) why: String,
    /// What to write, or to do.
    pub(crate) mend: String,
}

/// Every one of the node whose root lies where `place` says, besides those that hold a share.
pub(crate) fn all(place: &dyn Fn(&str) -> PathBuf, leases: &[Lease], accept_env: bool) -> Vec<Overlooked> {
    let containers = containers(place).into_iter();
    containers
        .filter(|one| !one.key.as_ref().is_some_and(|key| leases.iter().any(|lease| lease.key.id == key.id)))
        .filter_map(|one| judge(&one, accept_env))
        .collect()
}

/// The one that `what` names, if it asks in vain; none if it asks for nothing at all.
///
/// # Errors
/// `invalid-request` if no running container or several are called so.
pub(crate) fn of(
    place: &dyn Fn(&str) -> PathBuf,
    what: &str,
    accept_env: bool,
) -> Result<Option<Overlooked>, Error> {
    let meant = |one: &Container| {
        one.key.as_ref().is_some_and(|key| find::begins(key, what))
            || one.name.as_deref().is_some_and(|name| find::answers_to(name, what))
    };
    let mut found: Vec<_> = containers(place).into_iter().filter(meant).collect();
    match (found.pop(), found.len()) {
        (Some(one), 0) => Ok(judge(&one, accept_env)),
        (None, _) => {
            let message = format!(
                "no running container {} is known of Docker, containerd, CRI-O or Podman; only root sees them",
                escape_for_display(what)
            );
            Err(Error::new(Code::InvalidRequest, message))
        }
        _ => Err(Error::new(
            Code::InvalidRequest,
            format!("{} may be several; name one by its id", escape_for_display(what)),
        )),
    }
}

fn judge(one: &Container, accept_env: bool) -> Option<Overlooked> {
    let told = container_name(&one.annotations);
    if is_sandbox(&one.annotations) || opts_out(&one.annotations, told.as_deref()) {
        return None;
    }
    let container = match (&one.name, &one.key) {
        (Some(name), _) => name.clone(),
        (None, Some(key)) => key.short(),
        (None, None) => return None,
    };
    let found = |why: String, mend: String| Some(Overlooked { container: container.clone(), why, mend });
    for (key, value) in &one.annotations {
        // Of another container of the pod, or of none.
        let own = key
            .split_once('.')
            .filter(|(name, rest)| rest.starts_with("fgpu/") && Some(*name) == told.as_deref());
        let bare = own.map_or(key.as_str(), |(_, rest)| rest);
        if key_reference().any(|known| known.key == bare) {
            let mend = match one.engine {
                "Docker" => "start it with --runtime=fgpu",
                "Podman or CRI-O" => "fgpu setup podman, or fgpu setup crio, and start it again",
                _ => {
                    "give it the runtime fgpu: runtimeClassName: fgpu in the pod, --runtime io.containerd.fgpu.v2 with ctr"
                }
            };
            let why = format!("{} has the annotation {key}, and was started without fgpu", one.engine);
            return found(why, mend.into());
        }
        if let Some(meant) = meant(key) {
            let why = format!("the annotation {} is none of fgpu's", escape_for_display(key));
            return found(why, format!("write {meant}={}", escape_for_display(value)));
        }
    }
    for (key, value) in &one.labels {
        if let Some(meant) =
            meant(key).or_else(|| key_reference().find(|known| known.key == key).map(|known| known.key))
        {
            let why = format!("{} is a label, and fgpu reads annotations", escape_for_display(key));
            return found(
                why,
                format!("docker run --runtime=fgpu --annotation {meant}={} …", escape_for_display(value)),
            );
        }
    }
    let variables = one.env.iter().filter(|_| !accept_env).filter_map(|variable| variable.split_once('='));
    for (name, value) in variables {
        let meant = name.strip_prefix("FGPU_").map(|rest| format!("fgpu/{}", rest.to_ascii_lowercase()));
        if let Some(meant) = meant.filter(|meant| key_reference().any(|known| known.key == meant)) {
            let why = format!("the variable {name} asks for nothing: accept-env is off");
            return found(why, format!("write the annotation {meant}={}", escape_for_display(value)));
        }
    }
    None
}

/// The key that was meant by one that is none: `fgpu.fraction`, `FGPU/fraction`, `fgpu_memory`.
fn meant(key: &str) -> Option<&'static str> {
    let lower = key.to_ascii_lowercase();
    let rest = lower.strip_prefix("fgpu")?.strip_prefix(['/', '.', '_', '-', ':'])?;
    let known =
        key_reference().map(|known| known.key).find(|known| known.strip_prefix("fgpu/") == Some(rest));
    known.filter(|known| *known != key)
}

fn containers(place: &dyn Fn(&str) -> PathBuf) -> Vec<Container> {
    let mut all: BTreeMap<String, Container> = BTreeMap::new();
    for folder in TASKS {
        for (namespace, tasks) in entries(&place(folder)) {
            for (id, bundle) in entries(&tasks) {
                // A bundle stays when its shim is killed.
                if lives(place, &bundle.join("init.pid")) {
                    let container = of_bundle(&bundle.join("config.json"), &namespace, &id, "containerd");
                    all.extend(container.map(|one| (id, one)));
                }
            }
        }
    }
    for folder in STORAGE {
        for (id, container) in entries(&place(folder)) {
            // A bundle stays until the container is removed.
            if lives(place, &place(STORAGE_RUN).join(&id).join("userdata/pidfile")) {
                let path = container.join("userdata/config.json");
                let container = of_bundle(&path, "", &id, "Podman or CRI-O");
                all.extend(container.map(|one| (id, one)));
            }
        }
    }
    // Docker's labels are in no bundle.
    for (id, folder) in entries(&place(DOCKER)) {
        let Some(docker) = read::<Docker>(&folder.join("config.v2.json")) else { continue };
        if !docker.state.running {
            continue;
        }
        let one = all.entry(id.clone()).or_insert_with(|| Container {
            key: Some(Key { namespace: "moby".into(), id }),
            ..Container::default()
        });
        one.engine = "Docker";
        one.name = Some(docker.name.trim_start_matches('/').to_owned()).filter(|name| !name.is_empty());
        one.labels = docker.config.labels.unwrap_or_default();
        if one.env.is_empty() {
            one.env = docker.config.env.unwrap_or_default();
        }
    }
    all.into_values().collect()
}

/// Whether the process of a pid file lives.
fn lives(place: &dyn Fn(&str) -> PathBuf, pid_file: &Path) -> bool {
    let pid = std::fs::read_to_string(pid_file).ok().and_then(|pid| pid.trim().parse::<u32>().ok());
    let stat = pid.and_then(|pid| std::fs::read(place(&format!("/proc/{pid}/stat"))).ok());
    stat.and_then(|stat| parse_stat(&stat)).is_some_and(|stat| runs(&stat))
}

fn of_bundle(path: &Path, namespace: &str, id: &str, engine: &'static str) -> Option<Container> {
    let spec: Spec = read(path)?;
    let Names { name, .. } = of_annotations(&spec.annotations);
    let key = Some(Key { namespace: namespace.into(), id: id.into() });
    Some(Container {
        key,
        name,
        annotations: spec.annotations,
        labels: BTreeMap::new(),
        env: spec.process.env,
        engine,
    })
}

/// The names in a folder, and where they are.
fn entries(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path()))).collect()
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    annotations: BTreeMap<String, String>,
    process: Process,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Process {
    env: Vec<String>,
}

/// Docker's `config.v2.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Docker {
    name: String,
    state: DockerState,
    config: DockerConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct DockerState {
    running: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct DockerConfig {
    labels: Option<BTreeMap<String, String>>,
    env: Option<Vec<String>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn runs_under_containerd(root: &Path, id: &str, spec: &str, state: char) {
        let task = format!("run/containerd/io.containerd.runtime.v2.task/moby/{id}");
        put(root, &format!("{task}/config.json"), spec);
        put(root, &format!("{task}/init.pid"), "17");
        let zeros = "0 ".repeat(32);
        let fields = format!("1 17 17 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 98765 {zeros}");
        put(root, "proc/17/stat", &format!("17 (a) b) {state} {fields}"));
    }

    /// What is said of a Docker container of these annotations, labels and variables.
    fn said(annotations: &str, labels: &str, env: &str) -> Option<(String, String)> {
        let root = tempfile::tempdir().unwrap();
        let spec = format!(r#"{{"annotations":{{{annotations}}},"process":{{"env":[{env}]}}}}"#);
        runs_under_containerd(root.path(), "0123abcd", &spec, 'S');
        let docker =
            format!(r#"{{"Name":"/web","State":{{"Running":true}},"Config":{{"Labels":{{{labels}}}}}}}"#);
        put(root.path(), "var/lib/docker/containers/0123abcd/config.v2.json", &docker);
        let place = |path: &str| root.path().join(path.trim_start_matches('/'));
        let named = of(&place, "web", false).unwrap();
        assert_eq!(all(&place, &[], false), Vec::from_iter(named.clone()));
        assert_eq!(of(&place, "012", false).unwrap(), named);
        assert_eq!(of(&place, "other", false).unwrap_err().code, Code::InvalidRequest);
        assert!(named.as_ref().is_none_or(|one| one.container == "web"), "{named:?}");
        named.map(|one| (one.why, one.mend))
    }

    #[test]
    fn a_container_without_a_share_is_told_why() {
        for (annotations, labels, env, why, mend) in [
            (
                r#""fgpu.fraction":"0.5""#,
                "",
                "",
                "annotation fgpu.fraction is none of fgpu's",
                "write fgpu/fraction=0.5",
            ),
            (r#""FGPU/Memory":"4Gi""#, "", "", "annotation FGPU/Memory is none", "write fgpu/memory=4Gi"),
            (
                "",
                r#""fgpu/fraction":"0.5""#,
                "",
                "fgpu/fraction is a label",
                "--annotation fgpu/fraction=0.5",
            ),
            ("", r#""fgpu.count":"2""#, "", "fgpu.count is a label", "--annotation fgpu/count=2"),
            (r#""fgpu/fraction":"0.5""#, "", "", "started without fgpu", "--runtime=fgpu"),
            ("", "", r#""FGPU_FRACTION=0.5""#, "accept-env is off", "annotation fgpu/fraction=0.5"),
        ] {
            let (said_why, said_mend) = said(annotations, labels, env).unwrap();
            assert!(said_why.contains(why), "{said_why}");
            assert!(said_mend.contains(mend), "{said_mend}");
        }
    }

    #[test]
    fn containers_of_a_killed_engine_are_not_running() {
        let asks = r#"{"annotations":{"fgpu/fraction":"0.5"}}"#;
        for (state, found) in [('S', 1), ('D', 1), ('Z', 0), ('X', 0)] {
            let root = tempfile::tempdir().unwrap();
            runs_under_containerd(root.path(), "0123abcd", asks, state);
            let podman = "containers/storage/overlay-containers/4567/userdata";
            put(root.path(), &format!("var/lib/{podman}/config.json"), asks);
            put(root.path(), &format!("run/{podman}/pidfile"), "17\n");
            let place = |path: &str| root.path().join(path.trim_start_matches('/'));
            assert_eq!(all(&place, &[], false).len(), 2 * found, "{state}");
            std::fs::remove_dir_all(root.path().join("proc")).unwrap();
            assert_eq!(all(&place, &[], false), [], "no such process");
        }
    }

    #[test]
    fn a_container_without_a_request_is_left_alone() {
        for (annotations, labels, env) in [
            ("", "", ""),
            (
                r#""org.fgpu.fraction":"1","fgpu.other":"1","fgpux/fraction":"1""#,
                r#""fgpulike":"x""#,
                r#""FGPU_X=1""#,
            ),
            (r#""io.kubernetes.cri.container-name":"a","b.fgpu/fraction":"0.5""#, "", ""),
            (r#""io.kubernetes.cri.container-name":"a","a.fgpu/count":"0","fgpu/fraction":"0.5""#, "", ""),
            (r#""io.kubernetes.cri.container-type":"sandbox","fgpu/fraction":"0.5""#, "", ""),
        ] {
            assert_eq!(said(annotations, labels, env), None, "{annotations}");
        }
    }
}
