//! What root of one tenant does to all that it can reach stops neither another tenant nor the node.

use fgpu_lab::command::{run, shell};
use fgpu_lab::docker::{self, Container, Run};
use fgpu_lab::inside::Test;
use fgpu_lab::node::{self, FrontEnd};

use crate::limit::number;

pub(crate) const TESTS: &[Test] = &[
    Test::both("tenants::leases_on_all_files_hold_up_nobody", leases_on_all_files_hold_up_nobody),
    Test::once("tenants::thirty_and_seventy_beside_a_nuisance", thirty_and_seventy_beside_a_nuisance),
];

fn share(front_end: FrontEnd, cores: &str) -> Run {
    let run = docker::container("debian13").under(front_end).annotation("fgpu/memory", "1Gi");
    run.annotation("fgpu/cores", cores).annotation("fgpu/compute", "cap").annotation("fgpu/device", "0")
}

fn nuisance(front_end: FrontEnd, what: &str) -> Container {
    // It books no SM time. Leases need CAP_LEASE or the owner's id: the files are root's.
    let run = docker::container("debian13").under(front_end).annotation("fgpu/memory", "1Gi");
    run.annotation("fgpu/device", "0").command(["nuisance", what, "600"]).start()
}

/// Free blocks and inodes of the state's file system.
fn free() -> String {
    shell("stat --file-system --format '%a %d' /run/fgpu").ok().to_owned()
}

/// The kernel tells the holder of a lease of each open that conflicts with it.
fn leases_on_all_files_hold_up_nobody(front_end: FrontEnd) {
    let first = share(front_end, "1").command(["sleep", "1000"]).start();
    let holder = nuisance(front_end, "lease");
    let held = holder.wait_for_log("holds=");
    // Two quota libraries and two real ones, nvidia-smi, the limits, its ledger, an index and 64 places.
    assert!(number(&held, "holds=") >= 70, "{held}");
    for round in 0..20 {
        let one = share(front_end, "1")
            .command(["sh", "-c", "nvidia-smi >/dev/null && spin 2000000 1000000"])
            .run();
        assert!(one.ok().contains("spin kernels="), "{round}: {}", one.story());
        assert!(run(["fgpu", "status"]).ok().contains(&holder.id[..12]), "{round}");
    }
    run(["fgpu", "gc"]).ok();
    // Its own ledger is the one that the host reads, and its own place the one that others read, both without
    // waiting.
    let broken: Vec<String> =
        holder.logs().lines().filter(|line| line.starts_with("broken ")).map(str::to_owned).collect();
    let is_its_own =
        |line: &String| ["broken /run/fgpu/ledger", "broken /run/fgpu/turns/0-1"].contains(&line.as_str());
    assert!(broken.iter().all(is_its_own), "{broken:?}");
    [first, holder].into_iter().for_each(Container::remove);
    node::wait_until_free();
}

fn thirty_and_seventy_beside_a_nuisance() {
    let front_end = FrontEnd::Shim;
    // The board is there before, since it stays.
    share(front_end, "1").command(["true"]).run().ok();
    node::wait_until_free();
    let before = free();
    let third = nuisance(front_end, "all");
    third.wait_for_log("begins");
    let tenants = [("30", 1_200_000_000u64), ("70", 2_800_000_000)].map(|(cores, all)| {
        // It stays: of what a container prints at its end, engines lose some (fgpu_lab, src/capture.rs).
        let script = format!("spin {all} 1000000; exec sleep 1000");
        (
            cores.parse::<u64>().expect("a number"),
            share(front_end, cores).command(["sh", "-c", &script]).start(),
        )
    });
    for (cores, container) in &tenants {
        let line = container.wait_for_log("spin ");
        let got = number(line.trim(), "kernels=") * 100 / number(line.trim(), "passed=");
        assert!(got <= cores + 5, "{got}% instead of {cores}%");
        eprintln!("{got}% of {cores}%");
    }
    assert_eq!(run(["fgpu", "status", "--json"]).status, 0);
    for (_, container) in tenants {
        container.remove();
    }
    third.remove();
    node::wait_until_free();
    assert_eq!(free(), before);
}
