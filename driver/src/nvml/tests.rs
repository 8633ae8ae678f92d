use std::process::Command;

use super::*;
use crate::fake::Root;

const VERSION: &str = "550.163.01";
/// `NVML_ERROR_GPU_IS_LOST`, `NVML_ERROR_RESET_REQUIRED`.
const LOST: &str = "15";
const RESET_REQUIRED: &str = "16";

/// A root whose libnvidia-ml is the stand-in, compiled with `defines` beside `GPUS`.
fn root_with(gpus: &str, defines: &[&str]) -> Root {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/nvml/standin.c");
    let name = |define: &str| define.split('=').next().map(str::to_owned);
    let mut all = vec![format!("-DGPUS={gpus}")];
    for default in [format!("-DVERSION=\"{VERSION}\""), "-DINIT=0".into()] {
        if !defines.iter().any(|define| name(define) == name(&default)) {
            all.push(default);
        }
    }
    all.extend(defines.iter().map(|&define| define.to_owned()));
    root_with_nvml(&source, &all)
}

fn root_with_nvml(source: &Path, defines: &[String]) -> Root {
    let root = Root::with_driver(VERSION);
    let folder = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let status = Command::new("cc") // the linker that Rust needs anyway
        .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"])
        .args(defines)
        .arg("-o")
        .arg(root.path().join(folder).join(format!("libnvidia-ml.so.{VERSION}")))
        .args(["-x", "c"])
        .arg(source)
        .status()
        .unwrap();
    assert!(status.success(), "the stand-in does not compile");
    root
}

#[test]
fn an_inventory_of_two_gpus() {
    let root = root_with("0,0", &["-DMEMORY_2", "-DMIG=0"]);
    root.write("sys/bus/pci/devices/0000:3c:00.0/numa_node", b"1\n");
    let found = probe(root.path()).unwrap();
    assert_eq!((found.version, found.root.as_path()), (FORMAT, root.path()));
    assert_eq!((found.driver_version.as_str(), found.cuda_version), (VERSION, 12040));
    assert_eq!(found.boot_id, boot_id().unwrap());
    assert_eq!(found.files.len(), 2);
    let second = Gpu {
        uuid: "GPU-00000001-0000-0000-0000-000000000000".into(),
        index: 1,
        minor: 5,
        model: "Stand-in".into(),
        pci: "00000000:3C:00.0".into(),
        numa: Some(1),
        total_memory: 24576 << 20,
        reserved_memory: 512 << 20,
        mig_enabled: false,
    };
    assert_eq!(found.gpus.len(), 2);
    assert_eq!(found.gpus[1], second);

    // What was stored is fresh.
    crate::store(root.path(), &found).unwrap();
    assert_eq!(crate::cached(root.path(), root.path()).unwrap(), Some(found));
}

/// The links as `fgpu inventory --json` writes them.
fn lines(root: &Root) -> Vec<String> {
    probe(root.path()).unwrap().topology.into()
}

#[test]
fn nvlinks_and_the_way_over_pcie() {
    let four = |define: &[&str]| root_with("0,0,0,0", &[&["-DLINKS=4"], define].concat());
    assert_eq!(lines(&four(&[])), ["", "NV4+PIX", "SYS SYS", "SYS SYS NV4+PIX"]);
    assert_eq!(lines(&four(&["-DSWITCH"])), ["", "NV4+PIX", "NV4+SYS NV4+SYS", "NV4+SYS NV4+SYS NV4+PIX"]);
    assert_eq!(lines(&four(&["-DNPU"])), ["", "PIX", "SYS SYS", "SYS SYS PIX"]);
}

#[test]
fn links_are_those_of_the_gpus_that_can_be_used() {
    let root = root_with(&format!("0,{LOST},0,0"), &["-DLINKS=2"]);
    assert_eq!(lines(&root), ["", "SYS", "SYS NV2+PIX"]);
}

#[test]
fn a_driver_that_tells_no_links_leaves_the_numa_nodes() {
    let root = root_with("0,0,0", &[]);
    for (slot, node) in [("3b", "0"), ("3c", "1"), ("3d", "0")] {
        root.write(&format!("sys/bus/pci/devices/0000:{slot}:00.0/numa_node"), node.as_bytes());
    }
    assert_eq!(lines(&root), ["", "SYS", "NODE SYS"]);
}

#[test]
fn a_driver_of_before_510_reserves_nothing() {
    let root = root_with("0", &["-DMIG=0"]);
    let gpus = probe(root.path()).unwrap().gpus;
    assert_eq!((gpus[0].total_memory, gpus[0].reserved_memory), (24576 << 20, 0));
}

#[test]
fn mig_on_off_and_unknown_to_the_driver() {
    for (define, expected) in [(Some("-DMIG=1"), true), (Some("-DMIG=0"), false), (None, false)] {
        let root = root_with("0", define.as_slice());
        assert_eq!(probe(root.path()).unwrap().gpus[0].mig_enabled, expected, "{define:?}");
    }
}

#[test]
fn a_lost_gpu_does_not_hide_the_others() {
    let root = root_with(&format!("0,{LOST},0"), &["-DMEMORY_2"]);
    let found = inspect(root.path()).unwrap();
    let indices: Vec<_> = found.inventory.gpus.iter().map(|gpu| gpu.index).collect();
    assert_eq!(indices, [0, 2]);
    assert_eq!(found.unusable.len(), 1);
    assert_eq!(found.unusable[0].index, 1);
    assert!(found.unusable[0].reason.contains("fell off the bus"), "{:?}", found.unusable);
}

#[test]
fn nothing_but_broken_gpus_is_unhealthy() {
    let root = root_with(RESET_REQUIRED, &[]);
    let error = probe(root.path()).unwrap_err();
    assert_eq!(error.code, Code::GpuUnhealthy);
    assert!(error.message.contains("GPU 0") && error.message.contains("requires a reset"), "{error}");
}

#[test]
fn a_refresh_that_fails_leaves_no_inventory() {
    let root = root_with("0", &[]);
    let state = root.path().join("run/fgpu");
    let found = refresh(root.path(), &state).unwrap().inventory;
    assert_eq!(crate::cached(root.path(), &state).unwrap(), Some(found.clone()));
    let upgraded = root_with("0", &["-DVERSION=\"535.183.01\""]);
    assert!(refresh(upgraded.path(), &state).is_err());
    assert_eq!(crate::cached(root.path(), &state).unwrap(), None);
    assert!(refresh(root.path(), &state).is_ok(), "the lock is free again");
}

#[test]
fn another_version_than_the_kernels_is_a_mismatch() {
    let root = root_with("0", &["-DVERSION=\"535.183.01\""]);
    let error = probe(root.path()).unwrap_err();
    assert_eq!(error.code, Code::DriverError);
    assert!(error.message.contains("550.163.01") && error.message.contains("535.183.01"), "{error}");
}

#[test]
fn an_nvml_that_refuses_is_quoted() {
    // NVML_ERROR_LIB_RM_VERSION_MISMATCH
    let root = root_with("0", &["-DINIT=18"]);
    let error = probe(root.path()).unwrap_err();
    assert_eq!(error.code, Code::DriverError);
    assert!(error.message.contains("version mismatch") && error.message.contains("reboot"), "{error}");
}

#[test]
fn a_library_that_is_no_nvml_is_an_error() {
    let root = root_with_nvml(Path::new("/dev/null"), &[]);
    let error = probe(root.path()).unwrap_err();
    assert_eq!(error.code, Code::DriverError);
    assert!(error.message.contains("libnvidia-ml.so.550.163.01"), "{error}");
}

#[test]
fn pci_addresses_as_sysfs_writes_them() {
    assert_eq!(sysfs_name("00000000:3B:00.0").as_deref(), Some("0000:3b:00.0"));
    assert_eq!(sysfs_name("00010000:01:00.0").as_deref(), Some("10000:01:00.0"));
    assert_eq!(sysfs_name("0000:../../etc"), None);
    assert_eq!(sysfs_name("3B"), None);
}

#[test]
fn the_numa_node_of_a_slot() {
    let root = Root::new();
    let folder = "sys/bus/pci/devices/0000:3b:00.0";
    root.write(&format!("{folder}/numa_node"), b"1\n");
    assert_eq!(numa(root.path(), "00000000:3B:00.0"), Some(1));
    root.write(&format!("{folder}/numa_node"), b"-1\n");
    assert_eq!(numa(root.path(), "00000000:3B:00.0"), None);
    assert_eq!(numa(root.path(), "00000000:77:00.0"), None);
}
