use super::*;

#[test]
fn each_device_is_two_hooks_without_a_grant_or_a_time_limit() {
    let file: serde_json::Value =
        serde_json::from_str(&text(&Config::default(), None, "/usr/bin/fgpu-hook")).unwrap();
    assert_eq!((&file["cdiVersion"], &file["kind"]), (&json!("0.5.0"), &json!("fgpu.dev/gpu")));
    let devices = file["devices"].as_array().unwrap();
    assert!(devices.len() >= 30);
    for device in devices {
        let edits = device["containerEdits"].as_object().unwrap();
        assert_eq!(edits.len(), 1, "nothing but hooks");
        let [create, stop] = &edits["hooks"].as_array().unwrap()[..] else { panic!("{device}") };
        assert_eq!(create["hookName"], "createRuntime");
        assert_eq!(create["args"], json!(["fgpu-hook", "createRuntime", "--device", device["name"]]));
        assert_eq!(
            (&stop["hookName"], &stop["args"]),
            (&json!("poststop"), &json!(["fgpu-hook", "poststop"]))
        );
        for hook in [create, stop] {
            assert_eq!((&hook["path"], &hook["timeout"]), (&json!("/usr/bin/fgpu-hook"), &json!(null)));
        }
    }
}

#[test]
fn a_changed_inventory_changes_our_own_file_only() {
    let root = tempfile::tempdir().unwrap();
    let system = System::new(Some(root.path())).unwrap();
    let config = Config::default();
    let inventory = crate::status::tests::inventory(Vec::new());
    let update = || update(&system, &config, &inventory).unwrap();
    update();
    assert_eq!(system.read(PATH).unwrap(), None, "a node without the file stays without it");

    let of_another_build = text(&config, None, "/opt/fgpu/fgpu-hook");
    system.write(PATH, &of_another_build).unwrap();
    update();
    assert_eq!(system.read(PATH).unwrap().unwrap(), of_another_build);

    let ours = system.program(HOOK);
    let units = Config { units_per_gpu: Some(5), ..Config::default() };
    system.write(PATH, &text(&units, None, &ours)).unwrap();
    update();
    assert_eq!(system.read(PATH).unwrap().unwrap(), text(&config, Some(&inventory), &ours));
}
