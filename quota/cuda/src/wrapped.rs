//! The table: every exported function, what it does for the limit, and where that is done. The libraries'
//! list of exported names is exactly the `wrap` part.

use core::ffi::{c_char, c_int, c_uint, c_ulonglong};

use crate::driver::{
    Address, AllocationProperties, Context, Device, Handle, NOT_SUPPORTED, Pointer, Pool, Result, Stream,
    Uuid,
};
use crate::{memory, report, resolve, vmm};

fgpu_quota_core::symbols! {
    library: fgpu_wire::REAL_CUDA, "libcuda.so.1";
    result: Result, absent: NOT_SUPPORTED;
    wrap {
        Alloc cuMemAlloc(pointer: *mut u32, bytes: c_uint) = memory::alloc_32;
        Alloc cuMemAlloc_v2(pointer: *mut Pointer, bytes: usize) = memory::alloc;
        Alloc cuMemAllocPitch(
            pointer: *mut u32, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint,
        ) = memory::alloc_pitch_32;
        Alloc cuMemAllocPitch_v2(
            pointer: *mut Pointer, pitch: *mut usize, width: usize, height: usize, element: c_uint,
        ) = memory::alloc_pitch;
        Alloc cuMemAllocManaged(pointer: *mut Pointer, bytes: usize, flags: c_uint) = memory::alloc_managed;
        Alloc cuMemAllocAsync(pointer: *mut Pointer, bytes: usize, stream: Stream) = memory::alloc_async;
        Alloc cuMemAllocAsync_ptsz(pointer: *mut Pointer, bytes: usize, stream: Stream)
            = memory::alloc_async_ptsz;
        Alloc cuMemAllocFromPoolAsync(pointer: *mut Pointer, bytes: usize, pool: Pool, stream: Stream)
            = memory::alloc_from_pool;
        Alloc cuMemAllocFromPoolAsync_ptsz(pointer: *mut Pointer, bytes: usize, pool: Pool, stream: Stream)
            = memory::alloc_from_pool_ptsz;
        Free cuMemFree(pointer: u32) = memory::free_32;
        Free cuMemFree_v2(pointer: Pointer) = memory::free;
        Free cuMemFreeAsync(pointer: Pointer, stream: Stream) = memory::free_async;
        Free cuMemFreeAsync_ptsz(pointer: Pointer, stream: Stream) = memory::free_async_ptsz;

        Alloc cuMemCreate(
            handle: *mut Handle, bytes: usize, properties: *const AllocationProperties, flags: c_ulonglong,
        ) = vmm::create;
        Free cuMemRelease(handle: Handle) = vmm::release;
        Hold cuMemRetainAllocationHandle(handle: *mut Handle, address: Address) = vmm::retain;
        Hold cuMemMap(pointer: Pointer, bytes: usize, offset: usize, handle: Handle, flags: c_ulonglong)
            = vmm::map;
        Free cuMemUnmap(pointer: Pointer, bytes: usize) = vmm::unmap;

        Report cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) = report::memory_32;
        Report cuMemGetInfo_v2(free: *mut usize, total: *mut usize) = report::memory;
        Report cuDeviceTotalMem(bytes: *mut c_uint, device: Device) = report::total_32;
        Report cuDeviceTotalMem_v2(bytes: *mut usize, device: Device) = report::total;

        Resolve cuGetProcAddress(
            name: *const c_char, address: *mut Address, version: c_int, flags: c_ulonglong,
        ) = resolve::proc_address;
        Resolve cuGetProcAddress_v2(
            name: *const c_char, address: *mut Address, version: c_int, flags: c_ulonglong, status: *mut c_int,
        ) = resolve::proc_address_v2;
    }
    call {
        cuCtxGetCurrent(context: *mut Context);
        cuCtxGetDevice(device: *mut Device);
        cuCtxPushCurrent_v2(context: Context);
        cuCtxPopCurrent_v2(context: *mut Context);
        cuStreamGetCtx(stream: Stream, context: *mut Context);
        cuDeviceGetUuid(uuid: *mut Uuid, device: Device);
    }
}
