//! A driver that the spec brings by itself: a bind mount of its files, a hook of NVIDIA's tools, a CDI
//! device.
//!
//! A second libcuda in the container lifts the limit, whatever the first one does, and a hook of NVIDIA's
//! tools puts one there after us. What the spec says is judged here; what a source of a mount holds is asked
//! of the caller.

use std::borrow::Cow;
use std::path::Path;

use serde::Deserialize;

use super::entry::entries;
use super::{Document, edit};
use crate::{Code, Error, escape_for_display};

/// What the spec brings, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignDriver {
    what: String,
    remedy: &'static str,
}

impl ForeignDriver {
    /// The refusal of a request, given as text, that comes with it.
    pub fn refusal(&self, request: &str) -> Error {
        let Self { what, remedy } = self;
        Error::new(
            Code::Conflict,
            format!(
                "{request}: the container is given a driver besides this share: {what}. With two drivers the share is not \
                 kept; {remedy}"
            ),
        )
    }
}

/// Libraries of the driver that fgpu brings itself, up to `.so`.
const LIBRARIES: &[&str] = &[
    "libcuda",
    "libcudadebugger",
    "libnvidia-allocator",
    "libnvidia-cfg",
    "libnvidia-compiler",
    "libnvidia-fatbinaryloader",
    "libnvidia-gpucomp",
    "libnvidia-ml",
    "libnvidia-nscq",
    "libnvidia-nvvm",
    "libnvidia-nvvm70",
    "libnvidia-opencl",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler",
    "libnvidia-tileiras",
];
const PROGRAMS: &[&str] = &[
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
];
/// The folders of the driver's daemons: a socket is mounted alone or with its folder.
const DAEMONS: &[&str] = &["nvidia-persistenced", "nvidia-fabricmanager"];

/// Programs that a hook of NVIDIA's Container Toolkit runs whatever the environment says.
const CDI_HOOKS: &[&str] = &["nvidia-cdi-hook", "nvidia-ctk"];
/// Those that look at the environment of the container first.
const LEGACY_HOOKS: &[&str] = &[
    "nvidia-container-runtime-hook",
    "nvidia-container-toolkit",
    "nvidia-container-cli",
    "nvidia-container-runtime",
];

const REMOVE_MOUNT: &str =
    "remove that mount (`--volume`), or what adds it: `--gpus`, `--device nvidia.com/gpu=…`";
const REMOVE_CDI: &str = "remove `--device nvidia.com/gpu=…` or `--gpus`";
const REMOVE_HOOK: &str =
    "remove `--gpus`, or the hook's file in hooks.d, or give the container NVIDIA_VISIBLE_DEVICES=void";
const REMOVE_ANNOTATION: &str = "remove that annotation, or the resource that adds it";

/// Whether a file of this path is one that fgpu brings with a share: by its name, wherever it lies.
pub fn is_driver_file(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    let library =
        |(stem, rest): (&str, &str)| LIBRARIES.contains(&stem) && (rest.is_empty() || rest.starts_with('.'));
    name.split_once(".so").is_some_and(library)
        || PROGRAMS.contains(&name)
        || DAEMONS.contains(&name)
        || name == "socket" && path.parent().is_some_and(is_driver_file)
}

impl Document {
    /// What of a driver the spec brings by itself, if anything. What a former edit wrote does not count, nor
    /// a mount on a path of `extra`, which the administrator gives to every container with a share.
    ///
    /// `holds` says which driver file a mount of a path of the host brings.
    ///
    /// # Errors
    /// [`Code::Internal`] when mounts or hooks have another type than the OCI runtime specification gives
    /// them.
    pub fn foreign_driver(
        &self,
        extra: &[impl AsRef<Path>],
        holds: impl Fn(&Path) -> Option<String>,
    ) -> Result<Option<ForeignDriver>, Error> {
        if let Some(found) = self.foreign_annotation() {
            return Ok(Some(found));
        }
        if let Some(found) = self.foreign_hook()? {
            return Ok(Some(found));
        }
        self.foreign_mount(extra, holds)
    }

    /// `cdi.k8s.io/NAME: nvidia.com/gpu=0,…`: containerd, CRI-O and NVIDIA's runtime read it.
    fn foreign_annotation(&self) -> Option<ForeignDriver> {
        let nvidias = |value: &str| {
            let kind = |device: &str| {
                let vendor = device.trim().split_once('/').map(|(vendor, _)| vendor.to_ascii_lowercase());
                vendor.is_some_and(|vendor| vendor == "nvidia.com" || vendor.ends_with(".nvidia.com"))
            };
            value.split(',').any(kind)
        };
        let (key, value) = self
            .view
            .annotations
            .iter()
            .find(|(key, value)| key.starts_with("cdi.k8s.io/") && nvidias(value))?;
        let what = format!("the annotation {}={}", escape_for_display(key), escape_for_display(value));
        Some(ForeignDriver { what, remedy: REMOVE_ANNOTATION })
    }

    fn foreign_hook(&self) -> Result<Option<ForeignDriver>, Error> {
        #[derive(Deserialize)]
        struct Hook<'a> {
            #[serde(borrow)]
            path: Cow<'a, str>,
            args: Option<Vec<String>>,
        }
        let Some(hooks) = self.tree.object("hooks") else { return Ok(None) };
        for (stage, list) in hooks.iter() {
            let list: Vec<(&str, Hook<'_>)> = entries(Some(list), &format!("hooks.{stage}"))?;
            for (_, hook) in &list {
                let words: Vec<&str> = std::iter::once(&*hook.path)
                    .chain(hook.args.iter().flatten().map(String::as_str))
                    .flat_map(str::split_ascii_whitespace) // `sh -c "nvidia-ctk hook …"`
                    .collect();
                let runs = |names: &[&str]| words.iter().any(|word| is_program(word, names));
                let remedy = if runs(CDI_HOOKS) {
                    REMOVE_CDI
                } else if runs(LEGACY_HOOKS) && self.legacy_hook_acts()? {
                    REMOVE_HOOK
                } else {
                    continue;
                };
                let what =
                    format!("the {} hook {}", escape_for_display(stage), escape_for_display(&hook.path));
                return Ok(Some(ForeignDriver { what, remedy }));
            }
        }
        Ok(None)
    }

    /// Whether NVIDIA's hook does anything for this container. It reads NVIDIA_VISIBLE_DEVICES; without it an
    /// image of CUDA 9 or older gets all GPUs, and some nodes take the devices from other variables or from
    /// mounts.
    fn legacy_hook_acts(&self) -> Result<bool, Error> {
        let variable = |name: &str| {
            let of = |entry: &'_ String| {
                entry.split_once('=').filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
            };
            self.view.env.iter().rev().find_map(of)
        };
        let by_mount = self.binds()?.iter().any(|(_, mount)| {
            mount.destination == "/var/run/nvidia-container-devices"
                || mount.destination.starts_with("/var/run/nvidia-container-devices/")
        });
        let swarm = self.view.env.iter().any(|entry| entry.starts_with("DOCKER_RESOURCE_"));
        let asked = match variable("NVIDIA_VISIBLE_DEVICES") {
            Some(value) => !matches!(value.trim(), "" | "void"),
            None => variable("CUDA_VERSION").is_some() && variable("NVIDIA_REQUIRE_CUDA").is_none(),
        };
        Ok(asked || by_mount || swarm)
    }

    fn binds(&self) -> Result<Vec<(&str, Bind<'_>)>, Error> {
        entries(self.tree.get("mounts"), "mounts")
    }

    fn foreign_mount(
        &self,
        extra: &[impl AsRef<Path>],
        holds: impl Fn(&Path) -> Option<String>,
    ) -> Result<Option<ForeignDriver>, Error> {
        let edited = self.grant().is_some();
        for (_, mount) in self.binds()? {
            let destination = Path::new(&*mount.destination);
            let options = mount.options.as_deref().unwrap_or_default();
            if edited && edit::has_options_of_ours(options)
                || extra.iter().any(|path| path.as_ref() == destination)
            {
                continue;
            }
            let on = || escape_for_display(&mount.destination);
            if is_driver_file(destination) {
                let what = format!("a mount on {}", on());
                return Ok(Some(ForeignDriver { what, remedy: REMOVE_MOUNT }));
            }
            for source in mount.sources(options) {
                let file = if is_driver_file(source) { Some(String::new()) } else { holds(source) };
                let Some(file) = file else { continue };
                let held = if file.is_empty() {
                    file
                } else {
                    format!(", which holds {}", escape_for_display(&file))
                };
                let what = format!(
                    "the mount of {}{held} on {}",
                    escape_for_display(&source.to_string_lossy()),
                    on()
                );
                return Ok(Some(ForeignDriver { what, remedy: REMOVE_MOUNT }));
            }
        }
        Ok(None)
    }
}

/// `nvidia-ctk` and `/usr/bin/nvidia-ctk.real`, as NVIDIA's operator names what it wraps.
fn is_program(word: &str, names: &[&str]) -> bool {
    let name = word.rsplit('/').next().unwrap_or(word).trim_matches(['"', '\'', ';']);
    names.contains(&name.strip_suffix(".real").unwrap_or(name))
}

#[derive(Deserialize)]
struct Bind<'a> {
    #[serde(borrow)]
    destination: Cow<'a, str>,
    #[serde(borrow)]
    r#type: Option<Cow<'a, str>>,
    #[serde(borrow)]
    source: Option<Cow<'a, str>>,
    options: Option<Vec<String>>,
}

impl Bind<'_> {
    /// The paths of the host that the mount shows: the source of a bind mount, the layers of an overlay.
    fn sources<'a>(&'a self, options: &'a [String]) -> Vec<&'a Path> {
        let kind = self.r#type.as_deref().unwrap_or_default();
        if kind == "overlay" {
            let folders = |option: &'a String| {
                let (key, value) = option.split_once('=')?;
                matches!(key, "lowerdir" | "upperdir").then(|| value.split(':'))
            };
            return options.iter().filter_map(folders).flatten().map(Path::new).collect();
        }
        let flagged = options.iter().any(|option| matches!(option.as_str(), "bind" | "rbind"));
        match self.source.as_deref() {
            Some(source) if flagged || matches!(kind, "bind" | "rbind") => vec![Path::new(source)],
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
