use super::*;

const PROPRIETARY: &str = "\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Apr  8 12:41:17 UTC 2025
GCC version:  gcc version 14.2.0 (Debian 14.2.0-19)
";
const OPEN: &str = "\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  (dvs-builder@U22-I3-B08-03)  Sat May 24 07:03:13 UTC 2025
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
";
const OPEN_ARM: &str = "\
NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  535.104.05  Release Build  (dvs-builder@U16-T02-35-3)  Sat Aug 19 01:27:28 UTC 2023
";
const LEGACY: &str = "\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.157  Wed Oct 12 09:19:07 UTC 2022
GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)
";

#[test]
fn versions_of_every_kind_of_module() {
    assert_eq!(parse_version(PROPRIETARY), Some("550.163.01"));
    assert_eq!(parse_version(OPEN), Some("575.57.08"));
    assert_eq!(parse_version(OPEN_ARM), Some("535.104.05"));
    assert_eq!(parse_version(LEGACY), Some("390.157"));
}

#[test]
fn a_text_that_is_no_version_is_refused() {
    for text in [
        "",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  ../../etc",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01/x",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  1.2.3.4.5",
        "GCC version: Kernel Module 550.163.01",
    ] {
        assert_eq!(parse_version(text), None, "{text:?}");
    }
}

const NEW: &str = "\
Character devices:
  1 mem
 10 misc
195 nvidia
195 nvidiactl
195 nvidia-modeset
234 nvidia-caps
511 nvidia-uvm

Block devices:
  7 loop
259 blkext
195 nvidia-uvm
";

#[test]
fn majors_by_name() {
    let devices = CharacterDevices::parse(NEW);
    assert_eq!(devices.majors(&["nvidia-uvm"]), [511]);
    assert_eq!(devices.majors(&["nvidia-frontend", "nvidia"]), [195]);
    assert_eq!(devices.majors(&["loop"]), [0; 0]);
    let before_550_40 = CharacterDevices::parse("Character devices:\n195 nvidia-frontend\n");
    assert_eq!(before_550_40.majors(&["nvidia-frontend", "nvidia"]), [195]);
}

#[test]
fn odd_lines_are_skipped() {
    let devices = CharacterDevices::parse("Character devices:\nx nvidia\n195\n\n 195 nvidia \n");
    assert_eq!(devices, CharacterDevices(vec![(195, "nvidia".into())]));
    assert_eq!(CharacterDevices::parse("195 nvidia\n"), CharacterDevices::default());
}

#[test]
fn without_a_driver_the_message_says_what_is_missing() {
    let root = tempfile::tempdir().unwrap();
    if Path::new(VERSION).exists() {
        return; // a node with a driver answers for every root
    }
    let error = running_version(root.path()).unwrap_err();
    assert_eq!(error.code, Code::NoGpu);
    assert!(error.message.contains("/proc/driver/nvidia/version"), "{error}");
    assert!(error.message.contains("modprobe nvidia"), "{error}");
}

#[test]
fn the_roots_own_proc_comes_first() {
    let root = crate::fake::Root::new();
    root.write("proc/driver/nvidia/version", OPEN.as_bytes());
    assert_eq!(running_version(root.path()).unwrap(), "575.57.08");
    root.write("proc/driver/nvidia/version", b"nonsense");
    assert_eq!(running_version(root.path()).unwrap_err().code, Code::DriverError);
}
