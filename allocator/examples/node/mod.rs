//! What the measurements have in common: a node, a request, and a applicant with names as long as Docker's.

use std::path::PathBuf;

use fgpu_allocator::{Applicant, Key, Process};
use fgpu_spec::{Defaults, Gpu, Inventory, Request, Topology};

/// A node of equal GPUs, eight to a NUMA node.
pub(crate) fn inventory(gpus: u32) -> Inventory {
    let gpu = |index: u32| Gpu {
        uuid: format!("GPU-{index:08x}-1111-2222-3333-444444444444"),
        index,
        minor: index,
        model: "NVIDIA H100 80GB HBM3".into(),
        pci: format!("00000000:{index:02X}:00.0"),
        numa: Some(index / 8),
        total_memory: 80 << 30,
        reserved_memory: 0,
        mig_enabled: false,
        mig_profiles: Vec::new(),
        context_memory: None,
        compute_capability: None,
    };
    Inventory {
        version: 1,
        boot_id: String::new(),
        root: "/".into(),
        driver_version: "550.163.01".into(),
        cuda_version: 12040,
        gpus: (0..gpus).map(gpu).collect(),
        files: Vec::new(),
        driver_limits: false,
        topology: Topology::default(),
    }
}

/// A fraction of one GPU, as an annotation says it.
///
/// # Errors
/// It is none.
pub(crate) fn request(fraction: &str) -> Result<Request, Box<dyn std::error::Error>> {
    let annotations = [("fgpu/fraction".to_owned(), fraction.to_owned())].into();
    Ok(Request::parse(&annotations, None, &Defaults::default())?.ok_or("no request")?)
}

/// The applicant of container `number` of a process.
pub(crate) fn applicant(maker: Process, number: u64) -> Applicant {
    let id = format!("{:08x}{number:056x}", maker.pid);
    let bundle = PathBuf::from(format!("/run/containerd/io.containerd.runtime.v2.task/moby/{id}"));
    Applicant {
        pid_file: Some(bundle.join("init.pid")),
        anchor: None,
        key: Key { namespace: "moby".into(), id },
        bundle,
        maker,
    }
}
