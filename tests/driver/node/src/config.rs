//! The file `config`: what the node's GPUs are. Written once by `fgpu-sim install`, mapped read-only.
//!
//! ```text
//! 0      Node header: magic, layout version, size, GPU count, versions, majors
//! …      gpus[0..8]: Gpu, those past the count zero
//! ```
//! Plain `repr(C)` structs in the machine's byte order: writer and readers are built from this file.

use core::ffi::CStr;

use crate::sys;

/// Most GPUs of a node.
pub const MAX_GPUS: usize = 8;
/// First eight bytes of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"simgpucf");
/// Changes with every change of the structs below.
pub const LAYOUT: u32 = 3;

/// Text of at most `N` - 1 bytes, padded with NULs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// No text.
    pub const EMPTY: Self = Self([0; N]);

    /// `text`, cut to what fits.
    pub fn new(text: &str) -> Self {
        let mut bytes = [0; N];
        let n = text.len().min(N - 1);
        bytes[..n].copy_from_slice(&text.as_bytes()[..n]);
        Self(bytes)
    }

    /// The text with its NUL.
    pub fn as_cstr(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or(c"")
    }

    /// The text; empty if it is not UTF-8.
    pub fn as_str(&self) -> &str {
        self.as_cstr().to_str().unwrap_or("")
    }
}

/// A node.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Node {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`LAYOUT`].
    pub layout: u32,
    /// Bytes of this struct.
    pub size: u32,
    /// How many of `gpus` there are.
    pub gpu_count: u32,
    /// CUDA version of the driver, 1000 × major + 10 × minor.
    pub cuda_version: u32,
    /// 1: the driver limits memory by cgroup, as from r615 on.
    pub memory_limits: u32,
    /// 0.
    pub reserved: u32,
    /// Driver version, e.g. `550.163.01`.
    pub driver_version: Text<32>,
    /// The GPUs, by index.
    pub gpus: [Gpu; MAX_GPUS],
}

/// A GPU.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Gpu {
    /// Marketing name, starting with `Simulated `.
    pub name: Text<96>,
    /// `GPU-` and the UUID.
    pub uuid: Text<48>,
    /// The UUID's 16 bytes.
    pub uuid_bytes: [u8; 16],
    /// Board serial number.
    pub serial: Text<32>,
    /// All device memory in bytes (NVML's total).
    pub memory_total: u64,
    /// Bytes of it that the driver keeps to itself.
    pub memory_reserved: u64,
    /// Bytes that creating a context costs.
    pub context_bytes: u64,
    /// Nanoseconds that one wave of blocks of an ordinary kernel takes.
    pub wave_ns: u64,
    /// Number of the device node.
    pub minor: u32,
    /// PCI address.
    pub pci_domain: u32,
    /// PCI address.
    pub pci_bus: u32,
    /// PCI address.
    pub pci_device: u32,
    /// PCI device id << 16 | vendor id.
    pub pci_id: u32,
    /// PCI subsystem id << 16 | subsystem vendor id.
    pub pci_subsystem_id: u32,
    /// NUMA node, -1: none.
    pub numa_node: i32,
    /// Streaming multiprocessors.
    pub sm_count: u32,
    /// CUDA cores per multiprocessor.
    pub cores_per_sm: u32,
    /// Compute capability.
    pub capability_major: u32,
    /// Compute capability.
    pub capability_minor: u32,
    /// `nvmlDeviceArchitecture_t`.
    pub architecture: u32,
    /// Most clock of the multiprocessors, MHz.
    pub sm_clock: u32,
    /// Most clock of the memory, MHz.
    pub memory_clock: u32,
    /// Width of the memory bus, bits.
    pub bus_width: u32,
    /// Level-2 cache, bytes.
    pub l2_cache: u32,
    /// Power limit, mW.
    pub power_limit: u32,
    /// PCIe generation.
    pub pcie_generation: u32,
    /// [`crate::mig::Geometry`] as a number; 0: cannot do MIG.
    pub mig_geometry: u32,
    /// 1: MIG mode is enabled.
    pub mig_enabled: u32,
    /// NVLinks that it has, all of them active; 0: none.
    pub nvlinks: u32,
    /// GPUs with the same number are linked: two of them directly, more of them over switches.
    pub nvlink_group: u32,
}

impl Gpu {
    /// Bytes that programs can have: total less reserved.
    pub fn usable(&self) -> u64 {
        self.memory_total.saturating_sub(self.memory_reserved)
    }
}

impl Node {
    /// The GPUs there are.
    pub fn gpus(&self) -> &[Gpu] {
        &self.gpus[..(self.gpu_count as usize).min(MAX_GPUS)]
    }

    /// The node as the bytes of its file.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: a repr(C) struct of integers and byte arrays whose fields leave no padding (asserted
        // below).
        unsafe { core::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }

    /// Maps the file for the rest of the process's life. `None` if it is missing or not of this layout.
    pub fn map(path: &CStr) -> Option<&'static Self> {
        let fd = sys::open(path, sys::O_RDONLY).ok()?;
        let long_enough = sys::file_length(fd).is_ok_and(|length| length >= size_of::<Self>() as u64);
        let address = long_enough.then(|| {
            // SAFETY: a new mapping at an address of the kernel's choice.
            unsafe { sys::mmap(0, size_of::<Self>(), sys::PROT_READ, sys::MAP_PRIVATE, fd) }
        });
        sys::close(fd);
        let address = address?.ok()?;
        // SAFETY: the mapping is as long as the struct, page-aligned, never unmapped, and every bit pattern
        // is a value of it. The file is replaced by rename and never written in place.
        let node: &'static Self = unsafe { &*(address as *const Self) };
        (node.magic == MAGIC && node.layout == LAYOUT && node.size as usize == size_of::<Self>())
            .then_some(node)
    }
}

const _: () = assert!(size_of::<Gpu>() == 96 + 48 + 16 + 32 + 4 * 8 + 22 * 4);
const _: () = assert!(size_of::<Node>() == 8 + 6 * 4 + 32 + MAX_GPUS * size_of::<Gpu>());
