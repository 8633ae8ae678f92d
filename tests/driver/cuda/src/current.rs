//! The contexts that are current in the calling thread, a stack, and its capture mode: in thread-local
//! storage.
//!
//! Thread-local storage is reached through the dynamic linker (`__tls_get_addr`, in every libc since the
//! beginning), because `#[thread_local]` is not stable Rust and pthread keys live in another library in libcs
//! before glibc 2.34. The storage starts as zeros, which is an empty stack.

use core::arch::{asm, global_asm};

use crate::abi::{Failure, Handle};

/// Most contexts on a thread's stack.
const DEPTH: usize = 30;

#[repr(C)]
struct Stack {
    depth: usize,
    contexts: [Handle; DEPTH],
    /// `CUstreamCaptureMode` of the thread.
    capture_mode: i32,
    /// Whether device memory was taken since somebody asked.
    is_charged: u32,
}

const _: () = assert!(size_of::<Stack>() == 256);

global_asm!(
    ".section .tbss.sim_cuda_contexts,\"awT\",@nobits",
    ".globl sim_cuda_contexts",
    ".hidden sim_cuda_contexts",
    ".type sim_cuda_contexts,@object",
    ".size sim_cuda_contexts, 256",
    ".balign 16",
    "sim_cuda_contexts:",
    ".zero 256",
    ".text",
);

fn with<T>(use_it: impl FnOnce(&mut Stack) -> T) -> T {
    let stack: *mut Stack;
    // SAFETY: the general-dynamic sequence of the x86_64 ELF TLS ABI, prefixes included; it returns this
    // thread's copy of the variable.
    unsafe {
        asm!(
            "data16 lea rdi, [rip + sim_cuda_contexts@tlsgd]",
            ".value 0x6666",
            "rex64 call __tls_get_addr@PLT",
            out("rax") stack,
            clobber_abi("C"),
        );
    }
    // SAFETY: only this thread has the address, nothing keeps a reference longer than `use_it`, and `use_it`
    // never comes back here.
    use_it(unsafe { &mut *stack })
}

/// The thread's current context.
pub(crate) fn get() -> Option<Handle> {
    with(|stack| stack.depth.checked_sub(1).map(|top| stack.contexts[top])).filter(|&context| context != 0)
}

/// Makes a context current in place of the one that is; 0 for none.
pub(crate) fn set(context: Handle) {
    with(|stack| {
        stack.depth = stack.depth.max(1);
        stack.contexts[stack.depth - 1] = context;
    });
}

/// The thread's `CUstreamCaptureMode`: whether calls are forbidden to it while somebody captures.
pub(crate) fn capture_mode() -> i32 {
    with(|stack| stack.capture_mode)
}

/// Changes it; gives the one before.
pub(crate) fn exchange_capture_mode(mode: i32) -> i32 {
    with(|stack| core::mem::replace(&mut stack.capture_mode, mode))
}

/// Notes that the thread's call takes device memory.
pub(crate) fn charged() {
    with(|stack| stack.is_charged = 1);
}

/// Whether device memory was taken since this was last asked.
pub(crate) fn take_charged() -> bool {
    with(|stack| core::mem::take(&mut stack.is_charged) != 0)
}

/// Makes a context current on top of the others.
pub(crate) fn push(context: Handle) -> Result<(), Failure> {
    with(|stack| {
        *stack.contexts.get_mut(stack.depth).ok_or(Failure::OUT_OF_MEMORY)? = context;
        stack.depth += 1;
        Ok(())
    })
}

/// Takes the current context off the stack.
pub(crate) fn pop() -> Option<Handle> {
    with(|stack| {
        stack.depth = stack.depth.checked_sub(1)?;
        Some(stack.contexts[stack.depth])
    })
    .filter(|&context| context != 0)
}
