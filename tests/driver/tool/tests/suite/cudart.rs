//! Programs on NVIDIA's runtime library (`cudart/`), versions 12.9 and 13.5, shared and static.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::fixture::{Node, run, workspace};

const VERSIONS: [&str; 6] =
    ["12.9", "12.9-static", "12.9-per-thread", "13.5", "13.5-static", "13.5-per-thread"];

/// What is fetched once for all tests of the project.
fn lab() -> PathBuf {
    std::env::var_os("FGPU_LAB").map_or_else(|| workspace().join("../../.lab"), PathBuf::from)
}

fn program(version: &str) -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let folder = MADE.get_or_init(|| {
        let folder = lab().join("cudart");
        run(Command::new(workspace().join("cudart/make")).arg(&folder));
        folder.join("programs")
    });
    folder.join(format!("cudart-{version}"))
}

/// A node whose driver is new enough for both.
fn node(preset: &str) -> Node {
    Node::describe_newer(&format!(
        "cuda-version = \"13.5\"\n[[gpu]]\npreset = \"{preset}\"\ncontext-mib = 500\n"
    ))
}

fn ask(node: &Node, version: &str, commands: &[&str]) -> String {
    run(node.command(program(version)).args(commands))
}

/// The number behind `key=` in a line.
fn number(line: &str, key: &str) -> u64 {
    let value = line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {key} in {line:?}"))
}

#[test]
fn it_starts_and_sees_the_gpu() {
    let node = node("h100-80");
    for (version, runtime) in VERSIONS.into_iter().zip([12090, 12090, 12090, 13050, 13050, 13050]) {
        let line = ask(&node, version, &["info"]);
        assert_eq!(
            (number(&line, "runtime"), number(&line, "driver"), number(&line, "devices")),
            (runtime, 13050, 1)
        );
        let total = (81_559 - 551) << 20;
        assert_eq!((number(&line, "total"), number(&line, "properties")), (total, total), "{line}");
        assert_eq!(
            number(&line, "free"),
            total - (500 << 20),
            "its context, and that only once it needs one"
        );
        assert!(line.trim_end().ends_with("name=Simulated H100 80GB HBM3"), "{line}");
    }
}

/// As on machines: the runtime of 12.9 works with a driver of 12.4, that of 13.5 says what it lacks.
#[test]
fn a_runtime_of_a_later_major_version_says_that_the_driver_is_too_old() {
    let node = Node::install("h100-80-x1.toml");
    ask(&node, "12.9", &["info", "work"]);
    let output = node.command(program("13.5")).arg("info").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && said.contains("cudaErrorInsufficientDriver"), "{said}");
}

#[test]
fn every_kind_of_memory_is_the_gpus_and_comes_back() {
    let node = node("a100-40");
    for version in VERSIONS {
        let output = ask(&node, version, &["fill"]);
        assert!(output.starts_with("pinned cost=0\n"), "{output}");
        assert_eq!(output.lines().count(), 12, "{output}");
        for line in output.lines().skip(1) {
            assert!(line.ends_with("error=cudaErrorMemoryAllocation"), "{version}: {line}");
            assert_eq!(number(line, "before"), number(line, "after"), "{version}: {line}");
            assert!(number(line, "full") < 64 << 20, "{version}: {line}");
        }
    }
}

#[test]
fn code_copies_streams_and_shared_memory_work() {
    let node = node("h100-80");
    for version in VERSIONS {
        let output = ask(&node, version, &["work", "share", "reset"]);
        let lines: Vec<_> = output.lines().filter(|line| !line.starts_with("limits ")).collect();
        assert_eq!(
            (number(lines[0], "shared"), number(lines[0], "constant")),
            (4096, 4096),
            "of kernels.ptx"
        );
        assert_eq!(number(lines[0], "cost"), 4 << 20, "2 MiB for its data and 2 MiB for its code");
        assert_eq!(lines[1], "work done");
        assert_eq!(
            number(lines[2], "context"),
            500 << 20,
            "the other process has only its context: {output}"
        );
        assert_eq!(number(lines[3], "before"), number(lines[3], "after"), "{output}");
    }
}

/// What `deviceQuery` says on such GPUs.
#[test]
fn properties_are_those_of_the_gpu() {
    for (preset, expected) in [
        (
            "h100-80",
            "major=9 minor=0 multiProcessorCount=132 sharedMemPerMultiprocessor=233472 sharedMemPerBlockOptin=232448 \
             l2CacheSize=52428800 persistingL2CacheMaxSize=32768000 memoryBusWidth=5120 clusterLaunch=1 \
             ClockRate=1980000 MemoryClockRate=2619000 MemSyncDomainCount=4",
        ),
        (
            "a100-40",
            "major=8 minor=0 multiProcessorCount=108 sharedMemPerMultiprocessor=167936 sharedMemPerBlockOptin=166912 \
             l2CacheSize=41943040 persistingL2CacheMaxSize=31457280 memoryBusWidth=5120 clusterLaunch=0 \
             ClockRate=1410000 MemoryClockRate=1215000 MemSyncDomainCount=1",
        ),
    ] {
        let node = node(preset);
        let of_both = "sharedMemPerBlock=49152 reservedSharedMemPerBlock=1024 regsPerBlock=65536 warpSize=32 \
             maxThreadsPerMultiProcessor=2048 maxBlocksPerMultiProcessor=32 totalConstMem=65536 asyncEngineCount=3 \
             maxTexture1D=131072 maxTexture3D[0]=16384 managedMemory=1 concurrentManagedAccess=1 cooperativeLaunch=1 \
             memoryPoolsSupported=1 ECCEnabled=1 MaxGridDimX=2147483647 MaxBlockDimZ=64 TextureAlignment=512 \
             accessPolicyMaxWindowSize=134213632 SingleToDoublePrecisionPerfRatio=2";
        for version in VERSIONS {
            let output = ask(&node, version, &["properties"]);
            for line in expected.split_whitespace().chain(of_both.split_whitespace()) {
                assert!(output.lines().any(|said| said == line), "{preset} {version}: not {line}:\n{output}");
            }
        }
    }
}

/// The log of calls: by kind and name, how often and how often with memory.
fn calls(root: &Path) -> BTreeMap<String, (u64, u64)> {
    let text = run(Command::new(env!("CARGO_BIN_EXE_fgpu-sim")).args(["calls", "--root"]).arg(root));
    let line = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        (
            words[..words.len() - 2].join(" "),
            (words[words.len() - 2].parse().unwrap(), words[words.len() - 1].parse().unwrap()),
        )
    };
    text.lines().map(line).collect()
}

#[test]
fn calls_are_counted_and_none_of_the_runtimes_is_missing() {
    let node = node("h100-80");
    let root = node.path("");
    run(Command::new(env!("CARGO_BIN_EXE_fgpu-sim")).args(["calls", "--start", "--root"]).arg(&root));
    for version in VERSIONS {
        ask(&node, version, &["info", "properties", "fill", "work", "share", "reset"]);
    }
    let calls = calls(&root);
    let missing: Vec<_> = calls.keys().filter(|name| name.starts_with("missing ")).collect();
    assert!(missing.is_empty(), "{missing:?}");
    // Each of six, and its other process in `share`.
    assert!(matches!(calls["call SELF_TEST:1"], (12.., 0)), "{calls:?}");
}

/// A slot that nobody has described is named and refused, and so is a table.
#[test]
fn an_unknown_table_is_named() {
    let node = node("h100-80");
    let root = node.path("");
    run(Command::new(env!("CARGO_BIN_EXE_fgpu-sim")).args(["calls", "--start", "--root"]).arg(&root));
    let script = "import ctypes, sys\n\
        cuda = ctypes.CDLL(sys.argv[1])\n\
        table = ctypes.POINTER(ctypes.c_void_p)()\n\
        id = bytes.fromhex('6bd5fb6c5bf4e74a8987d93912fd9df9')\n\
        assert cuda.cuGetExportTable(ctypes.byref(table), id) == 0\n\
        assert table[0] == 13 * 8\n\
        assert ctypes.CFUNCTYPE(ctypes.c_int)(table[9])() == 801\n\
        assert cuda.cuGetExportTable(ctypes.byref(table), bytes(16)) == 1\n\
        assert cuda.cuGraphicsMapResources(0, 0, 0) == 801\n";
    let library = node.path("usr/lib/x86_64-linux-gnu/libcuda.so.1");
    run(Command::new("python3").args(["-c", script]).arg(library));
    let calls = calls(&root);
    assert_eq!(calls["missing CUDART_INTERFACE:9"], (1, 0));
    assert_eq!(calls["missing cuGraphicsMapResources"], (1, 0));
    assert_eq!(calls["unknown table:00000000000000000000000000000000"], (1, 0));
}

/// PTX, a cubin and fat binaries, compressed or not, have the kernels and variables that they say, and take
/// memory for them; of what is compressed with zstd nobody knows the names, and each has the same size.
#[test]
fn code_has_the_names_that_it_says() {
    program("12.9");
    let node = Node::install("h100-80-x1.toml");
    let folder = tempfile::tempdir().unwrap();
    let tools = lab().join("cudart/bin");
    let (ptx, path) = (workspace().join("cudart/kernels.ptx"), |name: &str| folder.path().join(name));
    for gpu in ["80", "90"] {
        run(Command::new(tools.join("ptxas"))
            .args(["-arch", &format!("sm_{gpu}"), "-o"])
            .arg(path(gpu))
            .arg(&ptx));
    }
    let image =
        |kind: &str, gpu: &str, file: &Path| format!("--image3=kind={kind},sm={gpu},file={}", file.display());
    for (name, option) in [("fat", "--compress=false"), ("small", "--compress-all")] {
        let images =
            [image("elf", "80", &path("80")), image("elf", "90", &path("90")), image("ptx", "80", &ptx)];
        let create = format!("--create={}", path(name).display());
        run(Command::new(tools.join("fatbinary")).arg("--64").arg(option).arg(create).args(images));
    }
    // The GPU is of a later generation than the cubin: the PTX is taken.
    let old = format!("--create={}", path("old").display());
    let images = [image("elf", "80", &path("80")), image("ptx", "80", &ptx)];
    run(Command::new(tools.join("fatbinary")).args(["--64", "--compress=false", &old]).args(images));
    let script = "import ctypes, sys\n\
        cuda = ctypes.CDLL(sys.argv[1])\n\
        context, module, function, size = [ctypes.c_void_p() for _ in range(4)]\n\
        assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0\n\
        assert cuda.cuCtxSetCurrent(context) == 0\n\
        def free():\n\
        \x20   free = ctypes.c_size_t()\n\
        \x20   assert cuda.cuMemGetInfo_v2(ctypes.byref(free), None) == 0\n\
        \x20   return free.value\n\
        for file in sys.argv[2:]:\n\
        \x20   before = free()\n\
        \x20   image = open(file, 'rb').read()\n\
        \x20   assert cuda.cuModuleLoadData(ctypes.byref(module), image) == 0\n\
        \x20   loaded = before - free()\n\
        \x20   def ask(name): return cuda.cuModuleGetFunction(ctypes.byref(function), module, name)\n\
        \x20   wrong, right = ask(b'nosuch'), ask(b'spin_ns')\n\
        \x20   found = cuda.cuModuleGetGlobal_v2(None, ctypes.byref(size), module, b'table')\n\
        \x20   assert cuda.cuFuncLoad(function) == 0\n\
        \x20   late = before - loaded - free()\n\
        \x20   assert cuda.cuModuleUnload(module) == 0 and free() == before\n\
        \x20   print(file.split('/')[-1], loaded >> 20, late >> 20, wrong, right, found, size.value if not found else 0)\n";
    let library = node.path("usr/lib/x86_64-linux-gnu/libcuda.so.1");
    let mut python = Command::new("python3");
    python.args(["-c", script]).arg(library).args([
        &ptx,
        &path("90"),
        &path("fat"),
        &path("old"),
        &path("small"),
    ]);
    let expected = "kernels.ptx 2 2 500 0 0 1048576\n90 2 2 500 0 0 1048576\nfat 2 2 500 0 0 1048576\n\
        old 2 2 500 0 0 1048576\nsmall 0 2 0 0 0 1048576\n";
    assert_eq!(run(&mut python), expected);
}
