//! What a container's annotations say of its pod.

use std::collections::BTreeMap;

use super::alias::{Vocabulary, names_container};
use super::key::OVERRIDE;

/// Whether the annotations are those of a pod's sandbox (pause) container, which never gets a GPU. CRI-O
/// and Podman write one key, containerd the other.
pub fn is_sandbox(annotations: &BTreeMap<String, String>) -> bool {
    ["io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType"]
        .iter()
        .any(|key| annotations.get(*key).is_some_and(|kind| kind == "sandbox"))
}

/// The container's name in its pod, as containerd, the kubelet or CRI-O put it into the annotations; `None`
/// outside of a pod. A container that is not made by a kubelet has no label; CRI-O keeps its metadata in
/// JSON.
pub fn container_name(annotations: &BTreeMap<String, String>) -> Option<String> {
    let named = ["io.kubernetes.cri.container-name", "io.kubernetes.container.name"]
        .iter()
        .find_map(|key| annotations.get(*key).cloned());
    named.or_else(|| {
        let metadata = annotations.get("io.kubernetes.cri-o.Metadata")?;
        let metadata: serde_json::Value = serde_json::from_str(metadata).ok()?;
        Some(metadata.get("name")?.as_str()?.to_owned())
    })
}

/// Whether what the annotations ask for this container of a pod is asked for all of them: no override names
/// it, in our words or in those of `vocabularies`.
pub fn is_pod_wide(annotations: &BTreeMap<String, String>, vocabularies: &[Vocabulary]) -> bool {
    container_name(annotations).is_some_and(|name| {
        let own = format!("{name}{OVERRIDE}");
        !annotations.keys().any(|key| key.starts_with(&own) || names_container(key, &name, vocabularies))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn sandboxes_are_recognised() {
        assert!(is_sandbox(&map(&[("io.kubernetes.cri.container-type", "sandbox")])));
        assert!(is_sandbox(&map(&[("io.kubernetes.cri-o.ContainerType", "sandbox")])));
        assert!(!is_sandbox(&map(&[("io.kubernetes.cri.container-type", "container")])));
        assert!(!is_sandbox(&map(&[])));
    }

    #[test]
    fn an_override_is_a_request_of_ones_own() {
        let name = ("io.kubernetes.container.name", "web");
        for (pairs, wide) in [
            (&[name, ("fgpu/fraction", "0.5")][..], true),
            (&[name, ("fgpu/fraction", "0.5"), ("db.fgpu/fraction", "0.25")], true),
            (&[name, ("fgpu/fraction", "0.5"), ("web.fgpu/compute", "share")], false),
            (&[("fgpu/fraction", "0.5")], false),
        ] {
            assert_eq!(is_pod_wide(&map(pairs), &[]), wide, "{pairs:?}");
        }
    }

    #[test]
    fn containers_have_their_name_from_containerd_the_kubelet_or_cri_o() {
        let metadata = ("io.kubernetes.cri-o.Metadata", r#"{"name":"c","attempt":1}"#);
        for (pairs, expected) in [
            (&[("io.kubernetes.cri.container-name", "a")][..], Some("a")),
            (&[("io.kubernetes.container.name", "b"), metadata], Some("b")),
            (&[metadata], Some("c")),
            (&[("io.kubernetes.cri-o.Metadata", "{")], None),
            (&[("io.kubernetes.cri-o.Metadata", "[1]")], None),
            (&[("io.kubernetes.cri-o.Metadata", r#"{"name":1}"#)], None),
            (&[], None),
        ] {
            assert_eq!(container_name(&map(pairs)).as_deref(), expected, "{pairs:?}");
        }
    }
}
