//! The status of nodes of every size, as text and as JSON.
//!
//! The texts are kept in `snapshots/`, to be looked at: `FGPU_BLESS=1 cargo test -p fgpu` writes them anew.
//! One of them, in colours, is the picture in docs/images.

use std::path::{Path, PathBuf};

use fgpu_allocator::{Key, Process};
use fgpu_spec::{Compute, Gpu, Grant, GrantedGpu, MigPlacement, MigSlice, MigStage};

use super::*;
use fgpu_allocator::names::Names;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

pub(crate) fn gpu(index: u32, model: &str, gib: u64) -> Gpu {
    Gpu {
        uuid: format!("GPU-{index:08x}-4a1c-5e60-b0d1-0123456789ab"),
        index,
        minor: index,
        model: model.into(),
        pci: format!("00000000:{:02X}:00.0", 0x17 + index),
        numa: Some(index / 4),
        total_memory: gib * GIB,
        reserved_memory: 0,
        mig_enabled: false,
        context_memory: None,
        compute_capability: None,
        mig_profiles: Vec::new(),
    }
}

pub(crate) fn inventory(gpus: Vec<Gpu>) -> Inventory {
    Inventory {
        version: 1,
        boot_id: String::new(),
        root: "/".into(),
        driver_version: "550.163.01".into(),
        cuda_version: 12040,
        gpus,
        files: Vec::new(),
        driver_limits: false,
        topology: fgpu_spec::Topology::default(),
    }
}

/// A lease of a quarter of each GPU.
pub(crate) fn lease(id: &str, gpus: &[u32], exclusive: bool) -> Lease {
    let share = |index: &u32| GrantedGpu {
        uuid: gpu(*index, "", 1).uuid,
        memory: 10 * GIB,
        cores_ppm: 250_000,
        mig: None,
    };
    Lease {
        key: Key { namespace: "moby".into(), id: id.into() },
        grant: Grant {
            nonce: Nonce([7; 16]),
            tier: Tier::Quota,
            compute: Compute::Cap,
            gpus: gpus.iter().map(share).collect(),
            notes: Vec::new(),
        },
        state: State::Active,
        owner: Some("team-a".into()),
        exclusive,
        bundle: "/bundle".into(),
        maker: Process { pid: 1, start: 1 },
        pid_namespace: None,
        pid_file: None,
        init: Some(Process { pid: 4711, start: 2 }),
        cgroup: None,
        created: 1_000_000_000,
        wall: 1_790_000_000_000_000_000,
        request: "fgpu/fraction=0.25".into(),
        kept: None,
        anchor: None,
        joined: Vec::new(),
        trouble: None,
    }
}

fn held(lease: Lease) -> Row {
    Row { lease, names: Names::default(), used: None, mark: None, gone: false }
}

/// A node of a hundred containers or none: each has a hundredth of its GPU, names are long and short.
fn crowd(gpus: u32, containers: u64) -> Status {
    let inventory = inventory((0..gpus).map(|index| gpu(index, "NVIDIA H100 80GB HBM3", 80)).collect());
    let container = |number: u64| {
        let on = u32::try_from(number).unwrap() % gpus;
        let id = format!("{:012x}{:052x}", 0x3f1c_0a9b_2d11_u64 + number * 7919, number);
        let mut lease = lease(&id, &[on], false);
        lease.grant.gpus[0].memory = 80 * GIB / 100 / MIB * MIB;
        lease.grant.gpus[0].cores_ppm = 10_000;
        lease.created = 1_000_000_000 * (1 + number * 977);
        lease.owner = [None, Some("team-a"), Some("research.vision")][number as usize % 3].map(Into::into);
        let name = match number % 4 {
            0 => Some(format!("web-{number}")),
            1 => Some(format!("research/llm-finetune-{number}-7d9c5b/trainer")),
            2 => Some("jupyter".to_owned()),
            _ => None,
        };
        let image =
            ["nginx:1.27", "nvcr.io/nvidia/pytorch:24.10-py3", "quay.io/jupyter/base-notebook:latest"];
        Row {
            lease,
            names: Names { name, image: Some(image[number as usize % 3].into()) },
            used: Some(Used::for_test([(number * 7 * MIB, (number % 11 * 1000) as u32)])),
            mark: None,
            gone: false,
        }
    };
    let held: Vec<_> = (0..containers).map(container).collect();
    Status::of(Some(&inventory), 0, &held, 1_000_000_000 * 100_000)
}

/// A node of several tenants: what the picture shows.
pub(crate) fn tenants() -> Status {
    let model = "NVIDIA H100 80GB HBM3";
    let inventory = inventory((0..4).map(|index| gpu(index, model, 80)).collect());
    let mut seconds = 0;
    let mut container =
        |id: &str, name: &str, image: &str, owner: &str, shares: &[(u32, u64, u32, u64, u32)]| {
            seconds += 40_111;
            let indices: Vec<u32> = shares.iter().map(|share| share.0).collect();
            let mut lease = lease(&format!("{id}{}", "0".repeat(52)), &indices, false);
            for (share, (_, memory, cores, ..)) in lease.grant.gpus.iter_mut().zip(shares) {
                (share.memory, share.cores_ppm) = (memory * GIB, cores * 10_000);
            }
            lease.owner = Some(owner.to_owned()).filter(|owner| !owner.is_empty());
            lease.created = seconds * 1_000_000_000;
            let used = shares.iter().map(|share| (share.3 * GIB / 10, share.4 * 10_000));
            let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
            let names = Names { name: some(name), image: some(image) };
            Row { lease, names, used: Some(Used::for_test(used)), mark: None, gone: false }
        };
    let mut held = vec![
        container("3f1c0a9b2d11", "chat", "vllm/vllm-openai:v0.6", "assistants", &[(0, 40, 50, 371, 47)]),
        container("9ab27e0c41d3", "embeddings", "text-embeddings:1.5", "search", &[(0, 20, 25, 93, 11)]),
        container("c07d15aa9f02", "jupyter-mia", "jupyter/base-notebook", "research", &[(1, 10, 12, 41, 12)]),
        container("11d49be6c7a0", "jupyter-ben", "jupyter/base-notebook", "research", &[(1, 10, 12, 0, 0)]),
        container("70f8a2c3e914", "whisper", "whisper-server:2", "media", &[(1, 26, 33, 188, 21)]),
        container(
            "e51b60d7fa28",
            "finetune",
            "nvidia/pytorch:24.10",
            "research",
            &[(2, 80, 100, 702, 98), (3, 40, 50, 355, 50)],
        ),
        container("5c3a98e1b046", "ci-4711", "cuda:12.4-devel", "", &[(3, 8, 10, 3, 0)]),
    ];
    held[0].lease.created = 1_000_000_000;
    let mut status = Status::of(Some(&inventory), 0, &held, 1_000_000_000 * 300_000);
    status.queue = vec![crate::queue::tests::one(None)];
    status
}

fn at(width: usize) -> Look {
    Look { width: Some(width), ..Look::PLAIN }
}

/// Compares with the file, or writes it.
#[track_caller]
pub(crate) fn assert_kept(path: &Path, text: &str) {
    if std::env::var_os("FGPU_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let kept = std::fs::read_to_string(path).unwrap_or_default();
    assert!(kept == text, "{} is not:\n{text}", path.display());
}

fn snapshot(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/status/snapshots").join(name)
}

#[test]
fn nodes_of_every_size_at_every_width() {
    for gpus in [1, 8] {
        for containers in [0, 100] {
            let status = crowd(gpus, containers);
            for width in [80, 200] {
                let text = text::text(&status, Order::Age, &at(width));
                for line in text.lines() {
                    assert!(unicode_width::UnicodeWidthStr::width(line) <= width, "{width}: {line}");
                }
                assert_kept(
                    &snapshot(&format!("{gpus}-gpus-{containers}-leases-{width}-columns.txt")),
                    &text,
                );
            }
        }
    }
}

#[test]
fn several_tenants_and_a_queue() {
    let status = tenants();
    for width in [40, 60, 80, 120, 200] {
        let text = text::text(&status, Order::Age, &at(width));
        assert_kept(&snapshot(&format!("tenants-{width}-columns.txt")), &text);
    }
    let ascii = Look { unicode: false, ..at(80) };
    assert_kept(&snapshot("tenants-ascii.txt"), &text::text(&status, Order::Age, &ascii));
    assert_kept(&snapshot("tenants-top.txt"), &text::text(&status, Order::Use, &at(100)));
    assert_kept(&snapshot("tenants-piped.txt"), &text::text(&status, Order::Age, &Look::PLAIN));
}

#[test]
fn the_picture_is_of_this_version() {
    let look = Look { colour: true, ..at(110) };
    let text = text::text(&tenants(), Order::Age, &look);
    // Wide enough for any monospaced font.
    let picture = anstyle_svg::Term::new().min_width_px(970).render_svg(&format!("$ fgpu status\n{text}"));
    assert_kept(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/images/status.svg"), &picture);
}

#[test]
fn a_gpu_in_mig_mode_and_one_that_somebody_has_alone() {
    let mut gpus: Vec<_> = (0..3).map(|index| gpu(index, "Simulated A100", 40)).collect();
    gpus[2].mig_enabled = true;
    let held = [held(lease("web", &[0, 1], true))];
    let status = Status::of(Some(&inventory(gpus)), GIB, &held, 193_999_999_999);
    assert_kept(&snapshot("mig-and-exclusive.txt"), &text::text(&status, Order::Age, &at(90)));
}

/// What the plugin of a cluster holds is no container.
#[test]
fn gpus_that_are_for_claims() {
    let gpus = vec![gpu(0, "NVIDIA H100 80GB HBM3", 80), gpu(1, "NVIDIA H100 80GB HBM3", 80)];
    let pool = fgpu_allocator::Pool { name: "node1".into() };
    let mut all = lease("node/node1", &[0, 1], true);
    all.key = pool.key();
    all.state = State::Claimed;
    all.anchor = Some(Anchor::Pool(pool));
    all.grant.gpus.iter_mut().for_each(|share| (share.memory, share.cores_ppm) = (0, 0));
    let held = [held(all), held(lease("web", &[1], false))];
    let status = Status::of(Some(&inventory(gpus)), GIB, &held, 193_999_999_999);
    assert_eq!((status.leases.len(), status.gpus[0].leases, status.gpus[1].leases), (1, 0, 1));
    assert!(status.gpus.iter().all(|gpu| !gpu.exclusive && gpu.for_claims_of.as_deref() == Some("node1")));
    let text = text::text(&status, Order::Age, &at(90));
    assert!(text.contains("\nGPUs 0, 1 are for claims of Kubernetes alone (node node1).\n"), "{text}");
    assert!(!text.contains("kubernetes/"), "{text}");
}

#[test]
fn hardware_slices_have_the_names_of_their_profiles() {
    let mut gpus = vec![gpu(0, "NVIDIA A100-SXM4-40GB", 40)];
    gpus[0].mig_enabled = true;
    let mut lease = lease("web", &[0, 0], false);
    lease.grant.tier = Tier::Mig;
    for (number, share) in (0..).zip(&mut lease.grant.gpus) {
        let placement = MigPlacement { start: number * 2, size: 2 };
        share.mig = Some(MigSlice {
            placement,
            profile: 14,
            name: "2g.10gb".into(),
            stage: MigStage::Planned,
            instance: None,
        });
    }
    let status = Status::of(Some(&inventory(gpus)), 0, &[held(lease)], 193_999_999_999);
    assert_eq!((status.gpus[0].leases, status.gpus[0].granted_memory), (1, 20 * GIB));
    assert_kept(&snapshot("mig-slices.txt"), &text::text(&status, Order::Age, &at(110)));
}

#[test]
fn a_lease_of_the_hook_is_readable_and_its_bundle_is_in_the_json() {
    let id = "3f1c0a9b2d11".to_owned() + &"0".repeat(52);
    let bundle = format!("/var/lib/containers/storage/overlay-containers/{id}/userdata");
    let mut lease = lease(&id, &[0], false);
    lease.key.namespace = bundle.clone();
    let status = Status::of(Some(&inventory(vec![gpu(0, "A100", 40)])), 0, &[held(lease)], 0);
    let text = text::text(&status, Order::Age, &Look::PLAIN);
    assert!(text.contains("\n3f1c0a9b2d11    0"), "{text}");
    let value = serde_json::to_value(&status).unwrap();
    assert_eq!(value["leases"][0]["namespace"], bundle);
    assert_eq!(value["leases"][0]["container"], id);
    assert!(value["leases"][0].get("short").is_none());
}

#[test]
fn leases_are_shown_when_the_driver_is_gone() {
    let status = Status::of(None, 0, &[held(lease("web", &[0], false))], 0);
    let text = text::text(&status, Order::Age, &Look::PLAIN);
    assert!(text.contains("moby/web   GPU-00000000-4a1c-5e60-b0d1-0123456789ab"), "{text}");
}

#[test]
fn an_ended_container_holds_nothing_and_is_shown_as_gone() {
    let [mut first, second] = ["1", "2"].map(|id| held(lease(&id.repeat(24), &[0], false)));
    first.gone = true;
    let both = inventory(vec![gpu(0, "NVIDIA H100", 80)]);
    let memory = second.lease.grant.gpus[0].memory;
    let status = Status::of(Some(&both), 0, &[first, second], 0);
    assert_eq!((status.gpus[0].granted_memory, status.gpus[0].leases), (memory, 1));
    assert_eq!(status.leases.iter().map(|lease| lease.gone).collect::<Vec<_>>(), [true, false]);
    let text = text::text(&status, Order::Age, &Look::PLAIN);
    assert!(text.starts_with("1 GPU, 1 container"), "{text}");
    assert!(text.lines().any(|line| line.contains("111111111111") && line.ends_with("gone")), "{text}");
    assert!(text.contains("gone: it has ended"), "{text}");
}

#[test]
fn hostile_names_do_nothing_to_the_terminal() {
    let mut container = held(lease("a\u{1b}[2J\u{202e}b", &[0], false));
    container.lease.owner = Some("o\r\n".into());
    container.names =
        Names { name: Some("\u{1b}]0;pwned\u{7}".into()), image: Some("i\u{9b}2J\u{200d}".into()) };
    let mut status = Status::of(Some(&inventory(vec![gpu(0, "A\u{1b}c", 40)])), 0, &[container], 0);
    status.driver_version = Some("\u{1b}[31m".into());
    for look in [Look::PLAIN, at(40)] {
        let text = text::text(&status, Order::Age, &look);
        assert!(text.chars().all(|char| char == '\n' || !char.is_control()), "{text:?}");
        assert!(!text.contains(['\u{202e}', '\u{200d}']), "{text:?}");
    }
}

#[test]
fn time_that_is_not_limited_is_not_measured_and_says_so() {
    let mut limited = held(lease("a", &[0], false));
    limited.used = Some(Used::for_test([(5 * GIB, 300_000)]));
    let mut free = held(lease("b", &[0, 1], false));
    free.used = Some(Used::for_test([(GIB, 0), (GIB, 0)]));
    free.lease.grant.compute = Compute::Off;
    let gpus = (0..2).map(|index| gpu(index, "A100", 40)).collect();
    let status = Status::of(Some(&inventory(gpus)), 0, &[limited, free], 61_000_000_000);
    assert_eq!(status.gpus.iter().map(|gpu| gpu.used_cores_ppm).collect::<Vec<_>>(), [Some(300_000), None]);
    assert_kept(&snapshot("not-measured.txt"), &text::text(&status, Order::Age, &at(100)));
    let value = serde_json::to_value(&status).unwrap();
    let share = &value["leases"][1]["gpus"][0];
    assert_eq!(
        (&share["used_memory"], &share["used_cores_ppm"], &share["used_cores_ns"]),
        (&GIB.into(), &serde_json::Value::Null, &serde_json::Value::Null)
    );
}

#[test]
fn values_that_only_root_can_read_are_marked() {
    let mut status =
        Status::of(Some(&inventory(vec![gpu(0, "A100", 40)])), 0, &[held(lease("a", &[0], false))], 0);
    status.is_blind = true;
    assert_eq!((status.gpus[0].used_memory, status.gpus[0].used_cores_ppm), (None, None));
    let text = text::text(&status, Order::Age, &at(100));
    assert!(text.ends_with("-: only root can see it\n"), "{text}");
}

#[test]
fn the_json_has_exact_amounts() {
    let mut container = held(lease("web", &[1], false));
    container.used = Some(Used::for_test([(5, 240_000)]));
    container.names = Names { name: Some("shop".into()), image: None };
    let gpus = (0..2).map(|index| gpu(index, "A100", 40)).collect();
    let status = Status::of(Some(&inventory(gpus)), 0, &[container], 61_000_000_000);
    let value = serde_json::to_value(&status).unwrap();
    assert_eq!(value["gpus"][1]["granted_memory"], 10 * GIB);
    assert_eq!(value["gpus"][1]["used_memory"], 5);
    assert_eq!(
        (&value["gpus"][1]["used_cores_ppm"], &value["gpus"][0]["used_cores_ppm"]),
        (&240_000.into(), &0.into())
    );
    assert_eq!(value["gpus"][1]["granted_cores_ppm"], 250_000);
    let lease = &value["leases"][0];
    assert_eq!((&lease["namespace"], &lease["container"]), (&"moby".into(), &"web".into()));
    assert_eq!((&lease["name"], &lease["image"]), (&"shop".into(), &serde_json::Value::Null));
    assert_eq!(lease["grant"], "07".repeat(16));
    assert_eq!((&lease["tier"], &lease["state"]), (&"quota".into(), &"active".into()));
    assert_eq!((&lease["held_seconds"], &lease["init_pid"]), (&60.into(), &4711.into()));
    assert_eq!(lease["since"], "2026-09-21T14:13:20Z");
    assert_eq!(lease["gpus"][0]["used_cores_ppm"], 240_000);
    assert_eq!(lease["gpus"][0]["used_cores_ns"], 240_000_000);
    assert_eq!((&lease["gpus"][0]["index"], &lease["gpus"][0]["used_memory"]), (&1.into(), &5.into()));
}
