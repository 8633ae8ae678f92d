//! How much device memory and SM time the processes of a container use, from its ledger.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use fgpu_allocator::{Lease, OWN};
use fgpu_spec::{Gpu, GrantedGpu, Nonce};
use fgpu_wire::ledger;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::time::{ClockId, clock_gettime};

/// What a container has in use of each GPU of its grant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Used {
    gpus: Vec<OfGpu>,
    /// When it was looked, CLOCK_MONOTONIC in ns: the clock of the ledger.
    at: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct OfGpu {
    /// Bytes.
    memory: u64,
    /// Nanoseconds of the GPU, ever.
    time: u64,
    /// The part of the GPU's time that was used recently, ppm.
    busy: u32,
}

impl Used {
    /// What the processes of a lease have in use. `None` if there is no ledger: nothing is limited, or the
    /// container has just ended. `folder`: the grant's; `gpus`: the node's, as far as they are known.
    ///
    /// The container can write anything into its ledger. It is believed up to what can be: the memory of the
    /// GPU (of its share, if the GPU is not known), and the time that has passed since boot.
    pub(crate) fn read(folder: &Path, lease: &Lease, gpus: &[Gpu]) -> Option<Self> {
        let memory = |share: &GrantedGpu| {
            gpus.iter().find(|gpu| gpu.uuid == share.uuid).map_or(share.memory, |gpu| gpu.total_memory)
        };
        let most: Vec<u64> = lease.grant.gpus.iter().map(memory).collect();
        Self::read_up_to(folder, &lease.grant.nonce, &most)
    }

    /// `most`: of each GPU of the grant the bytes that there can be.
    fn read_up_to(folder: &Path, nonce: &Nonce, most: &[u64]) -> Option<Self> {
        let file = open(folder)?;
        let bytes = read(&file).ok()?;
        let at = nanoseconds(ClockId::Monotonic);
        let usage = ledger::usage(&bytes).filter(|usage| usage.nonce() == nonce.0)?;
        let time = |gpu| OfGpu { memory: 0, time: usage.compute(gpu).min(at), busy: usage.busy(gpu, at) };
        let mut used: Vec<OfGpu> = (0..most.len()).map(time).collect();
        for process in usage.processes().filter(|process| process.used.iter().any(|used| *used > 0)) {
            // Of a process that was killed the amount stays until the next one comes; its lock does not.
            if is_locked(&file, process.slot) {
                for (sum, one) in used.iter_mut().zip(process.used) {
                    sum.memory = sum.memory.saturating_add(one);
                }
            }
        }
        for (used, most) in used.iter_mut().zip(most) {
            used.memory = used.memory.min(*most);
        }
        Some(Self { gpus: used, at })
    }

    /// The same, busy with what was used since `before`.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        let passed = u128::from(self.at.saturating_sub(before.at)).max(1);
        for (gpu, before) in self.gpus.iter_mut().zip(&before.gpus) {
            let part = u128::from(gpu.time.saturating_sub(before.time)) * 1_000_000 / passed;
            gpu.busy = u32::try_from(part).unwrap_or(u32::MAX).min(1_000_000);
        }
        self
    }

    #[cfg(test)]
    pub(crate) fn for_test(used: impl IntoIterator<Item = (u64, u32)>) -> Self {
        let gpu = |(memory, busy)| OfGpu { memory, time: u64::from(busy) * 1000, busy };
        Self { gpus: used.into_iter().map(gpu).collect(), at: 0 }
    }

    fn gpu(&self, number: usize) -> OfGpu {
        self.gpus.get(number).copied().unwrap_or_default()
    }

    /// Bytes of the grant's GPU number `gpu`, by living processes.
    pub(crate) fn memory(&self, gpu: usize) -> u64 {
        self.gpu(gpu).memory
    }

    /// Nanoseconds of that GPU, ever.
    pub(crate) fn time(&self, gpu: usize) -> u64 {
        self.gpu(gpu).time
    }

    /// The part of that GPU's time that was used recently, ppm. Work that is under way counts when it is
    /// done.
    pub(crate) fn busy(&self, gpu: usize) -> u32 {
        self.gpu(gpu).busy
    }
}

/// The ledger in a grant's folder. The container's root may have put a lease (`F_SETLEASE`) on it: this open
/// does not wait for it.
fn open(folder: &Path) -> Option<File> {
    // The second one is where a container of version 0.1 has it.
    let paths = [folder.join(OWN).join("ledger"), folder.join("ledger")];
    let open = |path| File::options().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path);
    paths
        .iter()
        .find_map(|path| open(path).ok())
        .filter(|file| file.metadata().is_ok_and(|stat| stat.is_file()))
}

/// A clock that is never set, in ns.
pub(crate) fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    // Such clocks are never negative.
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// The ledger, of which only what was ever used is read: it is large and mostly nothing.
fn read(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; ledger::slot_at(0)];
    file.read_exact_at(&mut bytes, 0)?;
    let (header, size) = (bytes.len(), ledger::used_size(&bytes));
    bytes.resize(size, 0);
    file.read_exact_at(&mut bytes[header..], header as u64)?;
    Ok(bytes)
}

/// Whether a process holds a slot's byte, which is how the living are told (fgpu-wire, ledger). If it cannot
/// be asked, one does.
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
        let used = || Used::read_up_to(folder.path(), &NONCE, &[40 << 30; 2]).unwrap();
        let memory = || [0, 1, 7].map(|gpu| used().memory(gpu));
        assert_eq!(memory(), [0, 0, 0], "nobody holds a slot");
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
        assert_eq!(memory(), [0, 5 << 30, 0]);
        let most = |bytes: u64| Used::read_up_to(folder.path(), &NONCE, &[bytes; 2]).unwrap().memory(1);
        assert_eq!([most(7 << 30), most(3 << 30)], [5 << 30, 3 << 30], "a GPU has no more than that");
        drop(holder.stdin.take());
        holder.wait().unwrap();
        assert_eq!(memory(), [0, 0, 0]);
    }

    #[test]
    fn time_is_told_as_it_is_charged() {
        let folder = ledger(0);
        let charge = |nanoseconds: u64| {
            let file = File::options().write(true).open(folder.path().join("ledger")).unwrap();
            file.write_all_at(&nanoseconds.to_ne_bytes(), (ledger::COMPUTE_AT + ledger::COMPUTE) as u64)
                .unwrap();
        };
        let used = || Used::read_up_to(folder.path(), &NONCE, &[40 << 30; 2]).unwrap();
        charge(1_000_000);
        let first = used();
        assert_eq!((first.time(1), first.busy(1), first.time(0)), (1_000_000, 0, 0), "no window has begun");
        // A second later, of which it had 300 ms; and the same after no time at all.
        charge(301_000_000);
        let second = Used { at: first.at + 1_000_000_000, ..used() };
        assert_eq!(second.clone().since(&first).busy(1), 300_000);
        assert_eq!(Used { at: first.at, ..second.clone() }.since(&first).busy(1), 1_000_000);
        assert_eq!(first.since(&second).busy(1), 0, "a ledger that was set back");
    }

    #[test]
    fn a_ledger_of_another_grant_counts_nothing() {
        let folder = ledger(1);
        assert_eq!(Used::read_up_to(folder.path(), &Nonce([8; 16]), &[1]), None);
        assert_eq!(Used::read_up_to(&folder.path().join("nowhere"), &NONCE, &[1]), None);
        let mut file = File::create(folder.path().join("ledger")).unwrap();
        file.write_all(b"short").unwrap();
        assert_eq!(Used::read_up_to(folder.path(), &NONCE, &[1]), None);
    }
}
