//! Containers that use a claim of Kubernetes: one lease, which the node's DRA driver has reserved, for all of
//! them.

use std::fs;

use fgpu_allocator::Lease;
use fgpu_engine::claims::{self, Asked, Share};
use fgpu_engine::config::Config;
use fgpu_spec::Isolation;

use crate::container::Container;
use crate::life::{USUAL, assert_has_its_gpu};
use crate::node::{GIB, Node, told};
use crate::witness::host_mounts;

const CLAIM: &str = "1f-2e/gpu";
const HOOK: &[&str] = &["createRuntime", "--claim", CLAIM];
/// As containerd tells it.
const POD: &str = "io.kubernetes.cri.sandbox-uid";

fn prepare(node: &Node, request: &str, pods: &[&str]) -> Lease {
    let asked = Asked {
        uid: "1f-2e".into(),
        namespace: "default".into(),
        name: "training".into(),
        request: request.into(),
        pods: pods.iter().map(|pod| (*pod).to_owned()).collect(),
        share: Share::Part {
            gpus: vec![node.inventory().gpus[1].uuid.clone()],
            memory: 2 * GIB,
            cores_ppm: 250_000,
        },
        words: "memory=2Gi cores=25 of gpu-1".into(),
        compute: None,
        isolation: Isolation::Auto,
        owner: None,
    };
    claims::prepare(&Config::load().unwrap(), &asked).unwrap()
}

fn release(uid: &str) -> usize {
    claims::release(&Config::load().unwrap(), uid).unwrap()
}

fn container(node: &Node, pod: &str) -> Container {
    let mut container = Container::new(node, &[(POD, pod)]).uses(&[CLAIM]);
    container.start(USUAL);
    container
}

#[track_caller]
fn joins(node: &Node, container: &Container) {
    assert_eq!(told(&container.hook(node, HOOK)), "exit status: 0: ");
    assert_has_its_gpu(node, container, "of a claim");
}

#[test]
fn containers_of_a_claim_share_its_lease() {
    let node = Node::new(2);
    let host = host_mounts();
    let lease = prepare(&node, "gpu", &["a", "b"]);
    let (mut first, mut second) = (container(&node, "a"), container(&node, "b"));
    joins(&node, &first);
    // An engine lists a device twice.
    let before = first.mounts();
    joins(&node, &first);
    assert_eq!(first.mounts(), before);
    joins(&node, &second);
    let ledger = |container: &Container| container.stat("/run/fgpu/ledger").unwrap();
    let (one, other) = (ledger(&first), ledger(&second));
    assert_eq!((one.st_dev, one.st_ino), (other.st_dev, other.st_ino), "one ledger");
    // The end of a container, and a poststop hook of its name, end nothing.
    first.kill();
    assert_eq!(told(&first.hook(&node, &["poststop"])), "exit status: 0: ");
    assert_eq!(node.store().reconcile().unwrap(), []);
    assert_eq!(node.leases(), std::slice::from_ref(&lease));
    let half = [("fgpu/memory".to_owned(), "1Gi".to_owned())].into();
    let refused = fgpu_engine::resize(&Config::load().unwrap(), &node.store(), &lease, &half).unwrap_err();
    assert!(
        refused.to_string().starts_with("fgpu: denied: claim default/training, request gpu: "),
        "{refused}"
    );
    // The next one finds the files.
    joins(&node, &container(&node, "a"));
    second.kill();
    assert_eq!(release("1f-2e"), 1);
    assert_eq!(release("1f-2e"), 0);
    node.assert_nothing_held("after the claim");
    // The board of the GPU stays, as after each container.
    assert!(host_mounts().len() <= host.len() + 1, "{:?}", host_mounts());
}

#[test]
fn nobody_else_may_use_a_claim() {
    let node = Node::new(2);
    let lease = prepare(&node, "gpu", &["a"]);
    let refused = |annotations: &[(&str, &str)], claims: &[&str], name: &str| {
        let mut container = Container::new(&node, annotations).uses(claims);
        container.start(USUAL);
        let before = container.mounts();
        let output = container.hook(&node, &["createRuntime", "--claim", name]);
        assert!(!output.status.success(), "{}", told(&output));
        assert_eq!(container.mounts(), before);
        told(&output)
    };
    for (annotations, claims, name, words) in [
        (
            &[(POD, "b")][..],
            &[CLAIM][..],
            CLAIM,
            "denied: claim default/training, request gpu: it is not reserved",
        ),
        (&[], &[CLAIM], CLAIM, "denied: claim default/training, request gpu: only containers of its pods"),
        (&[(POD, "a")], &["1f-2e/other"], "1f-2e/other", "internal: claim 1f-2e/other is not prepared"),
        (&[(POD, "a")], &["9/gpu"], "9/gpu", "internal: claim 9/gpu is not prepared"),
        (
            &[(POD, "a")],
            &[],
            CLAIM,
            "internal: fgpu.dev/claim=1f-2e/gpu: the container's config.json does not",
        ),
        (
            &[(POD, "a")],
            &["9/gpu"],
            CLAIM,
            "internal: fgpu.dev/claim=1f-2e/gpu: the container's config.json does not",
        ),
        (&[(POD, "a")], &[CLAIM, "9/gpu"], CLAIM, "conflict: the container uses several requests"),
        (
            &[(POD, "a"), ("fgpu/fraction", "0.5")],
            &[CLAIM],
            CLAIM,
            "conflict: fgpu/fraction=0.5: the container has a GPU",
        ),
    ] {
        let told = refused(annotations, claims, name);
        assert!(told.contains(&format!("fgpu: {words}")), "{told}");
    }
    // An annotation with the grant's name gives nothing, not even to its own pod.
    let mut forged =
        Container::new(&node, &[(POD, "b"), ("fgpu/grant", &lease.grant.nonce.to_string())]).uses(&[CLAIM]);
    forged.start(USUAL);
    let before = forged.mounts();
    assert!(told(&forged.hook(&node, HOOK)).contains("fgpu: denied: "));
    assert_eq!(forged.mounts(), before);
    assert_eq!(node.leases(), [lease]);
}

/// What a process that was killed left there is made anew, and several at once take turns.
#[test]
fn the_files_of_a_claim_are_made_once_and_whole() {
    let node = Node::new(2);
    let lease = prepare(&node, "gpu", &["a"]);
    let folder = node.store().container_dir(&lease.grant.nonce);
    for half in ["view", "own"] {
        fs::create_dir_all(folder.join(half)).unwrap();
    }
    fs::write(folder.join("limits"), "half of it").unwrap();
    let containers: Vec<_> = (0..4).map(|_| container(&node, "a")).collect();
    let hooks: Vec<_> = containers.iter().map(|container| container.spawn(&mut node.hook(HOOK))).collect();
    for hook in hooks {
        assert_eq!(told(&hook.wait_with_output().unwrap()), "exit status: 0: ");
    }
    containers.iter().for_each(|container| assert_has_its_gpu(&node, container, "at once"));
    drop(containers);
    assert_eq!(release("1f-2e"), 1);
    node.assert_nothing_held("after all of them");
}
