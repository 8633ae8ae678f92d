//! Debian's real nvidia-smi on a simulated node.

use crate::fixture::Node;

const GIB: u64 = 1 << 30;

#[test]
fn it_lists_the_gpus_by_name_and_uuid() {
    let node = Node::install("h100-80-x2.toml");
    let list = node.smi(&["-L"]);
    let lines: Vec<_> = list.lines().collect();
    assert_eq!(lines.len(), 2, "{list}");
    assert!(lines[0].starts_with("GPU 0: Simulated H100 80GB HBM3 (UUID: GPU-"), "{list}");
    assert_ne!(lines[0].split("GPU-").nth(1), lines[1].split("GPU-").nth(1));
}

#[test]
fn its_table_shows_memory_and_processes() {
    let node = Node::install("h100-80-x1.toml");
    let idle = node.smi(&[]);
    assert!(idle.contains("0MiB /  81559MiB") && idle.contains("No running processes found"), "{idle}");

    let mut client = node.client();
    client.succeed(&format!("alloc {}", 3 * GIB));
    let busy = node.smi(&[]);
    assert!(busy.contains("3072MiB /  81559MiB"), "{busy}");
    let row = busy.lines().find(|line| line.contains(&client.pid().to_string())).unwrap();
    assert!(row.contains(" C ") && row.contains("client") && row.contains("3072MiB"), "{row}");
}

#[test]
fn every_preset_is_shown() {
    for (description, name, total) in [
        ("h100-80-x8.toml", "Simulated H100 80GB HBM3", "81559 MiB"),
        ("a100-40.toml", "Simulated A100-SXM4-40GB", "40960 MiB"),
        ("a30.toml", "Simulated A30", "24576 MiB"),
    ] {
        let node = Node::install(description);
        let gpus = node.smi(&["--query-gpu=name,memory.total", "--format=csv,noheader"]);
        for line in gpus.lines() {
            assert_eq!(line, format!("{name}, {total}"));
        }
        let expected = if description.contains("x8") { 8 } else { 1 };
        assert_eq!(gpus.lines().count(), expected);
    }
}

#[test]
fn queries_answer_in_csv() {
    let node = Node::install("h100-80-x1.toml");
    let mut client = node.client();
    client.succeed(&format!("alloc {GIB}"));
    let fields = "--query-gpu=index,memory.total,memory.reserved,memory.used,memory.free,utilization.gpu,\
                  driver_version,mig.mode.current,compute_cap";
    let gpus = node.smi(&[fields, "--format=csv,noheader,nounits"]);
    assert_eq!(gpus.trim_end(), "0, 81559, 551, 1024, 79984, 0, 550.163.01, Disabled, 9.0");

    let apps = node.smi(&["--query-compute-apps=pid,used_memory", "--format=csv,noheader"]);
    assert_eq!(apps.trim_end(), format!("{}, 1024 MiB", client.pid()));
}

#[test]
fn its_other_views_run() {
    let node = Node::install("h100-80-x2.toml");
    let memory = node.smi(&["-q", "-d", "MEMORY"]);
    assert_eq!(memory.matches(": 81559 MiB").count(), 2, "{memory}");
    assert!(memory.contains("Reserved                          : 551 MiB"), "{memory}");
    let all = node.smi(&["-q"]);
    assert!(all.contains("Product Architecture                  : Hopper"), "{all}");
    assert!(!all.contains("Unknown Error") && !all.contains("ERR!"), "{all}");
    let xml = node.smi(&["-q", "-x"]);
    assert!(
        xml.contains("<attached_gpus>2</attached_gpus>") && xml.trim_end().ends_with("</nvidia_smi_log>")
    );
    let topology = node.smi(&["topo", "-m"]);
    assert!(topology.contains("GPU1") && topology.contains("CPU Affinity"), "{topology}");
    assert!(node.smi(&["pmon", "-c", "1"]).contains("# gpu"));
}

#[test]
fn nvlinks_show_between_two_gpus() {
    let topology = |links: u32| {
        Node::describe(&format!("[[gpu]]\npreset = 'h100-80'\ncount = 2\nnvlinks = {links}\n"))
            .smi(&["topo", "-m"])
    };
    assert_eq!(topology(12).matches("NV12").count(), 2, "{}", topology(12));
    assert!(!topology(0).contains("NV12"), "{}", topology(0));
}

#[test]
fn mig_mode_shows() {
    let node = Node::install("h100-80-mig.toml");
    let modes = node.smi(&["--query-gpu=mig.mode.current", "--format=csv,noheader"]);
    assert_eq!(modes.lines().collect::<Vec<_>>(), ["Disabled", "Enabled"]);
    assert!(node.smi(&[]).contains("No MIG devices found"));
}

#[test]
fn a_gpu_whose_node_cannot_be_opened_is_not_there() {
    let node = Node::install("h100-80-x2.toml");
    let second = node.smi(&["-L"]).lines().nth(1).unwrap().replacen("GPU 1", "GPU 0", 1);
    std::fs::remove_file(node.path("dev/nvidia0")).unwrap();
    assert_eq!(node.smi(&["-L"]).trim_end(), second);
}

#[test]
fn without_the_control_node_there_is_no_driver() {
    let node = Node::install("h100-80-x1.toml");
    std::fs::remove_file(node.path("dev/nvidiactl")).unwrap();
    let output = node.command(node.path("usr/bin/nvidia-smi")).arg("-L").output().unwrap();
    assert_eq!(output.status.code(), Some(9), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("couldn't communicate with the NVIDIA driver"));
}

#[test]
fn injected_faults_reach_it() {
    let node = Node::install("h100-80-x1.toml");
    node.set(&["--gpu", "0", "nvml-device=15"]);
    let lost = node.command(node.path("usr/bin/nvidia-smi")).output().unwrap();
    assert!(String::from_utf8_lossy(&lost.stdout).contains("GPU is lost"), "{lost:?}");
    node.set(&["--gpu", "0", "nvml-device=0"]);
    assert!(node.smi(&["-L"]).contains("Simulated H100"));
    node.set(&["nvml-init=18"]);
    let mismatch = node.command(node.path("usr/bin/nvidia-smi")).output().unwrap();
    assert!(String::from_utf8_lossy(&mismatch.stdout).contains("version mismatch"), "{mismatch:?}");
}
