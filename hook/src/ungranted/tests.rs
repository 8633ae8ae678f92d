use super::*;

#[test]
fn only_gpus_beyond_the_grant_are_named() {
    let config = r#"{"linux":{"devices":[
        {"path":"/dev/nvidia0","type":"c","major":195,"minor":0,"uid":0},
        {"path":"/dev/nvidia1","type":"c","major":195,"minor":1},
        {"path":"/dev/gpu","type":"c","major":195,"minor":2},
        {"path":"/dev/nvidiactl","type":"c","major":195,"minor":255},
        {"path":"/dev/nvidia-caps/nvidia-cap1","type":"c","major":507,"minor":1},
        {"path":"/dev/cap","type":"u","major":234,"minor":7},
        {"path":"/dev/block","type":"b","major":195,"minor":3},
        {"path":"/dev/nvidia5","type":"c","major":240,"minor":5},
        {"path":"/dev/pipe","type":"p"},
        {"path":"/dev/null","type":"c","major":1,"minor":3}]}}"#;
    let node = |path: &str, minor| fgpu_spec::DeviceNode {
        path: path.into(),
        host: path.into(),
        major: 195,
        minor,
        mode: 0o666,
        uid: 0,
        gid: 0,
    };
    let plan = Plan {
        nodes: vec![node("/dev/nvidiactl", 255), node("/dev/nvidia0", 0)],
        majors: fgpu_spec::Majors::new([], [234], []),
        ..Plan::default()
    };
    let found = of_spec(config, &plan);
    let paths: Vec<_> = found.iter().map(|device| device.path.as_str()).collect();
    assert_eq!(
        paths,
        ["/dev/nvidia1", "/dev/gpu", "/dev/nvidia-caps/nvidia-cap1", "/dev/cap", "/dev/nvidia5"]
    );
    for without in ["{}", r#"{"linux":{}}"#, r#"{"linux":{"devices":null}}"#] {
        assert_eq!(of_spec(without, &Plan::default()), []);
    }
}
