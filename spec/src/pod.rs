//! What a container's spec says of its pod.

use std::collections::BTreeMap;
use std::path::Path;

/// The pod of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodOf {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.namespace`; empty if it is not told.
    pub namespace: String,
    /// `metadata.name`; empty if it is not told.
    pub name: String,
}

impl PodOf {
    /// The pod that containerd, the kubelet or CRI-O put into the annotations; `None` outside of a pod. CRI-O
    /// keeps the kubelet's labels in JSON.
    pub fn of(annotations: &BTreeMap<String, String>) -> Option<Self> {
        let labels: BTreeMap<String, String> = annotations
            .get("io.kubernetes.cri-o.Labels")
            .and_then(|labels| serde_json::from_str(labels).ok())
            .unwrap_or_default();
        let told = |containerd: &str, kubelet: &str| {
            let keys = [containerd, kubelet];
            let told = keys.iter().find_map(|key| annotations.get(*key)).or_else(|| labels.get(kubelet));
            told.filter(|text| !text.is_empty()).cloned()
        };
        Some(Self {
            uid: told("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid")?,
            namespace: told("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace")
                .unwrap_or_default(),
            name: told("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name").unwrap_or_default(),
        })
    }

    /// The pod's cgroup, relative to the cgroup mount, if the container's is right below it: `path` is the
    /// container's `linux.cgroupsPath`. The kubelet puts the pod's uid into the name (kubernetes,
    /// pkg/kubelet/cm/pod_container_manager_linux.go); another folder may be that of many pods.
    pub fn cgroup(&self, path: &str) -> Option<String> {
        let parent = match path.split_once(':') {
            Some((slice, _)) => below_slices(slice)?,
            None => Path::new(path).parent()?.to_str()?.to_owned(),
        };
        let plain = |text: &str| text.replace('-', "_");
        plain(parent.rsplit('/').next()?).contains(&plain(&self.uid)).then_some(parent)
    }
}

/// Where systemd puts a slice: `a-b.slice` is `/a.slice/a-b.slice` (systemd.slice(5)).
fn below_slices(slice: &str) -> Option<String> {
    let name = slice.strip_suffix(".slice")?;
    let ends = name.match_indices('-').map(|(at, _)| at).chain([name.len()]);
    Some(ends.map(|end| format!("/{}.slice", &name[..end])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "8d1f3c7e-0b6a-4a51-9d5e-5f0c7f6b2a11";

    fn of(pairs: &[(&str, &str)]) -> Option<PodOf> {
        PodOf::of(&pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn pods_are_told_by_containerd_the_kubelet_or_cri_o() {
        let pod = |uid: &str| Some(PodOf { uid: uid.into(), namespace: "n".into(), name: "p".into() });
        let containerd = [
            ("io.kubernetes.cri.sandbox-uid", "a"),
            ("io.kubernetes.cri.sandbox-namespace", "n"),
            ("io.kubernetes.cri.sandbox-name", "p"),
        ];
        let kubelet = [
            ("io.kubernetes.pod.uid", "b"),
            ("io.kubernetes.pod.namespace", "n"),
            ("io.kubernetes.pod.name", "p"),
        ];
        let labels =
            r#"{"io.kubernetes.pod.uid":"c","io.kubernetes.pod.namespace":"n","io.kubernetes.pod.name":"p"}"#;
        assert_eq!(of(&[kubelet, containerd].concat()), pod("a"));
        assert_eq!(of(&kubelet), pod("b"));
        assert_eq!(of(&[("io.kubernetes.cri-o.Labels", labels)]), pod("c"));
        for none in [&[][..], &kubelet[1..], &[("io.kubernetes.cri-o.Labels", "{")]] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_pods_cgroup_has_its_uid() {
        let pod = PodOf { uid: UID.into(), namespace: "n".into(), name: "p".into() };
        let slice = format!("kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
        for (path, cgroup) in [
            (format!("/kubepods/burstable/pod{UID}/abc"), Some(format!("/kubepods/burstable/pod{UID}"))),
            (
                format!("{slice}:cri-containerd:abc"),
                Some(format!("/kubepods.slice/kubepods-burstable.slice/{slice}")),
            ),
            ("/k8s.io/abc".into(), None),
            ("system.slice:cri-containerd:abc".into(), None),
            (format!("/pod{UID}/inner/abc"), None),
            (format!("pod{UID}:x:y"), None),
            (String::new(), None),
            ("/".into(), None),
        ] {
            assert_eq!(pod.cgroup(&path), cgroup, "{path}");
        }
    }
}
