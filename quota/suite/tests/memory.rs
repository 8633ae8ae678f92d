//! The limit, one process at a time.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use fgpu_quota_suite::{Container, NONCE, gpu};

/// After everything was freed nothing is left, and no living process holds a slot.
fn assert_empty(container: &Container) {
    container.with_usage(|usage| {
        assert_eq!(usage.nonce(), NONCE);
        assert_eq!((usage.total(0), usage.total(1)), (0, 0));
    });
}

#[test]
fn every_way_to_the_functions_meets_the_limit() {
    let container = Container::new(&[gpu(0, 100)]);
    let program = container.program("reach", &[], &[]);
    let absolute = container.path("lib/libcuda.so.1");
    let ways =
        ["dlsym", "local", "absolute", "closed", "namespace", "resolve", "resolve-twice", "resolve-v1"];
    for way in ways {
        let out = container.run(&program, &[way, absolute.to_str().unwrap()]);
        assert_eq!(out, format!("{way} ok\n"));
        assert_empty(&container);
    }
}

#[test]
fn a_linked_program_meets_the_limit_without_an_environment() {
    let container = Container::new(&[gpu(0, 100)]);
    let run_path = format!("-Wl,-rpath,{}", container.path("lib").display());
    let program = container.program("reach", &["libcuda.so.1"], &["-DLINK", &run_path]);
    let mut command = container.command(&program);
    let out =
        fgpu_quota_suite::run(command.arg("link").env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin"));
    assert_eq!(out, "link ok\n");
    assert_empty(&container);
}

#[test]
fn every_call_counts_and_every_free_gives_back() {
    let container = Container::new(&[gpu(0, 100), gpu(1, 50)]);
    let program = container.program("calls", &["libcuda.so.1"], &[]);
    for what in ["pointers", "errors", "last", "vmm"] {
        assert_eq!(container.run(&program, &[what]), format!("{what} ok\n"));
        assert_empty(&container);
    }
}

#[test]
fn no_more_than_one_piece_is_above_the_limit() {
    let container = Container::new(&[gpu(0, 100)]);
    let program = container.program("calls", &["libcuda.so.1"], &[]);
    assert_eq!(container.run(&program, &["pieces"]), "pieces ok\n");
}

#[test]
fn the_limit_follows_the_gpu_and_not_the_ordinal() {
    for order in ["01", "10"] {
        let container = Container::new(&[gpu(0, 100), gpu(1, 50)]);
        let program = container.program("calls", &["libcuda.so.1"], &[]);
        let mut command = container.command(&program);
        fgpu_quota_suite::run(command.args(["devices", order]).env("FGPU_TEST_ORDER", order));
        assert_empty(&container);
    }
}

/// Runs `calls refused`; the line on the standard error must be there once.
fn assert_refused(container: &Container, line: &str) {
    let program = container.program("calls", &["libcuda.so.1"], &[]);
    let output = container.command(&program).arg("refused").output().expect("starts");
    let error = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{error}");
    assert_eq!(error.matches("fgpu: ").count(), 1, "{error}");
    assert!(error.contains(line), "{error}");
}

#[test]
fn without_limits_nothing_is_handed_out() {
    let container = Container::new(&[gpu(0, 100)]);
    fs::remove_file(container.path("fgpu/limits")).unwrap();
    assert_refused(&container, "/run/fgpu/limits is missing");
    fs::write(container.path("fgpu/limits"), [0; 4096]).unwrap();
    assert_refused(&container, "/run/fgpu/limits is missing");
    fs::write(container.path("fgpu/limits"), [0; 100]).unwrap();
    assert_refused(&container, "/run/fgpu/limits is missing");
}

#[test]
fn without_the_grants_own_ledger_nothing_is_handed_out() {
    let container = Container::new(&[gpu(0, 100)]);
    container.put("fgpu/ledger", &fgpu_wire::ledger::encode(&[1; 16]));
    assert_refused(&container, "/run/fgpu/ledger is missing");
    fs::write(container.path("fgpu/ledger"), [0; 4096]).unwrap();
    assert_refused(&container, "/run/fgpu/ledger is missing");
    fs::remove_file(container.path("fgpu/ledger")).unwrap();
    assert_refused(&container, "/run/fgpu/ledger is missing");
}

#[test]
fn a_gpu_outside_the_grant_has_no_memory() {
    assert_refused(&Container::new(&[gpu(7, 100)]), "not in the container's grant");
}

#[test]
fn a_resize_takes_effect_in_a_running_process() {
    let container = Container::new(&[gpu(0, 100)]);
    let program = container.program("resize", &["libcuda.so.1"], &[]);
    let mut child =
        container.command(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let (mut ask, mut answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let mut most_of = |mib| {
        container.write_limits(&[gpu(0, mib)]);
        ask.write_all(b"?").unwrap();
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    };
    // Total and free memory, in MiB; 10 MiB are held all the time.
    assert_eq!(most_of(100), "100 90");
    assert_eq!(most_of(40), "40 30");
    assert_eq!(most_of(5), "5 0");
    assert_eq!(most_of(200), "200 190");
    drop(ask);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_musl_program_is_limited_too() {
    if std::process::Command::new("musl-gcc").arg("--version").output().is_err() {
        println!("skipped: no musl-gcc here");
        return;
    }
    let container = Container::built_by("musl-gcc", &[gpu(0, 100)]);
    let program = container.program("reach", &["libcuda.so.1"], &["-DLINK"]);
    assert_eq!(container.run(&program, &["link"]), "link ok\n");
    assert_empty(&container);
}
