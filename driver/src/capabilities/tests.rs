use super::*;
use crate::fake::Root;

const DEVICE: Capability = Capability { gpu: 0, gpu_instance: 1, compute_instance: 0 };

#[test]
fn the_instances_own_files_come_first() {
    let root = Root::new();
    let folder = "proc/driver/nvidia/capabilities/gpu0/mig/gi1";
    root.write(
        &format!("{folder}/access"),
        b"DeviceFileMinor: 12\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
    );
    root.write(&format!("{folder}/ci0/access"), b"DeviceFileMinor: 13\nDeviceFileMode: 256\n");
    root.write("proc/driver/nvidia-caps/mig-minors", b"gpu0/gi1/access 99\n");
    assert_eq!(
        DEVICE.nodes(root.path()).unwrap(),
        [CapNode { minor: 12, mode: 0o444 }, CapNode { minor: 13, mode: 0o400 }]
    );
}

#[test]
fn else_the_list_of_all() {
    let root = Root::new();
    root.write(
        "proc/driver/nvidia-caps/mig-minors",
        b"config 1\nmonitor 2\ngpu0/gi1/access 12\ngpu0/gi1/ci0/access 13\ngpu0/gi10/access 20\n",
    );
    let minors = DEVICE.nodes(root.path()).unwrap().map(|node| node.minor);
    assert_eq!(minors, [12, 13]);
}

#[test]
fn half_a_device_is_an_error() {
    let root = Root::new();
    root.write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/access", b"DeviceFileMinor: 12\n");
    let error = DEVICE.nodes(root.path()).unwrap_err();
    assert_eq!(error.code, Code::DriverError);
    assert!(error.message.contains("gi1/ci0/access"), "{error}");
    root.write("proc/driver/nvidia/capabilities/gpu0/mig/gi1/ci0/access", b"DeviceFileMinor: x\n");
    assert!(DEVICE.nodes(root.path()).is_err());
}
