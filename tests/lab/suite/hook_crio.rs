//! States as CRI-O writes them, given to the hook at the moment at which it would: a container of the same
//! id, bundle and root, made by the runtime, waits for its createRuntime hook.
//!
//! The cases are files (testdata/crio) with the fields and annotations that CRI-O 1.37 writes, seen with runc
//! and crun; only the pid is replaced by the container's own. CRI-O itself is in no Debian suite, so the lab
//! has none.

use std::fs;
use std::path::Path;

use fgpu_lab::bundle::{Bundle, bundle, root, runtimes};
use fgpu_lab::command::{run, shell};
use fgpu_lab::inside::Test;
use fgpu_lab::node;
use serde_json::Value;

use crate::hook::{assert_nothing_is_left, poststop};

pub(crate) const TESTS: &[Test] = &[Test::once("hook_crio::states_are_understood", states_are_understood)];

const CASES: &[(&str, &str)] = &[
    ("container", include_str!("../testdata/crio/container.json")),
    ("sandbox", include_str!("../testdata/crio/sandbox.json")),
    ("override", include_str!("../testdata/crio/override.json")),
    ("override-of-another", include_str!("../testdata/crio/override-of-another.json")),
    ("only-another", include_str!("../testdata/crio/only-another.json")),
    ("only-this", include_str!("../testdata/crio/only-this.json")),
    ("none", include_str!("../testdata/crio/none.json")),
    ("state-alone", include_str!("../testdata/crio/state-alone.json")),
    ("config-alone", include_str!("../testdata/crio/config-alone.json")),
    ("misspelt", include_str!("../testdata/crio/misspelt.json")),
    ("too-large", include_str!("../testdata/crio/too-large.json")),
    ("runc", include_str!("../testdata/crio/runc.json")),
    ("no-label", include_str!("../testdata/crio/no-label.json")),
];

/// What CRI-O's hooks find in their environment.
const ENVIRONMENT: &str = "env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin _OCI_SYNCPIPE=4 \
    _OCI_STARTPIPE=5 CRI_O_EXTERNAL=1 _LIBCONTAINER_CLONED_BINARY=1";

fn states_are_understood() {
    for runtime in runtimes() {
        for (name, text) in CASES {
            let case: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            replay(runtime, name, &case);
        }
    }
}

fn replay(runtime: &str, name: &str, case: &Value) {
    let state = &case["state"];
    let text =
        |value: &Value| value.as_str().unwrap_or_else(|| panic!("{name}: no text in {value}")).to_owned();
    let merged = text(&case["state"]["annotations"]["io.kubernetes.cri-o.MountPoint"]);
    let layers = Path::new(&merged).parent().expect("…/merged").display().to_string();
    // CRI-O's root is an overlay whose upper layer is new.
    let lower = root("debian13");
    shell(&format!(
        "mkdir -p {layers}/diff {layers}/work {merged} && mount -t overlay -o \
         lowerdir={},upperdir={layers}/diff,workdir={layers}/work overlay {merged}",
        lower.display()
    ))
    .ok();
    let container = container(runtime, case, &merged);
    let expect = &case["expect"];
    let made = container.create();
    let story = format!("{name} over {runtime}: {}", case["why"]);
    if let Some(code) = expect["error"].as_str() {
        let said = made.refused();
        assert!(said.contains(&format!("fgpu: {code}: ")), "{story}: {said}");
        assert!(said.contains(&text(&expect["word"])), "{story}: {said}");
    } else {
        made.ok();
        let leases: Vec<_> = node::leases().into_iter().map(|lease| (lease.id, lease.shares[0].2)).collect();
        let expected: Vec<_> =
            expect["ppm"].as_u64().map(|ppm| (container.id.clone(), ppm)).into_iter().collect();
        assert_eq!(leases, expected, "{story}");
        container.runtime(&["start"]).ok();
        let filled = container.exec(&["alloc", "fill"]);
        match expect["ppm"].as_u64() {
            Some(ppm) => crate::limit::assert_filled(filled.ok(), node::gpus()[0].share(ppm)),
            // An earlier container of this image may have left empty files where libraries were mounted.
            None => {
                assert!(filled.stdout.starts_with("dlopen: "), "{story}: {}", filled.story());
                let mounts =
                    container.exec(&["grep", "-c", "-e", "fgpu", "-e", "nvidia", "/proc/self/mountinfo"]);
                assert_eq!(mounts.stdout.trim(), "0", "{story}");
            }
        }
    }
    container.delete();
    // CRI-O runs poststop when it removes the container.
    poststop(state);
    assert_nothing_is_left();
    shell(&format!("umount {merged} && rm -rf {layers} {}", container.path.display())).ok();
}

/// A container with the case's id, bundle, root and annotations, and a hook that gives ours the case's state.
fn container(runtime: &str, case: &Value, merged: &str) -> Bundle {
    let state = &case["state"];
    let text = |key: &str| state[key].as_str().unwrap_or_else(|| panic!("no {key} in {state}"));
    let mut container = bundle(runtime, "debian13");
    container.id = text("id").to_owned();
    container.path = text("bundle").into();
    run(["mkdir", "-p", text("bundle")]).ok();
    let case_file = format!("{}/state.json", text("bundle"));
    fs::write(&case_file, state.to_string()).unwrap_or_else(|error| panic!("{case_file}: {error}"));
    // In the shell's place, so that the runtime is its parent.
    let script = format!(
        "pid=$(jq .pid) && jq -c --argjson pid $pid '.pid = $pid' {case_file} >{case_file}.now && exec {ENVIRONMENT} \
         /usr/bin/fgpu-hook createRuntime --timeout 100 <{case_file}.now"
    );
    let mut container = container.hook("createRuntime", &["/bin/sh", "-c", &script]);
    container.spec["root"]["path"] = merged.into();
    container.spec["annotations"] = case.get("config-annotations").unwrap_or(&state["annotations"]).clone();
    container
}
