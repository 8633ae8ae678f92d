//! Containers of a pod whose annotations ask for a share: one lease for all of them.

use std::fs;
use std::path::PathBuf;

use fgpu_allocator::Anchor;

use crate::container::Container;
use crate::life::{USUAL, assert_has_its_gpu};
use crate::node::{Node, told};

/// The pod's cgroup, in the first hierarchy of this machine that can be written.
struct Cgroup {
    folder: PathBuf,
    path: String,
    uid: String,
}

impl Cgroup {
    fn new(name: &str) -> Self {
        let uid = format!("{name}-{}", std::process::id());
        let path = format!("/fgpu-test-pod{uid}");
        let root = PathBuf::from("/sys/fs/cgroup");
        let trees = fs::read_dir(&root).unwrap().flatten().map(|entry| entry.path());
        let places = std::iter::once(root.clone()).chain(trees).map(|tree| tree.join(&path[1..]));
        let folder = places.into_iter().find(|folder| fs::create_dir(folder).is_ok()).unwrap();
        Self { folder, path, uid }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

fn container(node: &Node, pod: &Cgroup, name: &str, more: &[(&str, &str)]) -> Container {
    let annotations = [
        ("io.kubernetes.cri.sandbox-uid", &*pod.uid),
        ("io.kubernetes.cri.sandbox-namespace", "default"),
        ("io.kubernetes.cri.sandbox-name", "trainer"),
        ("io.kubernetes.cri.container-name", name),
        ("fgpu/fraction", "0.5"),
    ];
    let mut container = Container::new(node, &[&annotations[..], more].concat()).within(&pod.path);
    container.start(USUAL);
    container
}

#[track_caller]
fn joins(node: &Node, container: &Container) {
    assert_eq!(told(&container.hook(node, &["createRuntime"])), "exit status: 0: ");
    assert_has_its_gpu(node, container, "of a pod");
}

#[test]
fn a_pod_has_its_share_once_and_until_it_is_gone() {
    let node = Node::new(1);
    let pod = Cgroup::new("once");
    let mut init = container(&node, &pod, "init", &[]);
    joins(&node, &init);
    let leases = node.leases();
    let Some(Anchor::Pod(anchor)) = &leases[0].anchor else { panic!("{leases:?}") };
    assert_eq!((&*anchor.name, &*anchor.cgroup), ("trainer", &*pod.path));
    assert_eq!(leases[0].key.short(), format!("pod/default/trainer/{}", pod.uid));
    // Its end, and that of its hook, free nothing: the next container needs it.
    init.kill();
    assert_eq!(told(&init.hook(&node, &["poststop"])), "exit status: 0: ");
    assert_eq!(node.store().reconcile().unwrap(), []);
    let (mut main, mut sidecar) =
        (container(&node, &pod, "main", &[]), container(&node, &pod, "sidecar", &[]));
    joins(&node, &main);
    joins(&node, &sidecar);
    assert_eq!(node.leases(), leases, "three containers, half of the GPU");

    // One that an override names has its own, and so has one outside of pods.
    let mut own = container(&node, &pod, "web", &[("web.fgpu/fraction", "0.25")]);
    assert_eq!(told(&own.hook(&node, &["createRuntime"])), "exit status: 0: ");
    assert_eq!(node.leases().len(), 2);
    own.kill();
    assert_eq!(told(&own.hook(&node, &["poststop"])), "exit status: 0: ");
    assert_eq!(node.leases(), leases);

    main.kill();
    sidecar.kill();
    drop(pod);
    assert_eq!(node.store().reconcile().unwrap().len(), 1);
    node.assert_nothing_held("after the pod");
}

/// Three pods of a half, one after the other beside one that stays.
#[test]
fn the_share_of_a_pod_that_is_gone_is_free() {
    let node = Node::new(1);
    let stays = Cgroup::new("stays");
    joins(&node, &container(&node, &stays, "main", &[]));
    for name in ["one", "two", "three"] {
        let pod = Cgroup::new(name);
        let container = container(&node, &pod, "main", &[]);
        assert_eq!(told(&container.hook(&node, &["createRuntime"])), "exit status: 0: ", "{name}");
        assert_eq!(node.leases().len(), 2);
    }
}

/// What was reserved for a container that could not be made goes with it.
#[test]
fn a_pods_first_container_that_fails_leaves_nothing() {
    let node = Node::new(1);
    let pod = Cgroup::new("fails");
    let failing = container(&node, &pod, "main", &[]);
    fs::remove_file(node.path("driver/dev/nvidiactl")).unwrap();
    let output = failing.hook(&node, &["createRuntime"]);
    assert!(!output.status.success(), "{}", told(&output));
    node.assert_nothing_held("after a failure");
}
