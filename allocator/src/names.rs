//! What a container is called, and which image it was made from: read from the files that its engine keeps.
//!
//! A help for people and nothing more: no engine is asked, so none can keep us waiting; what cannot be read
//! (all of it but for root) or understood is left out; and nothing is decided by it. Files are regular ones
//! of bounded size, whatever else lies in their place.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use fgpu_spec::escape_for_display;
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::anchor::POD;
use crate::{Key, Lease};

/// Where containerd and Docker's own containerd keep the bundles of what runs, as `NAMESPACE/ID`.
pub const TASKS: [&str; 2] = [
    "/run/containerd/io.containerd.runtime.v2.task",
    "/run/docker/containerd/daemon/io.containerd.runtime.v2.task",
];
/// The largest file that is read, bytes.
const LARGEST: u64 = 8 << 20;

/// What people call a container: by its name, where its engine's files tell it, else by [`Key::short`]. Safe
/// to print.
pub fn called(key: &Key, bundle: Option<&Path>) -> String {
    // A pod's key ends with its uid.
    if let (POD, Some((name, _))) = (&*key.namespace, key.id.rsplit_once('/')) {
        return format!("{POD} {}", escape_for_display(name));
    }
    let mut catalogue = Catalogue::default();
    let names = match bundle {
        Some(bundle) => catalogue.at(key, bundle),
        None => catalogue.of_key(key),
    };
    names.name.map_or_else(|| key.short(), |name| escape_for_display(&name))
}

/// What a container is called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// Its name; in Kubernetes `NAMESPACE/POD/CONTAINER`.
    pub name: Option<String>,
    /// The image, as it was asked for.
    pub image: Option<String>,
}

/// Looks names up.
#[derive(Debug, Default)]
pub struct Catalogue {
    /// Podman keeps all containers in one file: it is read once.
    podman: BTreeMap<PathBuf, Vec<Stored>>,
}

impl Catalogue {
    /// The names of a lease's container, or of the pod or the claim that it is for.
    pub fn of(&mut self, lease: &Lease) -> Names {
        if let Some(anchor) = &lease.anchor {
            return Names { name: Some(anchor.name()), image: None };
        }
        self.at(&lease.key, &lease.bundle)
    }

    /// The names of a container whose bundle is not known, where engines have it while it is there.
    pub fn of_key(&mut self, key: &Key) -> Names {
        let bundles: Vec<PathBuf> = match key.namespace.starts_with('/') {
            // The hook has the bundle for a namespace.
            true => vec![PathBuf::from(&key.namespace)],
            // A runtime has its state folder for one, whose last part is the engine's:
            // docker/runtime-runc/moby.
            false => {
                let namespace = key.namespace.rsplit('/').next().unwrap_or_default();
                TASKS.iter().map(|folder| Path::new(folder).join(namespace).join(&key.id)).collect()
            }
        };
        let mut names = bundles.iter().map(|bundle| self.at(key, bundle));
        names.find(|names| names.name.is_some()).unwrap_or_default()
    }

    /// The names of a container with this bundle.
    pub fn at(&mut self, key: &Key, bundle: &Path) -> Names {
        let id = &key.id;
        if key.namespace == "run" {
            // `fgpu run`: PID-PROGRAM.
            return Names { name: id.split_once('-').map(|(_, program)| program.to_owned()), image: None };
        }
        let spec: Spec = read(&bundle.join("config.json")).unwrap_or_default();
        let candidates =
            [of_annotations(&spec.annotations), of_docker(&spec, id), self.of_podman(id, bundle)];
        candidates.into_iter().fold(Names::default(), |known, other| Names {
            name: known.name.or(other.name),
            image: known.image.or(other.image),
        })
    }

    /// Podman: `containers.json` of its storage (containers/storage, containers.go), which the bundle
    /// `…/overlay-containers/<id>/userdata` lies in.
    fn of_podman(&mut self, id: &str, bundle: &Path) -> Names {
        let Some(folder) = bundle.ancestors().nth(2) else { return Names::default() };
        if !folder.file_name().is_some_and(|name| name.to_string_lossy().ends_with("-containers")) {
            return Names::default();
        }
        let stored = self.podman.entry(folder.to_owned()).or_insert_with(|| {
            let files = ["containers.json", "volatile-containers.json"];
            files.iter().filter_map(|name| read::<Vec<Stored>>(&folder.join(name))).flatten().collect()
        });
        let Some(container) = stored.iter().find(|container| container.id == id) else {
            return Names::default();
        };
        let metadata: Metadata = serde_json::from_str(&container.metadata).unwrap_or_default();
        Names {
            name: container.names.first().cloned(),
            image: Some(metadata.image).filter(|image| !image.is_empty()),
        }
    }
}

/// The parts of an OCI spec.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    annotations: BTreeMap<String, String>,
    mounts: Vec<Mount>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Mount {
    destination: String,
    source: PathBuf,
}

/// A container in Podman's storage.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Stored {
    id: String,
    names: Vec<String>,
    metadata: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Metadata {
    #[serde(rename = "image-name")]
    image: String,
}

/// Docker's `config.v2.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Docker {
    name: String,
    config: DockerConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct DockerConfig {
    image: String,
}

/// What containerd's CRI, CRI-O and nerdctl write into the annotations.
pub fn of_annotations(annotations: &BTreeMap<String, String>) -> Names {
    let first =
        |keys: &[&str]| keys.iter().find_map(|key| annotations.get(*key)).filter(|value| !value.is_empty());
    let container = fgpu_spec::container_name(annotations).filter(|name| !name.is_empty());
    let pod = first(&["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"]);
    let namespace = first(&["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"]);
    let parts: Vec<&str> =
        [namespace, pod, container.as_ref()].into_iter().flatten().map(String::as_str).collect();
    let name = match parts[..] {
        [] => first(&["nerdctl/name"]).cloned(),
        _ => Some(parts.join("/")),
    };
    Names { name, image: first(&["io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName"]).cloned() }
}

/// Docker: its folder of the container has the file that is mounted as the container's `/etc/hostname`.
fn of_docker(spec: &Spec, id: &str) -> Names {
    let hostname = spec.mounts.iter().find(|mount| mount.destination == "/etc/hostname");
    let folder = hostname.and_then(|mount| mount.source.parent()).filter(|folder| folder.ends_with(id));
    let Some(docker) = folder.and_then(|folder| read::<Docker>(&folder.join("config.v2.json"))) else {
        return Names::default();
    };
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    Names { name: some(docker.name.trim_start_matches('/').to_owned()), image: some(docker.config.image) }
}

/// A JSON file, if it is one.
pub fn read<T: DeserializeOwned>(path: &Path) -> Option<T> {
    // A pipe in its place is not waited for.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(LARGEST).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f1c0a9b2d113f1c0a9b2d113f1c0a9b2d113f1c0a9b2d113f1c0a9b2d11abcd";

    struct Engine(tempfile::TempDir);

    impl Engine {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn put(&self, path: &str, text: &str) -> PathBuf {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
            path
        }

        fn names(&self, bundle: &str) -> (Option<String>, Option<String>) {
            let key = Key { namespace: "moby".into(), id: ID.into() };
            let names = Catalogue::default().at(&key, &self.0.path().join(bundle));
            (names.name, names.image)
        }
    }

    fn some(name: &str, image: &str) -> (Option<String>, Option<String>) {
        (Some(name.into()), Some(image.into()))
    }

    #[test]
    fn docker() {
        let engine = Engine::new();
        let file = engine.put(
            &format!("data/containers/{ID}/config.v2.json"),
            r#"{"ID":"3f1c","Name":"/web","Config":{"Image":"pytorch/pytorch:2.4","Env":null},"State":{"Pid":1}}"#,
        );
        let hostname = file.with_file_name("hostname");
        let spec = serde_json::json!({"ociVersion": "1.2.0", "hostname": "3f1c0a9b2d11", "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/etc/hostname", "type": "bind", "source": hostname},
        ]});
        engine.put("bundle/config.json", &spec.to_string());
        assert_eq!(engine.names("bundle"), some("web", "pytorch/pytorch:2.4"));
        let key = Key { namespace: "moby".into(), id: ID.into() };
        assert_eq!(called(&key, Some(&engine.0.path().join("bundle"))), "web");
        assert_eq!(called(&key, Some(&engine.0.path().join("nowhere"))), "moby/3f1c0a9b2d11");
        // The hook's namespace is the bundle.
        let hook = Key { namespace: engine.0.path().join("bundle").display().to_string(), id: ID.into() };
        assert_eq!(called(&hook, None), "web");
    }

    #[test]
    fn kubernetes_on_containerd_and_cri_o() {
        let engine = Engine::new();
        let containerd = r#"{"annotations":{"io.kubernetes.cri.container-name":"train",
            "io.kubernetes.cri.sandbox-name":"llm-0","io.kubernetes.cri.sandbox-namespace":"research",
            "io.kubernetes.cri.image-name":"nvcr.io/nvidia/pytorch:24.10-py3"}}"#;
        engine.put("bundle/config.json", containerd);
        assert_eq!(engine.names("bundle"), some("research/llm-0/train", "nvcr.io/nvidia/pytorch:24.10-py3"));
        let crio = r#"{"annotations":{"io.kubernetes.container.name":"train","io.kubernetes.pod.name":"llm-0",
            "io.kubernetes.pod.namespace":"research","io.kubernetes.cri-o.ImageName":"nvcr.io/nvidia/pytorch"}}"#;
        engine.put("bundle/config.json", crio);
        assert_eq!(engine.names("bundle"), some("research/llm-0/train", "nvcr.io/nvidia/pytorch"));
    }

    #[test]
    fn podman() {
        let engine = Engine::new();
        let stored = serde_json::json!([
            {"id": "other", "names": ["other"], "metadata": "{}"},
            {"id": ID, "names": ["jupyter"], "image": "0123", "layer": "4567",
             "metadata": "{\"image-name\":\"quay.io/jupyter/base-notebook:latest\",\"name\":\"jupyter\"}"},
        ]);
        engine.put("storage/overlay-containers/containers.json", &stored.to_string());
        let bundle = format!("storage/overlay-containers/{ID}/userdata");
        engine.put(&format!("{bundle}/config.json"), r#"{"annotations":{"io.container.manager":"libpod"}}"#);
        assert_eq!(engine.names(&bundle), some("jupyter", "quay.io/jupyter/base-notebook:latest"));
    }

    #[test]
    fn a_run_is_called_as_its_program() {
        let run = Key { namespace: "run".into(), id: "4711-python-x".into() };
        assert_eq!(Catalogue::default().of_key(&run).name.as_deref(), Some("python-x"));
        assert_eq!(called(&run, None), "python-x");
    }

    #[test]
    fn only_an_engines_regular_file_gives_names() {
        let engine = Engine::new();
        for text in ["", "[]", "{\"annotations\":[]}", "{\"mounts\":[{\"destination\":\"/etc/hostname\"}]}"] {
            engine.put("bundle/config.json", text);
            assert_eq!(engine.names("bundle"), (None, None), "{text}");
        }
        assert_eq!(engine.names("nowhere"), (None, None));
        let pipe = engine.0.path().join("pipe/config.json");
        std::fs::create_dir(pipe.parent().unwrap()).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(engine.names("pipe"), (None, None));
        // A bundle that names another container's folder.
        let other = engine.put("data/containers/other/config.v2.json", r#"{"Name":"/other"}"#);
        let spec = serde_json::json!({"mounts": [
            {"destination": "/etc/hostname", "source": other.with_file_name("hostname")}]});
        engine.put("bundle/config.json", &spec.to_string());
        assert_eq!(engine.names("bundle"), (None, None));
    }
}
