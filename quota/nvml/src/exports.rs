//! The exported functions, one for each row under `wrap` of the [table](crate::table).

use core::ffi::{c_char, c_uint, c_void};

use crate::abi::{
    DetailList, Device, GpmSupport, Memory, MemoryV2, ProcessV1, ProcessV2, Result, Sample, Utilization,
    UtilizationList,
};
use crate::{accounting, activity, command, devices, memory, private, processes, real, topology};

crate::table::table!(fgpu_quota_core::exports);
