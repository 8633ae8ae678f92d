//! A program on the driver API.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sim_node::state::Mapped;

use crate::fixture::{Client, Node, client};

const GIB: u64 = 1 << 30;
const OUT_OF_MEMORY: i32 = 2;
const NOT_INITIALIZED: i32 = 3;
const NO_DEVICE: i32 = 100;
const NOT_READY: i32 = 600;

#[test]
fn a_program_sees_the_gpus_by_their_names() {
    let node = Node::install("h100-80-x2.toml");
    let mut client = node.client();
    assert_eq!(client.succeed("count"), "2");
    assert_eq!(client.succeed("name 1"), "Simulated H100 80GB HBM3");
}

#[test]
fn memory_ends_where_the_gpu_ends() {
    let node = Node::install("a30.toml");
    let mut client = node.client();
    let (free, total) = client.info();
    assert_eq!((free, total), (24_248 << 20, 24_248 << 20));
    let all = client.succeed(&format!("alloc {total}"));
    assert_eq!(client.info().0, 0);
    assert_eq!(client.ask("alloc 1").0, OUT_OF_MEMORY);
    client.succeed(&format!("free {all}"));
    assert_eq!(client.ask(&format!("alloc {}", total + 1)).0, OUT_OF_MEMORY);
    // Whole units of 512 bytes are counted.
    client.succeed("alloc 1");
    assert_eq!(client.info().0, total - 512);
}

#[test]
fn every_kind_of_memory_counts_and_is_given_back() {
    let node = Node::install("a30.toml");
    let mut client = node.client();
    let (total, _) = client.info();
    for (allocate, free) in
        [("alloc", "free"), ("managed", "free"), ("async", "freeasync"), ("alloc", "freeasync")]
    {
        let address = client.succeed(&format!("{allocate} {GIB}"));
        assert_eq!(client.info().0, total - GIB, "{allocate}");
        client.succeed(&format!("copy {address}"));
        client.succeed(&format!("{free} {address}"));
        // A pool keeps what it has until the next synchronisation.
        let kept = if allocate == "async" { GIB } else { 0 };
        assert_eq!(client.info().0, total - kept, "{free}");
        client.succeed("sync");
        assert_eq!(client.info().0, total, "{free}");
    }
    let address = client.succeed(&format!("virtual {GIB}"));
    assert_eq!(client.info().0, total - GIB);
    client.succeed(&format!("copy {address}"));
    client.succeed(&format!("unmap {address} {GIB}"));
    assert_eq!(client.info().0, total);
    assert_eq!(client.ask(&format!("virtual {}", total + (64 << 20))).0, OUT_OF_MEMORY);
}

#[test]
fn a_context_costs_what_the_node_says_and_takes_its_memory_along() {
    let node = Node::describe("[[gpu]]\npreset = 'a30'\ncontext-mib = 300");
    let mut one = node.client();
    let mut other = node.client();
    let (free, total) = one.info();
    assert_eq!(free, total - (600 << 20));
    other.succeed(&format!("alloc {GIB}"));
    other.succeed("destroy");
    assert_eq!(one.info().0, total - (300 << 20));
}

#[test]
fn processes_share_the_memory() {
    let node = Node::install("a30.toml");
    let (mut one, mut other) = (node.client(), node.client());
    let total = one.info().1;
    one.succeed(&format!("alloc {}", 20 * GIB));
    assert_eq!(other.info().0, total - 20 * GIB);
    assert_eq!(other.ask(&format!("alloc {}", 4 * GIB)).0, OUT_OF_MEMORY);
    other.succeed(&format!("alloc {}", 3 * GIB));
    let processes = &node.status()[0]["processes"];
    assert_eq!(processes.as_array().unwrap().len(), 2, "{processes}");
}

#[test]
fn racing_processes_never_get_more_than_there_is() {
    let node = Node::install("a30.toml");
    let mut clients: Vec<Client> = (0..16).map(|_| node.client()).collect();
    let piece = 256 << 20;
    let mut granted = 0;
    for _ in 0..8 {
        clients.iter_mut().for_each(|client| client.send(&format!("alloc {piece}")));
        granted +=
            clients.iter_mut().filter_map(|client| (client.answer().0 == 0).then_some(piece)).sum::<u64>();
    }
    let (free, total) = clients[0].info();
    assert_eq!(free, total - granted);
    // 128 pieces were asked for; as many as fit were granted.
    assert_eq!(granted, total / piece * piece);
}

#[test]
fn a_killed_process_leaves_nothing() {
    let node = Node::install("a30.toml");
    let (mut survivor, mut victim) = (node.client(), node.client());
    let total = survivor.info().1;
    victim.succeed(&format!("alloc {}", 23 * GIB));
    assert_eq!(survivor.ask(&format!("alloc {}", 2 * GIB)).0, OUT_OF_MEMORY);
    victim.kill();
    assert_eq!(node.smi(&["--query-gpu=memory.used", "--format=csv,noheader"]).trim(), "0 MiB");
    survivor.succeed(&format!("alloc {}", 23 * GIB));
    assert_eq!(survivor.info().0, total - 23 * GIB);
}

/// A process can be killed at any instruction, under the node's lock too.
#[test]
fn a_lock_whose_owner_is_dead_is_taken_over() {
    const WAITED_FOR: u32 = 1 << 31;
    // The first client gets slot 0. The lock's word is its owner's slot + 1.
    for left_behind in [1, 1 | WAITED_FOR, 2, 2 | WAITED_FOR, 900] {
        let node = Node::install("a30.toml");
        let state = Mapped::open(
            &CString::new(node.path("run/nvidia-sim/state").as_os_str().as_bytes()).unwrap(),
            true,
        );
        let state = state.unwrap().state;
        state.lock.store(left_behind, Ordering::SeqCst);
        let mut client = node.client();
        client.succeed(&format!("alloc {GIB}"));
        assert_eq!(state.lock.load(Ordering::SeqCst), 0, "left behind: {left_behind:#x}");
        // Again, while the client lives.
        state.lock.store(2, Ordering::SeqCst);
        client.succeed(&format!("alloc {GIB}"));
    }
}

#[test]
fn a_forked_child_has_no_gpu_and_takes_none_away() {
    let node = Node::install("a30.toml");
    let mut client = node.client();
    client.succeed(&format!("alloc {GIB}"));
    assert_eq!(client.ask("fork"), (NOT_INITIALIZED, NOT_INITIALIZED.to_string()));
    let (free, total) = client.info();
    assert_eq!(free, total - GIB);
}

#[test]
fn kernels_take_their_time() {
    let node = Node::install("a30.toml");
    let mut client = node.client();
    client.succeed("kernel");
    let milliseconds: f64 = client.succeed("timed 30000000").parse().unwrap();
    assert!(milliseconds >= 30.0, "{milliseconds}");

    let begin = Instant::now();
    client.succeed("spin 50000000");
    client.succeed("sync");
    assert!(begin.elapsed() >= Duration::from_millis(50));
    assert_eq!(client.ask("query").0, 0);
    let process = &node.status()[0]["processes"][0];
    assert_eq!(
        (process["kernels"].as_u64(), process["kernel_ns_served"].as_u64()),
        (Some(2), Some(80_000_000))
    );
    // An hour's work: however late the question comes.
    client.succeed("spin 3600000000000");
    assert_eq!(client.ask("query").0, NOT_READY);
    client.kill();
}

#[test]
fn two_processes_cannot_compute_more_than_the_gpu() {
    let node = Node::install("a30.toml");
    let (mut one, mut other) = (node.client(), node.client());
    one.succeed("kernel");
    other.succeed("kernel");
    let begin = Instant::now();
    one.succeed("spin 100000000");
    other.succeed("spin 100000000");
    one.send("sync");
    other.send("sync");
    assert_eq!((one.answer().0, other.answer().0), (0, 0));
    assert!(begin.elapsed() >= Duration::from_millis(200));
}

#[test]
fn events_tell_when_they_came_and_not_when_somebody_looked() {
    let node = Node::install("a30.toml");
    let (mut one, mut other) = (node.client(), node.client());
    one.succeed("kernel");
    other.succeed("kernel");
    other.succeed("spin 3600000000000");
    // Half of the GPU is its own; the kernel after the second event has nothing to do with it.
    one.succeed("begin 20000000");
    one.succeed("spin 30000000");
    one.succeed("sync");
    let milliseconds: f64 = one.succeed("took").parse().unwrap();
    assert!((39.5..=40.5).contains(&milliseconds), "{milliseconds}");
}

#[test]
fn the_kernels_of_a_killed_process_end() {
    let node = Node::install("a30.toml");
    let (mut survivor, mut victim) = (node.client(), node.client());
    survivor.succeed("kernel");
    victim.succeed("kernel");
    // An hour's work: the test ends because it goes with its process.
    victim.succeed("spin 3600000000000");
    survivor.succeed("spin 1000000");
    victim.kill();
    survivor.succeed("sync");
}

#[test]
fn only_gpus_that_may_be_opened_and_are_wanted_are_there() {
    let node = Node::install("h100-80-x2.toml");
    let count = |wanted: &str| {
        let mut client = Client::start(node.command(client()).env("CUDA_VISIBLE_DEVICES", wanted));
        match client.ask("init").0 {
            0 => client.succeed("count").parse().unwrap(),
            code => -code,
        }
    };
    assert_eq!([count("0,1"), count("1"), count("-1,0"), count("")], [2, 1, -NO_DEVICE, -NO_DEVICE]);
    std::fs::remove_file(node.path("dev/nvidia1")).unwrap();
    assert_eq!([count("0,1"), count("1")], [1, -NO_DEVICE]);
    std::fs::remove_file(node.path("dev/nvidiactl")).unwrap();
    assert_eq!(count("0"), -NO_DEVICE);
}

#[test]
fn injected_faults_strike() {
    let node = Node::install("a30.toml");
    let mut client = node.client();
    client.succeed("kernel");
    node.set(&["--gpu", "0", "cuda-alloc=2", "cuda-launch=719"]);
    assert_eq!((client.ask("alloc 512").0, client.ask("spin 1").0), (2, 719));
    node.set(&["--gpu", "0", "cuda-alloc=0", "cuda-launch=0"]);
    client.succeed("alloc 512");
    client.succeed("spin 1");
    node.set(&["cuda-init=802"]);
    assert_eq!(Client::start(&mut node.command(crate::fixture::client())).ask("init").0, 802);
}

/// As a container has it: the folder with the state at its fixed place, the device nodes in /dev, the library
/// somewhere else, a pid namespace of its own.
#[test]
fn a_container_finds_the_node_and_the_host_sees_its_process() {
    let node = Node::install("h100-80-x1.toml");
    let script = "mount --make-rprivate / && mount -t tmpfs none /run && mkdir /run/nvidia-sim \
                  && mount --bind $0/run/nvidia-sim /run/nvidia-sim && mount -t tmpfs none /dev \
                  && cp -a $0/dev/nvidia* /dev && mount -t tmpfs none /mnt \
                  && cp $0/usr/lib/x86_64-linux-gnu/libcuda.so.1 /mnt && exec $1 - /mnt/libcuda.so.1";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", script]);
    let mut contained = Client::start(unshare.arg(node.path("")).arg(client()));
    contained.succeed("init");
    contained.succeed("context 0");
    contained.succeed(&format!("alloc {GIB}"));

    let status = node.status();
    let process = &status[0]["processes"][0];
    assert_eq!(process["own_pid"], 1, "{status}");
    let pid = process["pid"].as_u64().unwrap();
    assert_ne!(pid, 1);
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/exe")).unwrap(), client());
    let apps = node.smi(&["--query-compute-apps=pid,used_memory", "--format=csv,noheader"]);
    assert_eq!(apps.trim_end(), format!("{pid}, 1024 MiB"));
}
