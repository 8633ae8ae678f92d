//! The files of packaging/hooks.d, judged as CRI-O and Podman judge them (containers/common pkg/hooks,
//! 1.0.0): which containers get the hook, and what the hook is called with.

#![allow(
    clippy::unwrap_used,
    reason = "clippy.toml's allow-unwrap-in-tests does not reach the helpers of a test"
)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use regex::Regex;
use serde::Deserialize;

/// The fields of a file; an unknown one is an error here, though the engines would overlook it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: String,
    hook: Hook,
    when: When,
    stages: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Hook {
    path: PathBuf,
    args: Vec<String>,
    env: Vec<String>,
    timeout: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct When {
    annotations: BTreeMap<String, String>,
}

impl File {
    fn read(name: &str) -> Self {
        let path = folder().join(name);
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Every pattern pair must be met by some annotation, key and value.
    fn matches(&self, annotations: &[(&str, &str)]) -> bool {
        self.when.annotations.iter().all(|(key, value)| {
            let (key, value) = (Regex::new(key).unwrap(), Regex::new(value).unwrap());
            annotations.iter().any(|(k, v)| key.is_match(k) && value.is_match(v))
        })
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/hooks.d")
}

/// Each file, with the stage that it is for.
const FILES: [(&str, &str); 3] = [
    ("fgpu.json", "createRuntime"),
    ("fgpu-poststop.json", "poststop"),
    ("precreate/fgpu.json", "precreate"),
];

#[test]
fn each_file_names_one_stage_and_tells_the_hook_which() {
    for (name, stage) in FILES {
        let file = File::read(name);
        assert_eq!(file.version, "1.0.0", "{name}");
        assert_eq!(file.stages, [stage], "{name}: the arguments are the same for all stages of a file");
        assert_eq!(file.hook.path, Path::new("/usr/bin/fgpu-hook"), "{name}");
        assert_eq!(file.hook.args[..2], ["fgpu-hook", stage], "{name}: the first is the program's name");
        assert_eq!(file.hook.env.len(), 1, "{name}: without a list the hook inherits somebody's environment");
        assert!(file.hook.env[0].starts_with("PATH=/"), "{name}");
    }
}

#[test]
fn the_hook_gives_up_before_it_is_killed_and_both_before_the_engine() {
    // kubelet's runtime-request-timeout, the shortest of those around a create.
    const ENGINE: u64 = 120;
    for (name, stage) in FILES {
        let hook = File::read(name).hook;
        assert!(hook.timeout.is_none_or(|timeout| timeout < ENGINE), "{name}");
        assert_eq!(hook.timeout.is_none(), stage != "precreate", "{name}: crun misses the end of a hook");
        if stage == "poststop" {
            assert_eq!(hook.args.len(), 2, "{name}");
            continue;
        }
        assert_eq!(hook.args[2], "--timeout", "{name}");
        let own: u64 = hook.args[3].parse().unwrap();
        assert!(own > 90, "{name}: a container may wait for room as long as wait-max lets it");
        assert!(own < hook.timeout.unwrap_or(ENGINE), "{name}");
    }
}

#[test]
fn containers_that_ask_match_and_no_others() {
    let rows: &[(bool, &[(&str, &str)])] = &[
        (true, &[("fgpu/fraction", "0.25")]),
        (true, &[("fgpu/memory", "4Gi"), ("io.kubernetes.cri-o.Name", "x")]),
        (true, &[("a", "b"), ("fgpu/wait", "0"), ("z", "")]),
        // What is wrong must reach the hook, which says so.
        (true, &[("fgpu/fractoin", "0.25")]),
        (true, &[("fgpu/", "")]),
        (true, &[("fgpu/fraction", "")]),
        (true, &[("fgpu/fraction", "0.25\nx")]),
        (true, &[("fgpu/fraction", "\n")]),
        // One container of a pod.
        (true, &[("app.fgpu/fraction", "0.25")]),
        (true, &[("my-app.v1.fgpu/count", "0")]),
        (false, &[]),
        (false, &[("fgpu", "1")]),
        (false, &[("fgpu.fraction", "0.25")]),
        (false, &[("FGPU/fraction", "0.25")]),
        (false, &[("myfgpu/fraction", "0.25")]),
        (false, &[("fgpu.example.com/fraction", "0.25")]),
        (false, &[("example.com/fgpu/fraction", "0.25")]),
        (false, &[("a/b.fgpu/fraction", "0.25")]),
        (false, &[(".fgpu/fraction", "0.25")]),
        (false, &[("afgpu/x", "fgpu/fraction")]),
        (false, &[("note", "fgpu/fraction=0.25")]),
        (false, &[("x\nfgpu/fraction", "0.25")]),
        (false, &[(" fgpu/fraction", "0.25")]),
    ];
    for (name, _) in FILES {
        let file = File::read(name);
        for (expected, annotations) in rows {
            assert_eq!(file.matches(annotations), *expected, "{name}: {annotations:?}");
        }
    }
}

#[test]
fn the_shared_directory_has_no_stage_that_cri_o_does_not_know() {
    let stages = ["prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop"];
    let mut files = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files += 1;
            let file = File::read(path.file_name().unwrap().to_str().unwrap());
            assert!(file.stages.iter().all(|stage| stages.contains(&stage.as_str())), "{}", path.display());
        }
    }
    assert_eq!(files, 2);
}
