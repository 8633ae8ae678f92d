//! Other words than fgpu's annotations: other systems' annotations, and variables of the environment, where
//! the node's configuration opts in.

use fgpu_lab::docker::{self, Run};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};

pub(crate) const TESTS: &[Test] = &[
    Test::both("words::other_systems_annotations_ask", other_systems_annotations_ask),
    Test::both("words::without_opting_in_nobody_listens", without_opting_in_nobody_listens),
    Test::both("words::the_environment_asks", the_environment_asks),
    Test::both("words::nvidias_variable_lowers_a_share", nvidias_variable_lowers_a_share),
];

fn busybox(front_end: FrontEnd) -> Run {
    docker::container("busybox").under(front_end)
}

/// What the only lease has of its GPU: memory, and SM time in ppm.
fn granted() -> (u64, u64) {
    let (_, memory, cores) = node::only_lease().shares.remove(0);
    (memory, cores)
}

fn other_systems_annotations_ask(front_end: FrontEnd) {
    let _configured = node::configure("aliases = [\"kai\", \"hami\"]");
    let gpu = node::gpus().remove(0);
    for (annotations, expected) in [
        (&[("gpu-fraction", "0.25")][..], (gpu.share(250_000), 250_000)),
        (&[("nvidia.com/gpumem", "3000"), ("nvidia.com/gpucores", "30")], (3000 << 20, 300_000)),
        // These systems promise no SM time here.
        (&[("gpu-memory", "2000")], (2000 << 20, 0)),
    ] {
        let run = annotations.iter().fold(busybox(front_end), |run, (key, value)| run.annotation(key, value));
        let container = run.command(["sleep", "1000"]).start();
        assert_eq!(granted(), expected, "{annotations:?}");
        assert!(container.exec(["ls", "/run/fgpu/limits"]).ok().contains("limits"));
        container.remove();
        node::wait_until_free();
    }
    let both = busybox(front_end).annotation("gpu-fraction", "0.5").annotation("fgpu/fraction", "0.5");
    let refused = both.command(["true"]).run();
    assert!(
        refused.refused().contains("fgpu: conflict: fgpu/fraction=0.5 and gpu-fraction=0.5"),
        "{}",
        refused.story()
    );
    let wrong = busybox(front_end).annotation("gpu-fraction", "2").command(["true"]).run();
    assert!(wrong.refused().contains("fgpu: invalid-request: gpu-fraction=2"), "{}", wrong.story());
    // A vocabulary that the node does not understand.
    let other = busybox(front_end).annotation("cuda.shares", "1").command(["ls", "/run"]).run();
    assert!(!other.ok().contains("fgpu"), "{}", other.story());
}

fn without_opting_in_nobody_listens(front_end: FrontEnd) {
    let words = [("gpu-fraction", "nonsense"), ("nvidia.com/gpumem", "3000"), ("cuda.shares", "1")];
    let run = words.iter().fold(busybox(front_end), |run, (key, value)| run.annotation(key, value));
    let output = run.options(["--env", "FGPU_FRACTION=0.25"]).command(["ls", "/run"]).run();
    assert!(!output.ok().contains("fgpu"), "{}", output.story());
    assert!(node::leases().is_empty());
}

fn the_environment_asks(front_end: FrontEnd) {
    let _configured = node::configure("accept-env = true");
    let gpu = node::gpus().remove(0);
    let run = busybox(front_end).options(["--env", "FGPU_FRACTION=0.25"]);
    let container = run.command(["sleep", "1000"]).start();
    assert_eq!(granted(), (gpu.share(250_000), 250_000));
    container.remove();
    node::wait_until_free();
    // The container's annotations outrank its image.
    let run = busybox(front_end).options(["--env", "FGPU_FRACTION=1"]).annotation("fgpu/fraction", "0.5");
    let container = run.command(["sleep", "1000"]).start();
    assert_eq!(granted(), (gpu.share(500_000), 500_000));
    container.remove();
    node::wait_until_free();
    let refused = busybox(front_end).options(["--env", "FGPU_FRACTON=0.25"]).command(["true"]).run();
    assert!(refused.refused().contains("fgpu: invalid-request: fgpu/fracton"), "{}", refused.story());
}

/// `NVIDIA_GPU_MEMORY_LIMIT`, in MiB: what is left is free for others, and the SM time stays.
fn nvidias_variable_lowers_a_share(front_end: FrontEnd) {
    let _configured = node::configure("aliases = [\"nvidia\"]");
    let limited = |run: Run| run.options(["--env", "NVIDIA_GPU_MEMORY_LIMIT=1024"]);
    let container =
        limited(busybox(front_end).annotation("fgpu/fraction", "0.25")).command(["sleep", "1000"]).start();
    assert_eq!(granted(), (1024 << 20, 250_000));
    container.remove();
    node::wait_until_free();
    let silent = limited(busybox(front_end)).command(["ls", "/run"]).run();
    assert!(!silent.ok().contains("fgpu"), "{}", silent.story());
    assert!(node::leases().is_empty());
}
