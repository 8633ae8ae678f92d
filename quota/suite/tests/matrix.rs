//! Every call that allocates, in each of its versions, by every way to it: it counts exactly, is refused at
//! the limit, and leaves nothing behind. The cases are generated from the driver's answers for each version.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use fgpu_quota_names::{Class, TABLE};
use fgpu_quota_suite::{Container, gpu, versions};

const MIB: u64 = 1 << 20;
const CONTEXT: u64 = 40 * MIB;

/// Which functions take memory in which way (`families` in `matrix.c`).
const FAMILIES: &[(&str, &[&str])] = &[
    ("alloc_64", &["cuMemAlloc_v2"]),
    ("alloc_32", &["cuMemAlloc"]),
    ("pitch_64", &["cuMemAllocPitch_v2"]),
    ("pitch_32", &["cuMemAllocPitch"]),
    ("managed", &["cuMemAllocManaged"]),
    ("async", &["cuMemAllocAsync", "cuMemAllocAsync_ptsz"]),
    ("async_freed", &["cuMemAllocAsync", "cuMemAllocAsync_ptsz"]),
    ("from_pool", &["cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"]),
    ("create", &["cuMemCreate"]),
    ("array_64", &["cuArrayCreate_v2"]),
    ("array_32", &["cuArrayCreate"]),
    ("deep_64", &["cuArray3DCreate_v2"]),
    ("deep_32", &["cuArray3DCreate"]),
    ("mipmapped", &["cuMipmappedArrayCreate"]),
    ("node_added", &["cuGraphAddMemAllocNode"]),
    ("any_added", &["cuGraphAddNode"]),
    ("any_added_2", &["cuGraphAddNode_v2", "cuGraphAddNode_v3"]),
    ("captured", &["cuMemAllocAsync", "cuMemAllocAsync_ptsz"]),
    ("captured_from_pool", &["cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz"]),
    ("instantiated", &["cuGraphInstantiate", "cuGraphInstantiate_v2"]),
    ("instantiated_flags", &["cuGraphInstantiateWithFlags"]),
    ("instantiated_params", &["cuGraphInstantiateWithParams", "cuGraphInstantiateWithParams_ptsz"]),
    ("launch", &["cuGraphUpload", "cuGraphUpload_ptsz", "cuGraphLaunch", "cuGraphLaunch_ptsz"]),
    ("context_1", &["cuCtxCreate", "cuCtxCreate_v2"]),
    ("context_3", &["cuCtxCreate_v3"]),
    ("context_4", &["cuCtxCreate_v4"]),
    ("primary", &["cuDevicePrimaryCtxRetain"]),
    ("green", &["cuGreenCtxCreate"]),
    ("heap", &["cuCtxSetLimit"]),
    ("from_data", &["cuModuleLoadData", "cuModuleLoadFatBinary"]),
    ("from_data_ex", &["cuModuleLoadDataEx"]),
    ("from_file", &["cuModuleLoad"]),
    ("library", &["cuLibraryLoadData"]),
    ("library_file", &["cuLibraryLoadFromFile"]),
];

/// Counted functions that are not in the matrix, and why.
const ELSEWHERE: &[(&str, &[&str])] = &[
    ("need a display", &["cuGLCtxCreate", "cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2"]),
    ("take nothing by themselves", &["cuMemPoolCreate"]),
    (
        "code that is loaded late: a_launch_counts_what_it_loads",
        &[
            "cuFuncLoad",
            "cuKernelGetFunction",
            "cuLibraryGetGlobal",
            "cuLibraryGetManaged",
            "cuLibraryGetModule",
            "cuLinkComplete",
            "cuModuleGetFunction",
            "cuModuleGetGlobal_v2",
        ],
    ),
];

#[test]
fn every_counted_function_has_its_place() {
    let mut placed = BTreeSet::new();
    for (_, names) in FAMILIES.iter().chain(ELSEWHERE) {
        placed.extend(names.iter().copied());
    }
    let counted = TABLE.iter().filter(|(class, _)| *class == Class::Counted).flat_map(|(_, names)| *names);
    let launched = ["cuGraphLaunch", "cuGraphLaunch_ptsz"];
    assert_eq!(placed, counted.copied().chain(launched).collect());
}

/// By function: the name, version and flags by which `cuGetProcAddress` returns it, for every version of
/// interest.
fn asked() -> BTreeMap<String, Vec<(String, u32, u32)>> {
    let text = versions();
    let mut by_name: BTreeMap<&str, Vec<(u32, [&str; 2])>> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, since, symbol, per_thread] = words[..] else { panic!("{line}") };
        by_name.entry(name).or_default().push((since.parse().expect("a version"), [symbol, per_thread]));
    }
    let mut asked: BTreeMap<String, Vec<(String, u32, u32)>> = BTreeMap::new();
    for (name, rows) in by_name {
        let mut versions: BTreeSet<u32> = rows.iter().map(|&(since, _)| since).collect();
        versions.extend([11_040, 11_080, 12_000, 12_040, 12_090, 13_000, 13_050]);
        for version in versions {
            let Some((_, symbols)) = rows.iter().rfind(|&&(since, _)| since <= version) else { continue };
            // Flags: none, the legacy stream, per-thread streams.
            for (flags, which) in [(0, 0), (1, 0), (2, 1)] {
                let entry = asked.entry(symbols[which].to_owned()).or_default();
                entry.push((name.to_owned(), version, flags));
            }
        }
    }
    asked
}

fn cases() -> String {
    let asked = asked();
    let mut text = String::new();
    for (family, symbols) in FAMILIES {
        for symbol in *symbols {
            for way in ["link", "default", "dlsym", "dlvsym"] {
                let _ = writeln!(
                    text,
                    "{{\"{family}\", \"{symbol}\", \"{way}\", \"\", 0, 0, (void *){symbol}}},"
                );
            }
            for (name, version, flags) in asked.get(*symbol).map(Vec::as_slice).unwrap_or_default() {
                for way in ["v1", "v2"] {
                    let _ = writeln!(
                        text,
                        "{{\"{family}\", \"{symbol}\", \"{way}\", \"{name}\", {version}, {flags}, 0}},"
                    );
                }
            }
        }
    }
    text
}

/// Declares what `app.h` does not.
fn declarations() -> String {
    let known = include_str!("../c/app.h");
    let mut text = String::new();
    for symbol in FAMILIES.iter().flat_map(|(_, symbols)| *symbols).collect::<BTreeSet<_>>() {
        if !known.contains(&format!("int {symbol}(")) {
            let _ = writeln!(text, "int {symbol}();");
        }
    }
    text
}

#[test]
fn every_allocation_counts_exactly_and_is_refused_at_the_limit() {
    let container = Container::simulated(&[gpu(0, 200)], CONTEXT);
    let cases = cases();
    fs::write(container.path("cases.h"), &cases).unwrap();
    fs::write(container.path("declarations.h"), declarations()).unwrap();
    let include = format!("-I{}", container.path("").display());
    let context = format!("-DCONTEXT={CONTEXT}ull");
    let program = container.program("matrix", &["libcuda.so.1"], &[&include, &context]);
    let image = container.path("image");
    let mut child = container
        .command(&program)
        .arg(&image)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut done = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        if line.unwrap() == "done" {
            break;
        }
        done += 1;
    }
    assert_eq!(done, cases.lines().count(), "it ended before its last case");
    assert!(done > 1000, "{done} cases");
    container.with_usage(|usage| {
        assert_eq!(usage.processes().count(), 1, "it lives and has its slot");
        assert_eq!(usage.total(0), 0);
    });
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    println!("{done} cases");
}
