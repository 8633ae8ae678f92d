//! Where an image keeps its libraries, and which other driver libraries it would rather load.

use crate::layers::Layers;

/// The largest ld.so.cache that is read, bytes. A full desktop's has about 300 kB.
const CACHE_LIMIT: u64 = 4 << 20;
/// More foreign copies than this are not covered; an image has one or two.
const MOST_FOREIGN: usize = 16;

#[cfg(target_arch = "x86_64")]
pub(crate) const TRIPLET: &str = "/usr/lib/x86_64-linux-gnu";
#[cfg(target_arch = "aarch64")]
pub(crate) const TRIPLET: &str = "/usr/lib/aarch64-linux-gnu";
const LIB64: &str = "/usr/lib64";

/// What is known of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The directories in which its loader looks without an ld.so.cache. Both where the image is unknown.
    pub(crate) library_directories: Vec<&'static str>,
    /// Absolute paths of other copies of `libcuda.so.1` that its loader would find first: `cuda-compat`.
    pub(crate) foreign_cuda: Vec<String>,
    /// The same for `libnvidia-ml.so.1`.
    pub(crate) foreign_nvml: Vec<String>,
}

impl Layout {
    /// Reads the layout from the image's layers.
    pub(crate) fn read(layers: Option<&Layers>) -> Self {
        let Some(layers) = layers else {
            return Self {
                library_directories: vec![TRIPLET, LIB64],
                foreign_cuda: Vec::new(),
                foreign_nvml: Vec::new(),
            };
        };
        let debian = layers.has(TRIPLET) || layers.has("etc/debian_version");
        let directory = if debian { TRIPLET } else { LIB64 };
        let mut layout =
            Self { library_directories: vec![directory], foreign_cuda: Vec::new(), foreign_nvml: Vec::new() };
        if let Some(cache) = layers.read("etc/ld.so.cache", CACHE_LIMIT) {
            for entry in fgpu_driver::ldcache::entries(&cache).into_iter().flatten() {
                match entry.name {
                    "libcuda.so.1" | "libcuda.so" => layout.add_foreign(entry.path.into(), true),
                    "libnvidia-ml.so.1" | "libnvidia-ml.so" => layout.add_foreign(entry.path.into(), false),
                    _ => {}
                }
            }
        }
        // CUDA images bring `cuda-compat` here and some point LD_LIBRARY_PATH at it.
        for toolkit in layers.list("usr/local", 256).iter().filter(|name| name.starts_with("cuda")) {
            let compat = format!("/usr/local/{toolkit}/compat");
            for name in layers.list(&compat, 256) {
                if name.starts_with("libcuda.so") {
                    layout.add_foreign(format!("{compat}/{name}"), true);
                }
            }
        }
        layout
    }

    /// Adds a path of the image's own to what our library is bound over. It becomes a mount *destination*, which
    /// the runtime resolves inside the root; still, what does not look like a plain path of that library is left alone:
    /// an image could name the place of its limits, or one that no runtime mounts on.
    fn add_foreign(&mut self, path: String, cuda: bool) {
        let Some((directory, name)) = path.rsplit_once('/') else { return };
        let (list, library) = match cuda {
            true => (&mut self.foreign_cuda, "libcuda.so"),
            false => (&mut self.foreign_nvml, "libnvidia-ml.so"),
        };
        let plain = directory.starts_with('/')
            && path.len() < 1024
            && path.bytes().all(|byte| byte.is_ascii_graphic())
            && !directory.split('/').any(|part| part == "..")
            && name.starts_with(library);
        let usual = |known: &&str| directory == *known || Some(directory) == known.strip_prefix("/usr");
        if plain
            && list.len() < MOST_FOREIGN
            && !list.contains(&path)
            && !self.library_directories.iter().any(usual)
        {
            list.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(files: &[&str]) -> (tempfile::TempDir, Layout) {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let layout = Layout::read(Layers::of_directory(root.path()).as_ref());
        (root, layout)
    }

    #[test]
    fn a_debian_like_image_has_its_triplet_and_others_lib64() {
        assert_eq!(image(&["etc/debian_version"]).1.library_directories, [TRIPLET]);
        assert_eq!(image(&["etc/redhat-release"]).1.library_directories, [LIB64]);
        assert_eq!(image(&[]).1.library_directories, [LIB64]);
        assert_eq!(Layout::read(None).library_directories, [TRIPLET, LIB64]);
    }

    #[test]
    fn cuda_compat_is_found() {
        let (_root, layout) = image(&[
            "etc/debian_version",
            "usr/local/cuda-12.4/compat/libcuda.so.1",
            "usr/local/cuda-12.4/compat/libcuda.so.550.54",
            "usr/local/cuda-12.4/compat/libnvidia-nvvm.so.4",
        ]);
        assert_eq!(
            layout.foreign_cuda,
            ["/usr/local/cuda-12.4/compat/libcuda.so.1", "/usr/local/cuda-12.4/compat/libcuda.so.550.54"]
        );
    }

    #[test]
    fn only_plain_paths_outside_the_library_directory_are_foreign() {
        let mut layout = image(&["etc/debian_version"]).1;
        for path in [
            format!("{TRIPLET}/libcuda.so.1"),
            format!("{}/libcuda.so.1", &TRIPLET[4..]),
            "relative/libcuda.so.1".into(),
            "/opt/../etc/libcuda.so.1".into(),
            "/opt/new\nline/libcuda.so.1".into(),
            // What a cache can say of a library besides.
            TRIPLET.into(),
            TRIPLET[4..].into(),
            format!("{TRIPLET}/"),
            "/run/fgpu/limits".into(),
            "/etc/passwd".into(),
            "libcuda.so.1".into(),
            "/".into(),
            String::new(),
        ] {
            layout.add_foreign(path, true);
        }
        assert!(layout.foreign_cuda.is_empty(), "{:?}", layout.foreign_cuda);
        layout.add_foreign(format!("{TRIPLET}/nvidia/libcuda.so.1"), true);
        layout.add_foreign("/opt/libcuda.so.1".into(), true);
        layout.add_foreign("/opt/libcuda.so.1".into(), true);
        assert_eq!(layout.foreign_cuda.len(), 2);
    }
}
