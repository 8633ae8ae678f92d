//! The table of the driver's functions that are wrapped, and of those that are only called.
//!
//! Each row says which function of ours does it; [`exports!`](fgpu_quota_core::exports) tells how it is read.
//! The exported names are exactly the `wrap` part. The crate `fgpu-quota-names` says what every function of
//! the driver does for the limit.

/// Hands the table to a macro.
macro_rules! table {
    ($($with:ident)::+) => { $($with)::+! {
    library: "libcuda.so.1";
    result: Result, absent: NOT_SUPPORTED;
    wrap {
        // Allocations by pointer, and their frees.
        cuMemAlloc(pointer: *mut u32, bytes: c_uint) = memory::allocate(pointer, bytes.into());
        cuMemAlloc_v2(pointer: *mut Pointer, bytes: usize) = memory::allocate(pointer, bytes as u64);
        cuMemAllocPitch(pointer: *mut u32, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint)
            = memory::allocate_pitch(pointer, pitch, width.into(), height.into());
        cuMemAllocPitch_v2(
            pointer: *mut Pointer, pitch: *mut usize, width: usize, height: usize, element: c_uint,
        ) = memory::allocate_pitch(pointer, pitch, width as u64, height as u64);
        cuMemAllocManaged(pointer: *mut Pointer, bytes: usize, flags: c_uint)
            = memory::allocate(pointer, bytes as u64);
        cuMemAllocAsync(pointer: *mut Pointer, bytes: usize, stream: Stream)
            = pool::allocate(pointer, bytes, None, stream, Legacy);
        cuMemAllocAsync_ptsz(pointer: *mut Pointer, bytes: usize, stream: Stream)
            = pool::allocate(pointer, bytes, None, stream, PerThread);
        cuMemAllocFromPoolAsync(pointer: *mut Pointer, bytes: usize, pool: Pool, stream: Stream)
            = pool::allocate(pointer, bytes, Some(pool), stream, Legacy);
        cuMemAllocFromPoolAsync_ptsz(pointer: *mut Pointer, bytes: usize, pool: Pool, stream: Stream)
            = pool::allocate(pointer, bytes, Some(pool), stream, PerThread);
        cuMemFree(pointer: u32) = memory::free(pointer.into());
        cuMemFree_v2(pointer: Pointer) = memory::free(pointer);
        cuMemFreeAsync(pointer: Pointer, stream: Stream) = memory::free(pointer);
        cuMemFreeAsync_ptsz(pointer: Pointer, stream: Stream) = memory::free(pointer);

        // Memory of handles.
        cuMemCreate(
            handle: *mut Handle, bytes: usize, properties: *const AllocationProperties, flags: c_ulonglong,
        ) = vmm::create(handle, bytes, properties);
        cuMemRelease(handle: Handle) = vmm::release(handle);
        cuMemRetainAllocationHandle(handle: *mut Handle, address: Address) = vmm::retain(handle, address);
        cuMemImportFromShareableHandle(handle: *mut Handle, shared: *mut c_void, kind: c_int)
            = vmm::import(handle);
        cuMemMap(pointer: Pointer, bytes: usize, offset: usize, handle: Handle, flags: c_ulonglong)
            = vmm::map(pointer, bytes, handle);
        cuMemUnmap(pointer: Pointer, bytes: usize) = vmm::unmap(pointer, bytes);

        // Pools, and calls at which the driver gives memory of pools back.
        cuMemPoolCreate(pool: *mut Pool, properties: *const PoolProperties) = pool::create(pool, properties);
        cuMemGetDefaultMemPool(pool: *mut Pool, location: *mut Location, kind: c_int)
            = pool::note(pool, location, kind);
        cuMemGetMemPool(pool: *mut Pool, location: *mut Location, kind: c_int)
            = pool::note(pool, location, kind);
        cuMemPoolDestroy(pool: Pool) = pool::destroy(pool);
        cuMemPoolTrimTo(pool: Pool, keep: usize) = pool::settle_after();
        cuStreamSynchronize(stream: Stream) = pool::synchronize();
        cuStreamSynchronize_ptsz(stream: Stream) = pool::synchronize();
        cuCtxSynchronize() = pool::synchronize();
        cuCtxSynchronize_v2(context: Context) = pool::synchronize();
        cuEventSynchronize(event: Object) = pool::synchronize();

        // Arrays.
        cuArrayCreate(array: *mut Object, descriptor: *const ArrayDescriptor<c_uint>)
            = array::create(array, descriptor, 1);
        cuArrayCreate_v2(array: *mut Object, descriptor: *const ArrayDescriptor<usize>)
            = array::create(array, descriptor, 1);
        cuArray3DCreate(array: *mut Object, descriptor: *const Array3dDescriptor<c_uint>)
            = array::create(array, descriptor, 1);
        cuArray3DCreate_v2(array: *mut Object, descriptor: *const Array3dDescriptor<usize>)
            = array::create(array, descriptor, 1);
        cuMipmappedArrayCreate(
            array: *mut Object, descriptor: *const Array3dDescriptor<usize>, levels: c_uint,
        ) = array::create(array, descriptor, levels);
        cuArrayDestroy(array: Object) = array::destroy(array);
        cuMipmappedArrayDestroy(array: Object) = array::destroy(array);

        // Bindings of memory of handles.
        cuMulticastBindMem(
            object: Handle, offset: usize, handle: Handle, from: usize, bytes: usize, flags: c_ulonglong,
        ) = bind::multicast(object, None, offset, Source::Handle(handle));
        cuMulticastBindMem_v2(
            object: Handle, device: Device, offset: usize, handle: Handle, from: usize, bytes: usize,
            flags: c_ulonglong,
        ) = bind::multicast(object, Some(device), offset, Source::Handle(handle));
        cuMulticastBindAddr(object: Handle, offset: usize, pointer: Pointer, bytes: usize, flags: c_ulonglong)
            = bind::multicast(object, None, offset, Source::Address(pointer));
        cuMulticastBindAddr_v2(
            object: Handle, device: Device, offset: usize, pointer: Pointer, bytes: usize, flags: c_ulonglong,
        ) = bind::multicast(object, Some(device), offset, Source::Address(pointer));
        cuMulticastUnbind(object: Handle, device: Device, offset: usize, bytes: usize)
            = bind::unbind(object, device, offset);
        cuMemMapArrayAsync(list: *mut ArrayMapping, count: c_uint, stream: Stream) = bind::tiles(list, count);
        cuMemMapArrayAsync_ptsz(list: *mut ArrayMapping, count: c_uint, stream: Stream)
            = bind::tiles(list, count);

        // Graphs.
        cuGraphAddMemAllocNode(
            node: *mut Object, graph: Object, after: *const Object, count: usize, alloc: *mut AllocNode,
        ) = graph::add_alloc_node(alloc);
        cuGraphAddNode(
            node: *mut Object, graph: Object, after: *const Object, count: usize,
            parameters: *mut NodeParameters,
        ) = graph::add_node(parameters);
        cuGraphAddNode_v2(
            node: *mut Object, graph: Object, after: *const Object, edges: *const c_void, count: usize,
            parameters: *mut NodeParameters,
        ) = graph::add_node(parameters);
        cuGraphAddNode_v3(
            node: *mut Object, graph: Object, after: *const Object, edges: *const c_void, count: usize,
            parameters: *mut NodeParameters,
        ) = graph::add_node(parameters);
        cuGraphInstantiate(
            executable: *mut Object, graph: Object, node: *mut Object, log: *mut c_char, length: usize,
        ) = graph::instantiate(executable, graph);
        cuGraphInstantiate_v2(
            executable: *mut Object, graph: Object, node: *mut Object, log: *mut c_char, length: usize,
        ) = graph::instantiate(executable, graph);
        cuGraphInstantiateWithFlags(executable: *mut Object, graph: Object, flags: c_ulonglong)
            = graph::instantiate(executable, graph);
        cuGraphInstantiateWithParams(executable: *mut Object, graph: Object, parameters: *mut c_void)
            = graph::instantiate(executable, graph);
        cuGraphInstantiateWithParams_ptsz(executable: *mut Object, graph: Object, parameters: *mut c_void)
            = graph::instantiate(executable, graph);
        cuGraphUpload(executable: Object, stream: Stream) = graph::run(executable);
        cuGraphUpload_ptsz(executable: Object, stream: Stream) = graph::run(executable);
        cuGraphLaunch(executable: Object, stream: Stream) = graph::launch(executable, stream, Legacy);
        cuGraphLaunch_ptsz(executable: Object, stream: Stream) = graph::launch(executable, stream, PerThread);
        cuGraphExecDestroy(executable: Object) = graph::destroy(executable);
        cuDeviceGraphMemTrim(device: Device) = graph::trim();

        // Contexts.
        cuCtxCreate(context: *mut Context, flags: c_uint, device: Device) = context::create(context, device);
        cuCtxCreate_v2(context: *mut Context, flags: c_uint, device: Device)
            = context::create(context, device);
        cuCtxCreate_v3(
            context: *mut Context, affinities: *mut c_void, count: c_int, flags: c_uint, device: Device,
        ) = context::create(context, device);
        cuCtxCreate_v4(context: *mut Context, parameters: *mut c_void, flags: c_uint, device: Device)
            = context::create(context, device);
        cuGLCtxCreate(context: *mut Context, flags: c_uint, device: Device)
            = context::create(context, device);
        cuGLCtxCreate_v2(context: *mut Context, flags: c_uint, device: Device)
            = context::create(context, device);
        cuVDPAUCtxCreate(
            context: *mut Context, flags: c_uint, device: Device, display: c_uint, functions: *mut c_void,
        ) = context::create(context, device);
        cuVDPAUCtxCreate_v2(
            context: *mut Context, flags: c_uint, device: Device, display: c_uint, functions: *mut c_void,
        ) = context::create(context, device);
        cuDevicePrimaryCtxRetain(context: *mut Context, device: Device) = primary::retain(context, device);
        cuGreenCtxCreate(context: *mut Object, resources: *mut c_void, device: Device, flags: c_uint)
            = green::create(context, device);
        cuCtxSetLimit(which: c_int, value: usize) = limits::set(which, value);
        cuCtxFromGreenCtx(context: *mut Context, green: Object) = green::note_context(context, green);
        cuCtxAttach(context: *mut Context, flags: c_uint) = context::attach(context);
        cuCtxDetach(context: Context) = context::detach(context);
        cuCtxDestroy(context: Context) = context::destroy(context);
        cuCtxDestroy_v2(context: Context) = context::destroy(context);
        cuDevicePrimaryCtxRelease(device: Device) = primary::release(device);
        cuDevicePrimaryCtxRelease_v2(device: Device) = primary::release(device);
        cuDevicePrimaryCtxReset(device: Device) = primary::reset(device);
        cuDevicePrimaryCtxReset_v2(device: Device) = primary::reset(device);
        cuGreenCtxDestroy(context: Object) = green::destroy(context);

        // Code.
        cuModuleLoad(module: *mut Object, path: *const c_char) = code::load(module, real::cuModuleUnload);
        cuModuleLoadData(module: *mut Object, image: *const c_void)
            = code::load(module, real::cuModuleUnload);
        cuModuleLoadDataEx(
            module: *mut Object, image: *const c_void, count: c_uint, options: *mut c_int,
            values: *mut *mut c_void,
        ) = code::load(module, real::cuModuleUnload);
        cuModuleLoadFatBinary(module: *mut Object, image: *const c_void)
            = code::load(module, real::cuModuleUnload);
        cuModuleGetFunction(function: *mut Object, module: Object, name: *const c_char)
            = code::first_use(code::function_key(module, name));
        cuModuleGetGlobal_v2(pointer: *mut Pointer, bytes: *mut usize, module: Object, name: *const c_char)
            = code::first_use(module as u64);
        cuLibraryLoadData(
            library: *mut Object, code: *const c_void, options: *mut c_int, values: *mut *mut c_void,
            count: c_uint, library_options: *mut c_int, library_values: *mut *mut c_void,
            library_count: c_uint,
        ) = code::load(library, real::cuLibraryUnload);
        cuLibraryLoadFromFile(
            library: *mut Object, path: *const c_char, options: *mut c_int, values: *mut *mut c_void,
            count: c_uint, library_options: *mut c_int, library_values: *mut *mut c_void,
            library_count: c_uint,
        ) = code::load(library, real::cuLibraryUnload);
        cuLibraryGetModule(module: *mut Object, library: Object) = code::first_use(library as u64);
        cuLibraryGetGlobal(pointer: *mut Pointer, bytes: *mut usize, library: Object, name: *const c_char)
            = code::first_use(library as u64);
        cuLibraryGetManaged(pointer: *mut Pointer, bytes: *mut usize, library: Object, name: *const c_char)
            = code::first_use(library as u64);
        cuKernelGetFunction(function: *mut Object, kernel: Object) = code::first_use(kernel as u64);
        cuFuncLoad(function: Object) = code::first_use(function as u64);
        cuLinkComplete(state: Object, image: *mut *mut c_void, bytes: *mut usize) = code::late(|| PIECE);
        cuModuleUnload(module: Object) = code::unload(module);
        cuLibraryUnload(library: Object) = code::unload(library);

        // Launches.
        cuLaunchKernel(
            function: Object, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
            block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, parameters: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) = launch::kernel(function, stream, Legacy);
        cuLaunchKernelEx(
            configuration: *const c_void, function: Object, parameters: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) = launch::kernel(function, launch::stream_of(configuration), Legacy);
        cuLaunchCooperativeKernel(
            function: Object, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
            block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, parameters: *mut *mut c_void,
        ) = launch::kernel(function, stream, Legacy);
        cuLaunchKernel_ptsz(
            function: Object, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
            block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, parameters: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) = launch::kernel(function, stream, PerThread);
        cuLaunchKernelEx_ptsz(
            configuration: *const c_void, function: Object, parameters: *mut *mut c_void,
            extra: *mut *mut c_void,
        ) = launch::kernel(function, launch::stream_of(configuration), PerThread);
        cuLaunchCooperativeKernel_ptsz(
            function: Object, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
            block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Stream, parameters: *mut *mut c_void,
        ) = launch::kernel(function, stream, PerThread);
        cuLaunchCooperativeKernelMultiDevice(list: *mut LaunchParameters, count: c_uint, flags: c_uint)
            = launch::on_several_devices(list, count);
        cuLaunch(function: Object) = launch::kernel(function, null_mut(), Legacy);
        cuLaunchGrid(function: Object, width: c_int, height: c_int)
            = launch::kernel(function, null_mut(), Legacy);
        cuLaunchGridAsync(function: Object, width: c_int, height: c_int, stream: Stream)
            = launch::kernel(function, stream, Legacy);

        // Streams.
        cuStreamDestroy(stream: Stream) = compute::destroy_stream(stream);
        cuStreamDestroy_v2(stream: Stream) = compute::destroy_stream(stream);

        // How much memory there is.
        cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) = report::memory(free, total);
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize) = report::memory(free, total);
        cuDeviceTotalMem(bytes: *mut c_uint, device: Device) = report::device_total(bytes, device);
        cuDeviceTotalMem_v2(bytes: *mut usize, device: Device) = report::device_total(bytes, device);

        // Functions by name.
        cuGetProcAddress(name: *const c_char, address: *mut Address, version: c_int, flags: c_ulonglong)
            = resolve::proc_address(EXPORTS, address);
        cuGetProcAddress_v2(
            name: *const c_char, address: *mut Address, version: c_int, flags: c_ulonglong,
            status: *mut c_int,
        ) = resolve::proc_address_v2(
            EXPORTS, address, status, || real::cuGetProcAddress(name, address, version, flags),
        );

        // What follows a launch: waits, copies, fills, questions.
        cuMemcpy(to: Pointer, from: Pointer, bytes: usize) = compute::wait();
        cuMemcpy_ptds(to: Pointer, from: Pointer, bytes: usize) = compute::wait();
        cuMemcpyHtoD(to: u32, from: *const c_void, bytes: c_uint) = compute::wait();
        cuMemcpyHtoD_v2(to: Pointer, from: *const c_void, bytes: usize) = compute::wait();
        cuMemcpyHtoD_v2_ptds(to: Pointer, from: *const c_void, bytes: usize) = compute::wait();
        cuMemcpyDtoH(to: *mut c_void, from: u32, bytes: c_uint) = compute::wait();
        cuMemcpyDtoH_v2(to: *mut c_void, from: Pointer, bytes: usize) = compute::wait();
        cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: Pointer, bytes: usize) = compute::wait();
        cuMemcpyDtoD(to: u32, from: u32, bytes: c_uint) = compute::wait();
        cuMemcpyDtoD_v2(to: Pointer, from: Pointer, bytes: usize) = compute::wait();
        cuMemcpyDtoD_v2_ptds(to: Pointer, from: Pointer, bytes: usize) = compute::wait();
        cuMemcpy2D(copy: *const c_void) = compute::wait();
        cuMemcpy2D_v2(copy: *const c_void) = compute::wait();
        cuMemcpy2D_v2_ptds(copy: *const c_void) = compute::wait();
        cuMemcpy2DUnaligned(copy: *const c_void) = compute::wait();
        cuMemcpy2DUnaligned_v2(copy: *const c_void) = compute::wait();
        cuMemcpy2DUnaligned_v2_ptds(copy: *const c_void) = compute::wait();
        cuMemcpy3D(copy: *const c_void) = compute::wait();
        cuMemcpy3D_v2(copy: *const c_void) = compute::wait();
        cuMemcpy3D_v2_ptds(copy: *const c_void) = compute::wait();
        cuMemcpyAsync(to: Pointer, from: Pointer, bytes: usize, stream: Stream) = compute::follow();
        cuMemcpyAsync_ptsz(to: Pointer, from: Pointer, bytes: usize, stream: Stream) = compute::follow();
        cuMemcpyHtoDAsync(to: u32, from: *const c_void, bytes: c_uint, stream: Stream) = compute::follow();
        cuMemcpyHtoDAsync_v2(to: Pointer, from: *const c_void, bytes: usize, stream: Stream)
            = compute::follow();
        cuMemcpyHtoDAsync_v2_ptsz(to: Pointer, from: *const c_void, bytes: usize, stream: Stream)
            = compute::follow();
        cuMemcpyDtoHAsync(to: *mut c_void, from: u32, bytes: c_uint, stream: Stream) = compute::follow();
        cuMemcpyDtoHAsync_v2(to: *mut c_void, from: Pointer, bytes: usize, stream: Stream)
            = compute::follow();
        cuMemcpyDtoHAsync_v2_ptsz(to: *mut c_void, from: Pointer, bytes: usize, stream: Stream)
            = compute::follow();
        cuMemcpyDtoDAsync(to: u32, from: u32, bytes: c_uint, stream: Stream) = compute::follow();
        cuMemcpyDtoDAsync_v2(to: Pointer, from: Pointer, bytes: usize, stream: Stream) = compute::follow();
        cuMemcpyDtoDAsync_v2_ptsz(to: Pointer, from: Pointer, bytes: usize, stream: Stream)
            = compute::follow();
        cuMemcpy2DAsync(copy: *const c_void, stream: Stream) = compute::follow();
        cuMemcpy2DAsync_v2(copy: *const c_void, stream: Stream) = compute::follow();
        cuMemcpy2DAsync_v2_ptsz(copy: *const c_void, stream: Stream) = compute::follow();
        cuMemcpy3DAsync(copy: *const c_void, stream: Stream) = compute::follow();
        cuMemcpy3DAsync_v2(copy: *const c_void, stream: Stream) = compute::follow();
        cuMemcpy3DAsync_v2_ptsz(copy: *const c_void, stream: Stream) = compute::follow();
        cuEventRecord(event: Object, stream: Stream) = compute::follow();
        cuEventRecord_ptsz(event: Object, stream: Stream) = compute::follow();
        cuEventRecordWithFlags(event: Object, stream: Stream, flags: c_uint) = compute::follow();
        cuEventRecordWithFlags_ptsz(event: Object, stream: Stream, flags: c_uint) = compute::follow();
        cuLaunchHostFunc(stream: Stream, function: Address, data: *mut c_void) = compute::follow();
        cuLaunchHostFunc_ptsz(stream: Stream, function: Address, data: *mut c_void) = compute::follow();
        cuLaunchHostFunc_v2(stream: Stream, function: Address, data: *mut c_void, mode: c_uint)
            = compute::follow();
        cuLaunchHostFunc_v2_ptsz(stream: Stream, function: Address, data: *mut c_void, mode: c_uint)
            = compute::follow();
        cuStreamAddCallback(stream: Stream, function: Address, data: *mut c_void, flags: c_uint)
            = compute::follow();
        cuStreamAddCallback_ptsz(stream: Stream, function: Address, data: *mut c_void, flags: c_uint)
            = compute::follow();
        cuMemsetD8Async(to: Pointer, value: c_uchar, count: usize, stream: Stream) = compute::poll();
        cuMemsetD8Async_ptsz(to: Pointer, value: c_uchar, count: usize, stream: Stream)
            = compute::poll();
        cuMemsetD16Async(to: Pointer, value: c_ushort, count: usize, stream: Stream) = compute::poll();
        cuMemsetD16Async_ptsz(to: Pointer, value: c_ushort, count: usize, stream: Stream)
            = compute::poll();
        cuMemsetD32Async(to: Pointer, value: c_uint, count: usize, stream: Stream) = compute::poll();
        cuMemsetD32Async_ptsz(to: Pointer, value: c_uint, count: usize, stream: Stream)
            = compute::poll();
        cuStreamQuery(stream: Stream) = compute::poll();
        cuStreamQuery_ptsz(stream: Stream) = compute::poll();
        cuEventQuery(event: Object) = compute::poll();

        // Captures.
        cuStreamBeginCapture(stream: Stream) = compute::capture();
        cuStreamBeginCapture_ptsz(stream: Stream) = compute::capture();
        cuStreamBeginCapture_v2(stream: Stream, mode: c_int) = compute::capture();
        cuStreamBeginCapture_v2_ptsz(stream: Stream, mode: c_int) = compute::capture();
        cuStreamBeginCaptureToGraph(
            stream: Stream, graph: Object, after: *const Object, edges: *const c_void, count: usize,
            mode: c_int,
        ) = compute::capture();
        cuStreamBeginCaptureToGraph_ptsz(
            stream: Stream, graph: Object, after: *const Object, edges: *const c_void, count: usize,
            mode: c_int,
        ) = compute::capture();
        cuStreamBeginRecaptureToGraph(
            stream: Stream, mode: c_int, graph: Object, callback: Address, data: *mut c_void,
        ) = compute::capture();
        cuStreamBeginRecaptureToGraph_ptsz(
            stream: Stream, mode: c_int, graph: Object, callback: Address, data: *mut c_void,
        ) = compute::capture();
        cuStreamBeginCaptureToCig(stream: Stream, parameters: *mut c_void) = compute::capture();
        cuStreamBeginCaptureToCig_ptsz(stream: Stream, parameters: *mut c_void) = compute::capture();
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
}};
}
pub(crate) use table;
