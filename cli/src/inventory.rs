//! `fgpu inventory`: what the node has.

use std::path::Path;
use std::process::Command;

use fgpu_allocator::Store;
use fgpu_driver::nvml::Unusable;
use fgpu_spec::{Code, Error, FileKind, Inventory, Seen};

use crate::cdi;
use crate::driver::health;
use crate::node::Node;
use crate::output::{Output, json};
use crate::quantity::bytes;
use crate::screen::Look;
use crate::setup::System;
use crate::table::{Column, Table};

/// Reads the inventory, or makes it anew first.
///
/// # Errors
/// See [`Node::inventory`] and [`fgpu_driver::refresh`].
pub(crate) fn run(node: &Node, refresh: bool, as_json: bool) -> Result<Output, Error> {
    let (inventory, warnings) = if refresh {
        let config = &node.config;
        let uvm = fgpu_driver::uvm::ensure(&config.driver_root);
        // The inventory is made even if the leases cannot be read.
        let mut seen = Ok(Vec::new());
        let probe = fgpu_driver::refresh_and(
            &config.driver_root,
            &config.state_dir,
            &holder,
            &mut |nvml, inventory| {
                let store = Store::open(&config.state_dir).map_err(Error::from);
                seen = store.and_then(|store| match health::lock(&config.state_dir)? {
                    Some(lock) => health::look(&lock, &store, inventory, nvml, &config.state_dir),
                    None => Ok(Vec::new()),
                });
            },
        )?;
        let warnings = probe.unusable.iter().map(left_out).chain(probe.unmeasured.iter().map(unmeasured));
        let mut warnings: Vec<_> = uvm.into_iter().chain(warnings).collect();
        match seen {
            Ok(seen) => warnings.extend(seen.iter().filter_map(|seen| unhealthy(&probe.inventory, seen))),
            Err(error) => warnings.push(format!("who uses the GPUs was not looked at: {}", error.message)),
        }
        if let Err(error) =
            System::new(None).and_then(|system| cdi::update(&system, config, &probe.inventory))
        {
            warnings.push(format!("the CDI devices are those of before: {}", error.message));
        }
        (probe.inventory, warnings)
    } else {
        (node.inventory()?, Vec::new())
    };
    let text = if as_json {
        json(&inventory)?
    } else {
        text(&inventory, node.config.reserve_memory, &Look::of_stdout())
    };
    Ok(Output { text, warnings, ..Output::default() })
}

fn unhealthy(inventory: &Inventory, seen: &Seen) -> Option<String> {
    let gpu = inventory.gpus.iter().find(|gpu| gpu.uuid == seen.uuid)?;
    seen.unhealthy.as_ref().map(|why| format!("GPU {} serves nothing: {why}", gpu.index))
}

fn left_out(gpu: &Unusable) -> String {
    format!("GPU {} is left out: {}", gpu.index, gpu.reason)
}

fn unmeasured(gpu: &Unusable) -> String {
    format!(
        "what a CUDA context takes of GPU {} could not be measured, because {}; each process of a share stands that much \
         above it until `fgpu inventory --refresh` finds the GPU ready",
        gpu.index, gpu.reason
    )
}

/// The command that holds a context, in a process of its own: a crash in the driver is its own then.
pub(crate) fn holder(libcuda: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(HOLD).arg(libcuda);
    command
}

/// The name of the command that [`hold`] is.
pub(crate) const HOLD: &str = "hold-context";

/// Makes a context and keeps it until standard input ends. If there is none, standard output says why, for
/// the process that measures.
pub(crate) fn hold(libcuda: &Path) -> Result<Output, Error> {
    fgpu_driver::context::hold(libcuda).map_err(|reason| {
        println!("{reason}");
        Error::new(Code::DriverError, reason)
    })?;
    Ok(Output::default())
}

fn text(inventory: &Inventory, reserve: u64, look: &Look) -> String {
    let mut table = Table::of([
        Column::new("GPU"),
        Column::new("MODEL").cut(10),
        Column::new("MEMORY"),
        Column::new("USABLE"),
        Column::new("CONTEXT").drop(2),
        Column::new("MIG"),
        Column::new("NUMA").drop(3),
        Column::new("PCI").drop(4),
        Column::new("UUID").drop(1),
    ]);
    for gpu in &inventory.gpus {
        table.row([
            gpu.index.to_string(),
            gpu.model.clone(),
            bytes(gpu.total_memory),
            if gpu.mig_enabled { "-".into() } else { bytes(gpu.usable_memory(reserve)) },
            gpu.context_memory.map_or("-".into(), bytes),
            if gpu.mig_enabled { "on" } else { "off" }.into(),
            gpu.numa.map_or("-".into(), |node| node.to_string()),
            gpu.pci.clone(),
            gpu.uuid.clone(),
        ]);
    }
    let count = |kind| inventory.files.iter().filter(|file| file.kind == kind).count();
    let cuda = match inventory.cuda_version {
        0 => String::new(),
        version => format!(", CUDA {}.{}", version / 1000, version % 1000 / 10),
    };
    format!(
        "Driver {}{cuda}, from {}; libraries: {}, programs: {}, sockets: {}\n\n{}",
        inventory.driver_version,
        inventory.root.display(),
        count(FileKind::Library),
        count(FileKind::Program),
        count(FileKind::Other),
        table.fitted(look)
    )
}

#[cfg(test)]
mod tests {
    use fgpu_spec::{DriverFile, Gpu};

    use super::*;

    #[test]
    fn the_table() {
        let gpu = |index: u32, mig_enabled| Gpu {
            uuid: format!("GPU-{index}"),
            index,
            minor: index,
            model: "Simulated A100".into(),
            pci: format!("00000000:0{index}:00.0"),
            numa: (index == 0).then_some(1),
            total_memory: 40 << 30,
            reserved_memory: 512 << 20,
            mig_enabled,
            context_memory: (!mig_enabled).then_some(498 << 20),
            compute_capability: None,
            mig_profiles: Vec::new(),
        };
        let file = |kind, name: &str| DriverFile { kind, name: name.into(), host: "/".into() };
        let inventory = Inventory {
            version: 1,
            boot_id: String::new(),
            root: "/".into(),
            driver_version: "550.163.01".into(),
            cuda_version: 12040,
            gpus: vec![gpu(0, false), gpu(1, true)],
            driver_limits: false,
            topology: fgpu_spec::Topology::default(),
            files: vec![file(FileKind::Library, "libcuda.so.1"), file(FileKind::Program, "nvidia-smi")],
        };
        assert_eq!(
            text(&inventory, 1 << 30, &Look::PLAIN),
            "\
Driver 550.163.01, CUDA 12.4, from /; libraries: 1, programs: 1, sockets: 0

GPU  MODEL           MEMORY    USABLE    CONTEXT  MIG  NUMA  PCI               UUID
0    Simulated A100  40.0 GiB  38.5 GiB  498 MiB  off  1     00000000:00:00.0  GPU-0
1    Simulated A100  40.0 GiB  -         -        on   -     00000000:01:00.0  GPU-1
"
        );
    }
}
