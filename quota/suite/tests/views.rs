//! Two tenants on one GPU: the real nvidia-smi and nvidia-ml-py show a tenant nothing of the other.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fgpu_quota_suite::{Container, gpu, nvidia_ml_py, nvidia_smi, run};

/// MiB that the tenants hold. These numbers occur nowhere else.
const OTHERS: u64 = 3331;
const OWN: u64 = 557;

/// A node of three GPUs. The container has two of them, in another order; on one of them, the node's first,
/// another tenant works, in this pid namespace, so that only the library hides it.
struct Node {
    container: Container,
    other: Child,
    own: Child,
}

impl Drop for Node {
    fn drop(&mut self) {
        for child in [&mut self.other, &mut self.own] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Starts a tenant and waits until it works.
fn tenant(mut command: Command, library: &Path, mib: u64) -> Child {
    command.arg(library).arg(mib.to_string());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("text");
    assert_eq!(line.trim(), child.id().to_string());
    child
}

fn node() -> Node {
    let container = Container::simulated_among(
        &[gpu(2, 4000), gpu(0, 6000)],
        16 << 20,
        &[gpu(0, 0), gpu(1, 0), gpu(2, 0)],
    );
    let program = container.program("tenant", &[], &[]);
    let real = container.path("fgpu/driver/libcuda.so.1");
    let other = tenant(Command::new(&program), &real, OTHERS);
    let own = tenant(container.command(&program), Path::new("libcuda.so.1"), OWN);
    Node { container, other, own }
}

impl Node {
    /// Nothing of `text` is about the other tenant or the third GPU.
    fn assert_silent(&self, what: &str, text: &str) {
        let (pid, memory) = (self.other.id().to_string(), (OTHERS << 20).to_string());
        let both = (OTHERS + OWN + 32).to_string();
        let with_context = (OTHERS + 16).to_string();
        for secret in [pid.as_str(), &memory, &OTHERS.to_string(), &both, &with_context, "a1a1a1a1-"] {
            let has = |word: &str| word == secret || word.strip_suffix("MiB") == Some(secret);
            let found = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-').any(has);
            let found = found || (secret.ends_with('-') && text.contains(secret));
            assert!(!found, "{what} shows {secret}:\n{text}");
        }
    }
}

#[test]
fn nvidia_ml_py_shows_nothing_of_others() {
    let node = node();
    // The own process's first kernel, which was waited for, is no longer recent after two windows of half a
    // second; the rest counts when it ends.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/views.py");
    let mut python = node.container.command(Path::new("python3"));
    let said = run(python.arg(script).env("PYTHONPATH", nvidia_ml_py()));
    node.assert_silent("nvidia-ml-py", &said);
    let (first, second) = said.split_once("GPU 1\n").unwrap();
    let line = |text: &str, call: &str| -> String {
        let call = format!("{call}: ");
        let line = text.lines().find_map(|line| line.strip_prefix(&call));
        line.unwrap_or_else(|| panic!("no {call} in {text}")).to_owned()
    };
    assert_eq!(line(&said, "nvmlDeviceGetCount"), "2");
    assert!(line(first, "nvmlSystemGetTopologyGpuSet").matches("GPU-").count() == 2, "{said}");
    // The memory in use is the container's own: its context, its memory, and about a MiB for its code.
    assert!(line(first, "nvmlDeviceGetMemoryInfo").contains("used: 0"), "{said}");
    let memory = line(second, "nvmlDeviceGetMemoryInfo");
    let used = memory.split_once("used: ").unwrap().1.trim_end_matches('}');
    assert!((OWN + 16..OWN + 20).contains(&(used.parse::<u64>().unwrap() >> 20)), "{memory}");
    assert!(line(second, "nvmlDeviceGetBAR1MemoryInfo").contains(&format!("bar1Used: {used}}}")), "{said}");
    let process = format!("pid: {}, usedGpuMemory: {used},", node.own.id());
    for call in ["ComputeRunningProcesses", "ComputeRunningProcesses_v2", "RunningProcessDetailList"] {
        let call = format!("nvmlDeviceGet{call}");
        assert_eq!(line(first, &call), "[]");
        assert!(line(second, &call).replace('\'', "").contains(&process), "{said}");
    }
    assert!(line(second, "name").ends_with("/tenant"), "{said}");
    // The other tenant keeps the GPU busy. The container sees its own part, all of it by its one process.
    assert_eq!(line(first, "nvmlDeviceGetUtilizationRates"), "{gpu: 0, memory: 0}");
    assert_eq!(line(second, "nvmlDeviceGetUtilizationRates"), "{gpu: 0, memory: 0}");
    assert_eq!(line(first, "nvmlDeviceGetProcessUtilization"), "refused: Not Found");
    for call in ["ProcessUtilization", "ProcessesUtilizationInfo"] {
        let sample = line(second, &format!("nvmlDeviceGet{call}"));
        assert!(
            sample.contains(&format!("pid: {},", node.own.id())) && sample.contains("smUtil: 0"),
            "{said}"
        );
    }
    assert_eq!(line(second, "nvmlDeviceGetAccountingMode"), "0");
    assert!(line(second, "nvmlGpmQueryDeviceSupport").ends_with("isSupportedDevice: 0}"), "{said}");
}

#[test]
fn nvidia_smi_shows_nothing_of_others_in_any_form() {
    let node = node();
    let smi = nvidia_smi();
    let forms: &[&[&str]] = &[
        &[],
        &["-L"],
        &["-q"],
        &["-q", "-x"],
        &["-q", "-d", "MEMORY,UTILIZATION,PIDS,ACCOUNTING,ENCODER_STATS,FBC_STATS"],
        &["pmon", "-c", "1"],
        &["pmon", "-c", "1", "-s", "um"],
        &["dmon", "-c", "1", "-s", "pucvmet"],
        &["--query-compute-apps=pid,process_name,used_memory,gpu_uuid", "--format=csv"],
        &["--query-accounted-apps=pid,gpu_utilization,max_memory_usage", "--format=csv"],
        &[
            "--query-gpu=index,uuid,utilization.gpu,utilization.memory,memory.used,memory.free,memory.total",
            "--format=csv",
        ],
        &["topo", "-m"],
        &["topo", "-p2p", "r"],
    ];
    let mut shown = 0;
    for form in forms {
        let said = node.container.run(&smi, form);
        node.assert_silent(&format!("nvidia-smi {form:?}"), &said);
        shown += usize::from(said.contains(&node.own.id().to_string()));
        assert!(!said.contains("ERR!") && !said.contains("Unknown Error"), "{form:?}: {said}");
    }
    // The table, -q as text, as XML and of PIDs, pmon twice, and the list of programs.
    assert_eq!(shown, 7);
}
