//! System calls on x86-64.

use core::arch::asm;

pub(super) const READ: usize = 0;
pub(super) const WRITE: usize = 1;
pub(super) const CLOSE: usize = 3;
pub(super) const FSTAT: usize = 5;
pub(super) const LSEEK: usize = 8;
pub(super) const MMAP: usize = 9;
pub(super) const MUNMAP: usize = 11;
pub(super) const PREAD64: usize = 17;
pub(super) const PWRITE64: usize = 18;
pub(super) const SCHED_YIELD: usize = 24;
pub(super) const MADVISE: usize = 28;
pub(super) const NANOSLEEP: usize = 35;
pub(super) const GETPID: usize = 39;
pub(super) const KILL: usize = 62;
pub(super) const FCNTL: usize = 72;
pub(super) const FSTATFS: usize = 138;
pub(super) const FUTEX: usize = 202;
pub(super) const EXIT_GROUP: usize = 231;
pub(super) const OPENAT: usize = 257;
pub(super) const READLINKAT: usize = 267;
pub(super) const FALLOCATE: usize = 285;
pub(super) const CLOCK_GETTIME: usize = 228;
pub(super) const PRLIMIT64: usize = 302;

/// # Safety
/// The arguments must be such that the kernel's effects on this process's memory are sound.
#[inline]
pub(super) unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: the calling convention of the kernel, which clobbers rcx and r11; the rest is the caller's.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// The thread's control block, which every libc's ABI has at the start of its thread-local storage.
#[inline]
pub(super) fn thread() -> usize {
    let address;
    // SAFETY: reads the word to which fs points; the x86-64 ABI for thread-local storage has its own address
    // there.
    unsafe { asm!("mov {}, fs:0", out(reg) address, options(nostack, readonly, preserves_flags)) };
    address
}
