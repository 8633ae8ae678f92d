//! The exported functions, one for each row under `wrap` of the [table](crate::table).

use core::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use core::ptr::null_mut;

use crate::bind::Source;
use crate::driver::{
    Address, AllocNode, AllocationProperties, Array3dDescriptor, ArrayDescriptor, ArrayMapping, Context,
    DefaultStream::{Legacy, PerThread},
    Device, Handle, LaunchParameters, Location, NodeParameters, Object, Pointer, Pool, PoolProperties,
    Result, Stream,
};
use crate::measure::PIECE;
use crate::{
    array, bind, code, compute, context, graph, green, launch, limits, memory, pool, primary, real, report,
    resolve, vmm,
};

crate::table::table!(fgpu_quota_core::exports);
