//! The lab by itself: Docker, containerd and CRI run containers here without anything of fgpu.

use fgpu_lab::command::{run, shell, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::{cri, ctr, daemons, docker, process};

pub(crate) const TESTS: &[Test] = &[
    Test::baseline("baseline::environment_is_what_it_says", environment_is_what_it_says),
    Test::baseline("baseline::docker_runs_a_container", docker_runs_a_container),
    Test::baseline("baseline::images_run_their_programs", images_run_their_programs),
    Test::baseline("baseline::device_cgroup_is_enforced", device_cgroup_is_enforced),
    Test::baseline("baseline::ctr_runs_a_container", ctr_runs_a_container),
    Test::baseline("baseline::cri_runs_a_pod", cri_runs_a_pod),
    Test::baseline("baseline::daemons_come_back_after_sigkill", daemons_come_back_after_sigkill),
];

fn environment_is_what_it_says() {
    let name = std::env::var("FGPU_LAB_ENVIRONMENT").expect("boot sets it");
    let (suite, cgroup) = name.split_once('-').expect("SUITE-VERSION");
    let (docker, containerd) = match suite {
        "trixie" => ("26.", "1.7."),
        _ => ("28.", "2.1."),
    };
    assert!(run(["docker", "version", "--format", "{{.Server.Version}}"]).ok().starts_with(docker));
    assert!(run(["containerd", "--version"]).ok().contains(containerd));
    let version = run(["docker", "info", "--format", "{{.CgroupVersion}}"]);
    assert_eq!(format!("v{}", version.ok()), cgroup);
    assert_eq!(shell("stat --file-system --format %T /sys/fs/cgroup").ok() == "cgroup2fs", cgroup == "v2");
}

fn docker_runs_a_container() {
    let output = docker::container("busybox").command(["sh", "-c", "echo out; echo err >&2; exit 7"]).run();
    assert_eq!((output.status, output.stdout.trim(), output.stderr.trim()), (7, "out", "err"));
    let running = docker::container("busybox").command(["sleep", "1000"]).start();
    assert!(process::lives(running.pid()));
    assert_eq!(running.exec(["id", "-u"]).ok(), "0");
}

fn images_run_their_programs() {
    for image in ["debian13", "debian11", "musl"] {
        let output = docker::container(image).command(["nodes", "/dev/null", "/dev/absent"]).run();
        assert_eq!(output.ok(), "/dev/null ok\n/dev/absent ENOENT", "{image}");
    }
    let glibc = |image| docker::container(image).command(["sh", "-c", "ldd --version | head -n 1"]).run();
    assert!(glibc("debian11").ok().ends_with("2.31"));
    assert!(glibc("debian13").ok().ends_with("2.41"));
    // Without fgpu there is no driver library to be found.
    let refused = docker::container("debian11").command(["alloc", "info"]).run();
    assert!(
        refused.status == 1 && refused.stdout.contains("libcuda.so.1: cannot open"),
        "{}",
        refused.story()
    );
}

/// 195:0 is the first GPU. What no rule allows is EPERM; what one allows and no driver serves is ENXIO.
fn device_cgroup_is_enforced() {
    let nodes = ["nodes", "-m", "195:0", "195:1"];
    let closed = docker::container("debian13").command(nodes).run();
    assert_eq!(closed.ok(), "195:0 EPERM\n195:1 EPERM");
    let open =
        docker::container("debian13").options(["--device-cgroup-rule", "c 195:0 rw"]).command(nodes).run();
    assert_eq!(open.ok(), "195:0 ENXIO\n195:1 EPERM");
}

fn ctr_runs_a_container() {
    for runtime in ["io.containerd.runc.v2", "default"] {
        let options: &[&str] = if runtime == "default" { &["--rm"] } else { &["--rm", "--runtime", runtime] };
        assert_eq!(ctr::container("busybox", "one", options, &["echo", "hello"]).ok(), "hello");
    }
}

fn cri_runs_a_pod() {
    let pod = cri::Pod::start("baseline", "runc", &[]);
    let one = pod.create("one", "busybox", &["sleep", "1000"]);
    let two = pod.create("two", "busybox", &["sh", "-c", "exit 3"]);
    one.start().ok();
    two.start().ok();
    wait_until("the end of a short container", || two.status() == "exited");
    assert_eq!(one.status(), "running");
    let output = one.exec(&["sh", "-c", "id -u; exit 5"]);
    assert_eq!((output.status, output.stdout.trim()), (5, "0"));
    one.stop();
    pod.remove();
}

fn daemons_come_back_after_sigkill() {
    let before = docker::container("busybox").command(["sleep", "1000"]).start();
    daemons::kill(&["containerd", "dockerd"]);
    daemons::start();
    // Without live-restore dockerd ends what ran before it.
    before.wait_for_end();
    docker_runs_a_container();
}
