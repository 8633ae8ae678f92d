//! What a library without the standard library must bring along itself.

/// Defines the allocator and the panic handler of a `no_std` shared library.
///
/// Memory comes from the process's own `malloc`, referred to without a version: every libc has it, and a
/// program's replacement (jemalloc, tcmalloc, a sanitizer) is respected.
#[macro_export]
macro_rules! runtime {
    () => {
        #[cfg(not(test))] // the test harness brings its own
        mod runtime {
            use core::alloc::{GlobalAlloc, Layout};
            use core::ffi::c_void;

            unsafe extern "C" {
                fn malloc(size: usize) -> *mut c_void;
                fn realloc(block: *mut c_void, size: usize) -> *mut c_void;
                fn free(block: *mut c_void);
            }

            /// `malloc` aligns to 16 bytes on x86_64.
            const MALLOC_ALIGN: usize = 16;

            struct Malloc;

            // SAFETY: malloc, realloc and free keep the promises of an allocator for alignments up to
            // MALLOC_ALIGN; larger ones are refused, which `alloc` reports as out of memory.
            unsafe impl GlobalAlloc for Malloc {
                unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
                    if layout.align() > MALLOC_ALIGN {
                        return core::ptr::null_mut();
                    }
                    // SAFETY: any size may be asked.
                    unsafe { malloc(layout.size()).cast() }
                }

                unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
                    // SAFETY: the block came from malloc or realloc.
                    unsafe { free(block.cast()) }
                }

                unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
                    if layout.align() > MALLOC_ALIGN {
                        return core::ptr::null_mut();
                    }
                    // SAFETY: the block came from malloc or realloc.
                    unsafe { realloc(block.cast(), size).cast() }
                }
            }

            // The pre-compiled alloc crate was built to unwind and refers to the unwinder. Nothing here
            // unwinds, so the two names are never reached; defining them keeps libgcc_s out of the library.
            core::arch::global_asm!(
                ".globl rust_eh_personality, _Unwind_Resume",
                ".hidden rust_eh_personality, _Unwind_Resume",
                "rust_eh_personality:",
                "_Unwind_Resume:",
                "ud2",
            );

            #[global_allocator]
            static MALLOC: Malloc = Malloc;

            #[panic_handler]
            fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
                use core::fmt::Write;
                // Standard error may be closed; there is nobody else to tell.
                let _ = writeln!($crate::sys::Stderr, concat!(env!("CARGO_PKG_NAME"), ": {}"), info);
                // SAFETY: an undefined instruction raises SIGILL; nothing comes back from it.
                unsafe { core::arch::asm!("ud2", options(noreturn)) }
            }
        }
    };
}
