//! System calls on aarch64.

use core::arch::asm;

pub(super) const FCNTL: usize = 25;
pub(super) const FSTATFS: usize = 44;
pub(super) const FALLOCATE: usize = 47;
pub(super) const CLOCK_GETTIME: usize = 113;
pub(super) const OPENAT: usize = 56;
pub(super) const CLOSE: usize = 57;
pub(super) const LSEEK: usize = 62;
pub(super) const READ: usize = 63;
pub(super) const WRITE: usize = 64;
pub(super) const PREAD64: usize = 67;
pub(super) const PWRITE64: usize = 68;
pub(super) const READLINKAT: usize = 78;
pub(super) const FSTAT: usize = 80;
pub(super) const EXIT_GROUP: usize = 94;
pub(super) const FUTEX: usize = 98;
pub(super) const NANOSLEEP: usize = 101;
pub(super) const SCHED_YIELD: usize = 124;
pub(super) const KILL: usize = 129;
pub(super) const GETPID: usize = 172;
pub(super) const MUNMAP: usize = 215;
pub(super) const MMAP: usize = 222;
pub(super) const MADVISE: usize = 233;
pub(super) const PRLIMIT64: usize = 261;

/// # Safety
/// The arguments must be such that the kernel's effects on this process's memory are sound.
#[inline]
pub(super) unsafe fn call(number: usize, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result;
    // SAFETY: the calling convention of the kernel; the rest is the caller's.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    result
}

/// The thread's control block.
#[inline]
pub(super) fn thread() -> usize {
    let address;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) address, options(nomem, nostack, preserves_flags)) };
    address
}
