//! The system calls that the simulated driver needs, made directly: a libc function would bind the libraries
//! to the libc they were built with.

use alloc::vec::Vec;
use core::arch::asm;
use core::ffi::CStr;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("the simulated driver runs on x86_64 Linux only");

/// An errno value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// A signal arrived first.
    pub const EINTR: Self = Self(4);
    /// No such device or address: the node exists and may be opened, but no driver stands behind it.
    pub const ENXIO: Self = Self(6);
    /// Locked by somebody else (one of the two values that `F_SETLK` answers).
    pub const EAGAIN: Self = Self(11);
    /// Permission denied (the other one).
    pub const EACCES: Self = Self(13);
    /// No such device.
    pub const ENODEV: Self = Self(19);
}

/// Makes a system call.
///
/// # Safety
/// The arguments must be what the call `number` expects; pointers among them must be valid for it.
pub unsafe fn syscall(number: usize, args: [usize; 6]) -> Result<usize, Errno> {
    let result: isize;
    // SAFETY: the registers are those of the x86_64 system call convention; the caller answers for the rest.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    if result < 0 { Err(Errno(-result as i32)) } else { Ok(result as usize) }
}

const READ: usize = 0;
const WRITE: usize = 1;
const OPEN: usize = 2;
const CLOSE: usize = 3;
const FSTAT: usize = 5;
const MMAP: usize = 9;
const MUNMAP: usize = 11;
const ACCESS: usize = 21;
const MADVISE: usize = 28;
const NANOSLEEP: usize = 35;
const GETPID: usize = 39;
const FCNTL: usize = 72;
const READLINK: usize = 89;
const FUTEX: usize = 202;
const CLOCK_GETTIME: usize = 228;

/// Open for reading only.
pub const O_RDONLY: i32 = 0;
/// Open for reading and writing.
pub const O_RDWR: i32 = 2;
/// Do not wait for a device.
pub const O_NONBLOCK: i32 = 0o4000;
const O_CLOEXEC: i32 = 0o2000000;

/// Opens a file, close-on-exec.
pub fn open(path: &CStr, flags: i32) -> Result<i32, Errno> {
    // SAFETY: `path` is NUL-terminated and outlives the call.
    unsafe { syscall(OPEN, [path.as_ptr() as usize, (flags | O_CLOEXEC) as usize, 0, 0, 0, 0]) }
        .map(|fd| fd as i32)
}

/// Closes a descriptor that the caller owns.
pub fn close(fd: i32) {
    // SAFETY: takes an integer only. An error means that the descriptor was already gone.
    let _ = unsafe { syscall(CLOSE, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Reads once into `buffer`.
pub fn read(fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the pointer and the length describe `buffer`, which is writable.
    unsafe { syscall(READ, [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }
}

/// The process's standard error.
pub struct Stderr;

impl core::fmt::Write for Stderr {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        // SAFETY: the pointer and the length describe `text`.
        match unsafe { syscall(WRITE, [2, text.as_ptr() as usize, text.len(), 0, 0, 0]) } {
            Ok(_) => Ok(()),
            Err(_) => Err(core::fmt::Error),
        }
    }
}

/// Reads from the beginning of a file, wherever it was read before.
pub fn read_at(fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
    const PREAD64: usize = 17;
    // SAFETY: the pointer and the length describe `buffer`, which is writable.
    unsafe { syscall(PREAD64, [fd as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0]) }
}

/// Makes a file that is in no folder. Gives its descriptor.
pub fn memory_file(name: &CStr, content: &[u8]) -> Result<i32, Errno> {
    const MEMFD_CREATE: usize = 319;
    // SAFETY: the name is NUL-terminated and outlives the call.
    let fd = unsafe { syscall(MEMFD_CREATE, [name.as_ptr() as usize, 0, 0, 0, 0, 0]) }?;
    // SAFETY: the pointer and the length describe `content`.
    match unsafe { syscall(WRITE, [fd, content.as_ptr() as usize, content.len(), 0, 0, 0]) } {
        Ok(_) => Ok(fd as i32),
        Err(error) => {
            close(fd as i32);
            Err(error)
        }
    }
}

/// Reads a whole file.
pub fn read_file(path: &CStr) -> Result<Vec<u8>, Errno> {
    let fd = open(path, O_RDONLY)?;
    let mut content = Vec::new();
    let mut chunk = [0; 4096];
    let result = loop {
        match read(fd, &mut chunk) {
            Ok(0) => break Ok(content),
            Ok(n) => content.extend_from_slice(&chunk[..n]),
            Err(Errno::EINTR) => {}
            Err(error) => break Err(error),
        }
    };
    close(fd);
    result
}

/// Makes a file with that content; one that is there is replaced.
pub fn write_file(path: &CStr, content: &[u8], mode: u32) -> Result<(), Errno> {
    const O_WRONLY_CREATE_TRUNCATE: usize = 0o1101;
    let flags = O_WRONLY_CREATE_TRUNCATE | O_CLOEXEC as usize;
    // SAFETY: `path` is NUL-terminated and outlives the call.
    let fd = unsafe { syscall(OPEN, [path.as_ptr() as usize, flags, mode as usize, 0, 0, 0]) }?;
    // SAFETY: the pointer and the length describe `content`.
    let written = unsafe { syscall(WRITE, [fd, content.as_ptr() as usize, content.len(), 0, 0, 0]) };
    close(fd as i32);
    written.map(drop)
}

/// Makes a folder; it may be there.
pub fn make_folder(path: &CStr) {
    const MKDIR: usize = 83;
    // SAFETY: `path` is NUL-terminated and outlives the call. Without the folder what is made in it fails.
    let _ = unsafe { syscall(MKDIR, [path.as_ptr() as usize, 0o755, 0, 0, 0, 0]) };
}

/// Removes a file, or a folder that is empty; it may be gone.
pub fn remove(path: &CStr) {
    const UNLINK: usize = 87;
    const RMDIR: usize = 84;
    // SAFETY: `path` is NUL-terminated and outlives the calls.
    unsafe {
        if syscall(UNLINK, [path.as_ptr() as usize, 0, 0, 0, 0, 0]).is_err() {
            let _ = syscall(RMDIR, [path.as_ptr() as usize, 0, 0, 0, 0, 0]);
        }
    }
}

/// Makes a character device node; it may be there.
pub fn make_node(path: &CStr, mode: u32, major: u32, minor: u32) {
    const MKNOD: usize = 133;
    const CHARACTER_DEVICE: u32 = 0o020_000;
    let number = (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
    let mode = (CHARACTER_DEVICE | mode) as usize;
    // SAFETY: `path` is NUL-terminated and outlives the call. Without the node the instance cannot be used.
    let _ = unsafe { syscall(MKNOD, [path.as_ptr() as usize, mode, number as usize, 0, 0, 0]) };
}

/// Ends this process as `kill -9` does.
pub fn kill_self() {
    const KILL: usize = 62;
    // SAFETY: takes integers only.
    let _ = unsafe { syscall(KILL, [pid() as usize, 9, 0, 0, 0, 0]) };
}

/// Whether something of that name exists.
pub fn exists(path: &CStr) -> bool {
    // SAFETY: `path` is NUL-terminated and outlives the call.
    unsafe { syscall(ACCESS, [path.as_ptr() as usize, 0, 0, 0, 0, 0]) }.is_ok()
}

/// What a symbolic link says, into `buffer`.
pub fn readlink<'a>(path: &CStr, buffer: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    // SAFETY: `path` is NUL-terminated; the pointer and the length describe `buffer`.
    let n = unsafe {
        syscall(READLINK, [path.as_ptr() as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0])
    }?;
    Ok(&buffer[..n])
}

/// Length of an open file in bytes.
pub fn file_length(fd: i32) -> Result<u64, Errno> {
    // struct stat is 144 bytes on x86_64; st_size is the i64 at 48.
    let mut stat = [0u64; 18];
    // SAFETY: `stat` has the size of the kernel's struct stat.
    unsafe { syscall(FSTAT, [fd as usize, stat.as_mut_ptr() as usize, 0, 0, 0, 0]) }?;
    Ok(stat[6])
}

/// Inode of an open file.
pub fn inode(fd: i32) -> Result<u64, Errno> {
    // st_ino is the u64 at 8.
    let mut stat = [0u64; 18];
    // SAFETY: `stat` has the size of the kernel's struct stat.
    unsafe { syscall(FSTAT, [fd as usize, stat.as_mut_ptr() as usize, 0, 0, 0, 0]) }?;
    Ok(stat[1])
}

/// Whether the process's effective user is root, in its user namespace.
pub fn is_root() -> bool {
    const GETEUID: usize = 107;
    // SAFETY: takes no argument and cannot fail.
    unsafe { syscall(GETEUID, [0; 6]) }.is_ok_and(|user| user == 0)
}

/// The mapping may not be touched.
pub const PROT_NONE: usize = 0;
/// The mapping may be read.
pub const PROT_READ: usize = 1;
/// The mapping may be read and written.
pub const PROT_READ_WRITE: usize = 3;
/// Writes reach the file and everybody who mapped it.
pub const MAP_SHARED: usize = 1;
/// Writes stay here.
pub const MAP_PRIVATE: usize = 2;
/// At the address given, replacing what is there.
pub const MAP_FIXED: usize = 0x10;
/// No file.
pub const MAP_ANONYMOUS: usize = 0x20;
/// At an address of at most 32 bits.
pub const MAP_32BIT: usize = 0x40;
/// Promises no memory: pages are counted when they are touched.
pub const MAP_NORESERVE: usize = 0x4000;

/// Maps `length` bytes.
///
/// # Safety
/// With [`MAP_FIXED`] the range at `address` must be the caller's to replace. What a mapped file holds may
/// change at any time.
pub unsafe fn mmap(
    address: usize,
    length: usize,
    protection: usize,
    flags: usize,
    fd: i32,
) -> Result<usize, Errno> {
    // SAFETY: the caller answers for the range; the rest are integers.
    unsafe { syscall(MMAP, [address, length, protection, flags, fd as isize as usize, 0]) }
}

/// Unmaps a range.
///
/// # Safety
/// The range must be the caller's, and nothing may use it afterwards.
pub unsafe fn munmap(address: usize, length: usize) {
    // SAFETY: the caller answers for the range.
    let _ = unsafe { syscall(MUNMAP, [address, length, 0, 0, 0, 0]) };
}

/// Makes a range read as zeros in a forked child (`MADV_WIPEONFORK`, Linux 4.14).
///
/// # Safety
/// The range must be an anonymous private mapping of the caller's.
pub unsafe fn wipe_on_fork(address: usize, length: usize) -> Result<(), Errno> {
    const MADV_WIPEONFORK: usize = 18;
    // SAFETY: the caller answers for the range.
    unsafe { syscall(MADVISE, [address, length, MADV_WIPEONFORK, 0, 0, 0]) }.map(drop)
}

/// The process's id in its own pid namespace.
pub fn pid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { syscall(GETPID, [0; 6]) }.map_or(0, |pid| pid as u32)
}

/// Monotonic time in nanoseconds, the same for every process of the node.
pub fn now() -> u64 {
    const CLOCK_MONOTONIC: usize = 1;
    let mut time = [0u64; 2];
    // SAFETY: `time` has the size of the kernel's struct timespec.
    let _ = unsafe { syscall(CLOCK_GETTIME, [CLOCK_MONOTONIC, time.as_mut_ptr() as usize, 0, 0, 0, 0]) };
    time[0] * 1_000_000_000 + time[1]
}

/// Sleeps for `nanoseconds`, or less if a signal arrives.
pub fn sleep(nanoseconds: u64) {
    let time = [nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000];
    // SAFETY: `time` has the size of the kernel's struct timespec and outlives the call.
    let _ = unsafe { syscall(NANOSLEEP, [time.as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

/// Waits while `word` holds `value` (a private futex).
pub fn futex_wait(word: &core::sync::atomic::AtomicU32, value: u32) {
    const WAIT_PRIVATE: usize = 128;
    // SAFETY: `word` outlives the call; no timeout.
    let _ = unsafe { syscall(FUTEX, [word.as_ptr() as usize, WAIT_PRIVATE, value as usize, 0, 0, 0]) };
}

/// Waits while `word`, in memory that processes share, holds `value`, but at most so many nanoseconds.
pub fn shared_futex_wait(word: &core::sync::atomic::AtomicU32, value: u32, nanoseconds: u64) {
    const WAIT: usize = 0;
    let time = [nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000];
    // SAFETY: `word` and `time`, of the size of the kernel's struct timespec, outlive the call.
    let _ = unsafe {
        syscall(FUTEX, [word.as_ptr() as usize, WAIT, value as usize, time.as_ptr() as usize, 0, 0])
    };
}

/// Wakes one waiter of `word` in memory that processes share.
pub fn shared_futex_wake(word: &core::sync::atomic::AtomicU32) {
    const WAKE: usize = 1;
    // SAFETY: the address is only compared by the kernel.
    let _ = unsafe { syscall(FUTEX, [word.as_ptr() as usize, WAKE, 1, 0, 0, 0]) };
}

/// Wakes one waiter of `word`.
pub fn futex_wake(word: &core::sync::atomic::AtomicU32) {
    const WAKE_PRIVATE: usize = 129;
    // SAFETY: the address is only compared by the kernel.
    let _ = unsafe { syscall(FUTEX, [word.as_ptr() as usize, WAKE_PRIVATE, 1, 0, 0, 0]) };
}

/// The kernel's `struct flock` on x86_64.
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    length: i64,
    pid: i32,
}

const F_WRLCK: i16 = 1;
/// What `F_GETLK` answers when nobody is in the way.
const F_UNLCK: i16 = 2;

fn record_lock(fd: i32, command: usize, kind: i16, byte: u64) -> Result<Flock, Errno> {
    let mut lock = Flock { kind, whence: 0, start: byte as i64, length: 1, pid: 0 };
    // SAFETY: `lock` has the layout of struct flock and is writable.
    unsafe { syscall(FCNTL, [fd as usize, command, &raw mut lock as usize, 0, 0, 0]) }?;
    Ok(lock)
}

/// Takes the POSIX lock of one byte if nobody else has it.
pub fn try_lock_byte(fd: i32, byte: u64) -> Result<bool, Errno> {
    const F_SETLK: usize = 6;
    match record_lock(fd, F_SETLK, F_WRLCK, byte) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Waits for the POSIX lock of one byte and takes it.
pub fn lock_byte(fd: i32, byte: u64) -> Result<(), Errno> {
    const F_SETLKW: usize = 7;
    loop {
        match record_lock(fd, F_SETLKW, F_WRLCK, byte) {
            Err(Errno::EINTR) => {}
            done => return done.map(drop),
        }
    }
}

/// Gives the POSIX lock of one byte back.
pub fn unlock_byte(fd: i32, byte: u64) {
    const F_SETLK: usize = 6;
    // It cannot fail on a lock that is held.
    let _ = record_lock(fd, F_SETLK, F_UNLCK, byte);
}

/// Which *other* process holds the POSIX lock of one byte: its pid in the caller's pid namespace, 0 if it is
/// not visible there. The kernel translates (fs/locks.c, `locks_translate_pid`).
pub fn byte_holder(fd: i32, byte: u64) -> Result<Option<u32>, Errno> {
    const F_GETLK: usize = 5;
    let lock = record_lock(fd, F_GETLK, F_WRLCK, byte)?;
    Ok((lock.kind != F_UNLCK).then_some(lock.pid.max(0) as u32))
}

/// The processors that the calling thread may run on, as a bit set.
pub fn allowed_cpus() -> [u64; 16] {
    const SCHED_GETAFFINITY: usize = 204;
    let mut bits = [0u64; 16];
    // SAFETY: the pointer and the length describe `bits`. With more processors than bits it fails and the set
    // stays empty.
    let _ =
        unsafe { syscall(SCHED_GETAFFINITY, [0, size_of_val(&bits), bits.as_mut_ptr() as usize, 0, 0, 0]) };
    bits
}

/// Changes what may be done with a range.
///
/// # Safety
/// The range must be the caller's.
pub unsafe fn protect(address: usize, length: usize, protection: usize) -> Result<(), Errno> {
    const MPROTECT: usize = 10;
    // SAFETY: the caller answers for the range.
    unsafe { syscall(MPROTECT, [address, length, protection, 0, 0, 0]) }.map(drop)
}
