//! PyTorch, by the cases of `pytorch.py`.

use std::fs;

use fgpu_lab::calls;
use fgpu_lab::command::run;
use fgpu_lab::docker::{self, Run};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};
use fgpu_lab::outside::FRAMEWORKS;

pub(crate) const TESTS: &[Test] = &[
    Test::once("pytorch::it_sees_its_share", it_sees_its_share),
    Test::once("pytorch::it_allocates_its_share_and_runs_on", it_allocates_its_share_and_runs_on),
    Test::once("pytorch::expandable_segments", expandable_segments),
    Test::once("pytorch::the_drivers_own_pool", the_drivers_own_pool),
    Test::once("pytorch::a_fraction_is_one_of_the_share", a_fraction_is_one_of_the_share),
    Test::once("pytorch::workers_of_a_data_loader", workers_of_a_data_loader),
    Test::once("pytorch::tensors_shared_between_processes", tensors_shared_between_processes),
    Test::once("pytorch::two_processes_have_one_share", two_processes_have_one_share),
    Test::once("pytorch::graphs_and_their_pools", graphs_and_their_pools),
    Test::once("pytorch::nccl", nccl),
    Test::once("pytorch::a_context_counts", a_context_counts),
    Test::once("pytorch::two_gpus", two_gpus),
    Test::once("pytorch::under_fgpu_run", under_fgpu_run),
];

/// Where the cases are. Processes that PyTorch spawns read it again.
const PROGRAM: &str = "/tmp/pytorch.py";
/// Millionths of a GPU.
const SHARE: u64 = 250_000;

/// A container with Python, the packages, and a quarter of a GPU.
pub(crate) fn python() -> Run {
    docker::container("python")
        .under(FrontEnd::Shim)
        .annotation("fgpu/fraction", "0.25")
        .options(["--shm-size=1g", "-e", "PYTHONPATH=/opt/site", "-e", "PYTHONDONTWRITEBYTECODE=1"])
        .options(["-v".to_owned(), format!("{FRAMEWORKS}/site:/opt/site:ro")])
}

fn total() -> String {
    node::gpus()[0].share(SHARE).to_string()
}

fn write_program() {
    fs::write(PROGRAM, include_str!("pytorch.py")).expect("/tmp can be written");
}

fn case(name: &str, options: &[&str]) {
    write_program();
    calls::start();
    let program = format!("{PROGRAM}:{PROGRAM}:ro");
    let output = python()
        .options(["-v", &program])
        .options(options.iter().copied())
        .command(["python3", PROGRAM, name, &total()])
        .run();
    assert!(output.ok().ends_with("passed"), "{}", output.story());
    let log = calls::assert_known();
    assert!(log.iter().any(|line| line.starts_with("call cuDevicePrimaryCtxRetain ")), "{log:?}");
    eprintln!("{name} {options:?}: {}", log.join(", "));
}

fn it_sees_its_share() {
    case("views", &[]);
}

fn it_allocates_its_share_and_runs_on() {
    case("limit", &[]);
}

fn expandable_segments() {
    case("limit", &["-e", "PYTORCH_ALLOC_CONF=expandable_segments:True"]);
}

fn the_drivers_own_pool() {
    case("limit", &["-e", "PYTORCH_ALLOC_CONF=backend:cudaMallocAsync"]);
}

fn a_fraction_is_one_of_the_share() {
    case("fraction", &[]);
}

fn workers_of_a_data_loader() {
    case("workers", &[]);
}

fn tensors_shared_between_processes() {
    case("sharing", &[]);
}

fn two_processes_have_one_share() {
    case("processes", &[]);
}

fn graphs_and_their_pools() {
    case("graphs", &[]);
}

fn nccl() {
    case("nccl", &[]);
}

fn a_context_counts() {
    let _node = node::simulated("h100-80-x2-context.toml");
    case("context", &[]);
}

fn two_gpus() {
    case("two", &["--annotation", "fgpu/count=2"]);
}

fn under_fgpu_run() {
    write_program();
    let packages = format!("PYTHONPATH={FRAMEWORKS}/site");
    // The simulated driver's nodes are in a folder of their own; and processes of PyTorch share through
    // /dev/shm.
    let nodes = "mkdir -p /run/nvidia-sim /run/lab/dev /run/lab/work && \
        mount -t overlay -o lowerdir=/opt/fgpu-sim/dev:/dev,upperdir=/run/lab/dev,workdir=/run/lab/work overlay /dev && \
        mount -t tmpfs shm /dev/shm && exec \"$@\"";
    for name in ["views", "limit", "fraction", "workers", "sharing", "processes", "graphs", "nccl"] {
        calls::start();
        let total = total();
        let words =
            ["unshare", "-m", "sh", "-c", nodes, "sh", "fgpu", "run", "-p", "0.25", "-a", "device=0", "--"];
        let output = run([&words[..], &["env", &packages, "python3", PROGRAM, name, &total]].concat());
        assert!(output.ok().ends_with("passed"), "{name}: {}", output.story());
        calls::assert_known();
        node::wait_until_free();
    }
}
