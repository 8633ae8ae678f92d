//! How much device memory the processes of a container have in use, from its ledger.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use fgpu_spec::Nonce;
use fgpu_wire::ledger;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

/// Bytes in use, per GPU of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Used(Vec<u64>);

impl Used {
    /// What the living processes of a grant have in use. `None` if there is no ledger: nothing is limited, or the
    /// container has just ended.
    pub(crate) fn read(folder: &Path, nonce: &Nonce, gpus: usize) -> Option<Self> {
        let file = File::open(folder.join("ledger")).ok()?;
        let bytes = read(&file).ok()?;
        let usage = ledger::usage(&bytes).filter(|usage| usage.nonce() == nonce.0)?;
        let mut used = vec![0_u64; gpus];
        for process in usage.processes().filter(|process| process.used.iter().any(|used| *used > 0)) {
            // Of a process that was killed the amount stays until the next one comes; its lock does not.
            if is_locked(&file, process.slot) {
                for (sum, one) in used.iter_mut().zip(process.used) {
                    *sum = sum.saturating_add(one);
                }
            }
        }
        Some(Self(used))
    }

    #[cfg(test)]
    pub(crate) fn for_test(used: Vec<u64>) -> Self {
        Self(used)
    }

    /// Bytes of the grant's GPU number `gpu`.
    pub(crate) fn of(&self, gpu: usize) -> u64 {
        self.0.get(gpu).copied().unwrap_or(0)
    }
}

/// The ledger, of which only what was ever used is read: it is large and mostly nothing.
fn read(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; ledger::SIZE];
    let header = ledger::slot_at(0);
    file.read_exact_at(&mut bytes[..header], 0)?;
    let high = bytes.get(12..16).and_then(|word| word.try_into().ok()).map_or(0, u32::from_ne_bytes);
    let slots = usize::try_from(high).unwrap_or(ledger::MAX_SLOTS).min(ledger::MAX_SLOTS);
    file.read_exact_at(&mut bytes[header..ledger::slot_at(slots)], header as u64)?;
    Ok(bytes)
}

/// Whether somebody holds a slot's byte, which is how the living are told (fgpu-wire, ledger). If it cannot be asked,
/// somebody does.
fn is_locked(file: &File, slot: usize) -> bool {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: slot as libc::off_t,
        l_len: 1,
        l_pid: 0,
    };
    match fcntl(file, FcntlArg::F_GETLK(&mut lock)) {
        Ok(_) => i32::from(lock.l_type) != libc::F_UNLCK,
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    const NONCE: Nonce = Nonce([7; 16]);

    /// A ledger in which the slots 0 and 2 have `used` bytes of GPU 1 each.
    fn ledger(used: u64) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = vec![0; ledger::SIZE];
        bytes[..ledger::HEADER].copy_from_slice(&ledger::encode(&NONCE.0));
        bytes[12..16].copy_from_slice(&3_u32.to_ne_bytes());
        for slot in [0, 2] {
            let at = ledger::slot_at(slot);
            bytes[at + 4..at + 8].copy_from_slice(&1_u32.to_ne_bytes());
            bytes[at + 64 + 8..at + 64 + 16].copy_from_slice(&used.to_ne_bytes());
        }
        std::fs::write(folder.path().join("ledger"), bytes).unwrap();
        folder
    }

    #[test]
    fn only_the_living_count() {
        let folder = ledger(5 << 30);
        let used = || Used::read(folder.path(), &NONCE, 2).unwrap();
        assert_eq!(used(), Used(vec![0, 0]), "nobody holds a slot");
        // Another process: one's own locks are not in one's way. It holds byte 2 until its input ends.
        let script = "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX, 1, 2); \
                      print(flush=True); sys.stdin.read()";
        let mut holder = Command::new("python3")
            .args(["-c", script])
            .arg(folder.path().join("ledger"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        io::Read::read_exact(&mut holder.stdout.take().unwrap(), &mut [0]).unwrap();
        assert_eq!(used(), Used(vec![0, 5 << 30]));
        assert_eq!(used().of(7), 0);
        drop(holder.stdin.take());
        holder.wait().unwrap();
        assert_eq!(used(), Used(vec![0, 0]));
    }

    #[test]
    fn what_is_no_ledger_of_this_grant_says_nothing() {
        let folder = ledger(1);
        assert_eq!(Used::read(folder.path(), &Nonce([8; 16]), 1), None);
        assert_eq!(Used::read(&folder.path().join("nowhere"), &NONCE, 1), None);
        let mut file = File::create(folder.path().join("ledger")).unwrap();
        file.write_all(b"short").unwrap();
        assert_eq!(Used::read(folder.path(), &NONCE, 1), None);
    }
}
