//! What an administrator sees of a container, and calls it by: its name, what it uses, and what the record
//! says of it.

use fgpu_lab::command::{run, wait_until};
use fgpu_lab::docker;
use fgpu_lab::inside::Test;
use fgpu_lab::node::FrontEnd;
use serde_json::Value;

use crate::limit::number;

pub(crate) const TESTS: &[Test] = &[Test::once(
    "status::a_container_by_its_name_and_what_it_uses",
    a_container_by_its_name_and_what_it_uses,
)];

#[track_caller]
fn json(words: &[&str]) -> Value {
    let output = run(words);
    serde_json::from_str(output.ok()).unwrap_or_else(|error| panic!("{error}: {}", output.story()))
}

fn a_container_by_its_name_and_what_it_uses() {
    let share = |name: &str, compute: &str, device: &str| {
        docker::container("debian13")
            .under(FrontEnd::Shim)
            .options(["--name", name])
            .annotation("fgpu/fraction", "0.5")
            .annotation("fgpu/compute", compute)
            .annotation("fgpu/device", device)
            .command(["sh", "-c", "spin 200000000 1000000; exec sleep 1000"])
            .start()
    };
    let trainer = share("trainer", "cap", "0");
    let at_work = number(trainer.wait_for_log("spin ").trim(), "kernels=");
    let free = share("free", "off", "1");
    free.wait_for_log("spin ");

    let status = json(&["fgpu", "status", "--json"]);
    let lease = |name: &str| {
        let leases = status["leases"].as_array().unwrap_or_else(|| panic!("{status}"));
        leases.iter().find(|lease| lease["name"] == name).unwrap_or_else(|| panic!("no {name} in {status}"))
    };
    // It is charged by events around bursts, some more than the kernels themselves.
    let used = lease("trainer")["gpus"][0]["used_cores_ns"].as_u64().unwrap_or_else(|| panic!("{status}"));
    assert!((at_work / 2..at_work * 3).contains(&used), "{used} of {at_work}");
    assert!(lease("trainer")["gpus"][0]["used_cores_ppm"].is_u64(), "{status}");
    assert!(lease("free")["gpus"][0]["used_cores_ppm"].is_null(), "not limited, so not measured: {status}");
    let text = run(["fgpu", "status"]).ok().to_owned();
    assert!(text.contains("trainer") && text.contains("-: not limited, and so not measured"), "{text}");

    let said = run(["fgpu", "resize", "trainer", "--cores", "30%"]).ok().to_owned();
    assert!(said.contains("50% → 30% of the SMs"), "{said}");
    let refused = run(["fgpu", "release", &trainer.id[..12]]);
    assert!(refused.refused().starts_with("fgpu: denied: moby/"), "{}", refused.story());
    let records = run(["fgpu", "events", "--container", "trainer", "--json"]).ok().to_owned();
    let kinds = records.lines().map(|line| {
        let record: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(record["container"], trainer.id);
        record["event"].as_str().unwrap_or_default().to_owned()
    });
    assert_eq!(kinds.collect::<Vec<_>>(), ["granted", "resized"]);
    let id = trainer.id.clone();
    trainer.remove();
    // The name is gone with the container.
    wait_until("the record of its end", || {
        let table = run(["fgpu", "events", "--container", &id[..12], "--event", "released"]);
        table.ok().contains(&format!("moby/{}", &id[..12]))
    });
    free.remove();
}
