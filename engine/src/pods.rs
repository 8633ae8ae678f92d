//! Pods whose annotations ask for a share: one lease for all their containers.
//!
//! Init containers, sidecars, containers that start again and `kubectl debug` join it. It ends with the pod's
//! cgroup, so a pod keeps its share while none of its containers runs.

use std::borrow::Cow;

use fgpu_allocator::{Anchor, Applicant, Pod};
use fgpu_spec::{Document, Error, PodOf, is_pod_wide};

use crate::config::Config;

/// The one that asks for what the annotations say: the container's pod, if no override names the container
/// and the pod has a cgroup of its own.
///
/// # Errors
/// As [`Document::cdi_devices`].
pub(crate) fn applicant<'a>(
    config: &Config,
    document: &Document,
    container: &'a Applicant,
) -> Result<Cow<'a, Applicant>, Error> {
    let annotations = document.annotations();
    let own = Ok(Cow::Borrowed(container));
    if !is_pod_wide(&annotations, &config.defaults().aliases) || !document.cdi_devices()?.is_empty() {
        return own;
    }
    let (Some(pod), Some(path)) = (PodOf::of(&annotations), document.cgroups_path()) else { return own };
    let Some(cgroup) = pod.cgroup(&path) else { return own };
    let pod = Pod { uid: pod.uid, namespace: pod.namespace, name: pod.name, cgroup };
    Ok(Cow::Owned(Applicant {
        key: pod.key(),
        pid_file: None,
        anchor: Some(Anchor::Pod(pod)),
        ..container.clone()
    }))
}
