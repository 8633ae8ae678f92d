//! The functions that are wrapped, and where that is done. The library's list of exported names is exactly the
//! `wrap` and `around` parts. What every name of the driver is, the others included, is in the crate `fgpu-quota-names`.

use core::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

use crate::driver::{
    Address, AllocNode, AllocationProperties, Array3dDescriptor, ArrayDescriptor, ArrayMapping, Context,
    Device, Handle, Location, NOT_SUPPORTED, NodeParameters, Object, Pointer, Pool, PoolProperties, Result,
    Stream, Uuid,
};
use crate::launch::OfSeveral;
use crate::{
    array, bind, code, compute, context, graph, green, launch, limits, memory, pool, report, resolve, vmm,
};

fgpu_quota_core::symbols! {
    library: "libcuda.so.1";
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
        Alloc cuMemAllocAsync(pointer: *mut Pointer, bytes: usize, stream: Stream) = pool::alloc_async;
        Alloc cuMemAllocAsync_ptsz(pointer: *mut Pointer, bytes: usize, stream: Stream)
            = pool::alloc_async_ptsz;
        Alloc cuMemAllocFromPoolAsync(pointer: *mut Pointer, bytes: usize, pool: Pool, stream: Stream)
            = pool::alloc_from_pool;
        Alloc cuMemAllocFromPoolAsync_ptsz(pointer: *mut Pointer, bytes: usize, pool: Pool, stream: Stream)
            = pool::alloc_from_pool_ptsz;
        Free cuMemFree(pointer: u32) = memory::free_32;
        Free cuMemFree_v2(pointer: Pointer) = memory::free;
        Free cuMemFreeAsync(pointer: Pointer, stream: Stream) = memory::free_async;
        Free cuMemFreeAsync_ptsz(pointer: Pointer, stream: Stream) = memory::free_async_ptsz;

        Alloc cuMemCreate(
            handle: *mut Handle, bytes: usize, properties: *const AllocationProperties, flags: c_ulonglong,
        ) = vmm::create;
        Free cuMemRelease(handle: Handle) = vmm::release;
        Hold cuMemRetainAllocationHandle(handle: *mut Handle, address: Address) = vmm::retain;
        Hold cuMemImportFromShareableHandle(handle: *mut Handle, shared: *mut c_void, kind: c_int) = vmm::import;
        Hold cuMemMap(pointer: Pointer, bytes: usize, offset: usize, handle: Handle, flags: c_ulonglong)
            = vmm::map;
        Free cuMemUnmap(pointer: Pointer, bytes: usize) = vmm::unmap;

        Alloc cuMemPoolCreate(pool: *mut Pool, properties: *const PoolProperties) = pool::create;
        Hold cuMemGetDefaultMemPool(pool: *mut Pool, location: *mut Location, kind: c_int) = pool::default_of;
        Hold cuMemGetMemPool(pool: *mut Pool, location: *mut Location, kind: c_int) = pool::current;
        Free cuMemPoolDestroy(pool: Pool) = pool::destroy;
        Free cuMemPoolTrimTo(pool: Pool, keep: usize) = pool::trim;
        Free cuStreamSynchronize(stream: Stream) = pool::synchronize_stream;
        Free cuStreamSynchronize_ptsz(stream: Stream) = pool::synchronize_stream_ptsz;
        Free cuCtxSynchronize() = pool::synchronize_context;
        Free cuCtxSynchronize_v2(context: Context) = pool::synchronize_context_v2;
        Free cuEventSynchronize(event: Object) = pool::synchronize_event;

        Alloc cuArrayCreate(array: *mut Object, descriptor: *const ArrayDescriptor<c_uint>) = array::create_32;
        Alloc cuArrayCreate_v2(array: *mut Object, descriptor: *const ArrayDescriptor<usize>) = array::create;
        Alloc cuArray3DCreate(array: *mut Object, descriptor: *const Array3dDescriptor<c_uint>)
            = array::create_3d_32;
        Alloc cuArray3DCreate_v2(array: *mut Object, descriptor: *const Array3dDescriptor<usize>)
            = array::create_3d;
        Alloc cuMipmappedArrayCreate(
            array: *mut Object, descriptor: *const Array3dDescriptor<usize>, levels: c_uint,
        ) = array::create_mipmapped;
        Free cuArrayDestroy(array: Object) = array::destroy;
        Free cuMipmappedArrayDestroy(array: Object) = array::destroy_mipmapped;

        Hold cuMulticastBindMem(
            object: Handle, offset: usize, handle: Handle, from: usize, bytes: usize, flags: c_ulonglong,
        ) = bind::memory;
        Hold cuMulticastBindMem_v2(
            object: Handle, device: Device, offset: usize, handle: Handle, from: usize, bytes: usize,
            flags: c_ulonglong,
        ) = bind::memory_v2;
        Hold cuMulticastBindAddr(
            object: Handle, offset: usize, pointer: Pointer, bytes: usize, flags: c_ulonglong,
        ) = bind::address;
        Hold cuMulticastBindAddr_v2(
            object: Handle, device: Device, offset: usize, pointer: Pointer, bytes: usize, flags: c_ulonglong,
        ) = bind::address_v2;
        Free cuMulticastUnbind(object: Handle, device: Device, offset: usize, bytes: usize) = bind::unbind;
        Hold cuMemMapArrayAsync(list: *mut ArrayMapping, count: c_uint, stream: Stream) = bind::tiles;
        Hold cuMemMapArrayAsync_ptsz(list: *mut ArrayMapping, count: c_uint, stream: Stream) = bind::tiles_ptsz;

        Alloc cuGraphAddMemAllocNode(
            node: *mut Object, graph: Object, after: *const Object, count: usize, alloc: *mut AllocNode,
        ) = graph::add_alloc;
        Alloc cuGraphAddNode(
            node: *mut Object, graph: Object, after: *const Object, count: usize, parameters: *mut NodeParameters,
        ) = graph::add_node;
        Alloc cuGraphAddNode_v2(
            node: *mut Object, graph: Object, after: *const Object, edges: *const c_void, count: usize,
            parameters: *mut NodeParameters,
        ) = graph::add_node_v2;
        Alloc cuGraphAddNode_v3(
            node: *mut Object, graph: Object, after: *const Object, edges: *const c_void, count: usize,
            parameters: *mut NodeParameters,
        ) = graph::add_node_v3;
        Alloc cuGraphInstantiate(
            executable: *mut Object, graph: Object, node: *mut Object, log: *mut c_char, length: usize,
        ) = graph::instantiate_v1;
        Alloc cuGraphInstantiate_v2(
            executable: *mut Object, graph: Object, node: *mut Object, log: *mut c_char, length: usize,
        ) = graph::instantiate_v2;
        Alloc cuGraphInstantiateWithFlags(executable: *mut Object, graph: Object, flags: c_ulonglong)
            = graph::instantiate_flags;
        Alloc cuGraphInstantiateWithParams(executable: *mut Object, graph: Object, parameters: *mut c_void)
            = graph::instantiate_parameters;
        Alloc cuGraphInstantiateWithParams_ptsz(executable: *mut Object, graph: Object, parameters: *mut c_void)
            = graph::instantiate_parameters_ptsz;
        Alloc cuGraphUpload(executable: Object, stream: Stream) = graph::upload;
        Alloc cuGraphUpload_ptsz(executable: Object, stream: Stream) = graph::upload_ptsz;
        Launch cuGraphLaunch(executable: Object, stream: Stream) = graph::launch;
        Launch cuGraphLaunch_ptsz(executable: Object, stream: Stream) = graph::launch_ptsz;
        Free cuGraphExecDestroy(executable: Object) = graph::destroy;
        Free cuDeviceGraphMemTrim(device: Device) = graph::trim;

        Alloc cuCtxCreate(context: *mut Context, flags: c_uint, device: Device) = context::create_v1;
        Alloc cuCtxCreate_v2(context: *mut Context, flags: c_uint, device: Device) = context::create_v2;
        Alloc cuCtxCreate_v3(
            context: *mut Context, affinities: *mut c_void, count: c_int, flags: c_uint, device: Device,
        ) = context::create_v3;
        Alloc cuCtxCreate_v4(context: *mut Context, parameters: *mut c_void, flags: c_uint, device: Device)
            = context::create_v4;
        Alloc cuGLCtxCreate(context: *mut Context, flags: c_uint, device: Device) = context::create_gl;
        Alloc cuGLCtxCreate_v2(context: *mut Context, flags: c_uint, device: Device) = context::create_gl_v2;
        Alloc cuVDPAUCtxCreate(
            context: *mut Context, flags: c_uint, device: Device, display: c_uint, functions: *mut c_void,
        ) = context::create_vdpau;
        Alloc cuVDPAUCtxCreate_v2(
            context: *mut Context, flags: c_uint, device: Device, display: c_uint, functions: *mut c_void,
        ) = context::create_vdpau_v2;
        Alloc cuDevicePrimaryCtxRetain(context: *mut Context, device: Device) = context::retain;
        Alloc cuGreenCtxCreate(context: *mut Object, resources: *mut c_void, device: Device, flags: c_uint)
            = green::create;
        Alloc cuCtxSetLimit(which: c_int, value: usize) = limits::set;
        Hold cuCtxFromGreenCtx(context: *mut Context, green: Object) = green::from_green;
        Hold cuCtxAttach(context: *mut Context, flags: c_uint) = context::attach;
        Free cuCtxDetach(context: Context) = context::detach;
        Free cuCtxDestroy(context: Context) = context::destroy_v1;
        Free cuCtxDestroy_v2(context: Context) = context::destroy;
        Free cuDevicePrimaryCtxRelease(device: Device) = context::release_v1;
        Free cuDevicePrimaryCtxRelease_v2(device: Device) = context::release;
        Free cuDevicePrimaryCtxReset(device: Device) = context::reset_v1;
        Free cuDevicePrimaryCtxReset_v2(device: Device) = context::reset;
        Free cuGreenCtxDestroy(context: Object) = green::destroy;

        Alloc cuModuleLoad(module: *mut Object, path: *const c_char) = code::module_load;
        Alloc cuModuleLoadData(module: *mut Object, image: *const c_void) = code::module_load_data;
        Alloc cuModuleLoadDataEx(
            module: *mut Object, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void,
        ) = code::module_load_data_ex;
        Alloc cuModuleLoadFatBinary(module: *mut Object, image: *const c_void) = code::module_load_fat;
        Alloc cuModuleGetFunction(function: *mut Object, module: Object, name: *const c_char)
            = code::module_function;
        Alloc cuModuleGetGlobal_v2(
            pointer: *mut Pointer, bytes: *mut usize, module: Object, name: *const c_char,
        ) = code::module_global;
        Alloc cuLibraryLoadData(
            library: *mut Object, code: *const c_void, options: *mut c_int, values: *mut *mut c_void, count: c_uint,
            library_options: *mut c_int, library_values: *mut *mut c_void, library_count: c_uint,
        ) = code::library_load_data;
        Alloc cuLibraryLoadFromFile(
            library: *mut Object, path: *const c_char, options: *mut c_int, values: *mut *mut c_void, count: c_uint,
            library_options: *mut c_int, library_values: *mut *mut c_void, library_count: c_uint,
        ) = code::library_load_file;
        Alloc cuLibraryGetModule(module: *mut Object, library: Object) = code::library_module;
        Alloc cuLibraryGetGlobal(
            pointer: *mut Pointer, bytes: *mut usize, library: Object, name: *const c_char,
        ) = code::library_global;
        Alloc cuLibraryGetManaged(
            pointer: *mut Pointer, bytes: *mut usize, library: Object, name: *const c_char,
        ) = code::library_managed;
        Alloc cuKernelGetFunction(function: *mut Object, kernel: Object) = code::kernel_function;
        Alloc cuFuncLoad(function: Object) = code::function_load;
        Alloc cuLinkComplete(state: Object, image: *mut *mut c_void, bytes: *mut usize) = code::link;
        Free cuModuleUnload(module: Object) = code::module_unload;
        Free cuLibraryUnload(library: Object) = code::library_unload;

        Launch cuLaunchKernel(
            function: Object, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
            block_z: c_uint, shared: c_uint, stream: Stream, parameters: *mut *mut c_void, extra: *mut *mut c_void,
        ) = launch::kernel;
        Launch cuLaunchKernelEx(
            configuration: *const c_void, function: Object, parameters: *mut *mut c_void, extra: *mut *mut c_void,
        ) = launch::kernel_ex;
        Launch cuLaunchCooperativeKernel(
            function: Object, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
            block_z: c_uint, shared: c_uint, stream: Stream, parameters: *mut *mut c_void,
        ) = launch::cooperative;
        Launch cuLaunchKernel_ptsz(
            function: Object, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
            block_z: c_uint, shared: c_uint, stream: Stream, parameters: *mut *mut c_void, extra: *mut *mut c_void,
        ) = launch::kernel_ptsz;
        Launch cuLaunchKernelEx_ptsz(
            configuration: *const c_void, function: Object, parameters: *mut *mut c_void, extra: *mut *mut c_void,
        ) = launch::kernel_ex_ptsz;
        Launch cuLaunchCooperativeKernel_ptsz(
            function: Object, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint,
            block_z: c_uint, shared: c_uint, stream: Stream, parameters: *mut *mut c_void,
        ) = launch::cooperative_ptsz;
        Launch cuLaunchCooperativeKernelMultiDevice(list: *mut OfSeveral, count: c_uint, flags: c_uint)
            = launch::cooperative_of_several;
        Launch cuLaunch(function: Object) = launch::plain;
        Launch cuLaunchGrid(function: Object, width: c_int, height: c_int) = launch::grid;
        Launch cuLaunchGridAsync(function: Object, width: c_int, height: c_int, stream: Stream)
            = launch::grid_async;

        Launch cuStreamDestroy(stream: Stream) = compute::destroy_v1;
        Launch cuStreamDestroy_v2(stream: Stream) = compute::destroy;

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
    around {
        Follow cuMemcpy(to: Pointer, from: Pointer, bytes: usize) = compute::wait;
        Follow cuMemcpy_ptds(to: Pointer, from: Pointer, bytes: usize) = compute::wait;
        Follow cuMemcpyHtoD(to: u32, from: *const c_void, bytes: c_uint) = compute::wait;
        Follow cuMemcpyHtoD_v2(to: Pointer, from: *const c_void, bytes: usize) = compute::wait;
        Follow cuMemcpyHtoD_v2_ptds(to: Pointer, from: *const c_void, bytes: usize) = compute::wait;
        Follow cuMemcpyDtoH(to: *mut c_void, from: u32, bytes: c_uint) = compute::wait;
        Follow cuMemcpyDtoH_v2(to: *mut c_void, from: Pointer, bytes: usize) = compute::wait;
        Follow cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: Pointer, bytes: usize) = compute::wait;
        Follow cuMemcpyDtoD(to: u32, from: u32, bytes: c_uint) = compute::wait;
        Follow cuMemcpyDtoD_v2(to: Pointer, from: Pointer, bytes: usize) = compute::wait;
        Follow cuMemcpyDtoD_v2_ptds(to: Pointer, from: Pointer, bytes: usize) = compute::wait;
        Follow cuMemcpy2D(copy: *const c_void) = compute::wait;
        Follow cuMemcpy2D_v2(copy: *const c_void) = compute::wait;
        Follow cuMemcpy2D_v2_ptds(copy: *const c_void) = compute::wait;
        Follow cuMemcpy2DUnaligned(copy: *const c_void) = compute::wait;
        Follow cuMemcpy2DUnaligned_v2(copy: *const c_void) = compute::wait;
        Follow cuMemcpy2DUnaligned_v2_ptds(copy: *const c_void) = compute::wait;
        Follow cuMemcpy3D(copy: *const c_void) = compute::wait;
        Follow cuMemcpy3D_v2(copy: *const c_void) = compute::wait;
        Follow cuMemcpy3D_v2_ptds(copy: *const c_void) = compute::wait;
        Follow cuMemcpyAsync(to: Pointer, from: Pointer, bytes: usize, stream: Stream) = compute::follow;
        Follow cuMemcpyAsync_ptsz(to: Pointer, from: Pointer, bytes: usize, stream: Stream) = compute::follow;
        Follow cuMemcpyHtoDAsync(to: u32, from: *const c_void, bytes: c_uint, stream: Stream) = compute::follow;
        Follow cuMemcpyHtoDAsync_v2(to: Pointer, from: *const c_void, bytes: usize, stream: Stream)
            = compute::follow;
        Follow cuMemcpyHtoDAsync_v2_ptsz(to: Pointer, from: *const c_void, bytes: usize, stream: Stream)
            = compute::follow;
        Follow cuMemcpyDtoHAsync(to: *mut c_void, from: u32, bytes: c_uint, stream: Stream) = compute::follow;
        Follow cuMemcpyDtoHAsync_v2(to: *mut c_void, from: Pointer, bytes: usize, stream: Stream)
            = compute::follow;
        Follow cuMemcpyDtoHAsync_v2_ptsz(to: *mut c_void, from: Pointer, bytes: usize, stream: Stream)
            = compute::follow;
        Follow cuMemcpyDtoDAsync(to: u32, from: u32, bytes: c_uint, stream: Stream) = compute::follow;
        Follow cuMemcpyDtoDAsync_v2(to: Pointer, from: Pointer, bytes: usize, stream: Stream) = compute::follow;
        Follow cuMemcpyDtoDAsync_v2_ptsz(to: Pointer, from: Pointer, bytes: usize, stream: Stream)
            = compute::follow;
        Follow cuMemcpy2DAsync(copy: *const c_void, stream: Stream) = compute::follow;
        Follow cuMemcpy2DAsync_v2(copy: *const c_void, stream: Stream) = compute::follow;
        Follow cuMemcpy2DAsync_v2_ptsz(copy: *const c_void, stream: Stream) = compute::follow;
        Follow cuMemcpy3DAsync(copy: *const c_void, stream: Stream) = compute::follow;
        Follow cuMemcpy3DAsync_v2(copy: *const c_void, stream: Stream) = compute::follow;
        Follow cuMemcpy3DAsync_v2_ptsz(copy: *const c_void, stream: Stream) = compute::follow;
        Follow cuEventRecord(event: Object, stream: Stream) = compute::follow;
        Follow cuEventRecord_ptsz(event: Object, stream: Stream) = compute::follow;
        Follow cuEventRecordWithFlags(event: Object, stream: Stream, flags: c_uint) = compute::follow;
        Follow cuEventRecordWithFlags_ptsz(event: Object, stream: Stream, flags: c_uint) = compute::follow;
        Follow cuLaunchHostFunc(stream: Stream, function: Address, data: *mut c_void) = compute::follow;
        Follow cuLaunchHostFunc_ptsz(stream: Stream, function: Address, data: *mut c_void) = compute::follow;
        Follow cuLaunchHostFunc_v2(stream: Stream, function: Address, data: *mut c_void, mode: c_uint)
            = compute::follow;
        Follow cuLaunchHostFunc_v2_ptsz(stream: Stream, function: Address, data: *mut c_void, mode: c_uint)
            = compute::follow;
        Follow cuStreamAddCallback(stream: Stream, function: Address, data: *mut c_void, flags: c_uint)
            = compute::follow;
        Follow cuStreamAddCallback_ptsz(stream: Stream, function: Address, data: *mut c_void, flags: c_uint)
            = compute::follow;
        Follow cuMemsetD8Async(to: Pointer, value: c_uchar, count: usize, stream: Stream) = compute::follow_late;
        Follow cuMemsetD8Async_ptsz(to: Pointer, value: c_uchar, count: usize, stream: Stream)
            = compute::follow_late;
        Follow cuMemsetD16Async(to: Pointer, value: c_ushort, count: usize, stream: Stream) = compute::follow_late;
        Follow cuMemsetD16Async_ptsz(to: Pointer, value: c_ushort, count: usize, stream: Stream)
            = compute::follow_late;
        Follow cuMemsetD32Async(to: Pointer, value: c_uint, count: usize, stream: Stream) = compute::follow_late;
        Follow cuMemsetD32Async_ptsz(to: Pointer, value: c_uint, count: usize, stream: Stream)
            = compute::follow_late;
        Follow cuStreamQuery(stream: Stream) = compute::follow_late;
        Follow cuStreamQuery_ptsz(stream: Stream) = compute::follow_late;
        Follow cuEventQuery(event: Object) = compute::follow_late;

        Capture cuStreamBeginCapture(stream: Stream) = compute::capture;
        Capture cuStreamBeginCapture_ptsz(stream: Stream) = compute::capture;
        Capture cuStreamBeginCapture_v2(stream: Stream, mode: c_int) = compute::capture;
        Capture cuStreamBeginCapture_v2_ptsz(stream: Stream, mode: c_int) = compute::capture;
        Capture cuStreamBeginCaptureToGraph(
            stream: Stream, graph: Object, after: *const Object, edges: *const c_void, count: usize, mode: c_int,
        ) = compute::capture;
        Capture cuStreamBeginCaptureToGraph_ptsz(
            stream: Stream, graph: Object, after: *const Object, edges: *const c_void, count: usize, mode: c_int,
        ) = compute::capture;
        Capture cuStreamBeginRecaptureToGraph(
            stream: Stream, mode: c_int, graph: Object, callback: Address, data: *mut c_void,
        ) = compute::capture;
        Capture cuStreamBeginRecaptureToGraph_ptsz(
            stream: Stream, mode: c_int, graph: Object, callback: Address, data: *mut c_void,
        ) = compute::capture;
        Capture cuStreamBeginCaptureToCig(stream: Stream, parameters: *mut c_void) = compute::capture;
        Capture cuStreamBeginCaptureToCig_ptsz(stream: Stream, parameters: *mut c_void) = compute::capture;
    }
    call {
        cuCtxGetCurrent(context: *mut Context);
        cuCtxGetDevice(device: *mut Device);
        cuCtxPushCurrent_v2(context: Context);
        cuCtxPopCurrent_v2(context: *mut Context);
        cuStreamGetCtx(stream: Stream, context: *mut Context);
        cuStreamIsCapturing(stream: Stream, status: *mut c_int);
        cuStreamIsCapturing_ptsz(stream: Stream, status: *mut c_int);
        cuThreadExchangeStreamCaptureMode(mode: *mut c_int);
        cuEventCreate(event: *mut Object, flags: c_uint);
        cuEventElapsedTime(milliseconds: *mut f32, from: Object, to: Object);
        cuDeviceGetAttribute(value: *mut c_int, which: c_int, device: Device);
        cuDeviceGetMemPool(pool: *mut Pool, device: Device);
        cuMemPoolGetAttribute(pool: Pool, which: c_int, value: *mut c_void);
        cuDeviceGetGraphMemAttribute(device: Device, which: c_int, value: *mut c_void);
        cuDevicePrimaryCtxGetState(device: Device, flags: *mut c_uint, active: *mut c_int);
        cuCtxGetLimit(value: *mut usize, which: c_int);
        cuFuncGetAttribute(value: *mut c_int, which: c_int, function: Object);
        cuGraphGetNodes(graph: Object, nodes: *mut Object, count: *mut usize);
        cuGraphNodeGetType(node: Object, kind: *mut c_int);
        cuGraphChildGraphNodeGetGraph(node: Object, graph: *mut Object);
        cuGraphMemAllocNodeGetParams(node: Object, alloc: *mut AllocNode);
        cuDeviceGetUuid(uuid: *mut Uuid, device: Device);
    }
}
