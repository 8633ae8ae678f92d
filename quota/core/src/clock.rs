//! CLOCK_MONOTONIC, read without a system call if the vDSO, the kernel's library in every process, has it.
//!
//! Containers in other time namespaces have other clocks; their published times are then invalid for others
//! ([`fgpu_wire::turns`]).

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::{elf, sys};

type Read = unsafe extern "C" fn(i32, *mut [i64; 2]) -> i32;

#[cfg(target_arch = "x86_64")]
const NAMES: (&str, &str) = ("linux-vdso.so.1", "__vdso_clock_gettime");
#[cfg(target_arch = "aarch64")]
const NAMES: (&str, &str) = ("linux-vdso.so.1", "__kernel_clock_gettime");

/// The function's address; [`UNKNOWN`] before the first look, [`ABSENT`] where the kernel gives none.
static FUNCTION: AtomicUsize = AtomicUsize::new(UNKNOWN);
const UNKNOWN: usize = 0;
const ABSENT: usize = 1;

/// Nanoseconds on CLOCK_MONOTONIC.
#[inline]
pub fn now() -> u64 {
    let address = match FUNCTION.load(Ordering::Relaxed) {
        UNKNOWN => look(),
        address => address,
    };
    if address != ABSENT {
        let mut time = [0i64; 2];
        // SAFETY: the kernel's function of this type; it writes a `struct timespec`.
        if unsafe { core::mem::transmute::<usize, Read>(address)(sys::CLOCK_MONOTONIC, &raw mut time) } == 0 {
            return time[0] as u64 * 1_000_000_000 + time[1] as u64;
        }
    }
    sys::monotonic()
}

#[cold]
fn look() -> usize {
    let library = elf::find(NAMES.0.as_bytes(), NAMES.0.as_bytes(), core::ptr::from_ref(&FUNCTION) as usize);
    let address = library.and_then(|library| library.function(NAMES.1)).unwrap_or(ABSENT);
    FUNCTION.store(address, Ordering::Relaxed);
    address
}

#[cfg(test)]
mod tests {
    use super::{ABSENT, look, now};
    use crate::sys;

    #[test]
    fn it_is_the_kernels_clock() {
        let (before, between, after) = (sys::monotonic(), now(), sys::monotonic());
        assert!(before > 0 && before <= between && between <= after);
        assert_ne!(look(), ABSENT, "every kernel that we run on has the function");
    }
}
