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
fn the_file_is_replaced_and_nothing_lies_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cdi/fgpu.json");
    for text in ["one", "two"] {
        store(&path, text).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    fs::create_dir(folder.path().join("taken.json")).unwrap();
    assert!(store(&folder.path().join("taken.json"), "x").is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}
