//! containerd without Docker: `ctr`, and pods through CRI.

use fgpu_lab::command::wait_until;
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};
use fgpu_lab::{cri, ctr};

pub(crate) const TESTS: &[Test] = &[
    Test::both("containerd::ctr_container_gets_its_share", ctr_container_gets_its_share),
    Test::once("containerd::dead_holder_gives_way", dead_holder_gives_way),
    Test::both("containerd::ctr_reports_a_refusal", ctr_reports_a_refusal),
    Test::both("containerd::pod_annotations_reach_its_containers", pod_annotations_reach_its_containers),
    Test::both("containerd::pod_container_without_gpu_has_none", pod_container_without_gpu_has_none),
    Test::once("containerd::pod_survives_containerd", pod_survives_containerd),
];

fn options(front_end: FrontEnd) -> &'static [&'static str] {
    match front_end {
        FrontEnd::Shim => &["--runtime", "io.containerd.fgpu.v2"],
        FrontEnd::Cdi => &["--runtime", "io.containerd.runc.v2"],
        FrontEnd::Runtime => {
            &["--runtime", "io.containerd.runc.v2", "--runc-binary", "/usr/bin/fgpu-runtime"]
        }
    }
}

const QUERY: [&str; 3] = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"];

/// MiB of that share of a GPU.
fn mib(ppm: u64) -> String {
    (node::gpus()[0].share(ppm) >> 20).to_string()
}

fn ctr_container_gets_its_share(front_end: FrontEnd) {
    let share = [options(front_end), &["--annotation", "fgpu/fraction=0.25"]].concat();
    let once = [&share[..], &["--rm"]].concat();
    assert_eq!(ctr::container("debian13", "once", &once, &QUERY).ok(), mib(250_000));
    node::wait_until_free();

    let detached = [&share[..], &["--detach"]].concat();
    ctr::container("debian13", "stays", &detached, &["sleep", "1000"]).ok();
    assert_eq!(node::only_lease().id, "stays");
    ctr::ctr(&["tasks", "kill", "--signal", "9", "stays"]).ok();
    if front_end == FrontEnd::Runtime {
        // Our runtime is not told of an end, but of the delete that every engine does after it.
        wait_until("the end of a task", || ctr::ctr(&["tasks", "delete", "stays"]).status == 0);
    }
    node::wait_until_free();
}

/// A container that ended and that nobody deleted holds its lease until somebody needs the room.
fn dead_holder_gives_way() {
    let all = ["--annotation", "fgpu/fraction=1", "--annotation", "fgpu/count=2", "--detach"];
    let dead = [options(FrontEnd::Runtime), &all].concat();
    ctr::container("busybox", "dead", &dead, &["sleep", "1000"]).ok();
    ctr::ctr(&["tasks", "kill", "--signal", "9", "dead"]).ok();
    wait_until("the end of a task", || ctr::ctr(&["tasks", "list"]).ok().contains("STOPPED"));
    assert_eq!(node::only_lease().id, "dead");
    let next = [options(FrontEnd::Shim), &all].concat();
    ctr::container("busybox", "next", &next, &["sleep", "1000"]).ok();
    assert_eq!(node::only_lease().id, "next");
}

fn ctr_reports_a_refusal(front_end: FrontEnd) {
    let asked = [
        options(front_end),
        &["--annotation", "fgpu/fraction=1", "--annotation", "fgpu/count=2", "--detach"],
    ]
    .concat();
    ctr::container("busybox", "all", &asked, &["sleep", "1000"]).ok();
    let refused = ctr::container_plainly("busybox", "more", &asked, &["sleep", "1000"]);
    assert!(refused.refused().contains("fgpu: no-capacity: "), "{}", refused.story());
    assert_eq!(node::only_lease().id, "all");
}

/// The pod's share for each container but for one, which has its own.
fn pod_annotations_reach_its_containers(front_end: FrontEnd) {
    let annotations = [("fgpu/fraction", "0.5"), ("small.fgpu/fraction", "0.1")];
    let pod = cri::Pod::start("shares", front_end.docker_runtime(), &annotations);
    assert_eq!(node::leases(), [], "the sandbox gets no GPU");
    let large = pod.create("large", "debian13", &["sleep", "1000"]);
    let small = pod.create("small", "debian13", &["sleep", "1000"]);
    large.start().ok();
    small.start().ok();
    assert_eq!(large.exec(&QUERY).ok(), mib(500_000));
    assert_eq!(small.exec(&QUERY).ok(), mib(100_000));
    assert_eq!(node::leases().len(), 2);

    large.stop();
    wait_until("the end of a pod's container's lease", || node::leases().len() == 1);
    assert_eq!(node::only_lease().id, small.id);
    crate::limit::assert_filled(small.exec(&["alloc", "fill"]).ok(), node::gpus()[0].share(100_000));
    pod.remove();
    node::wait_until_free();
}

/// Only the named container asks.
fn pod_container_without_gpu_has_none(front_end: FrontEnd) {
    let pod = cri::Pod::start("one", front_end.docker_runtime(), &[("gpu.fgpu/memory", "4Gi")]);
    let with = pod.create("gpu", "debian13", &["sleep", "1000"]);
    let without = pod.create("plain", "debian13", &["sleep", "1000"]);
    with.start().ok();
    without.start().ok();
    assert_eq!(with.exec(&QUERY).ok(), "4096");
    let lease = node::only_lease();
    assert_eq!((lease.id.as_str(), lease.shares[0].1), (with.id.as_str(), 4 << 30));

    for path in
        ["/dev/nvidiactl", "/usr/bin/nvidia-smi", "/run/fgpu", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"]
    {
        with.exec(&["test", "-e", path]).ok();
        without.exec(&["test", "-e", path]).refused();
    }
    pod.remove();
    node::wait_until_free();
}

fn pod_survives_containerd() {
    let pod = cri::Pod::start("survivor", FrontEnd::Shim.docker_runtime(), &[("fgpu/fraction", "0.25")]);
    let one = pod.create("one", "debian13", &["sleep", "1000"]);
    one.start().ok();
    let lease = node::only_lease();
    fgpu_lab::daemons::kill(&["containerd"]);
    fgpu_lab::daemons::start();
    assert_eq!(one.status(), "running");
    assert_eq!(one.exec(&QUERY).ok(), mib(250_000));
    // A container that the pod gets afterwards is served as well.
    let two = pod.create("two", "debian13", &["sleep", "1000"]);
    two.start().ok();
    assert_eq!(two.exec(&QUERY).ok(), mib(250_000));
    assert!(node::leases().len() == 2 && node::leases().contains(&lease));
    pod.remove();
    node::wait_until_free();
}
