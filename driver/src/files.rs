//! The user-space files of the running driver.
//!
//! Only files of the *running* version count: a package that was upgraded without a reboot leaves the new
//! libraries beside the old module, and those refuse to talk to it. Which files a container needs to compute
//! and to look at its GPU is NVIDIA's own choice (libnvidia-container's utility and compute lists), less the
//! MPS programs: an MPS server works for several clients under its own name and so steps around the limits.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use fgpu_spec::{Code, DriverFile, Error, FileKind};

use crate::rooted::{resolve, under};
use crate::{ldcache, soname};

/// Libraries without which there is nothing to inject.
const REQUIRED: &[&str] = &["libcuda", "libnvidia-ml"];

/// Libraries that newer or older drivers have, or packages that may not be installed: `<name>.so.<version>`.
const OPTIONAL: &[&str] = &[
    "libcudadebugger",
    "libnvidia-allocator",
    "libnvidia-cfg",
    "libnvidia-compiler",
    "libnvidia-fatbinaryloader",
    "libnvidia-gpucomp",
    "libnvidia-nscq",
    "libnvidia-nvvm",
    "libnvidia-opencl",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler",
    "libnvidia-tileiras",
];

/// Libraries whose file names do not carry the driver's version. They count only beside its libcuda.
const UNVERSIONED: &[&str] = &["libnvidia-nvvm70.so.4"];

const PROGRAMS: &[&str] = &["nvidia-smi", "nvidia-debugdump"];

#[cfg(target_arch = "x86_64")]
const TRIPLET: &str = "x86_64-linux-gnu";
#[cfg(target_arch = "aarch64")]
const TRIPLET: &str = "aarch64-linux-gnu";

/// Debian keeps nvidia-smi in `nvidia/current` when its alternative is not configured.
const PROGRAM_FOLDERS: &[&str] =
    &["/usr/bin", "/usr/sbin", "/bin", "/sbin", "/usr/local/bin", "/usr/lib/nvidia/current", "/opt/bin"];

/// Sockets of the driver's daemons, for a node that runs them.
const SOCKETS: &[&str] = &["/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket"];

/// The files of driver `version` under `root`: libcuda and libnvidia-ml first, then the other libraries, the
/// programs and the sockets.
///
/// # Errors
/// `driver-error` if libcuda or libnvidia-ml of this version is not installed; the message names the versions
/// that are.
pub(crate) fn find(root: &Path, version: &str) -> Result<Vec<DriverFile>, Error> {
    let folders = library_folders(root);
    let mut files = Files { root, found: Vec::new() };
    for name in REQUIRED {
        if !files.library(&folders, name, version) {
            return Err(not_installed(root, &folders, name, version));
        }
    }
    for name in OPTIONAL {
        files.library(&folders, name, version);
    }
    let beside = files.found[0].host.parent().and_then(|folder| inside(root, folder));
    for name in UNVERSIONED {
        files.unversioned(beside.as_slice(), name);
    }
    for name in PROGRAMS {
        files.program(name);
    }
    for path in SOCKETS {
        files.socket(path);
    }
    Ok(files.found)
}

struct Files<'a> {
    root: &'a Path,
    found: Vec<DriverFile>,
}

impl Files<'_> {
    /// Adds `<name>.so.<version>` of the first folder that has it; says whether there is one.
    fn library(&mut self, folders: &[PathBuf], name: &str, version: &str) -> bool {
        let file = format!("{name}.so.{version}");
        self.first_library(folders, &file).is_some_and(|(soname, host)| {
            let soname = soname.unwrap_or(file);
            // Under another library's SONAME it would take that one's place in the container.
            let own = soname.strip_prefix(name).is_some_and(|rest| rest.starts_with(".so"));
            if own {
                self.add(soname, host);
            }
            own
        })
    }

    /// Adds the library `file`, which is looked for by its file name.
    fn unversioned(&mut self, folders: &[PathBuf], file: &str) {
        if let Some((_, host)) = self.first_library(folders, file) {
            self.add(file.to_owned(), host);
        }
    }

    /// SONAME and path on the host of the first shared library called `file`. A 32-bit library, a linker
    /// script or a broken file is passed over: the next folder may have the right one.
    fn first_library(&self, folders: &[PathBuf], file: &str) -> Option<(Option<String>, PathBuf)> {
        folders.iter().find_map(|folder| {
            let host = resolve(self.root, &folder.join(file)).ok()?;
            Some((soname::read(&host).ok()?, host))
        })
    }

    fn add(&mut self, name: String, host: PathBuf) {
        self.found.push(DriverFile { kind: FileKind::Library, name, host });
    }

    fn program(&mut self, name: &str) {
        if let Some(host) = find_program(self.root, name) {
            self.found.push(DriverFile { kind: FileKind::Program, name: name.to_owned(), host });
        }
    }

    fn socket(&mut self, path: &str) {
        let Ok(host) = resolve(self.root, Path::new(path)) else { return };
        if host.metadata().is_ok_and(|metadata| metadata.file_type().is_socket()) {
            self.found.push(DriverFile { kind: FileKind::Other, name: path.to_owned(), host });
        }
    }
}

/// The executable file called `name` in the first folder that has it, links resolved under `root`.
pub(crate) fn find_program(root: &Path, name: &str) -> Option<PathBuf> {
    PROGRAM_FOLDERS.iter().find_map(|folder| {
        let host = resolve(root, &Path::new(folder).join(name)).ok()?;
        let metadata = host.metadata().ok()?;
        (metadata.is_file() && metadata.permissions().mode() & 0o111 != 0).then_some(host)
    })
}

/// The folders to search, as the driver root names them: the usual ones, then those in which the loader of
/// the root knows a library of the driver (a distribution's own choice, Debian's alternatives).
fn library_folders(root: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    for usual in
        ["/usr/lib64".into(), format!("/usr/lib/{TRIPLET}"), "/lib64".into(), format!("/lib/{TRIPLET}")]
    {
        folders.push(Path::new(&usual).join("nvidia/current"));
        folders.push(usual.into());
    }
    // The plain folders come before Debian's subfolders, whose files they link to.
    folders.sort_by_key(|folder| folder.ends_with("nvidia/current"));
    let cache = resolve(root, Path::new("/etc/ld.so.cache")).and_then(fs::read).unwrap_or_default();
    for entry in ldcache::entries(&cache).into_iter().flatten() {
        if !REQUIRED
            .iter()
            .any(|name| entry.name.strip_prefix(name).is_some_and(|rest| rest.starts_with(".so")))
        {
            continue;
        }
        let path = Path::new(entry.path);
        let real = resolve(root, path).ok().and_then(|host| inside(root, &host));
        for path in [Some(path.to_owned()), real].into_iter().flatten() {
            if let Some(folder) = path.parent().filter(|folder| !folders.iter().any(|known| known == folder))
            {
                folders.push(folder.to_owned());
            }
        }
    }
    folders
}

/// The path within `root` of a resolved path on the host.
fn inside(root: &Path, host: &Path) -> Option<PathBuf> {
    let root = root.canonicalize().ok()?;
    Some(Path::new("/").join(host.strip_prefix(root).ok()?))
}

fn not_installed(root: &Path, folders: &[PathBuf], name: &str, version: &str) -> Error {
    let prefix = format!("{name}.so.");
    let mut others: Vec<String> = folders
        .iter()
        .filter_map(|folder| fs::read_dir(under(root, folder)).ok())
        .flatten()
        .filter_map(|entry| {
            let file = entry.ok()?.file_name();
            let other = file.to_str()?.strip_prefix(&prefix)?;
            (other.contains('.') && other != version).then(|| other.to_owned())
        })
        .collect();
    others.sort();
    others.dedup();
    let searched = under(root, "/").display().to_string();
    let message = match others.as_slice() {
        [] => format!(
            "driver {version} is loaded, but under {searched} there is no usable {name}.so.{version}; install the \
             driver's user-space libraries of that version"
        ),
        others => format!(
            "driver {version} is loaded, but {name}.so under {searched} is of version {}: the driver was upgraded \
             without a reboot; reboot, or reload the nvidia modules",
            others.join(", ")
        ),
    };
    Error::new(Code::DriverError, message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::fake::{Root, ld_cache, library};

    const VERSION: &str = "550.163.01";

    fn names(files: &[DriverFile], kind: FileKind) -> Vec<&str> {
        files.iter().filter(|file| file.kind == kind).map(|file| file.name.as_str()).collect()
    }

    #[test]
    fn the_libraries_of_the_running_version_only() {
        let root = Root::with_driver(VERSION);
        let lib = format!("usr/lib/{TRIPLET}");
        root.write(&format!("{lib}/libnvidia-nvvm.so.{VERSION}"), &library(Some("libnvidia-nvvm.so.4")));
        root.write(&format!("{lib}/libnvidia-nvvm.so.535.1.1"), &library(Some("libnvidia-nvvm.so.4")));
        root.write(&format!("{lib}/libnvidia-nvvm70.so.4"), &library(Some("libnvidia-nvvm70.so.4")));
        root.write(&format!("{lib}/libnvidia-gpucomp.so.{VERSION}"), &library(None));
        root.write(&format!("{lib}/libnvidia-cfg.so.535.1.1"), &library(Some("libnvidia-cfg.so.1")));
        root.write(&format!("{lib}/libGLX_nvidia.so.{VERSION}"), &library(Some("libGLX_nvidia.so.0")));
        let files = find(root.path(), VERSION).unwrap();
        assert_eq!(
            names(&files, FileKind::Library),
            [
                "libcuda.so.1",
                "libnvidia-ml.so.1",
                "libnvidia-gpucomp.so.550.163.01",
                "libnvidia-nvvm.so.4",
                "libnvidia-nvvm70.so.4"
            ]
        );
        assert_eq!(files[0].host, root.path().join(&lib).join("libcuda.so.550.163.01"));
    }

    #[test]
    fn the_layout_of_debian() {
        let root = Root::new();
        let current = format!("usr/lib/{TRIPLET}/nvidia/current");
        for (name, soname) in [("libcuda", "libcuda.so.1"), ("libnvidia-ml", "libnvidia-ml.so.1")] {
            root.write(&format!("{current}/{name}.so.{VERSION}"), &library(Some(soname)));
            symlink(format!("{name}.so.{VERSION}"), root.path().join(&current).join(soname)).unwrap();
        }
        root.program("usr/lib/nvidia/current/nvidia-smi");
        let files = find(root.path(), VERSION).unwrap();
        assert_eq!(files[0].host, root.path().join(&current).join("libcuda.so.550.163.01"));
        assert_eq!(names(&files, FileKind::Program), ["nvidia-smi"]);

        // And with the alternatives configured, whose links are absolute.
        root.directory("usr/bin");
        root.directory("etc/alternatives");
        symlink("/etc/alternatives/nvidia--nvidia-smi", root.path().join("usr/bin/nvidia-smi")).unwrap();
        symlink(
            "/usr/lib/nvidia/current/nvidia-smi",
            root.path().join("etc/alternatives/nvidia--nvidia-smi"),
        )
        .unwrap();
        let again = find(root.path(), VERSION).unwrap();
        assert_eq!(again, files, "the same files, by another way");
    }

    #[test]
    fn a_folder_that_only_the_loader_knows() {
        let root = Root::new();
        for (name, soname) in [("libcuda", "libcuda.so.1"), ("libnvidia-ml", "libnvidia-ml.so.1")] {
            root.write(&format!("opt/nv/lib/{name}.so.{VERSION}"), &library(Some(soname)));
            symlink(format!("{name}.so.{VERSION}"), root.path().join("opt/nv/lib").join(soname)).unwrap();
        }
        assert_eq!(find(root.path(), VERSION).unwrap_err().code, Code::DriverError);
        root.directory("links");
        symlink("/opt/nv/lib/libcuda.so.1", root.path().join("links/libcuda.so.1")).unwrap();
        root.write("etc/ld.so.cache", &ld_cache(&[("libcuda.so.1", "/links/libcuda.so.1")]));
        let files = find(root.path(), VERSION).unwrap();
        assert_eq!(names(&files, FileKind::Library), ["libcuda.so.1", "libnvidia-ml.so.1"]);
    }

    #[test]
    fn a_library_of_another_architecture_is_passed_over() {
        let root = Root::with_driver(VERSION);
        let mut foreign = library(Some("libcuda.so.1"));
        foreign[18] ^= 0xff; // e_machine
        root.write(&format!("usr/lib64/libcuda.so.{VERSION}"), &foreign);
        let files = find(root.path(), VERSION).unwrap();
        assert_eq!(files[0].host, root.path().join(format!("usr/lib/{TRIPLET}/libcuda.so.{VERSION}")));
    }

    #[test]
    fn a_library_under_the_name_of_another_does_not_count() {
        let root = Root::with_driver(VERSION);
        let path = format!("usr/lib/{TRIPLET}/libcuda.so.{VERSION}");
        root.write(&path, &library(Some("libnvidia-ml.so.1")));
        let error = find(root.path(), VERSION).unwrap_err();
        assert!(error.message.contains("there is no usable libcuda.so.550.163.01"), "{error}");
    }

    #[test]
    fn an_upgrade_without_a_reboot_is_told_from_a_missing_package() {
        let root = Root::with_driver(VERSION);
        let error = find(root.path(), "550.54.15").unwrap_err();
        assert_eq!(error.code, Code::DriverError);
        assert!(error.message.contains("driver 550.54.15 is loaded"), "{error}");
        assert!(error.message.contains("is of version 550.163.01: the driver was upgraded"), "{error}");

        let error = find(Root::new().path(), VERSION).unwrap_err();
        assert!(error.message.contains("there is no usable libcuda.so.550.163.01"), "{error}");
    }

    #[test]
    fn programs_and_sockets() {
        let root = Root::with_driver(VERSION);
        root.program("usr/bin/nvidia-debugdump");
        root.program("usr/bin/nvidia-cuda-mps-control");
        root.write("usr/bin/nvidia-smi", b"not executable");
        root.write("run/nvidia-fabricmanager/socket", b"not a socket");
        root.directory("run/nvidia-persistenced");
        let socket = root.path().join("run/nvidia-persistenced/socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        let files = find(root.path(), VERSION).unwrap();
        assert_eq!(names(&files, FileKind::Program), ["nvidia-debugdump"]);
        let other: Vec<_> = files.iter().filter(|file| file.kind == FileKind::Other).collect();
        assert_eq!(other.len(), 1);
        assert_eq!((other[0].name.as_str(), &other[0].host), ("/run/nvidia-persistenced/socket", &socket));
    }
}
