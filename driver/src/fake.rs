//! A stand-in for a driver root: files with the names, links and ELF headers of a driver and nothing in them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use fgpu_spec::{DriverFile, FileKind, Gpu, Inventory};

/// A temporary directory that plays the root file system of a node or a driver container.
pub(crate) struct Root {
    _keep: tempfile::TempDir,
    path: PathBuf,
}

impl Root {
    pub(crate) fn new() -> Self {
        let keep = tempfile::tempdir().unwrap();
        let path = keep.path().canonicalize().unwrap();
        Self { _keep: keep, path }
    }

    /// With the kernel's version file and the two libraries that must be there, in the Debian folder.
    pub(crate) fn with_driver(version: &str) -> Self {
        let root = Self::new();
        root.write(
            "proc/driver/nvidia/version",
            format!(
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Tue Apr  8 12:41:17 UTC 2025\n"
            )
            .as_bytes(),
        );
        let folder = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        root.write(&format!("{folder}/libcuda.so.{version}"), &library(Some("libcuda.so.1")));
        root.write(&format!("{folder}/libnvidia-ml.so.{version}"), &library(Some("libnvidia-ml.so.1")));
        root
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn directory(&self, name: &str) {
        fs::create_dir_all(self.path.join(name)).unwrap();
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) {
        let path = self.path.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn program(&self, name: &str) {
        self.write(name, b"\x7fELF");
        fs::set_permissions(self.path.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

pub(crate) fn gpu(minor: u32) -> Gpu {
    Gpu {
        uuid: format!("GPU-0000000{minor}"),
        index: minor,
        minor,
        model: "Stand-in".into(),
        pci: format!("00000000:0{minor}:00.0"),
        numa: None,
        total_memory: 24 << 30,
        reserved_memory: 512 << 20,
        mig_enabled: false,
        context_memory: None,
        compute_capability: None,
        mig_profiles: Vec::new(),
    }
}

/// A fresh inventory of `root` with one GPU and one file.
pub(crate) fn inventory(root: &Root, version: &str) -> Inventory {
    let folder = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    Inventory {
        version: crate::FORMAT,
        boot_id: crate::boot_id().unwrap(),
        root: root.path().to_owned(),
        driver_version: version.into(),
        cuda_version: 12040,
        gpus: vec![gpu(0)],
        driver_limits: false,
        topology: fgpu_spec::Topology::default(),
        files: vec![DriverFile {
            kind: FileKind::Library,
            name: "libcuda.so.1".into(),
            host: root.path().join(folder).join(format!("libcuda.so.{version}")),
        }],
    }
}

/// The smallest ELF file that is a shared library of this architecture: headers, a dynamic section and a
/// string table. The string table is loaded 0x1000 above its place in the file, as in real libraries.
///
/// ```text
/// 0    ELF header        64 PT_LOAD, 120 PT_DYNAMIC      176 dynamic section (4 × 16)      240 strings
/// ```
pub(crate) fn library(soname: Option<&str>) -> Vec<u8> {
    const BIAS: u64 = 0x1000;
    const DYNAMIC: u64 = 176;
    const STRINGS: u64 = 240;
    let machine: u16 = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    let strings = [b"\0", soname.unwrap_or_default().as_bytes(), b"\0"].concat();
    let length = strings.len() as u64;

    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
    let word = |file: &mut Vec<u8>, value: u32| file.extend(value.to_le_bytes());
    let long = |file: &mut Vec<u8>, value: u64| file.extend(value.to_le_bytes());
    half(&mut file, 3); // e_type: ET_DYN
    half(&mut file, machine);
    word(&mut file, 1); // e_version
    long(&mut file, 0); // e_entry
    long(&mut file, 64); // e_phoff
    long(&mut file, 0); // e_shoff
    word(&mut file, 0); // e_flags
    for value in [64, 56, 2, 0, 0, 0] {
        half(&mut file, value); // e_ehsize, e_phentsize, e_phnum, no sections
    }
    let end = STRINGS + length;
    for (kind, offset, size) in [(1, 0, end), (2, DYNAMIC, STRINGS - DYNAMIC)] {
        word(&mut file, kind);
        word(&mut file, 4); // p_flags: readable
        for value in [offset, offset + BIAS, offset + BIAS, size, size, 8] {
            long(&mut file, value);
        }
    }
    let soname = soname.map_or((0x1e, 0), |_| (14, 1)); // DT_FLAGS keeps the place of a missing DT_SONAME
    for (tag, value) in [(5, STRINGS + BIAS), (10, length), soname, (0, 0)] {
        long(&mut file, tag);
        long(&mut file, value);
    }
    file.extend(strings);
    file
}

/// An `ld.so.cache` in the format that glibc writes since 2.32, with these names and paths.
pub(crate) fn ld_cache(libraries: &[(&str, &str)]) -> Vec<u8> {
    let mut strings = Vec::new();
    let mut table = Vec::new();
    let base = 48 + libraries.len() * 24;
    let mut add = |text: &str| {
        let at = (base + strings.len()) as u32;
        strings.extend(text.as_bytes());
        strings.push(0);
        at
    };
    for (name, path) in libraries {
        for value in [0x303, add(name), add(path), 0, 0, 0] {
            table.extend(value.to_ne_bytes()); // flags, key, value, osversion, hwcap (two words)
        }
    }
    let mut cache = b"glibc-ld.so.cache1.1".to_vec();
    cache.extend((libraries.len() as u32).to_ne_bytes());
    cache.extend((strings.len() as u32).to_ne_bytes());
    cache.resize(48, 0);
    cache.extend(table);
    cache.extend(strings);
    cache
}
