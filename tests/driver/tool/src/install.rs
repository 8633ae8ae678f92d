//! `fgpu-sim install`: a folder that looks like the root of a machine with the NVIDIA driver.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use sim_node::config::Node;
use sim_node::state::{LAYOUT, MAGIC, State};

use crate::proc_tree::{self, CAPS_MAJOR, CONTROL_MINOR, NVIDIA_MAJOR, UVM_MAJOR};

const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// The simulated libraries: the file that cargo builds and the name that programs load.
const BUILT: [(&str, &str); 2] = [("libsim_cuda.so", "libcuda.so"), ("libsim_nvml.so", "libnvidia-ml.so")];

/// Makes the driver root, or makes it anew.
pub(crate) fn install(
    node: &Node,
    root: &Path,
    libraries: Option<&Path>,
    nvidia_smi: Option<&Path>,
) -> Result<()> {
    let built = match libraries {
        Some(folder) => folder.to_owned(),
        None => own_folder()?,
    };
    // An earlier node may have had more GPUs.
    let gpus = root.join("proc/driver/nvidia/gpus");
    match fs::remove_dir_all(&gpus) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", gpus.display()));
        }
        _ => {}
    }
    for (path, content) in proc_tree::files(node) {
        replace(&root.join(path), content.as_bytes(), 0o444)?;
    }
    for (file, name) in BUILT {
        install_library(&built.join(file), &root.join(LIBRARIES), name, node.driver_version.as_str())?;
    }
    if let Some(nvidia_smi) = nvidia_smi {
        let program =
            fs::read(nvidia_smi).with_context(|| format!("cannot read {}", nvidia_smi.display()))?;
        replace(&root.join("usr/bin/nvidia-smi"), &program, 0o755)?;
    }
    make_devices(node, &root.join("dev"))?;
    let folder = root.join(sim_node::locate::FOLDER);
    replace(&folder.join("state"), &empty_state(), 0o666)?;
    // Last: a root with a config is complete.
    replace(&folder.join("config"), node.as_bytes(), 0o444)
}

fn own_folder() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find the folder of this program")?;
    Ok(program.parent().unwrap_or(Path::new("/")).to_owned())
}

fn install_library(built: &Path, folder: &Path, name: &str, version: &str) -> Result<()> {
    let library = fs::read(built)
        .with_context(|| format!("cannot read {} (built by cargo build --workspace)", built.display()))?;
    let versioned = format!("{name}.{version}");
    replace(&folder.join(&versioned), &library, 0o644)?;
    link(&versioned, &folder.join(format!("{name}.1")))?;
    link(&format!("{name}.1"), &folder.join(name))
}

fn link(target: &str, path: &Path) -> Result<()> {
    let temporary = path.with_extension("new");
    let _ = fs::remove_file(&temporary); // of an install that was cut off
    symlink(target, &temporary)
        .and_then(|()| fs::rename(&temporary, path))
        .with_context(|| format!("cannot link {}", path.display()))
}

/// Writes a file beside its place and moves it there: a process that has the old one open or mapped keeps it.
fn replace(path: &Path, content: &[u8], mode: u32) -> Result<()> {
    let write = || -> std::io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder)?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let temporary = folder.join(name);
        let mut file = File::create(&temporary)?;
        file.write_all(content)?;
        // Set and not asked for at creation, where the umask would have a say.
        file.set_permissions(Permissions::from_mode(mode))?;
        fs::rename(&temporary, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// A state in which nothing goes on.
fn empty_state() -> Vec<u8> {
    let mut bytes = vec![0; size_of::<State>()];
    bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    bytes[8..12].copy_from_slice(&LAYOUT.to_ne_bytes());
    bytes
}

fn make_devices(node: &Node, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    refuse_foreign_major(&fs::read_to_string("/proc/devices").unwrap_or_default())?;
    let mut nodes = vec![
        ("nvidiactl".to_owned(), NVIDIA_MAJOR, CONTROL_MINOR),
        ("nvidia-uvm".to_owned(), UVM_MAJOR, 0),
        ("nvidia-uvm-tools".to_owned(), UVM_MAJOR, 1),
    ];
    nodes.extend(
        node.gpus().iter().map(|gpu| (format!("nvidia{}", gpu.minor), NVIDIA_MAJOR, u64::from(gpu.minor))),
    );
    // What lets a process make and destroy MIG instances, and look at all of them.
    let caps = folder.join("nvidia-caps");
    fs::create_dir_all(&caps).with_context(|| format!("cannot make {}", caps.display()))?;
    nodes.push(("nvidia-caps/nvidia-cap1".to_owned(), CAPS_MAJOR, 1));
    nodes.push(("nvidia-caps/nvidia-cap2".to_owned(), CAPS_MAJOR, 2));
    remove_others(folder, &nodes)?;
    for (name, major, minor) in nodes {
        let path = folder.join(name);
        make_device(&path, major, minor).with_context(|| format!("cannot make {}", path.display()))?;
    }
    Ok(())
}

/// What an earlier node had more than this one: a node without a GPU would be a GPU that does not answer.
fn remove_others(folder: &Path, nodes: &[(String, u64, u64)]) -> Result<()> {
    for part in ["", "nvidia-caps/"] {
        let entries = fs::read_dir(folder.join(part)).with_context(|| format!("cannot list {part}"))?;
        for entry in entries {
            let entry = entry?;
            let name = format!("{part}{}", entry.file_name().display());
            let is_ours = entry.file_type()?.is_char_device() && name.starts_with("nvidia");
            if is_ours && !nodes.iter().any(|(known, ..)| *known == name) {
                fs::remove_file(entry.path()).with_context(|| format!("cannot remove {name}"))?;
            }
        }
    }
    Ok(())
}

fn make_device(path: &Path, major: u64, minor: u64) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    mknod(path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(major, minor))?;
    fs::set_permissions(path, Permissions::from_mode(0o666))
}

/// Behind a simulated node there must be no driver: opening it would reach whatever that drives.
fn refuse_foreign_major(devices: &str) -> Result<()> {
    for line in devices.lines().take_while(|line| !line.starts_with("Block")) {
        let mut words = line.split_whitespace();
        let major = words.next().and_then(|word| word.parse::<u64>().ok());
        if let Some(major @ (NVIDIA_MAJOR | UVM_MAJOR | CAPS_MAJOR)) = major {
            bail!(
                "this machine has a driver for character devices {major} ({})",
                words.next().unwrap_or("?")
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_with_the_real_driver_is_refused() {
        assert!(refuse_foreign_major("Character devices:\n  1 mem\n195 nvidia\n").is_err());
        assert!(refuse_foreign_major("Character devices:\n508 other\n").is_err());
    }

    #[test]
    fn other_drivers_and_block_devices_do_not_matter() {
        assert!(refuse_foreign_major("Character devices:\n  1 mem\n\nBlock devices:\n508 x\n").is_ok());
    }
}
