//! Direct system calls: without libc, whose versions differ from image to image, and without wrappers that
//! another preloaded library may have replaced.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use core::ptr::NonNull;
use core::sync::atomic::AtomicU32;

#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

const AT_FDCWD: usize = -100isize as usize;
const O_RDWR: usize = 2;
const O_NONBLOCK: usize = 0o4000;
const O_CLOEXEC: usize = 0o2000000;
const SEEK_END: usize = 2;
const PROT_READ: usize = 1;
const PROT_WRITE: usize = 2;
const MAP_SHARED: usize = 1;
const MAP_PRIVATE: usize = 2;
const MAP_ANONYMOUS: usize = 0x20;
const F_OFD_GETLK: usize = 36;
const F_OFD_SETLK: usize = 37;
const F_RDLCK: i16 = 0;
const F_WRLCK: i16 = 1;
const F_UNLCK: i16 = 2;
const FUTEX_WAIT_PRIVATE: usize = 128;
const FUTEX_WAKE_PRIVATE: usize = 129;
const RLIMIT_FSIZE: usize = 1;
const ESRCH: i32 = 3;
const EAGAIN: i32 = 11;
const EACCES: i32 = 13;
const EFBIG: i32 = 27;
const ENAMETOOLONG: i32 = 36;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;

/// The clock that setting the time does not move.
pub const CLOCK_MONOTONIC: i32 = 1;

/// The kernel's error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

/// # Safety
/// As the system call's: the kernel may write only where the arguments allow it soundly.
unsafe fn call(number: usize, arguments: [usize; 6]) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let result = unsafe { arch::call(number, arguments) };
    if (-4095..0).contains(&result) { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

/// An open file, closed when dropped.
#[derive(Debug)]
pub struct File(usize);

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours; no other code got its number from us.
        let _ = unsafe { call(arch::CLOSE, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// `struct flock` of the 64-bit ABIs.
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    /// Must be 0 for locks of open file descriptions.
    pid: i32,
}

impl File {
    /// Opens a file for reading, or also for writing; closed at exec. It never blocks: a lease (`F_SETLEASE`)
    /// that the container's root holds on the file is an error (EWOULDBLOCK).
    pub fn open(path: &str, writable: bool) -> Result<Self, Errno> {
        let mut buffer = [0u8; 128];
        let Some(room) = buffer.get_mut(..path.len()).filter(|room| room.len() < 128) else {
            return Err(Errno(ENAMETOOLONG));
        };
        room.copy_from_slice(path.as_bytes());
        let flags = O_CLOEXEC | O_NONBLOCK | if writable { O_RDWR } else { 0 };
        // SAFETY: the path is NUL-terminated: it is shorter than the zeroed buffer.
        unsafe { call(arch::OPENAT, [AT_FDCWD, buffer.as_ptr() as usize, flags, 0, 0, 0]) }.map(Self)
    }

    /// Length, bytes.
    pub fn size(&self) -> Result<usize, Errno> {
        // SAFETY: touches no memory.
        unsafe { call(arch::LSEEK, [self.0, 0, SEEK_END, 0, 0, 0]) }
    }

    /// Device number of the file system that the file is on (`st_dev`).
    pub fn device(&self) -> Result<u64, Errno> {
        // `struct stat` of the 64-bit ABIs has at most 144 bytes and begins with the device.
        let mut stat = [0u64; 18];
        // SAFETY: the kernel writes a `struct stat`, which fits in.
        unsafe { call(arch::FSTAT, [self.0, stat.as_mut_ptr() as usize, 0, 0, 0, 0]) }?;
        Ok(stat[0])
    }

    /// Whether the mount through which the file was opened is read-only (statfs(2), `ST_RDONLY`).
    pub fn is_on_read_only_mount(&self) -> Result<bool, Errno> {
        const FLAGS: usize = 10;
        const ST_RDONLY: u64 = 1;
        // `struct statfs` of the 64-bit ABIs: 120 bytes, the flags are its eleventh word.
        let mut stat = [0u64; 15];
        // SAFETY: the kernel writes a `struct statfs`, which fits in.
        unsafe { call(arch::FSTATFS, [self.0, stat.as_mut_ptr() as usize, 0, 0, 0, 0]) }?;
        Ok(stat[FLAGS] & ST_RDONLY != 0)
    }

    /// Reads from where the last read ended; returns the number of bytes.
    pub fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        // SAFETY: the kernel writes into the buffer and not past it.
        unsafe { call(arch::READ, [self.0, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }
    }

    /// Reads from byte `at` on; returns the number of bytes, fewer at the end of the file.
    pub fn read_at(&self, buffer: &mut [u8], at: usize) -> Result<usize, Errno> {
        // SAFETY: the kernel writes into the buffer and not past it.
        unsafe { call(arch::PREAD64, [self.0, buffer.as_mut_ptr() as usize, buffer.len(), at, 0, 0]) }
    }

    /// Writes from byte `at` on; returns the number of bytes. Beyond the process's limit for files it writes
    /// nothing: the kernel would send SIGXFSZ, which kills.
    pub fn write_at(&self, bytes: &[u8], at: usize) -> Result<usize, Errno> {
        let mut limit = [u64::MAX; 2];
        // SAFETY: the kernel writes a `struct rlimit64`: the limit and how far it can be raised.
        let known = unsafe { call(arch::PRLIMIT64, [0, RLIMIT_FSIZE, 0, limit.as_mut_ptr() as usize, 0, 0]) };
        if known.is_ok() && limit[0] < (at + bytes.len()) as u64 {
            return Err(Errno(EFBIG));
        }
        // SAFETY: the kernel reads the bytes.
        unsafe { call(arch::PWRITE64, [self.0, bytes.as_ptr() as usize, bytes.len(), at, 0, 0]) }
    }

    /// Allocates a range of a sparse file: a write to a mapping of an unallocated range on a full file system
    /// is a SIGBUS. A file system that does not support it is assumed to have room.
    pub fn ensure_room(&self, at: usize, length: usize) -> Result<(), Errno> {
        // SAFETY: touches no memory.
        match unsafe { call(arch::FALLOCATE, [self.0, 0, at, length, 0, 0]) } {
            Ok(_) | Err(Errno(EOPNOTSUPP | ENOSYS)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Maps the first `length` bytes, shared with all others that map them.
    pub fn map(&self, length: usize, writable: bool) -> Result<NonNull<u8>, Errno> {
        let protection = PROT_READ | if writable { PROT_WRITE } else { 0 };
        map(length, protection, MAP_SHARED, self.0)
    }

    /// Locks byte `at` for this open file description; `false` if another one has it locked. The lock ends
    /// when the last descriptor *and the last mapping* made from this opening are gone.
    pub fn lock_byte(&self, at: usize) -> Result<bool, Errno> {
        self.set_lock(at, F_WRLCK)
    }

    /// Locks byte `at` together with others that lock it in this way; converts a lock of
    /// [`lock_byte`](Self::lock_byte).
    pub fn lock_byte_shared(&self, at: usize) -> Result<bool, Errno> {
        self.set_lock(at, F_RDLCK)
    }

    /// Takes this open file description's lock off byte `at`.
    pub fn unlock_byte(&self, at: usize) -> Result<(), Errno> {
        self.set_lock(at, F_UNLCK).map(drop)
    }

    fn set_lock(&self, at: usize, kind: i16) -> Result<bool, Errno> {
        let lock = Flock { kind, whence: 0, start: at as i64, length: 1, pid: 0 };
        // SAFETY: the kernel reads the structure.
        match unsafe { call(arch::FCNTL, [self.0, F_OFD_SETLK, &raw const lock as usize, 0, 0, 0]) } {
            Ok(_) => Ok(true),
            Err(Errno(EAGAIN | EACCES)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether any other open file description has byte `at` locked, those of this process included.
    pub fn is_byte_locked(&self, at: usize) -> Result<bool, Errno> {
        let mut lock = Flock { kind: F_WRLCK, whence: 0, start: at as i64, length: 1, pid: 0 };
        // SAFETY: the kernel reads and writes the structure.
        unsafe { call(arch::FCNTL, [self.0, F_OFD_GETLK, &raw mut lock as usize, 0, 0, 0]) }?;
        Ok(lock.kind != F_UNLCK)
    }
}

/// Maps `length` bytes of zeros, private to this process.
pub fn map_zeros(length: usize) -> Result<NonNull<u8>, Errno> {
    map(length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, usize::MAX)
}

fn map(length: usize, protection: usize, flags: usize, file: usize) -> Result<NonNull<u8>, Errno> {
    // SAFETY: without MAP_FIXED a mapping goes where nothing is.
    let address = unsafe { call(arch::MMAP, [0, length, protection, flags, file, 0]) }?;
    NonNull::new(address as *mut u8).ok_or(Errno(0))
}

/// Unmaps a mapping.
///
/// # Safety
/// The range is a whole mapping from this module and nothing refers into it any more.
pub unsafe fn unmap(at: NonNull<u8>, length: usize) {
    // SAFETY: the caller's promise.
    let _ = unsafe { call(arch::MUNMAP, [at.as_ptr() as usize, length, 0, 0, 0, 0]) };
}

/// What happens to a mapping in a forked child.
#[derive(Debug, Clone, Copy)]
pub enum InChild {
    /// It is not there (`MADV_DONTFORK`).
    Absent = 10,
    /// It is all zeros (`MADV_WIPEONFORK`, Linux 4.14; private mappings only).
    Zeros = 18,
}

/// Sets what happens to a mapping in a forked child.
pub fn at_fork(at: NonNull<u8>, length: usize, then: InChild) -> Result<(), Errno> {
    // SAFETY: neither advice changes memory of this process.
    unsafe { call(arch::MADVISE, [at.as_ptr() as usize, length, then as usize, 0, 0, 0]) }.map(drop)
}

/// This process's pid, in its own pid namespace.
pub fn pid() -> u32 {
    // SAFETY: touches no memory.
    unsafe { call(arch::GETPID, [0; 6]) }.unwrap_or(0) as u32
}

/// Whether it is certain that no process of this pid namespace has this pid.
pub fn is_gone(pid: u32) -> bool {
    // SAFETY: signal 0 sends nothing.
    let answer = unsafe { call(arch::KILL, [pid as usize, 0, 0, 0, 0, 0]) };
    answer == Err(Errno(ESRCH))
}

/// Reads where a symbolic link leads; `path` ends with a NUL.
pub fn read_link<'a>(path: &core::ffi::CStr, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let arguments = [AT_FDCWD, path.as_ptr() as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0];
    // SAFETY: the kernel writes into the buffer and not past it.
    let length = unsafe { call(arch::READLINKAT, arguments) }?;
    Ok(buffer.get(..length).unwrap_or_default())
}

/// Writes to the standard error, once; the rest is lost if it does not fit.
pub fn write_error(text: &[u8]) {
    // SAFETY: the kernel reads the text.
    let _ = unsafe { call(arch::WRITE, [2, text.as_ptr() as usize, text.len(), 0, 0, 0]) };
}

/// Sleeps while `word` is `value`, until woken; spurious wake-ups happen.
pub fn futex_wait(word: &AtomicU32, value: u32) {
    let arguments = [word.as_ptr() as usize, FUTEX_WAIT_PRIVATE, value as usize, 0, 0, 0];
    // SAFETY: the kernel reads the word; no timeout is given.
    let _ = unsafe { call(arch::FUTEX, arguments) };
}

/// Wakes one thread that sleeps on `word`.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address as a name only.
    let _ = unsafe { call(arch::FUTEX, [word.as_ptr() as usize, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0]) };
}

/// Lets others run first.
pub fn yield_now() {
    // SAFETY: touches no memory.
    let _ = unsafe { call(arch::SCHED_YIELD, [0; 6]) };
}

/// Sleeps.
pub fn sleep(microseconds: u32) {
    let time = [0i64, i64::from(microseconds) * 1000];
    // SAFETY: the kernel reads a `struct timespec`: seconds and nanoseconds.
    let _ = unsafe { call(arch::NANOSLEEP, [time.as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

/// Sleeps for so many nanoseconds, or less if a signal arrives.
pub fn sleep_nanoseconds(nanoseconds: u64) {
    let time = [(nanoseconds / 1_000_000_000) as i64, (nanoseconds % 1_000_000_000) as i64];
    // SAFETY: the kernel reads a `struct timespec`: seconds and nanoseconds.
    let _ = unsafe { call(arch::NANOSLEEP, [time.as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

/// Nanoseconds on CLOCK_MONOTONIC, by a system call.
pub fn monotonic() -> u64 {
    clock(CLOCK_MONOTONIC as usize)
}

/// Nanoseconds since 1970.
pub fn wall() -> u64 {
    const CLOCK_REALTIME: usize = 0;
    clock(CLOCK_REALTIME)
}

fn clock(which: usize) -> u64 {
    let mut time = [0i64; 2];
    let arguments = [which, time.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes a `struct timespec`.
    let _ = unsafe { call(arch::CLOCK_GETTIME, arguments) };
    time[0] as u64 * 1_000_000_000 + time[1] as u64
}

/// A number that no other living thread of the process has, and that is not 0.
#[inline]
pub fn thread() -> usize {
    arch::thread()
}

/// Ends the process with the exit status of an abort.
pub fn abort() -> ! {
    loop {
        // SAFETY: does not return.
        let _ = unsafe { call(arch::EXIT_GROUP, [134, 0, 0, 0, 0, 0]) };
    }
}
