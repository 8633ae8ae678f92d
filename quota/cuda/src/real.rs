//! The calls of the real driver, one function for each row of the [table](crate::table).

use core::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

use crate::driver::{
    Address, AllocNode, AllocationProperties, Array3dDescriptor, ArrayDescriptor, ArrayMapping, Context,
    Device, Handle, LaunchParameters, Location, NOT_SUPPORTED, NodeParameters, Object, Pointer, Pool,
    PoolProperties, Result, Stream, Uuid,
};

crate::table::table!(fgpu_quota_core::real_functions);
