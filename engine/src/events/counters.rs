//! How often each thing has happened since the boot: what `fgpu metrics` counts, whichever process did it.
//!
//! ```text
//! <state-dir>/counters   magic "fgpucnt1", then one u64 for each of TABLE, in its order; the rest of a page is 0
//! ```
//!
//! Each process maps the file and adds with one atomic instruction, so nothing is waited for and no count is lost,
//! whoever is killed. The file has all of its page from its first moment (it is written before it has a name): a
//! full file system cannot end a process that adds.

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use fgpu_spec::Code;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::record::Kind;

const NAME: &str = "counters";
const MAGIC: u64 = u64::from_ne_bytes(*b"fgpucnt1");
/// The size of the file, bytes: a page of every machine that fgpu runs on.
const SIZE: usize = 4096;
/// The kinds that are not counted by their code. New ones come at the end of their half.
const KINDS: [Kind; 6] =
    [Kind::Granted, Kind::Resized, Kind::Released, Kind::Reconciled, Kind::Lost, Kind::Exceeded];
/// The word from which refusals are counted by their code.
const REFUSALS: usize = 64;

/// How often each thing has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// By kind, but for refusals.
    pub kinds: Vec<(Kind, u64)>,
    /// Refusals by their code.
    pub refusals: Vec<(Code, u64)>,
}

/// The counts below a state directory; all 0 if nothing was counted since the boot.
///
/// # Errors
/// The file is there and cannot be read, or is none of ours.
pub fn read(state_dir: &Path) -> io::Result<Counts> {
    let words: Vec<u64> = match std::fs::read(state_dir.join(NAME)) {
        Ok(bytes) => bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
            .collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => vec![MAGIC],
        Err(error) => return Err(error),
    };
    if words.first() != Some(&MAGIC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let at = |word: usize| words.get(word).copied().unwrap_or(0);
    Ok(Counts {
        kinds: KINDS.iter().map(|kind| (*kind, at(word(*kind, None)))).collect(),
        refusals: Code::ALL.iter().map(|code| (*code, at(word(Kind::Refused, Some(*code))))).collect(),
    })
}

/// The word of a kind, or of a code's refusals. A number never gets another meaning.
fn word(kind: Kind, code: Option<Code>) -> usize {
    let kind_word = |kind| match kind {
        Kind::Granted => 1,
        Kind::Resized => 2,
        Kind::Released => 3,
        Kind::Reconciled => 4,
        Kind::Lost => 5,
        Kind::Refused => 6,
        Kind::Exceeded => 7,
    };
    let code_word = |code| match code {
        Code::InvalidRequest => 0,
        Code::Conflict => 1,
        Code::Denied => 2,
        Code::NoGpu => 3,
        Code::TooLarge => 4,
        Code::NoCapacity => 5,
        Code::Fragmented => 6,
        Code::NoMigPlacement => 7,
        Code::TimedOut => 8,
        Code::Cancelled => 9,
        Code::GpuUnhealthy => 10,
        Code::DriverError => 11,
        Code::StateCorrupt => 12,
        Code::Internal => 13,
    };
    match code {
        Some(code) => REFUSALS + code_word(code),
        None => kind_word(kind),
    }
}

/// The file of a state directory.
#[derive(Debug)]
pub(super) struct Counters {
    path: PathBuf,
}

impl Counters {
    pub(super) fn of(state_dir: &Path) -> Self {
        Self { path: state_dir.join(NAME) }
    }

    /// Counts one.
    ///
    /// # Errors
    /// The file cannot be made or mapped, or is none of ours.
    pub(super) fn add(&self, kind: Kind, code: Option<Code>) -> io::Result<()> {
        let file = match self.open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make()?;
                self.open()?
            }
            opened => opened?,
        };
        Mapped::of(&file)?.words()[word(kind, code)].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn open(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(&self.path, flags, Mode::empty())?);
        let metadata = file.metadata()?;
        match metadata.is_file() && metadata.len() == SIZE as u64 {
            true => Ok(file),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Makes the file, unless another process does.
    fn make(&self) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let mode = Mode::from_raw_mode(0o644);
        let mut file =
            File::from(rustix::fs::open(folder, OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, mode)?);
        rustix::fs::fchmod(&file, mode)?;
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        file.write_all(&bytes)?;
        let named = format!("/proc/self/fd/{}", file.as_raw_fd());
        match rustix::fs::linkat(CWD, named, CWD, &self.path, AtFlags::SYMLINK_FOLLOW) {
            Err(rustix::io::Errno::EXIST) | Ok(()) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The file, mapped.
struct Mapped(*mut c_void);

impl Mapped {
    #[allow(unsafe_code, reason = "a file that others map cannot be mapped safely")]
    fn of(file: &File) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; no existing memory is touched.
        let at = unsafe { mmap(null_mut(), SIZE, protection, MapFlags::SHARED, file, 0) }?;
        let mapped = Self(at);
        match mapped.words()[0].load(Ordering::Relaxed) == MAGIC {
            true => Ok(mapped),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    #[allow(unsafe_code, reason = "see of")]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has SIZE bytes, is aligned to a page and stays until `self` is dropped. The file has
        // SIZE bytes: only root writes to the state directory, and fgpu does not cut it short. AtomicU64 has no
        // content that is not a value.
        unsafe { std::slice::from_raw_parts(self.0.cast(), SIZE / 8) }
    }
}

impl Drop for Mapped {
    #[allow(unsafe_code, reason = "see of")]
    fn drop(&mut self) {
        // SAFETY: our own mapping; references to it do not outlive `self`. It cannot fail for a range that is
        // mapped.
        let _ = unsafe { munmap(self.0, SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn of(counts: &Counts, code: Code) -> u64 {
        counts.refusals.iter().find(|(known, _)| *known == code).unwrap().1
    }

    #[test]
    fn each_thing_has_a_word_of_its_own() {
        let kinds = Kind::ALL.iter().map(|kind| word(*kind, None));
        let codes = Code::ALL.iter().map(|code| word(Kind::Refused, Some(*code)));
        let words: Vec<usize> = kinds.chain(codes).collect();
        let different: BTreeSet<_> = words.iter().collect();
        assert_eq!(different.len(), words.len());
        assert!(words.iter().all(|word| (1..SIZE / 8).contains(word)));
        assert_eq!(KINDS.len() + 1, Kind::ALL.len(), "refusals alone are counted by their code");
    }

    #[test]
    fn threads_lose_no_count() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(of(&read(folder.path()).unwrap(), Code::NoCapacity), 0, "nothing was counted");
        let add = || {
            for _ in 0..1000 {
                Counters::of(folder.path()).add(Kind::Refused, Some(Code::NoCapacity)).unwrap();
            }
        };
        std::thread::scope(|scope| [0; 4].map(|_| scope.spawn(add)).map(|thread| thread.join().unwrap()));
        Counters::of(folder.path()).add(Kind::Granted, None).unwrap();
        let counts = read(folder.path()).unwrap();
        assert_eq!((of(&counts, Code::NoCapacity), of(&counts, Code::Internal)), (4000, 0));
        assert_eq!(counts.kinds[0], (Kind::Granted, 1));
    }

    #[test]
    fn what_is_no_file_of_ours_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let add = || Counters::of(folder.path()).add(Kind::Granted, None).unwrap_err().kind();
        for content in [&[0; SIZE][..], b"", &[7; SIZE + 1]] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(add(), io::ErrorKind::InvalidData);
            assert_eq!(std::fs::read(&path).unwrap(), content);
            assert!(read(folder.path()).is_err());
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        add();
        assert!(!folder.path().join("elsewhere").exists());
        assert!(Counters::of(&folder.path().join("nowhere")).add(Kind::Granted, None).is_err());
    }
}
