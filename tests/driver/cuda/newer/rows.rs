//! What NVIDIA's libraries of 555 and later have besides (feature `newer`): the versions of functions that
//! take memory, as `cuda.h` of CUDA 13.5 declares them. They are not in the list of names of 550, so this is
//! not in `src`.

use crate::abi::{Address, Failure, Handle, api, get, put};
use crate::context;
use crate::current;
use crate::driver::Driver;
use crate::graph::{self, Parameters};
use crate::module;
use crate::pool;
use crate::share;

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
const ON_DEVICE: i32 = 1;

/// Calls with a context current.
fn within(context: Handle, call: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    current::push(context)?;
    let answer = call();
    current::pop();
    answer
}

unsafe fn pool_of(out: *mut Handle, location: *const [i32; 2]) -> Result<(), Failure> {
    // SAFETY: handed on from the caller.
    unsafe {
        match *get(location)? {
            [ON_DEVICE, ordinal] => pool::put_default_pool(out, ordinal),
            _ => Err(Failure::NOT_SUPPORTED),
        }
    }
}

api! {
    cuCtxCreate_v4(out: *mut Handle, _parameters: usize, flags: u32, ordinal: i32) =>
        context::create_current(out, flags, ordinal);
    cuCtxGetDevice_v2(out: *mut i32, context: Handle) =>
        within(context, || put(out, context::Current::get()?.ordinal));
    cuCtxSynchronize_v2(context: Handle) => within(context, || {
        context::Current::get()?.synchronize();
        pool::give_back_unused()
    });
    cuGraphAddNode_v3(
        out: *mut Handle, graph: Handle, _after: usize, _edges: usize, _count: usize, wanted: *mut Parameters,
    ) => graph::add_any(out, graph, wanted);
    cuMulticastBindMem_v2(
        object: Handle, _ordinal: i32, offset: usize, memory: Handle, _from: usize, _size: usize, _flags: u64,
    ) => share::bind(object, offset, memory);
    cuMulticastBindAddr_v2(
        object: Handle, _ordinal: i32, offset: usize, address: Address, _size: usize, _flags: u64,
    ) => share::bind_address(object, offset, address);
    cuMemGetDefaultMemPool(out: *mut Handle, location: *const [i32; 2], _kind: i32) => pool_of(out, location);
    cuMemGetMemPool(out: *mut Handle, location: *const [i32; 2], _kind: i32) => pool_of(out, location);
    cuKernelGetLibrary(out: *mut Handle, kernel: Handle) => module::module_of(out, kernel);
    cuStreamGetDevice(_stream: Handle, out: *mut i32) => {
        Driver::get()?;
        put(out, context::Current::get()?.ordinal)
    };
}
