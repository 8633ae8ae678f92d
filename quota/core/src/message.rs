//! The one line that a user sees when something is wrong with the container itself.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

/// Why a library refuses all memory. Each reason is printed once per process, to the standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The limits file is missing, is not one, or is not on the mount that was made for it.
    Limits,
    /// The ledger file is missing, is not one, belongs to another grant, or its file system is full.
    Ledger,
    /// All slots of the ledger are taken.
    Full,
    /// The kernel lacks something: `MADV_WIPEONFORK` (Linux 4.14), locks of open file descriptions (3.15),
    /// or memory.
    Kernel,
    /// A GPU was used that is not in the grant.
    Foreign,
    /// The real library is not loaded.
    Library,
}

static SAID: AtomicU32 = AtomicU32::new(0);

impl Refusal {
    /// Prints it, unless this process has printed it before.
    #[cold]
    pub fn say(self) {
        let bit = 1 << self as u32;
        if SAID.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            sys::write_error(self.line().as_bytes());
        }
    }

    fn line(self) -> &'static str {
        match self {
            Self::Limits => {
                "fgpu: /run/fgpu/limits is missing, damaged or not the mount that fgpu made: no GPU memory is handed out without a limit\n"
            }
            Self::Ledger => {
                "fgpu: /run/fgpu/ledger is missing, damaged or of another grant: no GPU memory is handed out\n"
            }
            Self::Full => "fgpu: too many processes in this container use a GPU (1024 at most)\n",
            Self::Kernel => {
                "fgpu: this kernel cannot account for GPU memory (Linux 4.14 or newer is needed)\n"
            }
            Self::Foreign => {
                "fgpu: this GPU is not in the container's grant: no memory is handed out on it\n"
            }
            Self::Library => "fgpu: the real driver library below /run/fgpu is not loaded\n",
        }
    }
}
