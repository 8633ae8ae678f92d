//! From a grant to the plan of edits: docs/design/containers.md.

use std::path::{Path, PathBuf};

use fgpu_driver::Capability;
use fgpu_spec::{
    Code, DeviceNode, DriverFile, Error, FileKind, Grant, GrantedGpu, Hook, Inventory, Mount, Plan, Tier,
};
use fgpu_wire::{FOLDER_PATH, LEDGER_PATH, TURNS_PATH};
use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::board::Place;
use crate::config::Config;
use crate::layout::Layout;
use crate::own::{self, Own};
use crate::sealed::Sealed;
use crate::{container_files, programs};

const CUDA: &str = "libcuda.so.1";
const NVML: &str = "libnvidia-ml.so.1";

/// What is on the host for one container.
#[derive(Debug)]
pub(crate) struct Files {
    /// The grant's folder.
    pub(crate) folder: PathBuf,
    /// The lease's own mounts.
    pub(crate) own: Own,
    /// The quota libraries and what they share with the host, if the tier has them.
    pub(crate) quota: Option<Quota>,
}

/// What the quota libraries of a container need.
#[derive(Debug)]
pub(crate) struct Quota {
    pub(crate) sealed: Sealed,
    /// The folder that shows the boards, if the grant has a place on any.
    pub(crate) turns: Option<PathBuf>,
    /// The grant's places.
    pub(crate) places: Vec<Place>,
}

/// Makes the plan for one container.
pub(crate) fn plan(
    config: &Config,
    inventory: &Inventory,
    grant: &Grant,
    layout: &Layout,
    mut files: Files,
    how: How,
) -> Result<Plan, Error> {
    let nodes = nodes(config, inventory, grant)?;
    let mut mounts = Mounts(Vec::new());
    let sealed = files.quota.as_ref().map(|quota| &quota.sealed);
    mounts.driver(inventory, layout, sealed)?;
    if let Some(sealed) = sealed {
        mounts.quota(inventory, layout, sealed);
    }
    mounts.show(&mut files.own, how.may_remount)?;
    if how.is_shared {
        files.own.note()?;
    }
    if let Some(quota) = &files.quota {
        // The first: the places of others are in it.
        mounts.0.insert(0, folder(container_files::view(&files.folder)));
        mounts.data(files.own.ledger(), LEDGER_PATH.into(), true);
        if let Some(turns) = &quota.turns {
            mounts.data(turns.clone(), TURNS_PATH.into(), false);
        }
        for place in &quota.places {
            mounts.data(place.board.join(&place.name), format!("{TURNS_PATH}/{}", place.name), true);
        }
    }
    for path in &config.driver_extra {
        let host = below(&config.driver_root, path);
        mounts.add(host, &path.to_string_lossy(), true);
    }
    let path = programs::sibling("fgpu-hook")?;
    let hook = |words: &[&str]| {
        let args = std::iter::once("fgpu-hook").chain(words.iter().copied()).map(str::to_owned).collect();
        let mut hook = Hook::default();
        hook.set_path(path.clone()).set_args(Some(args));
        hook.set_env(Some(vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".into()]));
        hook
    };
    let nonce = grant.nonce.to_string();
    let mut words = vec!["limit", &nonce];
    words.extend(how.insists.then_some("--insist"));
    Ok(Plan {
        annotations: vec![(fgpu_spec::GRANT_ANNOTATION.into(), nonce.clone())],
        nodes,
        majors: fgpu_driver::majors(&config.driver_root),
        mounts: mounts.0,
        create_runtime: (grant.tier == Tier::Driver).then(|| hook(&words)),
        poststop: (!how.is_shared).then(|| hook(&["poststop", &nonce])),
    })
}

/// The device nodes of a grant.
///
/// # Errors
/// A node is not there, or is another device's.
pub(crate) fn nodes(config: &Config, inventory: &Inventory, grant: &Grant) -> Result<Vec<DeviceNode>, Error> {
    let known = |granted: &GrantedGpu| inventory.gpus.iter().find(|gpu| gpu.uuid == granted.uuid);
    let mut gpus: Vec<_> = grant.gpus.iter().filter_map(known).collect();
    // Several slices may be of one GPU.
    gpus.dedup_by_key(|gpu| gpu.minor);
    fgpu_driver::nodes(&config.driver_root, &gpus, &capabilities(inventory, grant))
}

/// What is particular about a container's plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct How {
    /// Without the driver's limit there is no container.
    pub(crate) insists: bool,
    /// The container may change mounts: without overlays there is no container.
    pub(crate) may_remount: bool,
    /// The lease outlives the container.
    pub(crate) is_shared: bool,
}

/// Whether nothing on the mount that `file` lies on is a program, set-user-ID or a device, or writable unless
/// it is to be.
fn is_on_data_mount(file: &Path, writable: bool) -> bool {
    let mut all = StatVfsMountFlags::NOSUID | StatVfsMountFlags::NODEV | StatVfsMountFlags::NOEXEC;
    all.set(StatVfsMountFlags::RDONLY, !writable);
    // What cannot be told is taken for a mount without them.
    statvfs(file).is_ok_and(|stat| stat.f_flag.contains(all))
}

/// The mount of a container's `/run/fgpu`.
fn folder(source: PathBuf) -> Mount {
    Mount { source, destination: FOLDER_PATH.into(), writable: false, inherits: false }
}

/// The MIG devices of a grant.
fn capabilities(inventory: &Inventory, grant: &Grant) -> Vec<Capability> {
    let one = |granted: &GrantedGpu| {
        let gpu = inventory.gpus.iter().find(|gpu| gpu.uuid == granted.uuid)?;
        let instance = granted.mig.as_ref()?.instance.as_ref()?;
        Some(Capability {
            gpu: gpu.minor,
            gpu_instance: instance.gpu_instance,
            compute_instance: instance.compute_instance,
        })
    };
    grant.gpus.iter().filter_map(one).collect()
}

struct Mounts(Vec<Mount>);

impl Mounts {
    /// Adds a bind mount; the first one of a destination stays.
    fn add(&mut self, source: PathBuf, destination: &str, writable: bool) {
        if !self.0.iter().any(|mount| mount.destination == destination) {
            self.0.push(Mount { source, destination: destination.into(), writable, inherits: false });
        }
    }

    /// Adds one of data.
    fn data(&mut self, source: PathBuf, destination: String, writable: bool) {
        let inherits = is_on_data_mount(&source, writable);
        self.0.push(Mount { source, destination, writable, inherits });
    }

    /// Has all files come from the lease's own overlays.
    fn show(&mut self, own: &mut Own, must: bool) -> Result<(), Error> {
        for mount in &mut self.0 {
            if let Some(shown) = own::show(own, &mount.source, must)? {
                mount.source = shown;
                mount.inherits = true;
            }
        }
        Ok(())
    }

    /// The driver's own files. With limits, the two libraries that have a twin go to their private place.
    fn driver(
        &mut self,
        inventory: &Inventory,
        layout: &Layout,
        sealed: Option<&Sealed>,
    ) -> Result<(), Error> {
        for file in &inventory.files {
            match (file.kind, file.name.as_str(), sealed) {
                (FileKind::Library, CUDA, Some(sealed)) => {
                    self.add(file.host.clone(), &format!("{}/cuda", sealed.seal), false)
                }
                (FileKind::Library, NVML, Some(sealed)) => {
                    self.add(file.host.clone(), &format!("{}/nvml", sealed.seal), false)
                }
                (FileKind::Library, name, _) => {
                    for directory in &layout.library_directories {
                        self.add(file.host.clone(), &format!("{directory}/{name}"), false);
                    }
                }
                (FileKind::Program, name, _) => {
                    self.add(file.host.clone(), &format!("/usr/bin/{name}"), false)
                }
                (FileKind::Other, name, _) => self.add(file.host.clone(), name, false),
            }
        }
        library(inventory, NVML)?;
        Ok(())
    }

    /// The quota libraries, over every name by which a program finds the real ones.
    fn quota(&mut self, inventory: &Inventory, layout: &Layout, sealed: &Sealed) {
        let version = &inventory.driver_version;
        let nvml = &sealed.nvml;
        for directory in &layout.library_directories {
            for name in [NVML.into(), format!("libnvidia-ml.so.{version}")] {
                self.add(nvml.clone(), &format!("{directory}/{name}"), false);
            }
        }
        for path in &layout.foreign_nvml {
            self.add(nvml.clone(), path, false);
        }
        // A node without the CUDA library (a driver installed for display only) still serves nvidia-smi.
        if library(inventory, CUDA).is_err() {
            return;
        }
        let cuda = &sealed.cuda;
        for directory in &layout.library_directories {
            for name in [CUDA.into(), "libcuda.so".into(), format!("libcuda.so.{version}")] {
                self.add(cuda.clone(), &format!("{directory}/{name}"), false);
            }
        }
        for path in &layout.foreign_cuda {
            self.add(cuda.clone(), path, false);
        }
    }
}

fn library<'a>(inventory: &'a Inventory, soname: &str) -> Result<&'a DriverFile, Error> {
    let found = inventory.files.iter().find(|file| file.kind == FileKind::Library && file.name == soname);
    found.ok_or_else(|| {
        let root = inventory.root.display();
        Error::new(
            Code::NoGpu,
            format!("{soname} of driver {} is not below {root}", inventory.driver_version),
        )
    })
}

/// `path` below `root`; `/` is the host itself.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_programs_are_started_from_is_no_mount_of_data() {
        assert!(!is_on_data_mount(&std::env::current_exe().unwrap(), true));
        assert!(!is_on_data_mount(Path::new("/nowhere/at/all"), true));
    }
}
