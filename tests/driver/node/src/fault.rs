//! Faults that a test injects with `fgpu-sim set`: numbers in the shared state, 0 meaning none.
//!
//! A new fault takes the next free number below [`FAULTS`]; the numbers are part of the state's layout.

/// Room for faults, per node and per GPU.
pub const FAULTS: usize = 64;

/// A fault: its index in the state and its name for `fgpu-sim set`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Fault {
    /// `nvmlInit` answers this `nvmlReturn_t`. Node.
    NvmlInit = 0,
    /// Each NVML call about the GPU answers this `nvmlReturn_t`. GPU.
    NvmlDevice = 1,
    /// Each NVML call about the GPU takes so many microseconds longer. GPU.
    NvmlDelay = 2,
    /// `cuInit` answers this `CUresult`. Node.
    CudaInit = 3,
    /// Allocations answer this `CUresult`. GPU.
    CudaAlloc = 4,
    /// Each allocation takes so many microseconds longer. GPU.
    CudaAllocDelay = 5,
    /// Launches and synchronisations answer this `CUresult`. GPU.
    CudaLaunch = 6,
    /// The process that makes the so many-th NVML call about the GPU from now on is killed before it. GPU.
    NvmlKill = 20,
    /// Creating a GPU instance answers this `nvmlReturn_t`. GPU.
    MigCreate = 21,
    /// Creating a compute instance answers this `nvmlReturn_t`. GPU.
    MigCreateCompute = 22,
    /// Destroying a compute instance answers this `nvmlReturn_t`. GPU.
    MigDestroyCompute = 23,
    /// Destroying a GPU instance answers this `nvmlReturn_t`. GPU.
    MigDestroy = 24,
    /// Creating and destroying instances takes so many microseconds longer, or until that is taken back. GPU.
    MigDelay = 25,
    /// Unless 0, MIG mode has been switched off, and the instances went with it. GPU.
    MigOff = 26,
    /// The so many-th NVML call about the GPU from now on answers NVML_ERROR_UNKNOWN. GPU.
    NvmlFail = 27,
}

impl Fault {
    /// Every fault there is.
    pub const ALL: [Self; 15] = [
        Self::NvmlInit,
        Self::NvmlDevice,
        Self::NvmlDelay,
        Self::CudaInit,
        Self::CudaAlloc,
        Self::CudaAllocDelay,
        Self::CudaLaunch,
        Self::NvmlKill,
        Self::MigCreate,
        Self::MigCreateCompute,
        Self::MigDestroyCompute,
        Self::MigDestroy,
        Self::MigDelay,
        Self::MigOff,
        Self::NvmlFail,
    ];

    /// The name that a person types.
    pub fn name(self) -> &'static str {
        match self {
            Self::NvmlInit => "nvml-init",
            Self::NvmlDevice => "nvml-device",
            Self::NvmlDelay => "nvml-delay-us",
            Self::CudaInit => "cuda-init",
            Self::CudaAlloc => "cuda-alloc",
            Self::CudaAllocDelay => "cuda-alloc-delay-us",
            Self::CudaLaunch => "cuda-launch",
            Self::NvmlKill => "nvml-kill",
            Self::MigCreate => "mig-create",
            Self::MigCreateCompute => "mig-create-compute",
            Self::MigDestroyCompute => "mig-destroy-compute",
            Self::MigDestroy => "mig-destroy",
            Self::MigDelay => "mig-delay-us",
            Self::MigOff => "mig-off",
            Self::NvmlFail => "nvml-fail",
        }
    }

    /// Whether it concerns the whole node and not one GPU.
    pub fn is_of_node(self) -> bool {
        matches!(self, Self::NvmlInit | Self::CudaInit)
    }

    /// The fault of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }
}
