//! `cuGetProcAddress` over NVIDIA's own libraries. Every function is ours if we wrap it, and else the real
//! one, with the real library's result and status.

use std::fs;
use std::process::Stdio;

use fgpu_quota_names::TABLE;
use fgpu_quota_suite::{Container, cudart, libc, run};

/// The spy's last line: queries, those with per-thread flags, answers that are ours, empty answers.
fn counts(output: &str) -> [u32; 4] {
    let line = output.lines().find(|line| line.split(' ').count() == 4).unwrap_or_else(|| panic!("{output}"));
    let numbers: Vec<u32> = line.split(' ').map(|word| word.parse().expect("a number")).collect();
    numbers.try_into().expect("four")
}

#[test]
fn every_name_of_every_version_is_ours_or_the_real_ones() {
    // Drivers 470 (CUDA 11.4), which has the first version of the call only, 535 and 550.
    for (suite, calls) in [("bullseye", 1), ("bookworm", 2), ("trixie", 2)] {
        let container = Container::spied(suite);
        let program = container.program("cudart", &[], &[]);
        let names: Vec<&str> = TABLE.iter().flat_map(|(_, names)| *names).copied().collect();
        fs::write(container.path("names"), names.join("\n")).unwrap();
        let mut command = container.spied_command(&program);
        let input = fs::File::open(container.path("names")).unwrap();
        let output = command.arg("all").stdin(Stdio::from(input)).output().expect("starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{suite}: {error}");
        let [asked, per_thread, ours, _] = counts(&String::from_utf8_lossy(&output.stdout));
        assert_eq!(asked as usize, names.len() * 20 * 4 * calls, "{suite}");
        assert!(per_thread == asked / 4 && ours > 2000, "{suite}: {per_thread} {ours}");
    }
}

/// Without a GPU the runtime asks for everything, and then says that there is none.
#[test]
fn nvidias_runtime_gets_ours_or_the_real_ones() {
    const NO_DEVICE: &str = "100 100";
    for (package, version, least) in [("12", "12090", 400), ("13", "13050", 450)] {
        let container = Container::spied("trixie");
        let program = container.program("cudart", &[], &[]);
        let mut command = container.spied_command(&program);
        let output = run(command.arg(cudart(package)).env("FGPU_TEST_VERSION", version));
        assert!(output.contains(&format!("{version} {NO_DEVICE}\n")), "{output}");
        let [asked, per_thread, ours, _] = counts(&output);
        assert!(asked >= least && per_thread >= 60 && ours >= 60, "{package}: {output}");
    }
}

/// Our library over the real driver library, with the C library of each Debian.
#[test]
fn it_loads_with_the_c_library_of_debian_11_12_and_13() {
    for (suite, version) in [("bullseye", "2.31"), ("bookworm", "2.36"), ("trixie", "2.41")] {
        let container = Container::of_debian(suite);
        let arguments = ["-nostartfiles", "-Wl,--as-needed,--allow-shlib-undefined"];
        let program = container.program("loads", &["libcuda.so.1"], &arguments);
        let libc = libc(suite);
        let mut command = container.command(&libc.join("ld-linux-x86-64.so.2"));
        let libraries = format!("{}:{}", container.path("lib").display(), libc.display());
        command.args(["--inhibit-cache", "--library-path", &libraries]).arg(&program);
        assert_eq!(run(&mut command), format!("with glibc {version}\n"));
        container.with_usage(|usage| assert_eq!(usage.processes().count(), 1, "ours was called"));
    }
}
