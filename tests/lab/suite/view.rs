//! What a container sees of the GPUs: its grant and nothing else.

use fgpu_lab::command::run;
use fgpu_lab::docker::{self, Container};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};

pub(crate) const TESTS: &[Test] = &[
    Test::docker("view::smi_shows_the_grant", smi_shows_the_grant),
    Test::docker("view::driver_api_shows_the_grant", driver_api_shows_the_grant),
    Test::once("view::other_containers_are_invisible", other_containers_are_invisible),
    Test::docker("view::only_granted_nodes_open", only_granted_nodes_open),
    Test::docker("view::two_gpus_are_two", two_gpus_are_two),
    Test::once("view::limits_are_read_only", limits_are_read_only),
    Test::docker("view::no_program_is_started_from_shared_data", no_program_is_started_from_shared_data),
];

const MIB: u64 = 1 << 20;

/// A line for each GPU: UUID, total and used MiB.
const QUERY: [&str; 3] =
    ["nvidia-smi", "--query-gpu=uuid,memory.total,memory.used", "--format=csv,noheader,nounits"];

/// A container that holds 0.25 of a GPU and sleeps.
fn quarter(front_end: FrontEnd) -> Container {
    let run = docker::container("debian13").under(front_end).annotation("fgpu/fraction", "0.25");
    run.command(["sleep", "1000"]).start()
}

fn smi_shows_the_grant(front_end: FrontEnd) {
    let container = quarter(front_end);
    let (uuid, memory, cores) = node::only_lease().shares.remove(0);
    let gpus = node::gpus();
    let gpu = gpus.iter().find(|gpu| gpu.uuid == uuid).expect("the lease is of a GPU of the node");
    assert_eq!((memory, cores), (gpu.share(250_000), 250_000));

    let total = memory / MIB;
    assert_eq!(container.exec(QUERY).ok(), format!("{uuid}, {total}, 0"));
    let list = container.exec(["nvidia-smi", "-L"]);
    assert!(list.ok().lines().count() == 1 && list.ok().contains(&uuid), "{}", list.story());
    let table = container.exec(["nvidia-smi"]);
    assert!(table.ok().contains(&format!("0MiB / {total:>6}MiB")), "{}", table.story());

    // Its own use shows, to the MiB, and is gone with the process.
    let hold = [
        "sh",
        "-c",
        "alloc take 1073741824 wait >/tmp/log & while ! grep -q wait /tmp/log; do sleep 0.1; done",
    ];
    container.exec(hold).ok();
    assert_eq!(container.exec(QUERY).ok(), format!("{uuid}, {total}, 1024"));
    container.exec(["sh", "-c", "kill -9 $(pidof alloc)"]).ok();
    fgpu_lab::command::wait_until("the memory of a killed process", || {
        container.exec(QUERY).ok() == format!("{uuid}, {total}, 0")
    });
}

fn driver_api_shows_the_grant(front_end: FrontEnd) {
    let run = docker::container("debian13").under(front_end).annotation("fgpu/memory", "3Gi");
    let output = run.command(["alloc", "count", "info", "take", "1048576", "info"]).run();
    let grant = 3u64 << 30;
    let lines: Vec<_> = output.ok().lines().collect();
    assert_eq!(lines[0], "count devices=1");
    assert_eq!(lines[1], format!("info free={grant} total={grant} device={grant}"));
    assert_eq!(lines[3], format!("info free={} total={grant} device={grant}", grant - MIB));
}

fn other_containers_are_invisible() {
    let mine = quarter(FrontEnd::Shim);
    let other = docker::container("debian13").under(FrontEnd::Runtime).annotation("fgpu/fraction", "0.5");
    let other = other.command(["alloc", "take", "2147483648", "wait"]).start();
    other.wait_for_log("wait");
    let leases = node::leases();
    assert_eq!(leases.len(), 2);
    assert_eq!(leases[0].shares[0].0, leases[1].shares[0].0, "they share a GPU");

    assert!(mine.exec(QUERY).ok().ends_with(", 0"), "the other's memory is not mine");
    let processes = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"];
    assert_eq!(mine.exec(processes).ok(), "");
    let table = mine.exec(["nvidia-smi"]);
    assert!(table.ok().contains("No running processes found"), "{}", table.story());

    let own = other.exec(processes);
    assert!(own.ok().lines().count() == 1 && own.ok().ends_with(", 2048"), "{}", own.story());
}

fn only_granted_nodes_open(front_end: FrontEnd) {
    let gpus = node::gpus();
    for (granted, other) in [(0, 1), (1, 0)] {
        let run = docker::container("debian13").under(front_end).annotation("fgpu/fraction", "0.1");
        let container =
            run.annotation("fgpu/device", &granted.to_string()).command(["sleep", "1000"]).start();
        let [granted, other] = [granted, other].map(|index| format!("/dev/nvidia{}", gpus[index].minor));

        // ENXIO: allowed, and no real driver behind it. See the baseline test.
        let opened = container.exec(["nodes", &granted, "/dev/nvidiactl", "/dev/nvidia-uvm", &other]);
        let expected =
            format!("{granted} ENXIO\n/dev/nvidiactl ENXIO\n/dev/nvidia-uvm ENXIO\n{other} ENOENT");
        assert_eq!(opened.ok(), expected);

        // A container may make any node; opening it is another matter.
        let number = |path: &str| {
            let path = format!("/opt/fgpu-sim{path}");
            let text = run_stat(&path);
            let (major, minor) = text.split_once(':').expect("stat prints MAJOR:MINOR");
            format!("{major}:{minor}")
        };
        let [granted, other] = [granted, other].map(|path| number(&path));
        let made = container.exec(["nodes", "-m", &granted, &other, "1:1", "10:229"]);
        assert_eq!(made.ok(), format!("{granted} ENXIO\n{other} EPERM\n1:1 EPERM\n10:229 EPERM"));
        container.remove();
        node::wait_until_free();
    }
}

fn run_stat(path: &str) -> String {
    run(["stat", "--format", "%Hr:%Lr", path]).ok().to_owned()
}

fn two_gpus_are_two(front_end: FrontEnd) {
    let run = docker::container("debian13").under(front_end).annotation("fgpu/fraction", "0.5");
    let container = run.annotation("fgpu/count", "2").command(["sleep", "1000"]).start();
    let lease = node::only_lease();
    assert_eq!(lease.shares.len(), 2);
    let expected: Vec<_> =
        lease.shares.iter().map(|(uuid, memory, _)| format!("{uuid}, {}, 0", memory / MIB)).collect();
    assert_eq!(container.exec(QUERY).ok(), expected.join("\n"));
    // Each device has a limit of its own.
    for device in ["0", "1"] {
        let filled = container.exec(["alloc", "--device", device, "count", "fill"]);
        crate::limit::assert_filled(filled.ok(), lease.shares[0].1);
    }
}

/// The container cannot raise its own limit, not even as root.
fn limits_are_read_only() {
    let container = quarter(FrontEnd::Shim);
    let before = container.exec(["sha256sum", "/run/fgpu/limits"]).ok().to_owned();
    for attempt in [
        "echo x >/run/fgpu/limits",
        "rm -f /run/fgpu/limits && test ! -e /run/fgpu/limits",
        "mv /run/fgpu/limits /tmp/limits",
        "mount -o remount,rw,bind /run/fgpu/limits",
        "umount /run/fgpu/limits",
    ] {
        container.exec(["sh", "-c", attempt]).refused();
    }
    assert_eq!(container.exec(["sha256sum", "/run/fgpu/limits"]).ok(), before);
    let environment = ["env", "FGPU_FRACTION=1", "FGPU_MEMORY=80Gi", "alloc", "fill"];
    let memory = node::only_lease().shares[0].1;
    crate::limit::assert_filled(container.exec(environment).ok(), memory);
}

/// A container must not leave a set-user-ID program where another program finds it. What it writes has these
/// flags from the mount of its own, whatever the state directory's mount has.
fn no_program_is_started_from_shared_data(front_end: FrontEnd) {
    let mounts = || {
        let container = quarter(front_end);
        let table = container.exec(["cat", "/proc/self/mountinfo"]).ok().to_owned();
        container.remove();
        node::wait_until_free();
        for path in ["/run/fgpu", "/run/fgpu/ledger", "/run/fgpu/turns", "/run/fgpu/turns/0-0"] {
            let line = table.lines().find(|line| line.split(' ').nth(4) == Some(path));
            let options: Vec<&str> =
                line.and_then(|line| line.split(' ').nth(5)).unwrap_or_default().split(',').collect();
            let access = if path.ends_with("ledger") || path.ends_with("0-0") { "rw" } else { "ro" };
            for wanted in [access, "nosuid", "nodev", "noexec"] {
                assert!(options.contains(&wanted), "{path} is not {wanted}: {table}");
            }
        }
    };
    mounts();
    run(["mount", "-o", "remount,bind,suid,dev,exec", "/run/fgpu"]).ok();
    mounts();
    run(["mount", "-o", "remount,bind,nosuid,nodev,noexec", "/run/fgpu"]).ok();
}
