use super::*;

pub(crate) fn inventory(gpus: u32) -> Inventory {
    let gpu = |index| Gpu {
        uuid: format!("GPU-{index:08x}-aaaa-bbbb-cccc-dddddddddddd"),
        index,
        minor: index,
        model: "NVIDIA H100 80GB HBM3".into(),
        pci: format!("00000000:{index:02X}:00.0"),
        numa: Some(index / 4),
        total_memory: 80 << 30,
        reserved_memory: 1 << 20,
        mig_enabled: false,
        context_memory: None,
        compute_capability: Some("9.0".into()),
        mig_profiles: Vec::new(),
    };
    Inventory {
        version: 1,
        boot_id: String::new(),
        root: "/".into(),
        driver_version: "550.163.01".into(),
        cuda_version: 12040,
        gpus: (0..gpus).map(gpu).collect(),
        driver_limits: false,
        topology: fgpu_spec::Topology::default(),
        files: Vec::new(),
    }
}

fn offer(inventory: &Inventory, reserve: u64, seen: &BTreeMap<String, Seen>) -> Devices {
    Offer { inventory, reserve, seen }.devices(|_| true)
}

#[test]
fn a_gpu_is_two_devices_over_one_counter() {
    let Devices { devices, counters } = offer(&inventory(1), 1 << 30, &BTreeMap::new());
    let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(names, ["gpu-0", "gpu-0-share"]);
    assert_eq!(counters.len(), 1);
    assert_eq!(devices[0].consumes_counters, devices[1].consumes_counters);
    assert_eq!(devices[0].consumes_counters.as_ref().unwrap()[0].counter_set, counters[0].name);
    assert_eq!(devices[0].consumes_counters.as_ref().unwrap()[0].counters, counters[0].counters);
    let policy = |device: usize, name: &str| {
        let capacity = &devices[device].capacity.as_ref().unwrap()[name];
        let policy = capacity.request_policy.clone().unwrap();
        let range = policy.valid_range.unwrap();
        [capacity.value.clone(), policy.default.unwrap(), range.min, range.step.unwrap()].map(|one| one.0)
    };
    assert_eq!(policy(0, MEMORY), ["80895Mi", "80895Mi", "1Mi", "1Mi"]);
    assert_eq!(policy(0, CORES), ["100", "0", "0", "1"]);
    assert_eq!(policy(1, SHARE), ["100", "100", "1", "1"]);
    let attributes = devices[0].attributes.as_ref().unwrap();
    assert_eq!(attributes["driverVersion"].version.as_deref(), Some("550.163.1"));
    assert_eq!(attributes["cudaDriverVersion"].version.as_deref(), Some("12.4.0"));
    assert_eq!(attributes["cudaComputeCapability"].version.as_deref(), Some("9.0.0"));
    assert_eq!(attributes["architecture"].string.as_deref(), Some("Hopper"));
    assert_eq!(attributes["kind"].string.as_deref(), Some("memory"));
}

#[test]
fn unhealthy_gpus_are_tainted_and_others_are_not_offered() {
    let inventory = inventory(8);
    let sick = Seen {
        uuid: inventory.gpus[5].uuid.clone(),
        unhealthy: Some("fell off the bus".into()),
        ..Seen::default()
    };
    let seen = BTreeMap::from([(sick.uuid.clone(), sick)]);
    let offer = Offer { inventory: &inventory, reserve: 0, seen: &seen };
    let Devices { devices, counters } = offer.devices(|gpu| gpu.index != 3);
    assert_eq!((devices.len(), counters.len()), (14, 7));
    assert!(!devices.iter().any(|device| device.name.starts_with("gpu-3")));
    for device in &devices {
        assert_eq!(device.taints.is_some(), device.name.starts_with("gpu-5"), "{}", device.name);
    }
}

/// Whatever kube-scheduler takes by the counters, the driver can make.
#[test]
fn a_gpu_in_mig_mode_is_its_places() {
    let mut inventory = inventory(1);
    inventory.gpus[0].mig_enabled = true;
    inventory.gpus[0].mig_profiles =
        serde_json::from_str(include_str!("../../../spec/testdata/mig-h100-80gb.json")).unwrap();
    let Devices { devices, counters } = offer(&inventory, 0, &BTreeMap::new());
    let profiles = &inventory.gpus[0].mig_profiles;
    assert_eq!(devices.len(), profiles.iter().map(|profile| profile.placements.len()).sum::<usize>());
    let has = &counters[0].counters;
    assert!(has.len() <= 32, "the most of one set: {has:?}");
    assert_eq!((has["slices"].value.0.as_str(), has["memory-slice-7"].value.0.as_str()), ("7", "1"));
    let small: Vec<_> = devices.iter().filter(|device| device.name.contains("-mig-1g-10gb-")).collect();
    let taken: Vec<_> = small.iter().take(2).map(|device| device.name.as_str()).collect();
    assert!(taken.iter().all(|name| !name.contains("me")), "{taken:?}");
    let device = &devices[0];
    assert_eq!(device.attributes.as_ref().unwrap()["kind"].string.as_deref(), Some("mig"));
    assert_eq!(device.capacity.as_ref().unwrap()[MEMORY].value.0, format!("{}Mi", profiles[0].memory >> 20));
    assert_eq!(device.allow_multiple_allocations, None);
    for device in &devices {
        assert!(
            device.name.len() <= 63
                && device
                    .name
                    .bytes()
                    .all(|byte| { byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' }),
            "{}",
            device.name
        );
        for taken in device.consumes_counters.as_ref().unwrap()[0].counters.keys() {
            assert!(has.contains_key(taken), "{} takes {taken}", device.name);
        }
    }
    let me: Vec<_> = devices.iter().filter(|device| device.name.contains("10gb-me")).collect();
    let takes = |device: &Device| device.consumes_counters.as_ref().unwrap()[0].counters.clone();
    assert!(me.iter().all(|device| takes(device).contains_key("most-1g-10gb-me")), "of these there is one");
}

#[test]
fn neighbours_are_told() {
    let mut inventory = inventory(4);
    let link = |later: usize, earlier: usize| fgpu_spec::Link {
        nvlinks: if later / 2 == earlier / 2 { 4 } else { 0 },
        path: fgpu_spec::Path::Node,
    };
    inventory.topology = fgpu_spec::Topology::new(4, link);
    let domains: Vec<_> = inventory.gpus.iter().map(|gpu| nvlink_domain(&inventory, gpu)).collect();
    assert_eq!(domains, [Some(0), Some(0), Some(2), Some(2)]);
    inventory.topology = fgpu_spec::Topology::default();
    assert_eq!(nvlink_domain(&inventory, &inventory.gpus[0]), None);

    let sys = tempfile::tempdir().unwrap();
    let device = sys.path().join("devices/pci0000:3a/0000:3a:01.0/0000:3b:00.0");
    std::fs::create_dir_all(&device).unwrap();
    let bus = sys.path().join("bus/pci/devices");
    std::fs::create_dir_all(&bus).unwrap();
    std::os::unix::fs::symlink(&device, bus.join("0000:3b:00.0")).unwrap();
    assert_eq!(pcie_root(sys.path(), "00000000:3B:00.0").as_deref(), Some("pci0000:3a"));
    assert_eq!(pcie_root(sys.path(), "00000000:3C:00.0"), None);
}

#[test]
fn versions_of_drivers_are_semantic() {
    assert_eq!(semantic("615.12").as_deref(), Some("615.12.0"));
    assert_eq!(semantic("beta"), None);
}
