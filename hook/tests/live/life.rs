//! A container's way through the hooks.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::container::Container;
use crate::node::{Node, VERSION, told};
use crate::witness::{host_mounts, tree};

/// A /dev and a /proc, as every runtime makes them.
pub(crate) const USUAL: &str =
    "mkdir -p $R/dev $R/proc; mount -t tmpfs dev $R/dev; mount -t proc proc $R/proc";

const QUARTER: &[(&str, &str)] = &[("fgpu/fraction", "0.25")];

/// Everything that a container with a grant has, by the host's file that it must be.
pub(crate) fn assert_has_its_gpu(node: &Node, container: &Container, about: &str) {
    let lease = &node.leases()[0];
    let files = node.path("state/containers").join(lease.grant.nonce.to_string());
    let library = |name: &str| node.sealed(name).0;
    let real = node.sealed("libfgpu-cuda.so").1;
    let driver = |name: &str| node.path("driver").join(name);
    let minor = node.inventory().gpus.iter().find(|gpu| gpu.uuid == lease.grant.gpus[0].uuid).unwrap().minor;
    for (path, host) in [
        ("/usr/lib64/libcuda.so.1".to_owned(), library("libfgpu-cuda.so")),
        ("/usr/lib64/libcuda.so".to_owned(), library("libfgpu-cuda.so")),
        (format!("/usr/lib64/libcuda.so.{VERSION}"), library("libfgpu-cuda.so")),
        ("/usr/lib64/libnvidia-ml.so.1".to_owned(), library("libfgpu-nvml.so")),
        ("/usr/lib64/libnvidia-ptxjitcompiler.so.1".to_owned(), driver("usr/lib64/ptx")),
        (format!("{real}/cuda"), driver(&format!("usr/lib64/libcuda.so.{VERSION}"))),
        (format!("{real}/nvml"), driver(&format!("usr/lib64/libnvidia-ml.so.{VERSION}"))),
        ("/run/fgpu".to_owned(), files.join("view")),
        ("/usr/bin/nvidia-smi".to_owned(), driver("usr/bin/nvidia-smi")),
        ("/run/fgpu/limits".to_owned(), files.join("limits")),
        ("/run/fgpu/ledger".to_owned(), files.join("own/ledger")),
        ("/run/extra".to_owned(), driver("run/extra")),
        ("/dev/nvidiactl".to_owned(), driver("dev/nvidiactl")),
        (format!("/dev/nvidia{minor}"), driver(&format!("dev/nvidia{minor}"))),
        ("/dev/nvidia-uvm".to_owned(), driver("dev/nvidia-uvm")),
    ] {
        assert!(container.has(&path, &host), "{about}: {path} is not {}", host.display());
    }
}

#[test]
fn a_container_gets_its_share_and_gives_it_back() {
    let node = Node::new(2);
    let host = host_mounts();
    let mut container = Container::new(&node, QUARTER);
    container.start(USUAL);
    let output = container.hook(&node, &["createRuntime"]);
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(told(&output), "exit status: 0: ");
    assert_has_its_gpu(&node, &container, "usual");
    let lease = node.leases().remove(0);
    assert_eq!(lease.init.unwrap().pid, container.pid() as i32);
    assert_eq!(lease.key.namespace, container.bundle.to_str().unwrap());
    assert_eq!(host_mounts(), host);
    // The other stage, and the same once more, change nothing.
    let before = container.mounts();
    for stage in ["prestart", "createRuntime"] {
        let output = container.hook(&node, &[stage]);
        assert!(output.status.success(), "{}", told(&output));
    }
    assert_eq!(container.mounts(), before);
    assert_eq!(node.leases(), [lease]);
    // While it lives, a poststop of its name frees nothing: it may be of a former container.
    let output = container.hook(&node, &["poststop"]);
    assert_eq!(told(&output), "exit status: 0: ");
    assert_eq!(node.leases().len(), 1);
    container.kill();
    let output = container.hook(&node, &["poststop"]);
    assert_eq!(told(&output), "exit status: 0: ");
    node.assert_nothing_held("after poststop");
}

#[test]
fn mounts_have_the_flags_of_the_other_front_ends() {
    let node = Node::new(1);
    let mut container = Container::new(&node, QUARTER);
    container.start(USUAL);
    assert!(container.hook(&node, &["createRuntime"]).status.success());
    let mounts = container.mounts();
    let options = |path: &str| {
        let point = format!("{}{path}", container.rootfs.display());
        let line = mounts.lines().find(|line| line.split(' ').nth(4) == Some(&point)).unwrap();
        line.split(' ').nth(5).unwrap().split(',').map(str::to_owned).collect::<Vec<_>>()
    };
    let has = |path: &str, wanted: &[&str], unwanted: &[&str]| {
        let options = options(path);
        assert!(wanted.iter().all(|wanted| options.iter().any(|o| o == wanted)), "{path}: {options:?}");
        assert!(!unwanted.iter().any(|wanted| options.iter().any(|o| o == wanted)), "{path}: {options:?}");
    };
    has("/usr/lib64/libcuda.so.1", &["ro", "nosuid", "nodev"], &["noexec"]);
    has("/run/fgpu", &["ro", "nosuid", "nodev", "noexec"], &[]);
    has("/run/fgpu/ledger", &["rw", "nosuid", "nodev", "noexec"], &[]);
    has("/run/extra", &["rw", "nosuid", "nodev"], &[]);
    has("/dev/nvidia0", &["rw", "nosuid", "noexec"], &["nodev"]);
    assert!(!mounts.contains("shared:"), "{mounts}");
}

/// What every user of a container may write, no user of the node may.
#[test]
fn users_of_the_node_reach_nothing_that_containers_write() {
    let node = Node::new(1);
    let mut container = Container::new(&node, QUARTER);
    container.start(USUAL);
    assert!(container.hook(&node, &["createRuntime"]).status.success());
    let files = node.path("state/containers").join(node.leases()[0].grant.nonce.to_string());
    for path in [files.join("own/ledger"), node.path("state/board/0/0-0")] {
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o666);
        let mut user = Command::new("sh");
        let user = user.args(["-c", ": >>\"$0\""]).arg(&path).uid(65534).gid(65534).output().unwrap();
        assert!(told(&user).contains("Permission denied"), "{}: {}", path.display(), told(&user));
    }
}

/// The file systems of such a container know no id of the host's: what is made in them must belong to its own
/// root.
#[test]
fn a_container_with_a_user_namespace_gets_its_share() {
    const OWNER: u32 = 100_000;
    let node = Node::new(1);
    let mut container = Container::new(&node, QUARTER);
    for folder in ["dev", "run"] {
        fs::create_dir(container.rootfs.join(folder)).unwrap();
    }
    container.start_owned_by(
        OWNER,
        "for at in dev run; do mount -t tmpfs -o mode=755,uid=0,gid=0 $at $R/$at; done",
    );
    let output = container.hook(&node, &["createRuntime"]);
    assert_eq!(told(&output), "exit status: 0: ");
    assert_has_its_gpu(&node, &container, "user namespace");
    for made in ["/usr", "/usr/lib64"] {
        assert_eq!(container.stat(made).unwrap().st_uid, OWNER, "{made}");
    }
    container.kill();
    for made in ["usr/bin/nvidia-smi", "usr/lib64/libcuda.so.1"] {
        let stat = container.rootfs.join(made).metadata().unwrap();
        assert_eq!((stat.uid(), stat.gid()), (OWNER, OWNER), "{made}");
    }
    assert_eq!(told(&container.hook(&node, &["poststop"])), "exit status: 0: ");
    node.assert_nothing_held("user namespace");
}

/// What `--privileged` gives: every device node of the host, made by the runtime or, with a user namespace,
/// mounted.
#[test]
fn gpus_beyond_the_grant_are_removed() {
    let node = Node::new(3);
    let mut container = Container::new(&node, QUARTER);
    let config = container.bundle.join("config.json");
    let mut document: serde_json::Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    let device =
        |path: &str, minor: u32| serde_json::json!({"path": path, "type": "c", "major": 195, "minor": minor});
    document["linux"]["devices"] = serde_json::json!([
        device("/dev/nvidia0", 0),
        device("/dev/nvidia1", 1),
        device("/dev/nvidia2", 2),
        device("/dev/nvidiactl", 255),
        device("/dev/nvidia-modeset", 254),
    ]);
    fs::write(&config, document.to_string()).unwrap();
    container.start(&format!(
        "{USUAL}; for n in 0 1; do mknod $R/dev/nvidia$n c 195 $n; done; mknod $R/dev/nvidiactl c 195 255; \
         mknod $R/dev/nvidia-modeset c 195 254; touch $R/dev/nvidia2; mount --bind {} $R/dev/nvidia2",
        node.path("driver/dev/nvidia2").display()
    ));
    let output = container.hook(&node, &["createRuntime"]);
    assert!(output.status.success(), "{}", told(&output));
    assert_has_its_gpu(&node, &container, "privileged");
    assert!(container.stat("/dev/nvidia-modeset").is_ok());
    let granted = &node.leases()[0].grant.gpus[0].uuid;
    for gpu in node.inventory().gpus {
        let path = format!("/dev/nvidia{}", gpu.minor);
        assert_eq!(container.stat(&path).is_ok(), gpu.uuid == *granted, "{path}");
    }
    assert!(node.path("driver/dev/nvidia2").exists());
}

#[test]
fn a_container_without_a_request_is_untouched() {
    let node = Node::new(1);
    for annotations in [
        &[][..],
        &[("io.kubernetes.cri-o.ContainerType", "sandbox"), ("fgpu/fraction", "0.5")],
        &[("io.kubernetes.cri.container-type", "sandbox"), ("fgpu/fraction", "nonsense")],
    ] {
        let mut container = Container::new(&node, annotations);
        container.start(USUAL);
        let (mounts, files) = (container.mounts(), tree(&container.rootfs));
        let output = container.hook(&node, &["createRuntime"]);
        assert_eq!(told(&output), "exit status: 0: ", "{annotations:?}");
        assert_eq!((container.mounts(), tree(&container.rootfs)), (mounts, files), "{annotations:?}");
        node.assert_nothing_held("no annotation");
    }
}

#[test]
fn a_grant_of_another_front_end_is_left_alone_and_released() {
    let node = Node::new(1);
    let mut container = Container::new(&node, QUARTER);
    container.start(USUAL);
    assert!(container.hook(&node, &["createRuntime"]).status.success());
    let lease = node.leases().remove(0);
    // As fgpu-runtime leaves it: the grant in the annotations, the lease under the runtime's own namespace.
    let applicant = fgpu_allocator::Applicant {
        key: fgpu_allocator::Key { namespace: "runc".into(), id: container.id.clone() },
        bundle: container.bundle.clone(),
        maker: lease.maker,
        pid_file: None,
        anchor: None,
    };
    let config = container.bundle.join("config.json");
    let mut document: serde_json::Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    let store = node.store();
    store.release(&lease.grant.nonce).unwrap();
    let defaults = fgpu_engine::config::Config::default().defaults();
    let annotations = [("fgpu/fraction".to_owned(), "0.25".to_owned())].into();
    let request = fgpu_spec::Request::parse(&annotations, None, &defaults).unwrap().unwrap();
    let applicant =
        fgpu_allocator::Applicant { maker: fgpu_allocator::Process::current().unwrap(), ..applicant };
    let rules = fgpu_allocator::Rules::default();
    let other =
        store.reserve(&node.inventory(), &rules, &request, &[fgpu_spec::Tier::Quota], &applicant).unwrap();
    document["annotations"]["fgpu/grant"] = other.grant.nonce.to_string().into();
    fs::write(&config, document.to_string()).unwrap();

    let before = container.mounts();
    let output = container.hook(&node, &["createRuntime"]);
    assert_eq!(told(&output), "exit status: 0: ");
    assert_eq!(container.mounts(), before);
    assert_eq!(node.leases(), std::slice::from_ref(&other));

    // Another container's annotation does not release it.
    let stranger =
        Container::new(&node, &[("fgpu/fraction", "0.25"), ("fgpu/grant", &other.grant.nonce.to_string())]);
    assert_eq!(told(&stranger.hook(&node, &["poststop"])), "exit status: 0: ");
    assert_eq!(node.leases(), [other]);
    assert_eq!(told(&container.hook(&node, &["poststop"])), "exit status: 0: ");
    node.assert_nothing_held("released by grant");
}

/// A runtime may call poststop while the kernel still takes the killed container down.
#[test]
fn poststop_waits_for_an_init_that_is_ending() {
    let node = Node::new(1);
    let mut container = Container::new(&node, QUARTER);
    container.start(USUAL);
    assert_eq!(told(&container.hook(&node, &["createRuntime"])), "exit status: 0: ");
    let hook = container.spawn(&mut node.hook(&["poststop"]));
    // It has looked once when it waits for the process, in poll(2) or ppoll(2).
    let call = || std::fs::read_to_string(format!("/proc/{}/syscall", hook.id())).unwrap_or_default();
    let numbers = [
        nix::libc::SYS_ppoll,
        #[cfg(target_arch = "x86_64")]
        nix::libc::SYS_poll,
    ];
    let waits = || numbers.iter().any(|n| call().starts_with(&format!("{n} ")));
    let ended =
        || std::fs::read_to_string(format!("/proc/{}/stat", hook.id())).unwrap_or_default().contains(") Z ");
    while !waits() && !ended() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    container.kill();
    assert_eq!(told(&hook.wait_with_output().unwrap()), "exit status: 0: ");
    node.assert_nothing_held("after poststop");
}

#[test]
fn poststop_without_a_bundle_releases_by_name_and_never_fails() {
    let node = Node::new(1);
    let mut container = Container::new(&node, QUARTER);
    container.start(USUAL);
    assert!(container.hook(&node, &["createRuntime"]).status.success());
    container.kill();
    fs::remove_file(container.bundle.join("config.json")).unwrap();
    assert_eq!(told(&container.hook(&node, &["poststop"])), "exit status: 0: ");
    node.assert_nothing_held("without a bundle");
    // Damage is said and is no failure.
    fs::write(node.path("state/allocations.json"), "damaged").unwrap();
    let text = told(&container.hook(&node, &["poststop"]));
    assert!(text.starts_with("exit status: 0: fgpu: state-corrupt: "), "{text}");
    let mut hook = Command::new(node.path("bin/fgpu-hook"));
    let output = hook.arg("poststop").stdin(std::process::Stdio::null()).output().unwrap();
    assert!(told(&output).starts_with("exit status: 0: fgpu: internal: the state"), "{}", told(&output));
}

#[test]
fn a_process_that_is_not_the_containers_is_refused() {
    let node = Node::new(1);
    let mut container = Container::new(&node, QUARTER);
    let mut other = Container::new(&node, QUARTER);
    other.start(USUAL);
    // Without a process, with that of another container, and with one of the host.
    // It has no descriptor of ours: should this fail, nobody waits for it.
    let mut sleep = Command::new("sleep");
    let mut of_the_host =
        sleep.arg("600").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let own = of_the_host.id().to_string();
    let others = other.pid().to_string();
    for (pid, words) in [
        ("0", "names no process"),
        (own.as_str(), "no mount namespace"),
        (others.as_str(), "is not one of a new container"),
    ] {
        let state = format!(r#"{{"id":"{}","bundle":{:?},"pid":{pid}}}"#, container.id, container.bundle);
        let file = node.path("state.json");
        fs::write(&file, state).unwrap();
        let mut hook = node.hook(&["createRuntime"]);
        let output = hook.stdin(fs::File::open(file).unwrap()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{pid}: {}", told(&output));
        assert!(told(&output).contains(words), "{pid}: {}", told(&output));
        node.assert_nothing_held(words);
    }
    of_the_host.kill().unwrap();
    of_the_host.wait().unwrap();
    container.start(USUAL);
    assert!(container.hook(&node, &["createRuntime"]).status.success());
}

/// The reservation waits for the allocator's lock, with signals held: what comes then undoes what the lock
/// lets it do.
#[test]
fn a_signal_undoes_what_was_done() {
    let node = Node::new(1);
    let mut container = Container::new(&node, QUARTER);
    container.start(USUAL);
    let (mounts, files) = (container.mounts(), tree(&container.rootfs));
    node.leases();
    let lock = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(node.path("state/lock"))
        .unwrap();
    let lock = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
    let mut hook = container.spawn(&mut node.hook(&["createRuntime"]));
    let pid = Pid::from_raw(hook.id() as i32);
    // proc_locks(5): `ORDINAL: -> FLOCK ADVISORY WRITE PID …` is a waiter.
    let waits = || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            fields.get(1) == Some(&"->") && fields.get(5) == Some(&pid.to_string().as_str())
        })
    };
    while !waits() {
        assert_eq!(hook.try_wait().unwrap(), None, "the hook ended and did not wait");
        std::thread::yield_now();
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim();
    let mask = u64::from_str_radix(mask, 16).unwrap();
    assert_eq!(mask >> (Signal::SIGTERM as i32 - 1) & 1, 1, "signals are not held");
    kill(pid, Signal::SIGTERM).unwrap();
    lock.unlock().unwrap();
    let output = hook.wait_with_output().unwrap();
    let text = told(&output);
    assert!(text.starts_with("exit status: 1: fgpu: internal: SIGTERM ended the hook"), "{text}");
    node.assert_nothing_held("after SIGTERM");
    assert_eq!((container.mounts(), tree(&container.rootfs)), (mounts, files));
}

/// Wherever the hook is killed, and with it the container: one reconcile later nothing is left. What the hook
/// made is in the container's mount namespace, and ends with it.
#[test]
fn killed_at_any_time_it_leaves_what_one_reconcile_clears() {
    let node = Node::new(1);
    let host = host_mounts();
    let (mut before, mut after) = (0, 0);
    for step in 0..40 {
        let mut container = Container::new(&node, QUARTER);
        container.start(USUAL);
        let mut hook = container.spawn(&mut node.hook(&["createRuntime"]));
        std::thread::sleep(std::time::Duration::from_micros(400 * step));
        hook.kill().unwrap();
        if hook.wait().unwrap().success() {
            after += 1;
        } else {
            before += 1;
        }
        container.kill();
        node.store().reconcile().unwrap();
        node.assert_nothing_held(&format!("killed after {step} steps"));
        assert_eq!(host_mounts(), host);
    }
    eprintln!("killed {before} times, too late {after} times");
}

#[test]
fn a_wait_ends_before_the_hooks_own_time() {
    let node = Node::new(1);
    let mut first = Container::new(&node, &[("fgpu/fraction", "1")]);
    first.start(USUAL);
    assert!(first.hook(&node, &["createRuntime"]).status.success());
    let mut second = Container::new(&node, &[("fgpu/fraction", "1"), ("fgpu/wait", "80s")]);
    second.start(USUAL);
    let text = told(&second.hook(&node, &["createRuntime", "--timeout", "6"]));
    assert!(text.starts_with("exit status: 1: fgpu: timed-out: no room came within "), "{text}");
    // While it waits it has nothing to undo: a signal ends it at once.
    let hook = second.spawn(&mut node.hook(&["createRuntime", "--timeout", "80"]));
    kill(Pid::from_raw(hook.id() as i32), Signal::SIGKILL).unwrap();
    hook.wait_with_output().unwrap();
    assert_eq!(node.leases().len(), 1);
}

#[test]
fn the_kernel_modules_parameters_forbid_making_nodes() {
    let node = Node::new(1);
    let mut container = Container::new(&node, QUARTER);
    container.start(USUAL);
    assert!(container.hook(&node, &["createRuntime"]).status.success());
    let lease = node.leases().remove(0);
    let file = node.path("state/containers").join(lease.grant.nonce.to_string()).join("params");
    assert_eq!(fs::read_to_string(&file).unwrap(), "DeviceFileMode: 438\nModifyDeviceFiles: 0\n");
    // A machine without the driver has no such file in its procfs, and there it stays away.
    let there = Path::new("/proc/driver/nvidia/params").exists();
    assert_eq!(container.has("/proc/driver/nvidia/params", &file), there);
}
