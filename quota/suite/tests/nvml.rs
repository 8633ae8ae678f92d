//! The management library's answers.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use fgpu_quota_suite::{Container, gpu};

#[test]
fn nvml_shows_the_grant_and_the_containers_own_processes() {
    let container = Container::new(&[gpu(2, 100), gpu(0, 50)]);
    let life = container.program("life", &["libcuda.so.1"], &[]);
    let smi = container.program("smi", &["libnvidia-ml.so.1"], &[]);
    // The stand-in's first device becomes the grant's first GPU.
    let mut holder = container
        .command(&life)
        .arg("hold")
        .env("FGPU_TEST_ORDER", "20")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "holding\n");
    assert_eq!(container.run(&smi, &[&holder.id().to_string()]), "smi ok\n");

    // A killed process is gone from the views at once, though no process has cleared its slot.
    holder.kill().unwrap();
    holder.wait().unwrap();
    let gone = container.program("smi-empty", &["libnvidia-ml.so.1"], &[]);
    assert_eq!(container.run(&gone, &[]), "empty ok\n");
    container.with_usage(|usage| assert_eq!(usage.processes().count(), 1));
}

#[test]
fn without_limits_nvml_shows_nothing() {
    let container = Container::new(&[gpu(0, 100)]);
    std::fs::remove_file(container.path("fgpu/limits")).unwrap();
    let smi = container.program("smi-empty", &["libnvidia-ml.so.1"], &[]);
    let output = container.command(&smi).arg("refused").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8(output.stderr).unwrap().contains("/run/fgpu/limits is missing"));
}
