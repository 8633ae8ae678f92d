//! What the ledger asks about other processes.

use core::cell::OnceCell;

use fgpu_wire::LEDGER_PATH;
use fgpu_wire::ledger::Kernel;

use crate::sys::{self, File};

/// Asks the kernel. The ledger file is opened at the first question and closed again at the end, so no
/// descriptor stays open in the application: it could close it, or get its number for a file of its own.
pub struct System {
    namespace: u64,
    file: OnceCell<Option<File>>,
}

impl System {
    /// `namespace`: what [`namespace`] gave in this process.
    pub const fn new(namespace: u64) -> Self {
        Self { namespace, file: OnceCell::new() }
    }
}

impl Kernel for System {
    fn locked(&self, slot: usize) -> Option<bool> {
        let file = self.file.get_or_init(|| File::open(LEDGER_PATH, false).ok());
        file.as_ref()?.is_byte_locked(slot).ok()
    }

    fn namespace(&self) -> u64 {
        self.namespace
    }

    fn gone(&self, pid: u32) -> bool {
        sys::is_gone(pid)
    }

    fn pause(&self, round: u32) {
        // A holder that was descheduled needs the processor; sleeping gives it up even to a lower priority.
        if round < 16 { sys::yield_now() } else { sys::sleep(50) }
    }
}

/// Inode of this process's pid namespace; 0 if /proc does not tell.
pub fn namespace() -> u64 {
    let mut buffer = [0; 64];
    sys::read_link(c"/proc/self/ns/pid", &mut buffer).ok().and_then(parse_namespace).unwrap_or(0)
}

/// The number in `pid:[4026531836]`.
fn parse_namespace(link: &[u8]) -> Option<u64> {
    let digits = link.strip_prefix(b"pid:[")?.strip_suffix(b"]")?;
    core::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{namespace, parse_namespace};

    #[test]
    fn namespace_is_the_inode() {
        assert_eq!(parse_namespace(b"pid:[4026531836]"), Some(4026531836));
        for other in [&b""[..], b"pid:[]", b"mnt:[1]", b"pid:[1", b"pid:[x]"] {
            assert_eq!(parse_namespace(other), None);
        }
        let link = std::fs::read_link("/proc/self/ns/pid").unwrap();
        assert_eq!(link.to_str().unwrap(), format!("pid:[{}]", namespace()));
    }
}
