//! NVIDIA's runtime library of 12.9 and 13.5, shared and static, in a container with a share. Every call of
//! it that takes memory stays within the limit, fails with the documented error, and gives back what it took.

use std::collections::BTreeMap;

use fgpu_quota_names::{Class, class_of};
use fgpu_quota_suite::{Container, cudart_program, gpu, run};

const VERSIONS: [&str; 6] =
    ["12.9", "12.9-static", "12.9-per-thread", "13.5", "13.5-static", "13.5-per-thread"];
const MIB: u64 = 1 << 20;
/// The grant, and what a context takes.
const LIMIT: u64 = 2048 * MIB;
const CONTEXT: u64 = 300 * MIB;
/// What the program allocates at a time.
const PIECE: u64 = 64 * MIB;

fn container() -> Container {
    Container::simulated(&[gpu(0, LIMIT / MIB)], CONTEXT)
}

fn ask(container: &Container, version: &str, commands: &[&str]) -> String {
    run(container.command(&cudart_program(version)).args(commands))
}

/// `KEY=VALUE` of a line.
fn words(line: &str) -> BTreeMap<&str, &str> {
    line.split(' ').filter_map(|word| word.split_once('=')).collect()
}

fn number(line: &str, key: &str) -> u64 {
    words(line)
        .get(key)
        .and_then(|value| value.parse().ok())
        .unwrap_or_else(|| panic!("no {key} in {line:?}"))
}

/// All memory is free for the next program.
#[track_caller]
fn assert_free(container: &Container, version: &str) {
    assert_eq!(number(&ask(container, version, &["info"]), "free"), LIMIT - CONTEXT, "{version}");
}

#[test]
fn cudart_sees_the_grant() {
    let container = container();
    for version in VERSIONS {
        let line = ask(&container, version, &["info"]);
        assert_eq!(number(&line, "total"), LIMIT, "cudaMemGetInfo: {line}");
        assert_eq!(number(&line, "properties"), LIMIT, "cudaGetDeviceProperties: {line}");
        assert_eq!(number(&line, "free"), LIMIT - CONTEXT, "{line}");
    }
}

#[test]
fn every_kind_of_memory_ends_at_the_limit_and_comes_back() {
    let container = container();
    for version in VERSIONS {
        // After the filling everything is as in a new process.
        let output = ask(&container, version, &["fill", "work", "reset", "info"]);
        for line in output.lines().filter(|line| line.starts_with("fill ")) {
            assert!(line.ends_with("error=cudaErrorMemoryAllocation"), "{version}: {line}");
            assert_eq!(number(line, "before"), LIMIT - CONTEXT, "{version}: {line}");
            assert_eq!(number(line, "before"), number(line, "after"), "{version}: {line}");
            assert!(number(line, "full") < 2 * PIECE, "{version}: {line}");
            assert!(number(line, "pieces") <= (LIMIT - CONTEXT) / PIECE + 1, "{version}: {line}");
        }
        assert_eq!(output.lines().filter(|line| line.starts_with("fill ")).count(), 11, "{output}");
        assert!(output.contains("work done\n"), "{version}: {output}");
        let last = output.lines().last().unwrap_or_default();
        assert_eq!(number(last, "free"), LIMIT - CONTEXT, "after cudaDeviceReset: {output}");
        assert_free(&container, version);
    }
}

#[test]
fn code_and_heaps_count_for_what_they_take() {
    let container = container();
    for version in VERSIONS {
        let output = ask(&container, version, &["work"]);
        let line = |begin| output.lines().find(|line| line.starts_with(begin)).unwrap_or_default();
        assert_eq!(number(line("code "), "cost"), 4 * MIB, "{version}: {output}");
        let limits = line("limits ");
        assert_eq!((number(limits, "cost"), number(limits, "left")), (64 * MIB, 0), "{version}: {output}");
    }
}

#[test]
fn memory_of_another_process_counts_once() {
    let container = container();
    for version in VERSIONS {
        let output = ask(&container, version, &["share"]);
        let lines: Vec<_> = output.lines().collect();
        assert_eq!(number(lines[0], "context"), CONTEXT, "the other process has only its context: {output}");
        assert_eq!(number(lines[1], "before"), number(lines[1], "after"), "{version}: {output}");
        assert_free(&container, version);
    }
}

/// Every call that takes memory is wrapped, and counts.
#[test]
fn no_call_takes_memory_that_is_not_wrapped() {
    let container = container();
    container.count_calls();
    for version in VERSIONS {
        ask(&container, version, &["info", "properties", "fill", "work", "share", "reset"]);
    }
    let calls = container.calls();
    let missing: Vec<_> = calls.iter().filter(|call| call.kind == "missing").collect();
    assert!(missing.is_empty(), "the simulated driver has not: {missing:?}");
    let charging: Vec<_> = calls.iter().filter(|call| call.charges != 0).collect();
    assert!(charging.len() >= 10, "{charging:?}");
    for call in charging {
        let class = class_of(&call.name);
        assert!(matches!(class, Some(Class::Counted | Class::Launched)), "{call:?} is {class:?}");
    }
    for call in calls.iter().filter(|call| call.kind == "call" && !call.name.contains(':')) {
        assert!(class_of(&call.name).is_some(), "{call:?} has no class");
    }
}
