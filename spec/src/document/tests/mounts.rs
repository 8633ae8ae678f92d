//! What lies on which mount, and user namespaces.

use super::*;

#[test]
fn mounts_of_the_container_itself_stay_below_ours() {
    let text = r#"{"mounts":[{"destination":"/usr/lib64/libcuda.so.1","type":"bind","source":"/mine","options":["rbind","ro"]}]}"#;
    let result = value(&applied(text, &plan()));
    let destinations: Vec<&str> = result["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| mount["destination"].as_str().unwrap())
        .collect();
    assert_eq!(destinations.len(), 8);
    assert_eq!(destinations[0], "/usr/lib64/libcuda.so.1");
    assert_eq!(destinations[3], "/usr/lib64/libcuda.so.1");
}

#[test]
fn capabilities_and_namespaces_tell_whether_mounts_can_be_changed() {
    let may = |bounding: Value, namespaces: Value| {
        let config = json!({"process": {"capabilities": {"bounding": bounding, "effective": ["CAP_SYS_ADMIN"]}},
                            "linux": {"namespaces": namespaces}});
        Document::parse(&config.to_string()).unwrap().may_remount()
    };
    let mount = json!([{"type": "mount"}]);
    let user = json!([{"type": "mount"}, {"type": "user"}]);
    assert!(may(json!(["CAP_CHOWN", "CAP_SYS_ADMIN"]), mount.clone()));
    assert!(!may(json!(["CAP_CHOWN"]), mount.clone()) && !may(Value::Null, mount));
    assert!(!may(json!(["CAP_SYS_ADMIN"]), user));
    let of = |text: &str| Document::parse(text).unwrap().may_remount();
    assert_eq!(ALL.map(of), [false, true, false, false, false]);
}

/// What is mounted below such a volume is mounted on the host as well, be it over the node's state or its
/// libraries.
#[test]
fn a_volume_that_shares_its_mounts_is_refused_where_ours_would_lie_in_it() {
    let with = |destination: &str, options: &[&str]| {
        let mut config = value(RUNC);
        let volume = json!({"destination": destination, "type": "bind", "source": "/x", "options": options});
        config["mounts"].as_array_mut().unwrap().push(volume);
        Document::parse(&config.to_string()).unwrap().apply(&plan())
    };
    let shared =
        ["/run", "/run/", "/var/run", "/var//run/.", "/usr", "/usr/lib64", "/lib64", "/run/fgpu", "/"];
    for (destination, option) in shared.into_iter().flat_map(|path| [(path, "rshared"), (path, "shared")]) {
        let error = with(destination, &["rbind", option]).unwrap_err();
        assert_eq!(error.code, Code::Conflict, "{destination}");
        assert!(error.message.contains(destination) && error.message.contains("private"), "{error}");
    }
    for option in ["rprivate", "rslave", "slave", "private", "unbindable"] {
        with("/run", &["rbind", option]).unwrap();
    }
    for destination in ["/data", "/runner", "/usr/share", "/run/user", "/lib"] {
        with(destination, &["rbind", "rshared"]).unwrap();
    }
}

/// A bind mount has the flags of the mount it is made from, so what lies on a mount with the right ones is
/// not mounted a second time.
#[test]
fn only_files_on_a_mount_with_these_flags_are_bound() {
    let mut plan = plan();
    plan.mounts.iter_mut().for_each(|mount| mount.inherits = !mount.destination.contains("persistenced"));
    let once = applied("{}", &plan);
    let options = |path: &str| {
        let mounts = value(&once)["mounts"].clone();
        let found = mounts.as_array().unwrap().iter().find(|mount| mount["destination"] == path).cloned();
        found.unwrap()["options"].clone()
    };
    for path in ["/run/fgpu/ledger", "/run/fgpu/turns", "/run/fgpu/turns/0-3", "/usr/lib64/libcuda.so.1"] {
        assert_eq!(options(path), json!(["bind"]), "{path}");
    }
    assert_eq!(options("/run/fgpu"), json!(["bind", "ro", "nosuid", "nodev", "noexec", "private"]));
    assert_eq!(options("/run/nvidia-persistenced"), json!(["rbind", "rw", "nosuid", "nodev", "rprivate"]));
    assert_eq!(applied(&once, &plan), once);
}

/// The driver's own root has its nodes elsewhere, and in a user namespace runtimes mount what the host has at
/// the path.
#[test]
fn in_a_user_namespace_nodes_come_from_where_the_host_has_them() {
    let below = |mut node: DeviceNode| {
        node.host = format!("/run/nvidia/driver{}", node.path).into();
        node
    };
    let of = |gpu| Plan {
        nodes: vec![below(node("/dev/nvidiactl", 195, 255)), below(gpu), node("/dev/nvidia-uvm", 234, 0)],
        ..Plan::default()
    };
    let plan = of(node("/dev/nvidia1", 195, 1));
    let text = |namespaces: &str| {
        format!(
            r#"{{"mounts":[{{"destination":"/dev","type":"tmpfs","source":"tmpfs"}}],
            "linux":{{"namespaces":{namespaces},"devices":[{{"path":"/dev/nvidiactl","type":"c","major":195,"minor":255}}]}}}}"#
        )
    };
    let paths = |list: &Value, key: &str| -> Vec<String> {
        list.as_array().unwrap().iter().map(|entry| entry[key].as_str().unwrap().to_owned()).collect()
    };
    for outside in ["null", "[]", r#"[{"type":"pid"},{"type":"mount"}]"#] {
        let result = value(&applied(&text(outside), &plan));
        assert_eq!(
            paths(&result["linux"]["devices"], "path"),
            ["/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-uvm"]
        );
        assert_eq!(paths(&result["mounts"], "destination"), ["/dev"]);
    }
    let inside = text(r#"[{"type":"pid"},{"type":"user","path":"/proc/7/ns/user"}]"#);
    let once = applied(&inside, &plan);
    let result = value(&once);
    assert_eq!(paths(&result["linux"]["devices"], "path"), ["/dev/nvidia-uvm"]);
    assert_eq!(result["linux"]["resources"]["devices"].as_array().unwrap().len(), 4, "each has its rule");
    assert_eq!(
        result["mounts"][1],
        json!({"destination": "/dev/nvidiactl", "type": "bind", "source": "/run/nvidia/driver/dev/nvidiactl", "options": ["bind"]})
    );
    assert_eq!(paths(&result["mounts"], "destination"), ["/dev", "/dev/nvidiactl", "/dev/nvidia1"]);
    assert_eq!(applied(&once, &plan), once);
    // The next grant is of another GPU, and nothing leads to the former one.
    let later = value(&applied(&once, &of(node("/dev/nvidia0", 195, 0))));
    assert_eq!(paths(&later["mounts"], "destination"), ["/dev", "/dev/nvidiactl", "/dev/nvidia0"]);
}
