//! Every malformed annotation of spec/testdata/malformed.json, through real container engines.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use fgpu_lab::command::{Output, run, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};
use fgpu_lab::{cri, docker};
use serde_json::Value;

pub(crate) const TESTS: &[Test] = &[
    Test::once("malformed::docker_with_shim", docker_with_shim),
    Test::once("malformed::oci_runtime", oci_runtime),
    Test::both("malformed::pods", pods),
];

const TABLE: &str = include_str!("../../../spec/testdata/malformed.json");

/// A row of the table.
pub(crate) struct Row {
    pub(crate) annotations: Vec<(String, String)>,
    pub(crate) container: Option<String>,
    /// Lines of the node's configuration that it depends on.
    configuration: String,
    code: String,
    word: String,
}

fn rows() -> Vec<Row> {
    let table: Vec<Value> = serde_json::from_str(TABLE).expect("malformed.json is JSON");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let row = |row: &Value| {
        let units = row["units-per-gpu"].as_u64().map(|units| format!("units-per-gpu = {units}\n"));
        let none = row["allow-none"].as_bool().map(|allowed| format!("allow-none = {allowed}\n"));
        let annotations = row["annotations"].as_object().expect("annotations");
        Row {
            annotations: annotations.iter().map(|(key, value)| (key.clone(), text(value))).collect(),
            container: row["container"].as_str().map(str::to_owned),
            configuration: units.unwrap_or_default() + &none.unwrap_or_default(),
            code: text(&row["code"]),
            word: text(&row["word"]),
        }
    };
    let rows: Vec<_> = table.iter().map(row).collect();
    assert!(rows.len() >= 60, "the table has {} rows", rows.len());
    rows
}

/// Runs the rows that `wanted` selects, two at a time, under the configuration that each needs.
pub(crate) fn replay(wanted: impl FnMut(&Row) -> bool, attempt: impl Fn(&Row, usize) -> Output + Sync) {
    let mut groups: Vec<(String, Vec<Row>)> = Vec::new();
    for row in rows().into_iter().filter(wanted) {
        match groups.iter_mut().find(|(configuration, _)| *configuration == row.configuration) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((row.configuration.clone(), vec![row])),
        }
    }
    for (group, (configuration, rows)) in groups.iter().enumerate() {
        let _configured = node::configure(configuration);
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(row) = rows.get(at) else { break };
                assert_refused(row, &attempt(row, group * 1000 + at));
            }
        };
        thread::scope(|scope| {
            let others = scope.spawn(work);
            work();
            others.join().expect("every row is refused as documented");
        });
    }
    assert_eq!(node::leases(), [], "a malformed request leaves no lease");
}

#[track_caller]
fn assert_refused(row: &Row, output: &Output) {
    let message = format!("fgpu: {}: ", row.code);
    let documented = output.status != 0 && output.stderr.contains(&message);
    assert!(documented && output.stderr.contains(&row.word), "{message}…{}…: {}", row.word, output.story());
}

fn docker_with_shim() {
    docker::load("busybox");
    replay(
        |row| row.container.is_none(),
        |row, _| {
            let run = docker::container("busybox").under(FrontEnd::Shim);
            let run = row.annotations.iter().fold(run, |run, (key, value)| run.annotation(key, value));
            // What would be started leaves a trace.
            let run = run.options(["--volume", "/run/lab:/lab"]).command(["touch", "/lab/started"]);
            run.run_and_keep()
        },
    );
    assert!(fs::metadata("/run/lab/started").is_err(), "a container was started");
    let states = run(["docker", "ps", "--all", "--format", "{{.State}}"]);
    assert!(states.ok().lines().all(|state| state == "created"), "{}", states.stdout);
}

/// The same rows, straight through `fgpu-runtime create`, whose caller gets the message on standard error.
fn oci_runtime() {
    let bundle = "/run/lab/bundle";
    run(["mkdir", "-p", "/run/lab/bundle/rootfs"]).ok();
    if fs::metadata("/run/lab/bundle/spec.json").is_err() {
        run(["runc", "spec", "--bundle", bundle]).ok();
        fs::rename("/run/lab/bundle/config.json", "/run/lab/bundle/spec.json").expect("a spec was made");
    }
    let spec = fs::read_to_string("/run/lab/bundle/spec.json").expect("the spec is there");
    let spec: Value = serde_json::from_str(&spec).expect("a spec is JSON");
    replay(
        |row| row.container.is_none(),
        |row, at| {
            let mut spec = spec.clone();
            spec["annotations"] = row
                .annotations
                .iter()
                .map(|(key, value)| (key.clone(), Value::from(value.as_str())))
                .collect();
            let id = format!("malformed-{at}");
            let own = format!("/run/lab/bundles/{id}");
            run(["mkdir", "-p", &format!("{own}/rootfs")]).ok();
            let config = format!("{own}/config.json");
            let text = spec.to_string();
            fs::write(&config, &text).expect("the bundle can be written");
            let output = run(["fgpu-runtime", "create", "--bundle", &own, &id]);
            assert_eq!(fs::read_to_string(&config).ok().as_deref(), Some(&*text), "the bundle is as it was");
            output
        },
    );
    let made = fs::read_dir("/run/runc").map_or(0, Iterator::count);
    assert_eq!(made, 0, "runc's state directory of containers");
}

/// The rows that depend on a container's name in its pod.
fn pods(front_end: FrontEnd) {
    replay(
        |row| row.container.is_some(),
        |row, at| {
            let annotations: Vec<_> =
                row.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let pod = cri::Pod::start(&format!("malformed-{at}"), front_end.docker_runtime(), &annotations);
            let name = row.container.as_deref().unwrap_or_default();
            let container = pod.create(name, "busybox", &["sleep", "1000"]);
            let output = container.start();
            wait_until("the end of what was not started", || container.status() != "running");
            pod.remove();
            output
        },
    );
}
