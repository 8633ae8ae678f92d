//! The calls of the real NVML, one function for each row of the [table](crate::table).

use core::ffi::{c_char, c_uint, c_void};

use crate::abi::{
    DetailList, Device, FUNCTION_NOT_FOUND, GpmSupport, Memory, MemoryV2, ProcessV1, ProcessV2, Result,
    Sample, Utilization, UtilizationList,
};

crate::table::table!(fgpu_quota_core::real_functions);
