//! MIG slices: a container sees its own device and no other, and nothing of it is left.

use std::path::Path;

use fgpu_lab::bundle::{bundle, runtimes};
use fgpu_lab::command::{Output, run, wait_until};
use fgpu_lab::docker;
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};

pub(crate) const TESTS: &[Test] = &[
    Test::docker("mig::a_container_sees_its_devices", a_container_sees_its_devices),
    Test::once("mig::the_hook_brings_a_device", the_hook_brings_a_device),
    Test::once("mig::a_slow_driver_holds_up_no_other_container", a_slow_driver_holds_up_no_other_container),
    Test::once("mig::churn_leaves_no_instance", churn_leaves_no_instance),
];

/// Where the simulated kernel module shows the instances that there are.
const INSTANCES: &str = "/opt/fgpu-sim/proc/driver/nvidia/capabilities";

/// The capabilities that exist, `gpu0/mig/gi1/ci0` and so on, with the minors of their nodes.
pub(crate) fn capabilities() -> Vec<(String, String)> {
    let found = run(["sh", "-c", &format!("cd {INSTANCES} 2>/dev/null && find . -name access || true")]);
    let minor = |path: &str| {
        let text = std::fs::read_to_string(Path::new(INSTANCES).join(path)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("DeviceFileMinor: "));
        line.unwrap_or_default().to_owned()
    };
    found.ok().lines().map(|path| (path.to_owned(), minor(path))).collect()
}

pub(crate) fn wait_until_clean() {
    node::wait_until_free();
    wait_until("the end of all instances", || capabilities().is_empty());
}

fn a_container_sees_its_devices(front_end: FrontEnd) {
    let _node = node::simulated("h100-80-x8-mig.toml");
    let slices = |profile: &str, count: &str| {
        let run = docker::container("debian13").under(front_end).annotation("fgpu/mig", profile);
        let run = run.annotation("fgpu/count", count).annotation("fgpu/device", "0");
        run.command(["sleep", "1000"]).start()
    };
    let mine = slices("1g.10gb", "2");
    let own = capabilities();
    let other = slices("1g.10gb+me", "1");
    let ours = own_of_second(&own);
    let first = assert_has_devices(|words| mine.exec(words.iter().copied()), "MIG 1g.10gb ", 2, &own);
    let second = assert_has_devices(|words| other.exec(words.iter().copied()), "MIG 1g.10gb+me ", 1, &ours);
    assert!(first[0] != first[1] && !first.contains(&second[0]), "{first:?} {second:?}");
    mine.remove();
    other.remove();
    wait_until_clean();
}

/// The same in a container that existed before its device did.
fn the_hook_brings_a_device() {
    let _node = node::simulated("h100-80-x8-mig.toml");
    for runtime in runtimes() {
        let slice = |profile: &str| {
            let bundle = bundle(runtime, "debian13").fgpu("createRuntime").annotation("fgpu/mig", profile);
            let bundle = if profile == "auto" { bundle.annotation("fgpu/memory", "9Gi") } else { bundle };
            // A capability's node is for reading, and `nodes` opens for writing, too.
            let bundle = bundle.edit(|spec| {
                for set in ["bounding", "effective", "permitted"] {
                    let set = spec["process"]["capabilities"][set].as_array_mut();
                    set.expect("the bundle lists capabilities").push("CAP_DAC_OVERRIDE".into());
                }
            });
            bundle.annotation("fgpu/device", "0").start()
        };
        let mine = slice("auto");
        let own = capabilities();
        let other = slice("2g.20gb");
        let one = assert_has_devices(|words| mine.exec(words), "MIG 1g.10gb ", 1, &own);
        let two = assert_has_devices(|words| other.exec(words), "MIG 2g.20gb ", 1, &own_of_second(&own));
        assert_ne!(one, two);
        mine.delete();
        other.delete();
        wait_until_clean();
    }
}

/// The capabilities that are not the first's.
fn own_of_second(first: &[(String, String)]) -> Vec<(String, String)> {
    capabilities().into_iter().filter(|one| !first.contains(one)).collect()
}

/// Checks from inside that a container has so many devices, with these capabilities and no other; gives the
/// devices' lines of `nvidia-smi -L`.
#[track_caller]
fn assert_has_devices(
    exec: impl Fn(&[&str]) -> Output,
    profile: &str,
    count: usize,
    own: &[(String, String)],
) -> Vec<String> {
    assert_eq!(own.len(), 2 * count, "the GPU instances' and the compute instances': {own:?}");
    let listed = exec(&["nvidia-smi", "-L"]);
    let text = listed.ok();
    let devices: Vec<_> = text.lines().filter(|line| line.contains("(UUID: MIG-")).collect();
    assert!(devices.len() == count && devices.iter().all(|device| device.contains(profile)), "{text}");
    assert_eq!(text.lines().count(), 1 + count, "the GPU and the devices: {text}");
    // Its own nodes open (and have no real driver behind them); those of the others it may make and not open.
    for (capability, minor) in capabilities() {
        let path = format!("/dev/nvidia-caps/nvidia-cap{minor}");
        let is_own = own.iter().any(|(name, _)| *name == capability);
        let expected = if is_own { "ENXIO" } else { "ENOENT" };
        assert_eq!(exec(&["nodes", &path]).ok(), format!("{path} {expected}"));
        if !is_own {
            let number = format!("507:{minor}");
            assert_eq!(exec(&["nodes", "-m", &number]).ok(), format!("{number} EPERM"));
        }
    }
    devices.into_iter().map(str::to_owned).collect()
}

/// The simulated driver's making of instances on the second GPU, which takes an hour while this lives.
struct Slow;

impl Slow {
    fn new() -> Self {
        Self::set("3600000000");
        Self
    }

    fn set(microseconds: &str) {
        let sim = ["/opt/fgpu-sim.dist/fgpu-sim", "set", "--root", "/opt/fgpu-sim", "--gpu", "1"];
        run(sim.into_iter().chain([format!("mig-delay-us={microseconds}").as_str()])).ok();
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        Self::set("0");
    }
}

/// While an instance is being made nobody waits but its own container.
fn a_slow_driver_holds_up_no_other_container() {
    let _node = node::simulated("h100-80-mig.toml");
    let container = || docker::container("debian13").command(["nvidia-smi", "-L"]);
    let sliced = std::thread::scope(|scope| {
        let slow = Slow::new();
        let waiting =
            scope.spawn(|| container().under(FrontEnd::Shim).annotation("fgpu/mig", "1g.10gb").run());
        wait_until("the making of an instance", node::is_making_instances);
        for front_end in [FrontEnd::Shim, FrontEnd::Runtime] {
            let run = container().under(front_end).annotation("fgpu/fraction", "0.25");
            run.annotation("fgpu/device", "0").run().ok();
            docker::container("debian13").under(front_end).command(["true"]).run().ok();
        }
        assert!(node::is_making_instances(), "it has not ended meanwhile");
        drop(slow);
        waiting.join().expect("the container is started")
    });
    assert!(sliced.ok().contains("(UUID: MIG-"), "{}", sliced.story());
    wait_until_clean();
}

/// Containers of all profiles on eight GPUs, four at a time. `FGPU_LAB_MIG_CHURN` says how many.
///
/// What they print is read from files (`capture.rs`): of 500 containers under plain runc, without fgpu,
/// Docker's client printed nothing for one that had ended well and whose file had everything; of 1,000 with
/// slices it lost none of the files.
fn churn_leaves_no_instance() {
    const PROFILES: [&str; 6] = ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"];
    let _node = node::simulated("h100-80-x8-mig.toml");
    let count = std::env::var("FGPU_LAB_MIG_CHURN").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    let ran = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for lane in 0..4 {
            let ran = &ran;
            scope.spawn(move || {
                for number in (lane..count).step_by(4) {
                    let run = docker::container("debian13").under(FrontEnd::Shim);
                    let run = run.annotation("fgpu/mig", PROFILES[number % PROFILES.len()]);
                    let output = run.annotation("fgpu/wait", "60s").command(["nvidia-smi", "-L"]).run();
                    let devices = output.ok().lines().filter(|line| line.contains("(UUID: MIG-")).count();
                    assert_eq!(devices, 1, "{}", output.story());
                    ran.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(ran.into_inner(), count);
    wait_until_clean();
}
