//! The page of a node with tenants, kept in `snapshots/` (`FGPU_BLESS=1` writes it anew), and names that strangers
//! choose.

use std::path::Path;

use fgpu_engine::events::Kind;
use fgpu_engine::events::counters::Counts;

use super::page::{Format, page};
use super::*;
use crate::status::tests::{assert_kept, gpu, inventory, tenants};

fn reading() -> Reading {
    let model = "NVIDIA H100 80GB HBM3";
    let kinds = Kind::ALL.iter().filter(|kind| **kind != Kind::Refused);
    Reading {
        status: tenants(),
        inventory: Some(inventory((0..4).map(|index| gpu(index, model, 80)).collect())),
        asked: Some(1_790_000_000.25),
        counts: Some(Counts {
            kinds: kinds.zip(10..).map(|(kind, count)| (*kind, count)).collect(),
            refusals: Code::ALL.into_iter().zip(0..).collect(),
        }),
    }
}

#[test]
fn the_page_of_a_node_with_tenants() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/metrics/snapshots/tenants.prom");
    let mut reading = reading();
    for (number, lease) in reading.status.leases.iter_mut().enumerate() {
        lease.grant.0[0] = u8::try_from(number).unwrap();
    }
    assert_kept(&kept, &page(&reading, Format::Text));
}

/// Each sample has a TYPE before it, of its own name, in each format.
#[test]
fn the_formats_differ_in_their_comments_alone() {
    let [text, open] = [Format::Text, Format::Open].map(|format| page(&reading(), format));
    let samples = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    assert_eq!(samples(&text), samples(&open));
    assert!(open.ends_with("\n# EOF\n") && !text.contains("# EOF") && !text.contains("# UNIT"));
    for line in samples(&text) {
        let name = line.split(['{', ' ']).next().unwrap();
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        assert!(text.contains(&format!("# TYPE {name} {kind}\n")), "{line}");
        let family = name.strip_suffix("_total").unwrap_or(name);
        assert!(open.contains(&format!("# TYPE {family} {kind}\n")), "{line}");
        let help = |text: &str, name: &str| text.matches(&format!("# HELP {name} ")).count();
        assert_eq!([help(&text, name), help(&open, family)], [1, 1], "{line}");
    }
}

/// docs/metrics.md has each metric with its labels, and no other.
#[test]
fn the_page_of_the_documentation_is_complete() {
    let table = include_str!("../../../docs/metrics.md").lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` |")?;
        let labels = rest.split('|').next()?.split('`').filter(|word| !word.trim().is_empty());
        Some((name.to_owned(), labels.map(str::to_owned).collect::<Vec<_>>()))
    });
    let text = page(&reading(), Format::Text);
    let mut samples: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (name, rest) = line.split_once(['{', ' ']).unwrap();
            let labels =
                rest.split("\",").filter_map(|label| label.split_once("=\"")).map(|(key, _)| key.to_owned());
            (name.to_owned(), labels.collect::<Vec<_>>())
        })
        .collect();
    samples.dedup();
    // Nobody has looked for others' processes on this node.
    let table: Vec<_> = table.filter(|(name, _)| name != "fgpu_gpu_memory_foreign_bytes").collect();
    assert_eq!(table, samples);
}

#[test]
fn a_name_cannot_end_its_label() {
    let mut reading = reading();
    let lease = &mut reading.status.leases[0];
    lease.name = Some("a\"} 1\nfgpu_grants_total 999\\".into());
    lease.owner = Some("\u{1b}[31m".into());
    lease.image = Some("é".repeat(10_000));
    let text = page(&reading, Format::Text);
    assert!(text.contains(r#"container="a\"} 1\nfgpu_grants_total 999\\""#), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("fgpu_grants_total ")).count(), 1);
    assert!(text.lines().all(|line| line.len() < 2000), "{text}");
}

/// A node without GPUs, leases and counts has a page all the same.
#[test]
fn nothing_known_is_nothing_said() {
    let mut reading = reading();
    (reading.status.gpus, reading.status.leases, reading.status.queue) = Default::default();
    (reading.inventory, reading.asked, reading.counts) = (None, None, None);
    let text = page(&reading, Format::Text);
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        samples,
        [
            &format!("fgpu_build_info{{version=\"{version}\"}} 1.0"),
            "fgpu_inventory_current 0.0",
            "fgpu_queue_waiting 0.0",
            "fgpu_queue_head_wait_seconds 0.0"
        ]
    );
}

#[test]
fn slices_of_one_gpu_are_one_sample() {
    let mut reading = reading();
    let lease = &mut reading.status.leases[5];
    let uuid = lease.gpus[0].uuid.clone();
    lease.gpus[1].uuid.clone_from(&uuid);
    let sum = lease.gpus.iter().map(|share| share.memory).sum::<u64>();
    let text = page(&reading, Format::Text);
    let start = format!("fgpu_lease_memory_limit_bytes{{lease=\"{}\"", reading.status.leases[5].grant);
    let found: Vec<&str> =
        text.lines().filter(|line| line.starts_with(&start) && line.contains(&uuid)).collect();
    assert!(found.iter().any(|line| line.ends_with(&format!(" {sum}.0"))), "{found:?}");
}

#[test]
fn a_mapping_has_a_file_for_each_gpu_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name));
    let mut status = tenants();
    status.leases[0].name = Some("evil\nname".into());
    mapping::write(folder.path(), &status).unwrap();
    assert_eq!(read("0").unwrap(), format!("{}\nembeddings\n", status.leases[0].short));
    assert_eq!(read("3").unwrap(), "finetune\nci-4711\n");
    status.leases.retain(|lease| lease.name.as_deref() != Some("finetune"));
    mapping::write(folder.path(), &status).unwrap();
    assert!(read("2").is_err());
    assert_eq!(read("3").unwrap(), "ci-4711\n");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "nothing else is left");
    assert!(mapping::write(&folder.path().join("nowhere"), &status).is_err());
}
