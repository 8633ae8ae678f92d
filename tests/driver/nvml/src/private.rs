//! The table of private functions that nvidia-smi uses besides the public ones.
//!
//! Known from NVIDIA's own public mock of NVML (drivers 550 to 580) and from what nvidia-smi 550 then shows:
//! slot 0 is the table's size in bytes, every other slot a function.

use core::ffi::c_void;

use crate::abi::{Answer, Failure, Handle, code, put};
use crate::identity::handle_by_index;
use crate::memory::compute_processes;
use crate::session::{Device, Session};

/// 6c3efec4-8fc9-4e6c-a327-ee696e12f7c4 as a GUID lies in memory.
const TABLE_ID: [u8; 16] =
    [0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4];

const SLOTS: usize = 512;
const HANDLE_BY_INDEX: usize = 81;
const COMPUTE_PROCESSES: usize = 213;
const GRAPHICS_PROCESSES: usize = 214;
const MPS_PROCESSES: usize = 215;
const HOST_PCIE_GENERATION: usize = 230;

#[derive(Clone, Copy)]
union Slot {
    size: usize,
    function: *const c_void,
}

// SAFETY: a number or the address of a function, never written.
unsafe impl Sync for Slot {}

static TABLE: [Slot; SLOTS] = {
    let mut table = [Slot { function: ignore as *const c_void }; SLOTS];
    table[0] = Slot { size: SLOTS * size_of::<Slot>() };
    table[HANDLE_BY_INDEX] = Slot { function: private_handle_by_index as *const c_void };
    table[COMPUTE_PROCESSES] = Slot { function: private_compute_processes as *const c_void };
    table[GRAPHICS_PROCESSES] = Slot { function: private_no_processes as *const c_void };
    table[MPS_PROCESSES] = Slot { function: private_no_processes as *const c_void };
    table[HOST_PCIE_GENERATION] = Slot { function: private_host_pcie_generation as *const c_void };
    table
};

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlInternalGetExportTable(table: *mut *const Slot, id: *const [u8; 16]) -> u32 {
    // SAFETY: the caller hands in a GUID or null.
    let known = unsafe { id.as_ref() } == Some(&TABLE_ID);
    let answer = if known {
        // SAFETY: `table` is null or valid, as the caller must see to.
        unsafe { put(table, TABLE.as_ptr()) }
    } else {
        Err(Failure::NOT_SUPPORTED)
    };
    code(answer)
}

/// Every slot that is not known. An error would make `nvidia-smi topo -m` give up; how many arguments there
/// are is unknown, so nothing may be written through them.
extern "C" fn ignore() -> u32 {
    0
}

unsafe extern "C" fn private_handle_by_index(index: u32, out: *mut Handle, _flags: u32) -> u32 {
    // SAFETY: `out` is the caller's.
    code(unsafe { handle_by_index(index, out) })
}

/// An entry of the private process lists.
#[repr(C)]
struct Entry {
    pid: u32,
    used: u64,
    gpu_instance: u32,
    compute_instance: u32,
    protected: u64,
    name: [u8; 4096],
}

const _: () = assert!(size_of::<Entry>() == 4128);

unsafe extern "C" fn private_compute_processes(device: Handle, count: *mut u32, out: *mut Entry) -> u32 {
    // SAFETY: the caller's count says how many entries `out` has room for.
    code(Device::of(device).and_then(|device| unsafe { fill(&device, count, out) }))
}

/// # Safety
/// `count` must be null or valid, `out` null or valid for `*count` entries.
unsafe fn fill(device: &Device, count: *mut u32, out: *mut Entry) -> Answer {
    if count.is_null() || out.is_null() {
        return Err(Failure::INVALID_ARGUMENT);
    }
    let processes = compute_processes(device);
    // SAFETY: not null, so valid.
    let room = unsafe { *count } as usize;
    let written = processes.len().min(room);
    for (i, process) in processes.iter().take(written).enumerate() {
        // SAFETY: `i` is below the room. The name is filled in place: an entry is too large for the stack of
        // a thread that somebody else made.
        unsafe {
            let entry = out.add(i);
            (&raw mut (*entry).pid).write(process.pid);
            (&raw mut (*entry).used).write(process.used);
            (&raw mut (*entry).gpu_instance).write(u32::MAX);
            (&raw mut (*entry).compute_instance).write(u32::MAX);
            (&raw mut (*entry).protected).write(0);
            let name = process.name.to_bytes_with_nul();
            core::ptr::copy_nonoverlapping(name.as_ptr(), (&raw mut (*entry).name).cast(), name.len());
        }
    }
    // SAFETY: not null, so valid.
    unsafe { put(count, written as u32) }
}

unsafe extern "C" fn private_no_processes(_device: Handle, count: *mut u32, _out: *mut Entry) -> u32 {
    // SAFETY: `count` is the caller's.
    code(Session::current().and_then(|_| unsafe { put(count, 0) }))
}

unsafe extern "C" fn private_host_pcie_generation(device: Handle, out: *mut u32) -> u32 {
    // SAFETY: `out` is the caller's.
    code(Device::of(device).and_then(|device| unsafe { put(out, device.gpu.pcie_generation) }))
}
