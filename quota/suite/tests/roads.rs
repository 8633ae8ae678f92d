//! Other calls that take device memory, over the simulated driver.

use fgpu_quota_suite::{Container, gpu, trials};

const MIB: u64 = 1 << 20;

fn road(what: &str, context: u64) {
    let container = Container::simulated(&[gpu(0, 200), gpu(1, 100)], context);
    let program = container.program("roads", &["libcuda.so.1"], &[&format!("-DCONTEXT={context}ull")]);
    let out = container.run(&program, &[what, &trials(1000)]);
    assert_eq!(out, format!("{what} ok\n"));
    container.with_usage(|usage| assert_eq!(usage.total(0), 0));
}

#[test]
fn memory_kept_by_a_pool_counts() {
    road("pools", 40 * MIB);
}

#[test]
fn a_graph_has_its_memory_while_there_is_room() {
    road("graphs", 40 * MIB);
}

#[test]
fn everything_in_a_context_ends_with_it() {
    road("contexts", 40 * MIB);
}

#[test]
fn contexts_whose_size_nobody_knows_are_no_obstacle() {
    road("contexts", 0);
}

#[test]
fn shared_memory_counts_once() {
    road("sharing", 40 * MIB);
}

#[test]
fn a_launch_counts_what_it_loads() {
    road("late", 40 * MIB);
}

#[test]
fn each_gpu_counts_its_own() {
    road("gpus", 40 * MIB);
}

#[test]
fn threads_that_settle_at_once_lose_nothing() {
    road("threads", 40 * MIB);
}

#[test]
fn a_kill_in_any_of_them_gives_everything_back() {
    road("kills", 40 * MIB);
}
