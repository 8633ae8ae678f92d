//! The folders in which driver libraries of images lie.

use crate::layers::{Folder, Layers};

/// Where a loader looks without being told. glibc of Debian, glibc of others, and musl; which links lead from
/// one to another is the image's matter.
pub(super) const DEFAULT: [&str; 8] = [
    super::TRIPLET,
    concat!("/lib/", triplet!()),
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
    "/usr/local/lib",
    "/usr/local/lib64",
];

/// Folders in a folder in which a loader looks before the folder itself: `glibc-hwcaps/LEVEL` since glibc
/// 2.33, and before 2.37 the older ones, one below the other in this order (`tls/haswell/avx512_1/x86_64`).
#[cfg(target_arch = "x86_64")]
pub(super) const HWCAPS: [&str; 9] = [
    "glibc-hwcaps",
    "x86-64-v4",
    "x86-64-v3",
    "x86-64-v2",
    "tls",
    "haswell",
    "xeon_phi",
    "avx512_1",
    "x86_64",
];
#[cfg(target_arch = "aarch64")]
pub(super) const HWCAPS: [&str; 4] = ["glibc-hwcaps", "tls", "atomics", "aarch64"];

/// Where images are known to keep a copy that becomes the loader's first choice later, by an entry point, by
/// a variable that a user sets, or by a program's own run path. `*` is any name; `cuda*` any that begins so.
const KNOWN: [&str; 21] = [
    // cuda-compat of nvidia/cuda, PyTorch, vLLM, JAX: a folder; of NGC (PyTorch, TensorFlow, Triton, JAX,
    // RAPIDS): lib.real in it, linked as lib by the entry point. Its own packages put it below /usr/local.
    "/usr/local/cuda*/compat",
    "/usr/local/cuda*/compat/*",
    "/usr/local/cuda*/targets/*/lib",
    "/opt/cuda*/compat",
    "/opt/cuda*/compat/*",
    "/opt/nvidia/cuda-compat",
    "/opt/nvidia/cuda-compat/*",
    // NVIDIA HPC SDK.
    "/opt/nvidia/hpc_sdk/*/*/cuda/compat",
    "/opt/nvidia/hpc_sdk/*/*/cuda/*/compat",
    // The volume of nvidia-docker 1 and GKE, on LD_LIBRARY_PATH in every CUDA image.
    "/usr/local/nvidia/lib",
    "/usr/local/nvidia/lib64",
    // conda's packages cuda-compat and cuda-compat-impl, in the base environment and others (PyTorch,
    // Jupyter, RAPIDS).
    "/opt/conda/lib",
    "/opt/conda/cuda-compat",
    "/opt/conda/envs/*/lib",
    "/opt/conda/envs/*/cuda-compat",
    "/root/miniconda3/cuda-compat",
    "/opt/miniconda3/cuda-compat",
    // Debian's and Ubuntu's own packages, Jetson's and WSL's.
    concat!("/usr/lib/", triplet!(), "/nvidia/current"),
    concat!("/usr/lib/", triplet!(), "/nvidia"),
    concat!("/usr/lib/", triplet!(), "/tegra"),
    "/usr/lib/wsl/lib",
];

/// As many names are taken of a folder for one `*`.
const MOST_NAMES: usize = 256;
/// As many folders come of all patterns together.
const MOST_FOLDERS: usize = 512;

/// The known folders that this image has, each with its path as it is asked for.
pub(super) fn known(layers: &Layers) -> Vec<(Folder, String)> {
    let mut found = Vec::new();
    for pattern in KNOWN {
        let mut paths = vec![String::new()];
        for part in pattern.split('/').skip(1) {
            paths = paths.iter().flat_map(|path| expand(layers, path, part)).take(MOST_FOLDERS).collect();
        }
        let folders = paths.into_iter().filter_map(|path| Some((layers.folder(&path)?, path)));
        found.extend(folders.take(MOST_FOLDERS.saturating_sub(found.len())));
    }
    found
}

/// The paths of what a part of a pattern means in a folder.
fn expand(layers: &Layers, path: &str, part: &str) -> Vec<String> {
    let Some(prefix) = part.strip_suffix('*') else { return vec![format!("{path}/{part}")] };
    let names = layers.folder(path).map(|folder| folder.names(MOST_NAMES)).unwrap_or_default();
    names.iter().filter(|name| name.starts_with(prefix)).map(|name| format!("{path}/{name}")).collect()
}
