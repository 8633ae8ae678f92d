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

/// Where nothing is to be measured: the stand-in has no compute mode.
fn nobody(_: &Path) -> Command {
    panic!("a context was made")
}

fn inspect(root: &Path) -> Result<Probe, Error> {
    super::inspect(root, None, &nobody, &mut |_, _| ())
}

fn probe(root: &Path) -> Result<Inventory, Error> {
    inspect(root).map(|probe| probe.inventory)
}

/// A root with GPUs of which a file says what is in use, and the file.
fn root_with_meter(gpus: &str, defines: &[&str]) -> (Root, std::path::PathBuf) {
    let place = Root::new();
    let file = place.path().with_extension("used");
    let used = format!("-DUSED=\"{}\"", file.display());
    let defines: Vec<_> = defines.iter().copied().chain([used.as_str()]).collect();
    (root_with(gpus, &defines), file)
}

/// Holders for [`root_with_meter`]: a shell that writes `said` into the file, is ready, and writes `left` at
/// its end.
fn holder(file: &Path, said: &str, left: &str) -> impl Fn(&Path) -> Command + use<> {
    let script = format!(
        "echo {said} >{0}; echo ready; read -r _; echo {left} >{0}; echo $CUDA_VISIBLE_DEVICES >>{0}.log",
        file.display()
    );
    move |libcuda| {
        assert!(libcuda.ends_with(format!("libcuda.so.{VERSION}")), "{libcuda:?}");
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(&script);
        command
    }
}

/// The GPUs on which a context was made, by the log of [`holder`].
fn held_on(file: &Path) -> Vec<String> {
    let mut log = file.to_owned().into_os_string();
    log.push(".log");
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn sizes(probe: &Probe) -> Vec<Option<u64>> {
    probe.inventory.gpus.iter().map(|gpu| gpu.context_memory).collect()
}

#[test]
fn a_context_is_measured_once_for_a_model_and_a_driver() {
    let (root, file) = root_with_meter("0,0", &["-DCOMPUTE=0"]);
    let state = root.path().join("run/fgpu");
    let hold = holder(&file, "500 $$", "0");
    let found = refresh(root.path(), &state, &hold).unwrap();
    assert_eq!((sizes(&found), found.unmeasured.len()), (vec![Some(500 << 20); 2], 0));
    assert_eq!(held_on(&file), [found.inventory.gpus[0].uuid.as_str()]);
    // What is known stays known, be it of another boot.
    let mut older = found.inventory.clone();
    older.boot_id = "another".into();
    older.gpus[1].context_memory = None;
    crate::store(&state, &older).unwrap();
    assert_eq!(refresh(root.path(), &state, &nobody).unwrap(), found);
    // Under another driver it is measured again.
    older.driver_version = "535.183.01".into();
    crate::store(&state, &older).unwrap();
    let again = refresh(root.path(), &state, &holder(&file, "400 $$", "0")).unwrap();
    assert_eq!(sizes(&again), [Some(400 << 20); 2]);
}

#[test]
fn on_a_busy_gpu_what_nvml_says_of_the_process_is_taken() {
    // What is in use besides grows from round to round.
    let (root, file) = root_with_meter("0", &["-DCOMPUTE=0"]);
    let found = super::inspect(root.path(), None, &holder(&file, "500 $$", "$$"), &mut |_, _| ()).unwrap();
    assert_eq!((sizes(&found), held_on(&file).len()), (vec![Some(500 << 20)], 3));
    // Of processes that the list does not name, two rounds must agree on the difference.
    let (root, file) = root_with_meter("0", &["-DCOMPUTE=0"]);
    let found = super::inspect(root.path(), None, &holder(&file, "600 1", "0"), &mut |_, _| ()).unwrap();
    assert_eq!((sizes(&found), held_on(&file).len()), (vec![Some(600 << 20)], 2));
}

#[test]
fn a_failed_measurement_is_reported_and_repeated_later() {
    type Hold = Box<dyn Fn(&Path) -> Command>;
    let (shared, file) = root_with_meter("0", &["-DCOMPUTE=0"]);
    let (prohibited, _) = root_with_meter("0", &["-DCOMPUTE=2"]);
    let (mig, _) = root_with_meter("0", &["-DCOMPUTE=0", "-DMIG=1"]);
    let words = |program: &'static str, argument: &'static str| -> Hold {
        Box::new(move |_| {
            let mut command = Command::new(program);
            command.arg(argument);
            command
        })
    };
    let cases: [(&Root, Hold, Option<&str>); 6] = [
        (&prohibited, Box::new(nobody), Some("compute mode is Prohibited")),
        (&mig, Box::new(nobody), None),
        (&shared, words("/bin/echo", "cuInit: CUDA error 999"), Some("cuInit: CUDA error 999")),
        (&shared, words("/bin/true", ""), Some("crashed")),
        (&shared, words("/nonexistent", ""), Some("cannot run /nonexistent")),
        (&shared, Box::new(holder(&file, "600 1", "$$")), Some("changed in every round")),
    ];
    for (root, hold, reason) in cases {
        let found = super::inspect(root.path(), None, &*hold, &mut |_, _| ()).unwrap();
        assert_eq!(sizes(&found), [None], "{reason:?}");
        let told: Vec<_> = found.unmeasured.iter().map(|gpu| (gpu.index, gpu.reason.as_str())).collect();
        match reason {
            None => assert_eq!(told, []),
            Some(reason) => assert!(told[0].0 == 0 && told[0].1.contains(reason), "{told:?}"),
        }
    }
    let state = shared.path().join("run/fgpu");
    refresh(shared.path(), &state, &*words("/bin/true", "")).unwrap();
    fs::write(&file, "0").unwrap();
    let found = refresh(shared.path(), &state, &holder(&file, "500 $$", "0")).unwrap();
    assert_eq!(sizes(&found), [Some(500 << 20)]);
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
        context_memory: None,
        compute_capability: None,
        mig_profiles: Vec::new(),
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

/// NVIDIA's mock of NVML gives the switches of its a100, gb200 and gb300 the device id 0.
#[test]
fn the_driver_is_asked_what_is_at_the_end_of_a_link() {
    let four = |define: &[&str]| lines(&root_with("0,0,0,0", &[&["-DLINKS=4"], define].concat()));
    let switched = ["", "NV4+PIX", "NV4+SYS NV4+SYS", "NV4+SYS NV4+SYS NV4+PIX"];
    assert_eq!(four(&["-DSWITCH", "-DNO_IDS", "-DREMOTE=2"]), switched);
    assert_eq!(four(&["-DSWITCH", "-DREMOTE=255"]), switched, "one that does not know is not believed");
    assert_eq!(four(&["-DREMOTE=0", "-DNO_IDS"]), ["", "NV4+PIX", "SYS SYS", "SYS SYS NV4+PIX"]);
    assert_eq!(four(&["-DNPU", "-DREMOTE=1"]), ["", "PIX", "SYS SYS", "SYS SYS PIX"]);
    // GPUs that cannot be used are no switch between those that can.
    let lost = root_with(&format!("0,{LOST},0,{LOST}"), &["-DLINKS=2", "-DREMOTE=0"]);
    assert_eq!(lines(&lost), ["", "SYS"]);
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
fn use_of_a_gpu_is_reported_with_its_users() {
    let (root, file) = root_with_meter("0", &["-DCOMPUTE=2", "-DMEMORY_2"]);
    let gpu = probe(root.path()).unwrap().gpus.remove(0);
    let nvml = open(root.path()).unwrap();
    let in_use = |memory: u64, processes: &[(u32, Option<u64>)]| health::InUse {
        memory: memory << 20,
        processes: processes.iter().map(|&(pid, used)| (pid, used.map(|used| used << 20))).collect(),
    };
    // The driver's reserve is in use, and nobody's.
    assert_eq!(health::look(&nvml, &gpu), Ok(in_use(0, &[])));
    fs::write(&file, "700 123").unwrap();
    assert_eq!(health::look(&nvml, &gpu), Ok(in_use(700, &[(123, Some(700))])));
}

#[test]
fn a_gpu_of_the_inventory_that_is_lost_is_told_from_one_that_does_not_say() {
    let gpu = probe(root_with("0,0", &[]).path()).unwrap().gpus.remove(1);
    for (code, word) in [(LOST, Some("lost")), (RESET_REQUIRED, Some("reset")), ("999", None), ("4", None)] {
        let root = root_with(&format!("0,{code}"), &[]);
        let nvml = open(root.path()).unwrap();
        match (health::look(&nvml, &gpu), word) {
            (Err(health::Trouble::Unhealthy(why)), Some(word)) => assert!(why.contains(word), "{why}"),
            (Err(health::Trouble::Unknown(_)), None) => {}
            (other, _) => panic!("{code}: {other:?}"),
        }
    }
    // Another one has its index now.
    let root = root_with("0,0", &[]);
    let nvml = open(root.path()).unwrap();
    let moved = Gpu { index: 0, ..gpu };
    assert!(matches!(health::look(&nvml, &moved), Err(health::Trouble::Unknown(_))));
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
    let found = refresh(root.path(), &state, &nobody).unwrap().inventory;
    assert_eq!(crate::cached(root.path(), &state).unwrap(), Some(found.clone()));
    let upgraded = root_with("0", &["-DVERSION=\"535.183.01\""]);
    assert!(refresh(upgraded.path(), &state, &nobody).is_err());
    assert_eq!(crate::cached(root.path(), &state).unwrap(), None);
    assert!(refresh(root.path(), &state, &nobody).is_ok(), "the lock is free again");
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
