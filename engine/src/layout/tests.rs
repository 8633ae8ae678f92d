use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;

mod hostile;

/// An ld.so.cache (fgpu_driver::ldcache has the layout) of these names and paths.
fn ld_cache(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = b"glibc-ld.so.cache1.1".to_vec();
    bytes.extend((entries.len() as u32).to_ne_bytes());
    bytes.resize(48, 0);
    let mut strings = Vec::new();
    // One that is there twice is written once, as ldconfig does.
    let mut known = BTreeMap::new();
    let mut at = |text: &str| {
        *known.entry(text.to_owned()).or_insert_with(|| {
            let at = 48 + 24 * entries.len() + strings.len();
            strings.extend([text.as_bytes(), b"\0"].concat());
            (at as u32).to_ne_bytes()
        })
    };
    for (name, path) in entries {
        bytes.extend([[0; 4], at(name), at(path), [0; 4], [0; 4], [0; 4]].concat());
    }
    bytes.extend(strings);
    bytes
}

/// An image with these files; `a -> b` is a link `a` that leads to `b`.
fn image(files: &[&str]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in files {
        let (path, target) = file.split_once(" -> ").unwrap_or((file, ""));
        let path = root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match target {
            "" => fs::write(path, "").unwrap(),
            target => symlink(target, path).unwrap(),
        }
    }
    root
}

fn read(root: &Path, env: &[&str]) -> Result<Layout, Error> {
    let env: Vec<String> = env.iter().map(|&entry| entry.to_owned()).collect();
    Layout::read(Layers::of_directory(root).as_ref(), &env, "/b")
}

/// What is covered besides the usual names, both libraries' together.
fn covered(files: &[&str], env: &[&str]) -> Vec<String> {
    let layout = read(image(files).path(), env).unwrap();
    [layout.foreign_cuda, layout.foreign_nvml].concat()
}

#[test]
fn a_debian_like_image_has_its_triplet_and_others_lib64() {
    let directories = |files: &[&str]| read(image(files).path(), &[]).unwrap().library_directories;
    assert_eq!(directories(&["etc/debian_version"]), [TRIPLET]);
    assert_eq!(directories(&["etc/redhat-release"]), [LIB64]);
    assert_eq!(directories(&[]), [LIB64]);
    assert_eq!(Layout::read(None, &[], "/").unwrap().library_directories, [TRIPLET, LIB64]);
}

/// What it is, its files, its environment, and what is covered.
type Row<'a> = (&'a str, &'a [&'a str], &'a [&'a str], &'a [&'a str]);

/// The trees of images as their makers lay them out; of each, what must end at ours.
#[test]
fn the_copies_in_known_images_are_covered() {
    let triplet = TRIPLET.strip_prefix('/').unwrap();
    let debian = "etc/debian_version";
    let rows: &[Row<'_>] = &[
        (
            "nvidia/cuda: cuda-compat below a versioned toolkit",
            &[
                debian,
                "usr/local/cuda -> /etc/alternatives/cuda",
                "etc/alternatives/cuda -> /usr/local/cuda-12.4",
                "usr/local/cuda-12.4/compat/libcuda.so -> libcuda.so.1",
                "usr/local/cuda-12.4/compat/libcuda.so.1 -> libcuda.so.550.54.15",
                "usr/local/cuda-12.4/compat/libcuda.so.550.54.15",
                "usr/local/cuda-12.4/compat/libnvidia-ptxjitcompiler.so.1",
            ],
            &["LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64"],
            &["/usr/local/cuda-12.4/compat/libcuda.so.550.54.15"],
        ),
        (
            "NGC PyTorch, TensorFlow, Triton, JAX: lib.real, linked by the entry point later",
            &[
                debian,
                "usr/local/cuda -> cuda-12.6",
                "usr/local/cuda-12.6/compat/lib.real/libcuda.so -> libcuda.so.1",
                "usr/local/cuda-12.6/compat/lib.real/libcuda.so.1 -> libcuda.so.560.35.03",
                "usr/local/cuda-12.6/compat/lib.real/libcuda.so.560.35.03",
            ],
            &["LD_LIBRARY_PATH=/usr/local/cuda/compat/lib:/usr/local/nvidia/lib:/usr/local/nvidia/lib64"],
            &["/usr/local/cuda-12.6/compat/lib.real/libcuda.so.560.35.03"],
        ),
        (
            "NGC after its entry point has run once: lib is a link",
            &[
                debian,
                "usr/local/cuda-12.6/compat/lib -> lib.real",
                "usr/local/cuda-12.6/compat/lib.real/libcuda.so.1",
            ],
            &["LD_LIBRARY_PATH=/usr/local/cuda-12.6/compat/lib"],
            &["/usr/local/cuda-12.6/compat/lib.real/libcuda.so.1"],
        ),
        (
            "nvidia/cuda on UBI and Rocky: no triplet",
            &["etc/redhat-release", "usr/local/cuda-11.8/compat/libcuda.so.1"],
            &[],
            &["/usr/local/cuda-11.8/compat/libcuda.so.1"],
        ),
        (
            "vLLM with forward compatibility asked for by a variable",
            &[debian, "usr/local/cuda-13.0/compat/libcuda.so.1", "usr/local/cuda -> cuda-13.0"],
            &["LD_LIBRARY_PATH=/usr/local/cuda/compat:/usr/local/cuda/lib64"],
            &["/usr/local/cuda-13.0/compat/libcuda.so.1"],
        ),
        (
            "TensorFlow's own: the stubs, listed by an ld.so.conf.d of the image",
            &[
                debian,
                "usr/local/cuda-11.2/targets/x86_64-linux/lib/libcuda.so.1 -> stubs/libcuda.so",
                "usr/local/cuda-11.2/targets/x86_64-linux/lib/stubs/libcuda.so",
            ],
            &[],
            &["/usr/local/cuda-11.2/targets/x86_64-linux/lib/stubs/libcuda.so"],
        ),
        (
            "conda's cuda-compat: PyTorch, Jupyter, RAPIDS",
            &[
                debian,
                "opt/conda/cuda-compat/libcuda.so.1 -> libcuda.so.555.42.06",
                "opt/conda/cuda-compat/libcuda.so.555.42.06",
            ],
            &[],
            &["/opt/conda/cuda-compat/libcuda.so.555.42.06"],
        ),
        (
            "conda environments beside the base",
            &[
                debian,
                "opt/conda/envs/rapids/cuda-compat/libcuda.so.1",
                "opt/conda/envs/torch/lib/libcuda.so",
            ],
            &[],
            &["/opt/conda/envs/torch/lib/libcuda.so", "/opt/conda/envs/rapids/cuda-compat/libcuda.so.1"],
        ),
        (
            "NVIDIA HPC SDK",
            &[debian, "opt/nvidia/hpc_sdk/Linux_x86_64/24.5/cuda/12.4/compat/libcuda.so.1"],
            &[],
            &["/opt/nvidia/hpc_sdk/Linux_x86_64/24.5/cuda/12.4/compat/libcuda.so.1"],
        ),
        (
            "a driver that the image's maker installed: Debian's alternatives",
            &[
                debian,
                &format!("{triplet}/libcuda.so.1 -> /etc/alternatives/glx--libcuda.so.1"),
                &format!("etc/alternatives/glx--libcuda.so.1 -> {TRIPLET}/nvidia/current/libcuda.so.1"),
                &format!("{triplet}/nvidia/current/libcuda.so.1 -> libcuda.so.535.247"),
                &format!("{triplet}/nvidia/current/libcuda.so.535.247"),
                &format!("{triplet}/nvidia/current/libnvidia-ml.so.1"),
            ],
            &[],
            &[
                &format!("{TRIPLET}/nvidia/current/libcuda.so.535.247"),
                &format!("{TRIPLET}/nvidia/current/libnvidia-ml.so.1"),
            ],
        ),
        (
            "GKE's and nvidia-docker's volume",
            &[debian, "usr/local/nvidia/lib64/libcuda.so.1", "usr/local/nvidia/lib64/libnvidia-ml.so.1"],
            &["LD_LIBRARY_PATH=/usr/local/nvidia/lib64"],
            &["/usr/local/nvidia/lib64/libcuda.so.1", "/usr/local/nvidia/lib64/libnvidia-ml.so.1"],
        ),
        ("WSL", &[debian, "usr/lib/wsl/lib/libcuda.so.1"], &[], &["/usr/lib/wsl/lib/libcuda.so.1"]),
        (
            "Jetson",
            &[debian, &format!("{triplet}/tegra/libcuda.so.1")],
            &[],
            &[&format!("{TRIPLET}/tegra/libcuda.so.1")],
        ),
        (
            "Arch",
            &["usr/lib/libcuda.so.1", "opt/cuda/compat/libcuda.so.1"],
            &[],
            &["/usr/lib/libcuda.so.1", "/opt/cuda/compat/libcuda.so.1"],
        ),
        (
            "musl",
            &["lib/libcuda.so.1", "usr/local/lib/libnvidia-ml.so.1"],
            &[],
            &["/lib/libcuda.so.1", "/usr/local/lib/libnvidia-ml.so.1"],
        ),
        ("a plain image", &[debian, "usr/bin/python3", &format!("{triplet}/libc.so.6")], &["PATH=/bin"], &[]),
    ];
    for (about, files, env, expected) in rows {
        assert_eq!(covered(files, env), *expected, "{about}");
    }
}

/// A loader prefers these to the folder that they are in.
#[test]
fn hwcaps_folders_of_every_level_are_covered() {
    let levels = ["glibc-hwcaps/x86-64-v2", "glibc-hwcaps/x86-64-v3", "glibc-hwcaps/x86-64-v4"];
    let older = [
        "tls",
        "haswell",
        "xeon_phi",
        "avx512_1",
        "x86_64",
        "tls/haswell",
        "tls/haswell/avx512_1/x86_64",
        "haswell/x86_64",
    ];
    let folders = [TRIPLET, "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    if cfg!(target_arch = "x86_64") {
        for (folder, level) in
            folders.iter().flat_map(|folder| levels.iter().chain(&older).map(move |level| (folder, level)))
        {
            for name in NAMES {
                let path = format!("{folder}/{level}/{name}");
                assert_eq!(covered(&["etc/debian_version", &path], &[]), std::slice::from_ref(&path));
                // Data alone can lead there: a link to whatever there is.
                let link = format!("{path} -> /opt/anything");
                assert_eq!(covered(&["etc/debian_version", &link, "opt/anything"], &[]), ["/opt/anything"]);
            }
        }
    }
}

#[test]
fn an_endless_nest_of_hwcaps_folders_ends() {
    let deep = format!("usr/lib/{}libcuda.so.1", "haswell/".repeat(100));
    assert!(covered(&[&deep, "usr/lib/haswell/haswell/libcuda.so.1"], &[]).is_empty());
}

#[test]
fn a_relative_folder_counts_from_where_the_container_starts() {
    let found = |path: &str| covered(&["b/libcuda.so.1", "b/c/libcuda.so.1"], &[path]);
    assert_eq!(found("LD_LIBRARY_PATH=c"), ["/b/c/libcuda.so.1"]);
    for path in ["LD_LIBRARY_PATH=/x:", "LD_LIBRARY_PATH=.", "LD_LIBRARY_PATH=c/.."] {
        assert_eq!(found(path), ["/b/libcuda.so.1"], "{path}");
    }
    assert!(found("LD_LIBRARY_PATH=").is_empty());
}

#[test]
fn folders_of_the_environment_and_what_is_preloaded_are_covered() {
    let files = [
        "etc/debian_version",
        "a/libcuda.so.1",
        "b/c/glibc-hwcaps/x86-64-v3/libnvidia-ml.so.1",
        "d/libcuda.so.12 -> real",
    ];
    let expected = ["/a/libcuda.so.1", "/b/c/glibc-hwcaps/x86-64-v3/libnvidia-ml.so.1"];
    for path in
        ["LD_LIBRARY_PATH=/a:/b/c", "LD_LIBRARY_PATH=:/b/c/;relative:/a/.", "LD_LIBRARY_PATH=/b/../a:/x:/b/c"]
    {
        let mut found = covered(&files, &["LD_LIBRARY_PATH=/of/former", path]);
        found.sort();
        assert_eq!(found, expected, "{path}");
    }
    for env in
        ["LD_PRELOAD=/a/libcuda.so.1", "LD_PRELOAD=libm.so.6 /a/libcuda.so.1", "LD_PRELOAD=:/a/libcuda.so.1"]
    {
        assert_eq!(covered(&files, &[env]), ["/a/libcuda.so.1"], "{env}");
    }
    let root = image(&files);
    fs::write(root.path().join("etc/ld.so.preload"), "/lib/x.so\n/a/libcuda.so.1 \n").unwrap();
    assert_eq!(read(root.path(), &[]).unwrap().foreign_cuda, ["/a/libcuda.so.1"]);
    let root = image(&["lib/ld-musl", "m/libcuda.so.1"]);
    fs::write(root.path().join(format!("etc/ld-musl-{}.path", std::env::consts::ARCH)), "").unwrap_or_else(
        |_| {
            fs::create_dir(root.path().join("etc")).unwrap();
        },
    );
    fs::write(root.path().join(format!("etc/ld-musl-{}.path", std::env::consts::ARCH)), "/lib\n/m:/n")
        .unwrap();
    assert_eq!(read(root.path(), &[]).unwrap().foreign_cuda, ["/m/libcuda.so.1"]);
}

fn with_cache(files: &[&str], entries: &[(&str, &str)]) -> Result<Layout, Error> {
    let root = image(files);
    fs::create_dir_all(root.path().join("etc")).unwrap();
    fs::write(root.path().join("etc/ld.so.cache"), ld_cache(entries)).unwrap();
    read(root.path(), &[])
}

#[test]
fn every_library_in_the_loaders_cache_is_covered_by_any_name() {
    let usual = format!("{TRIPLET}/libcuda.so.1");
    let merged = usual.strip_prefix("/usr").unwrap().to_owned();
    let layout = with_cache(
        &[
            "etc/debian_version",
            "lib -> usr/lib",
            "opt/x/driver.so",
            "opt/y/libcuda.so.1 -> /opt/x/other.so",
            "opt/x/other.so",
        ],
        &[
            ("libcuda.so.1", "/opt/x/driver.so"),
            ("libcuda.so.1", "/opt/y/libcuda.so.1"),
            ("libcuda.so", "/opt/../opt/./x/driver.so"),
            ("libcuda.so.1", &usual),
            ("libcuda.so.1", &merged),
            // Stale, as in images that were made beside a driver: nothing is there, and what somebody puts
            // there is covered.
            ("libnvidia-ml.so.1", "/opt/stale/libnvidia-ml.so.1"),
            ("libcuda.so.12", "/opt/x/other"),
            ("libc.so.6", "/opt/x/c"),
        ],
    );
    let layout = layout.unwrap();
    assert_eq!(layout.foreign_cuda, ["/opt/x/driver.so", "/opt/x/other.so"]);
    assert_eq!(layout.foreign_nvml, ["/opt/stale/libnvidia-ml.so.1"]);
}

#[test]
fn a_library_that_cannot_be_covered_is_refused_by_name() {
    let refusal = |entries: &[(&str, &str)]| with_cache(&["etc/debian_version"], entries).unwrap_err();
    for path in [
        "/run/fgpu/limits",
        "/run/fgpu/driver-0/cuda",
        "/proc/self/fd/3",
        "/sys/x",
        "/dev/shm/libcuda.so.1",
        "/a\nb/libcuda.so.1",
        "/run/../run/fgpu/x",
    ] {
        let error = refusal(&[("libcuda.so.1", path)]);
        assert_eq!(error.code, Code::Denied, "{path}");
        assert!(error.message.contains("/etc/ld.so.cache"), "{path}: {error}");
    }
    let many: Vec<String> = (0..100).map(|number| format!("/opt/{number}/libcuda.so.1")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|path| ("libcuda.so.1", path.as_str())).collect();
    assert!(refusal(&many).message.contains("more than 32 copies"));
    for (bytes, why) in [
        (b"ld.so-1.7.0\0\x01\0\0\0of former times".to_vec(), "glibc 2.2"),
        (vec![b'x'; (CACHE_LIMIT + 1) as usize], "4 MiB"),
    ] {
        let root = image(&["etc/debian_version"]);
        fs::write(root.path().join("etc/ld.so.cache"), bytes).unwrap();
        let error = read(root.path(), &[]).unwrap_err();
        assert!(error.message.contains(why) && error.code == Code::Denied, "{error}");
    }
    // What stands behind a bound leads nowhere either.
    let long = format!("LD_LIBRARY_PATH={}/own", "/x:".repeat(MOST_FOLDERS));
    let error = read(image(&["own/libcuda.so.1"]).path(), &[&long]).unwrap_err();
    assert!(error.message.contains("more than 64 folders"), "{error}");
    for name in ["etc/ld.so.preload".to_owned(), format!("etc/ld-musl-{}.path", std::env::consts::ARCH)] {
        let root = image(&[&name]);
        fs::write(root.path().join(&name), " ".repeat(TEXT_LIMIT as usize) + "/own/libcuda.so.1").unwrap();
        let error = read(root.path(), &[]).unwrap_err();
        assert!(error.message.contains(&name) && error.message.contains("64 KiB"), "{error}");
    }
    // No cache at all for a loader, and none for us.
    let root = image(&["etc/debian_version"]);
    fs::write(root.path().join("etc/ld.so.cache"), "nonsense").unwrap();
    assert_eq!(read(root.path(), &[]).unwrap().foreign_cuda, [""; 0]);
}
