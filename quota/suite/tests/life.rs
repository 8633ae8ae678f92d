//! Many processes, and every way in which one can end.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use fgpu_quota_suite::{Container, gpu, run, trials};

fn live(what: &str, number: &str) -> String {
    let container = Container::new(&[gpu(0, 100)]);
    let program = container.program("life", &["libcuda.so.1"], &[]);
    let out = run(container.command_as_init(&program).args([what, number]));
    assert!(out.ends_with(&format!("{what} ok\n")), "{out}");
    out
}

#[test]
fn sixteen_racing_processes_fill_the_limit_and_never_pass_it() {
    live("race", "16");
}

#[test]
fn sixty_four_racing_processes_fill_the_limit_and_never_pass_it() {
    live("race", "64");
}

#[test]
fn sixty_four_racing_processes_are_at_most_one_piece_above_the_limit() {
    live("race-large", "64");
}

#[test]
fn a_kill_at_a_random_instant_gives_everything_back_at_once() {
    live("kill", &trials(10_000));
}

#[test]
fn a_kill_within_an_allocation_and_a_free_gives_everything_back() {
    // Every other one: each needs all the steps before it again.
    live("step-pair", "2");
}

#[test]
fn a_kill_before_any_instruction_of_a_free_gives_everything_back() {
    live("step-free", "1");
}

#[test]
fn a_kill_while_registering_gives_everything_back() {
    live("step-register", "31");
}

#[test]
fn a_kill_while_looking_for_the_dead_gives_everything_back() {
    live("step-refused", "17");
}

#[test]
fn a_forked_child_has_a_slot_of_its_own() {
    live("fork", "");
}

#[test]
fn a_parents_death_shows_while_its_child_lives() {
    live("orphan", "");
}

#[test]
fn a_parents_death_shows_across_pid_namespaces_while_its_child_lives() {
    live("orphan-elsewhere", "");
}

#[test]
fn forks_while_registering_do_not_hide_a_death() {
    live("fork-storm", "30");
}

#[test]
fn closing_every_descriptor_gives_nothing_away() {
    live("close", "");
}

#[test]
fn exec_ends_what_the_process_had() {
    live("exec", "");
}

#[test]
fn a_process_restored_from_an_image_has_what_it_had() {
    live("thawed", "");
}

#[test]
fn across_pid_namespaces_the_locks_decide() {
    live("namespaces", "");
}

#[test]
fn the_host_sees_which_process_holds_which_memory() {
    let container = Container::new(&[gpu(0, 100)]);
    let program = container.program("life", &["libcuda.so.1"], &[]);
    let mut child =
        container.command(&program).arg("hold").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "holding\n");
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap();
    container.with_usage(|usage| {
        let processes: Vec<_> = usage.processes().collect();
        assert_eq!(processes.len(), 1);
        // unshare and sh have become the program by exec.
        assert_eq!(processes[0].pid, child.id());
        assert_eq!(namespace.to_str().unwrap(), format!("pid:[{}]", processes[0].namespace));
        assert_eq!(usage.total(0), 50 << 20);
    });
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
