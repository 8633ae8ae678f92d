//! The two files themselves: what they need and what they export.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::fixture::{Node, client, debian, libraries, run, workspace};

fn symbols(library: &Path, which: &str) -> BTreeSet<String> {
    let names = run(Command::new("nm").args(["-D", which]).arg(library));
    names.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect()
}

/// Names without what NVIDIA keeps to itself (`cudbg…`).
fn public(library: &Path, prefix: &str) -> BTreeSet<String> {
    let names = symbols(library, "--defined-only").into_iter();
    let is_public = |name: &String| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    };
    names.map(|name| name.split('@').next().unwrap_or_default().to_owned()).filter(is_public).collect()
}

/// The functions that every libc of the last twenty years has, in its main library, under one version.
const FROM_LIBC: [&str; 11] = [
    "__tls_get_addr",
    "bcmp",
    "free",
    "getenv",
    "malloc",
    "memcmp",
    "memcpy",
    "memmove",
    "memset",
    "realloc",
    "strlen",
];

#[test]
fn they_load_with_any_libc() {
    for (file, soname) in [("libsim_cuda.so", "libcuda.so.1"), ("libsim_nvml.so", "libnvidia-ml.so.1")] {
        let library = libraries().join(file);
        let dynamic = run(Command::new("readelf").args(["-W", "-d", "-V"]).arg(&library));
        assert!(dynamic.contains(&format!("Library soname: [{soname}]")), "{dynamic}");
        let needed: Vec<_> = dynamic.lines().filter(|line| line.contains("(NEEDED)")).collect();
        assert!(matches!(needed[..], [line] if line.contains("[libc.so.6]")), "{file}: {needed:?}");
        for unwanted in ["GLIBC_", "TEXTREL", "STATIC_TLS"] {
            assert!(!dynamic.contains(unwanted), "{file} has {unwanted}:\n{dynamic}");
        }
        let foreign: Vec<_> = symbols(&library, "--undefined-only")
            .into_iter()
            .filter(|n| !FROM_LIBC.contains(&n.as_str()))
            .collect();
        assert!(foreign.is_empty(), "{file} needs {foreign:?}");
    }
}

#[test]
fn they_export_what_nvidias_export_and_nothing_else() {
    for (file, original, prefix) in
        [("libsim_cuda.so", "libcuda.so", "cu"), ("libsim_nvml.so", "libnvidia-ml.so", "nvml")]
    {
        let library = libraries().join(file);
        let expected = public(&debian(original), prefix);
        assert!(expected.len() > 300, "{} names in {original}", expected.len());
        let missing: Vec<_> = expected.difference(&symbols(&library, "--defined-only")).cloned().collect();
        assert!(missing.is_empty(), "{file} lacks {missing:?}");
        // Of r615: they answer "not supported" unless the node's description says that it has memory limits.
        let newer = ["nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"];
        let mut surplus: Vec<_> =
            symbols(&library, "--defined-only").difference(&expected).cloned().collect();
        surplus.retain(|name| !newer.contains(&name.as_str()));
        assert!(surplus.is_empty(), "{file} has {surplus:?}");
    }
}

#[test]
fn functions_are_found_by_name_and_version_as_in_nvidias_library() {
    let node = Node::install("h100-80-x1.toml");
    let names = tempfile::NamedTempFile::new().unwrap();
    let listed = std::fs::read_to_string(workspace().join("cuda/names.txt")).unwrap();
    // Names with a suffix are asked for as well: they do not exist for cuGetProcAddress.
    std::fs::write(names.path(), listed + "cuNoSuchFunction\n").unwrap();
    let ask = |library: &Path| run(node.command(client()).arg(names.path()).arg(library));
    let original = ask(&debian("libcuda.so"));
    let simulated = ask(&node.path("usr/lib/x86_64-linux-gnu/libcuda.so.1"));
    let differences: Vec<_> =
        original.lines().zip(simulated.lines()).filter(|(one, other)| one != other).collect();
    assert!(
        differences.is_empty(),
        "{} differ, e.g. {:?}",
        differences.len(),
        &differences[..differences.len().min(9)]
    );
    assert_eq!(original.lines().count(), simulated.lines().count());
}
