//! The limits file: what the quota libraries enforce.
//!
//! One page. The host writes it before the container starts and may rewrite the numbers in place while it
//! runs (live resize); the container has it mapped read-only.
//!
//! ```text
//!    0  magic      8  "fgpulim1"
//!    8  version    4  1
//!   12  gpus       4  number of entries
//!   16  sequence   8  odd while the host is writing
//!   24  reserved   8
//!   32  nonce     16  the grant's
//!   48  reserved  16
//!   64  entry[64]     48 bytes each:
//!         0  uuid     16
//!        16  memory    8  bytes; all ones: not limited
//!        24  cores     4  share of SM time, ppm; under `rest` the weight among the unbooked
//!        28  compute   4  how `cores` is meant: 0 off, 1 cap, 2 share, 3 rest
//!        32  minor     4  of /dev/nvidia<minor>
//!        36  reserved  4
//!        40  context   8  bytes that a CUDA context takes on this GPU; 0: unknown
//! 3136  reserved to the end of the page
//! ```
//!
//! Numbers are in the machine's byte order: the file never leaves it. Entries are in the order in which the
//! host numbers the GPUs; a GPU's place here is its NVML index in the container.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::MAX_GPUS;

/// Size of the file, bytes.
pub const SIZE: usize = 4096;
/// `memory` of a GPU whose memory is counted but not limited.
pub const UNLIMITED: u64 = u64::MAX;
/// `compute`: SM time is not limited.
pub const COMPUTE_OFF: u8 = 0;
/// `compute`: never above the share.
pub const COMPUTE_CAP: u8 = 1;
/// `compute`: may use idle time.
pub const COMPUTE_SHARE: u8 = 2;
/// `compute`: no share is booked; `cores` is the weight among the unbooked containers, in what the booked
/// ones leave.
pub const COMPUTE_REST: u8 = 3;

const MAGIC: u64 = u64::from_ne_bytes(*b"fgpulim1");
const VERSION: u32 = 1;
const ENTRIES: usize = 64;
const ENTRY: usize = 48;
const CONTEXT_AT: usize = 40;

/// The least that a weight of `ppm` under [`COMPUTE_REST`] is worth while booked shares want the whole GPU,
/// ppm. No container starves, and all weights of a GPU together cost 1.6 %.
pub const fn least_share(ppm: u32) -> u32 {
    if ppm < 64 { 1 } else { ppm / 64 }
}

/// What a container may use of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuLimit {
    /// The GPU, as [`parse_uuid`](crate::parse_uuid) and `cuDeviceGetUuid` return it.
    pub uuid: [u8; 16],
    /// Device memory, bytes; [`UNLIMITED`] for no limit.
    pub memory: u64,
    /// Share of SM time, ppm; a weight under [`COMPUTE_REST`].
    pub cores_ppm: u32,
    /// [`COMPUTE_OFF`], [`COMPUTE_CAP`], [`COMPUTE_SHARE`] or [`COMPUTE_REST`].
    pub compute: u8,
    /// Minor number of the GPU's device node.
    pub minor: u32,
}

/// The file's content for a new grant. Entries past [`MAX_GPUS`] are not written. The quota library refuses a
/// GPU that is not listed, so a missing entry never widens a grant.
pub fn encode(nonce: &[u8; 16], gpus: &[GpuLimit]) -> [u8; SIZE] {
    let gpus = &gpus[..gpus.len().min(MAX_GPUS)];
    let mut page = [0; SIZE];
    let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &MAGIC.to_ne_bytes());
    put(8, &VERSION.to_ne_bytes());
    put(12, &(gpus.len() as u32).to_ne_bytes());
    put(32, nonce);
    for (index, gpu) in gpus.iter().enumerate() {
        let at = ENTRIES + index * ENTRY;
        put(at, &gpu.uuid);
        put(at + 16, &gpu.memory.to_ne_bytes());
        put(at + 24, &gpu.cores_ppm.to_ne_bytes());
        put(at + 28, &u32::from(gpu.compute).to_ne_bytes());
        put(at + 32, &gpu.minor.to_ne_bytes());
    }
    page
}

/// Writes into a page of [`encode`]'s how many bytes a CUDA context takes on GPU number `gpu`, which differs
/// by model and driver. 0, as [`encode`] leaves it: unknown.
pub fn put_context(page: &mut [u8; SIZE], gpu: usize, bytes: u64) {
    if gpu < MAX_GPUS {
        let at = ENTRIES + gpu * ENTRY + CONTEXT_AT;
        page[at..at + 8].copy_from_slice(&bytes.to_ne_bytes());
    }
}

/// The file as mapped memory.
#[repr(C)]
pub struct Page {
    magic: AtomicU64,
    version: AtomicU32,
    gpus: AtomicU32,
    sequence: AtomicU64,
    reserved: AtomicU64,
    nonce: [AtomicU64; 2],
    reserved2: [AtomicU64; 2],
    entries: [Entry; MAX_GPUS],
    tail: [AtomicU64; 120],
}

#[repr(C)]
struct Entry {
    uuid: [AtomicU64; 2],
    memory: AtomicU64,
    cores_ppm: AtomicU32,
    compute: AtomicU32,
    minor: AtomicU32,
    reserved: AtomicU32,
    context: AtomicU64,
}

const _: () = assert!(core::mem::offset_of!(Entry, context) == CONTEXT_AT);
const _: () = assert!(size_of::<Page>() == SIZE && size_of::<Entry>() == ENTRY);
const _: () = assert!(core::mem::offset_of!(Page, entries) == ENTRIES);

impl Page {
    /// Whether this is a limits file of this version.
    pub fn is_valid(&self) -> bool {
        self.magic.load(Ordering::Relaxed) == MAGIC && self.version.load(Ordering::Relaxed) == VERSION
    }

    /// The grant's nonce.
    pub fn nonce(&self) -> [u8; 16] {
        bytes(&self.nonce)
    }

    /// Number of GPUs in the grant.
    pub fn gpus(&self) -> usize {
        (self.gpus.load(Ordering::Relaxed) as usize).min(MAX_GPUS)
    }

    /// Device memory granted of GPU number `gpu`, bytes; 0 for a GPU that is not in the grant. It is a single
    /// word: a resize shows at the next call, and a host that died during one blocks no reader.
    pub fn memory(&self, gpu: usize) -> u64 {
        self.entries.get(gpu).map_or(0, |entry| entry.memory.load(Ordering::Relaxed))
    }

    /// How `cores` of GPU number `gpu` is meant, and the share of SM time in ppm; off for a GPU that is not
    /// in the grant. The two words are read separately, as in [`memory`](Self::memory): during a resize one
    /// may be the old one.
    #[inline]
    pub fn compute(&self, gpu: usize) -> (u8, u32) {
        self.entries.get(gpu).map_or((COMPUTE_OFF, 0), |entry| {
            (entry.compute.load(Ordering::Relaxed) as u8, entry.cores_ppm.load(Ordering::Relaxed))
        })
    }

    /// Bytes that a CUDA context takes on GPU number `gpu`; 0: unknown.
    pub fn context(&self, gpu: usize) -> u64 {
        self.entries.get(gpu).map_or(0, |entry| entry.context.load(Ordering::Relaxed))
    }

    /// UUID of GPU number `gpu`; a resize never changes it.
    pub fn uuid(&self, gpu: usize) -> Option<[u8; 16]> {
        (gpu < self.gpus()).then(|| bytes(&self.entries[gpu].uuid))
    }

    /// The number of the GPU with this UUID.
    pub fn find(&self, uuid: &[u8; 16]) -> Option<usize> {
        (0..self.gpus()).find(|&gpu| self.uuid(gpu).as_ref() == Some(uuid))
    }

    /// Entry number `gpu` as a whole: all its numbers from before or all from after a resize. `None` when
    /// there is no such entry, or while the host is writing; ask again later, and not in an endless loop.
    pub fn read(&self, gpu: usize) -> Option<GpuLimit> {
        let before = self.sequence.load(Ordering::Acquire);
        let uuid = self.uuid(gpu)?;
        let entry = &self.entries[gpu];
        let limit = GpuLimit {
            uuid,
            memory: entry.memory.load(Ordering::Relaxed),
            cores_ppm: entry.cores_ppm.load(Ordering::Relaxed),
            compute: entry.compute.load(Ordering::Relaxed) as u8,
            minor: entry.minor.load(Ordering::Relaxed),
        };
        fence(Ordering::Acquire);
        (before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before).then_some(limit)
    }

    /// Gives GPU number `gpu` new numbers, for the host. The allocator's lock excludes other writers. A
    /// writer that died half-way left `sequence` odd; the next one repairs it.
    pub fn resize(&self, gpu: usize, memory: u64, cores_ppm: u32, compute: u8) {
        let Some(entry) = self.entries.get(gpu) else { return };
        let odd = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(odd, Ordering::Relaxed);
        fence(Ordering::Release);
        entry.memory.store(memory, Ordering::Relaxed);
        entry.cores_ppm.store(cores_ppm, Ordering::Relaxed);
        entry.compute.store(u32::from(compute), Ordering::Relaxed);
        self.sequence.store(odd.wrapping_add(1), Ordering::Release);
    }
}

fn bytes(words: &[AtomicU64; 2]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&words[0].load(Ordering::Relaxed).to_ne_bytes());
    bytes[8..].copy_from_slice(&words[1].load(Ordering::Relaxed).to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    fn page(bytes: &[u8; SIZE]) -> Page {
        let long = |at: usize| AtomicU64::new(u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap()));
        let short = |at: usize| AtomicU32::new(u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap()));
        Page {
            magic: long(0),
            version: short(8),
            gpus: short(12),
            sequence: long(16),
            reserved: long(24),
            nonce: [long(32), long(40)],
            reserved2: [long(48), long(56)],
            entries: core::array::from_fn(|index| {
                let at = 64 + index * 48;
                Entry {
                    uuid: [long(at), long(at + 8)],
                    memory: long(at + 16),
                    cores_ppm: short(at + 24),
                    compute: short(at + 28),
                    minor: short(at + 32),
                    reserved: short(at + 36),
                    context: long(at + 40),
                }
            }),
            tail: core::array::from_fn(|index| long(3136 + index * 8)),
        }
    }

    fn limit(number: u8) -> GpuLimit {
        GpuLimit {
            uuid: [number; 16],
            memory: u64::from(number) << 30,
            cores_ppm: 250_000 + u32::from(number),
            compute: COMPUTE_SHARE,
            minor: u32::from(number),
        }
    }

    #[test]
    fn an_encoded_page_reads_back() {
        let gpus = [limit(3), limit(1)];
        let page = page(&encode(&[7; 16], &gpus));
        assert!(page.is_valid());
        assert_eq!((page.nonce(), page.gpus()), ([7; 16], 2));
        assert_eq!((page.read(0), page.read(1), page.read(2)), (Some(gpus[0]), Some(gpus[1]), None));
        assert_eq!((page.memory(0), page.memory(2), page.memory(1000)), (3 << 30, 0, 0));
        assert_eq!((page.find(&[1; 16]), page.find(&[0; 16])), (Some(1), None));
    }

    #[test]
    fn a_contexts_size_reads_back() {
        let mut bytes = encode(&[7; 16], &[limit(3), limit(1)]);
        put_context(&mut bytes, 1, 300 << 20);
        put_context(&mut bytes, 64, 1);
        let page = page(&bytes);
        assert_eq!((page.context(0), page.context(1), page.context(64)), (0, 300 << 20, 0));
        assert_eq!((page.read(0), page.read(1)), (Some(limit(3)), Some(limit(1))));
    }

    #[test]
    fn zeros_are_not_limits() {
        assert!(!page(&[0; SIZE]).is_valid());
    }

    #[test]
    fn sixty_four_gpus_and_no_more() {
        let gpus: std::vec::Vec<_> = (0..70).map(limit).collect();
        let page = page(&encode(&[0; 16], &gpus));
        assert_eq!(page.gpus(), 64);
        assert_eq!(page.read(63), Some(limit(63)));
        assert_eq!(page.find(&[64; 16]), None);
    }

    #[test]
    fn a_reader_never_sees_half_a_resize() {
        let page = page(&encode(&[0; 16], &[limit(1)]));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for number in 0..200_000u64 {
                    page.resize(0, number, number as u32, COMPUTE_CAP);
                }
            });
            let mut last = 0;
            while !writer.is_finished() {
                let Some(seen) = page.read(0) else { continue };
                if seen != limit(1) {
                    assert_eq!(seen.memory, u64::from(seen.cores_ppm));
                    assert!(seen.memory >= last);
                    last = seen.memory;
                }
            }
        });
        assert_eq!(page.memory(0), 199_999);
    }

    #[test]
    fn a_host_that_died_during_a_resize_blocks_no_reader_and_is_repaired() {
        let page = page(&encode(&[0; 16], &[limit(1)]));
        page.sequence.store(3, Ordering::Relaxed);
        assert_eq!(page.read(0), None);
        assert_eq!(page.memory(0), limit(1).memory);
        page.resize(0, 5, 6, COMPUTE_OFF);
        assert_eq!(page.read(0).unwrap().memory, 5);
    }
}
