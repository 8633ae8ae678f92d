//! Two versions of fgpu on one node: the chart's and the package's (`make cluster-skew OLD=COMMIT`).

use std::fs;

use fgpu_cluster::Cluster;
use fgpu_lab::command::{run, wait_until};
use fgpu_lab::inside::Test;
use fgpu_lab::node;
use serde_json::{Value, json};

use crate::annotations;
use crate::deploy::{self, CHART, HOST};
use crate::dra::{QUERY, claim, give_back, held, list, pod};

pub(crate) const TESTS: &[Test] = &[
    Test::once("skew::an_older_package_beside_the_chart", an_older_package_beside_the_chart),
    Test::once("skew::an_older_chart_beside_the_package", an_older_chart_beside_the_package),
];

/// What packaging/previous made of another commit.
const PREVIOUS: &str = "/opt/cluster/previous";
const STATE: &str = "/run/fgpu/allocations.json";

/// The files of the other commit's package, in the place of those of this one.
struct Older(Vec<String>);

impl Older {
    #[track_caller]
    fn put() -> Self {
        let root = format!("{PREVIOUS}/root");
        let files = run(["find", &root, "-type", "f", "(", "-path", "*/bin/*", "-o", "-name", "*.so", ")"]);
        let files: Vec<String> = files.ok().lines().map(|path| path.replacen(&root, "", 1)).collect();
        // The chart's image has the plugin, not the package.
        let is_of_package = |path: &String| fs::exists(path).unwrap_or(false) && !path.ends_with("/fgpu-dra");
        let replaced: Vec<String> = files.into_iter().filter(is_of_package).collect();
        assert!(replaced.len() >= 6, "four programs and two libraries: {replaced:?}");
        let older = Self(replaced);
        for path in &older.0 {
            run(["mv", path, &format!("{path}.away")]).ok();
            run(["cp", &format!("{root}{path}"), path]).ok();
        }
        older
    }
}

impl Drop for Older {
    fn drop(&mut self) {
        for path in &self.0 {
            run(["mv", &format!("{path}.away"), path]);
        }
    }
}

fn an_older_package_beside_the_chart() {
    let cluster = Cluster::start();
    let _older = Older::put();
    install(&cluster, CHART, "lab", "/opt/cluster/image/fgpu-dra.tar");
    they_share_a_node(&cluster);
}

fn an_older_chart_beside_the_package() {
    let cluster = Cluster::start();
    let chart = format!("{PREVIOUS}/chart");
    install(&cluster, &chart, "latest", &format!("{PREVIOUS}/fgpu-dra.tar"));
    they_share_a_node(&cluster);
}

/// The first GPU is for claims, and the other one for annotations.
fn install(cluster: &Cluster, chart: &str, tag: &str, archive: &str) {
    let values = [format!("image.tag={tag}"), format!("gpus={}", node::gpus()[0].uuid)];
    deploy::install_from(cluster, chart, &values.each_ref().map(String::as_str), archive);
}

/// A share by annotation, which the package's programs give, and one by claim, which the chart's give.
fn they_share_a_node(cluster: &Cluster) {
    let programs = ["/usr/bin/fgpu".to_owned(), charts_fgpu()];
    let versions = programs.each_ref().map(|program| fs::read(program).expect("a program"));
    assert_ne!(versions[0], versions[1], "both are of one version");

    let forever = format!("{QUERY}; exec sleep 1000");
    let mut asked: Value =
        serde_json::from_str(&annotations::pod("asked", Some("fgpu"), "0.25", &forever)).expect("a pod");
    asked["metadata"]["annotations"]["fgpu/device"] = "1".into();
    cluster.apply(&asked.to_string());
    cluster.wait_for_phase("asked", "Running");
    let quarter = node::gpus()[1].share(250_000) >> 20;
    wait_until("what the pod prints", || cluster.logs("asked") == quarter.to_string());
    cluster.apply(&list(&[
        claim("claimed", "fgpu", &json!({"memory": "1Gi"}), &Value::Null),
        pod("claimed", &forever),
    ]));
    cluster.wait_for_phase("claimed", "Running");
    wait_until("what the pod prints", || cluster.logs("claimed") == "1024");

    // Each program takes what the other one gave for given.
    for program in &programs {
        run([program, "gc"]).ok();
        let mut both = held();
        both.sort_unstable();
        assert_eq!(both, [1024, quarter], "{program}");
        let status = run([program, "status"]);
        assert!(status.ok().contains("claimed") && status.ok().contains("asked"), "{}", status.story());
        // The first GPU is for claims, and of the second a quarter is taken.
        for (gpu, fraction, fits) in [("0", "0.1", false), ("1", "0.8", false), ("1", "0.7", true)] {
            let words = ["explain", &format!("device={gpu}"), &format!("fraction={fraction}")];
            let answer = run([&[&**program], &words[..]].concat());
            assert_eq!(answer.status == 0, fits, "{}", answer.story());
        }
    }
    cluster.delete("pod/asked");
    wait_until("the end of the annotation's share", || {
        run([&programs[1], "gc"]).ok();
        held() == [1024]
    });
    run([&programs[0], "gc"]).ok();
    assert_eq!(held(), [1024], "its pod runs");
    give_back(cluster, "claimed");
    wait_until("no lease", || node::leases().is_empty());

    // A file of a version that a program does not know stays as it is.
    let text = fs::read_to_string(STATE).expect("the state");
    let other = text.replacen("{\"version\":1,", "{\"version\":99,", 1);
    assert_ne!(text, other, "its version has a number");
    fs::write(STATE, &other).expect("root may write it");
    for program in &programs {
        let refused = run([program, "run", "-p", "0.1", "--", "true"]);
        assert!(refused.refused().contains("fgpu: state-corrupt: "), "{}", refused.story());
        assert_eq!(fs::read_to_string(STATE).expect("the state"), other, "{program}");
    }
    fs::write(STATE, text).expect("root may write it");
}

/// The chart's `fgpu` on the node.
fn charts_fgpu() -> String {
    let found = run(["sh", "-c", &format!("ls {HOST}/*/bin/fgpu")]);
    let mut all = found.ok().lines();
    let path = all.next().expect("the chart has put it there").to_owned();
    assert_eq!(all.next(), None, "there is one version");
    path
}
