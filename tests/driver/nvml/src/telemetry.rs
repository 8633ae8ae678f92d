//! Sensors, clocks, power and errors: plausible constants, apart from the utilisation.

use core::ffi::c_int;

use sim_node::config::Gpu;

use crate::abi::{Answer, Failure, Handle, code, put, put_list, values};
use crate::session::Device;

/// Degrees Celsius of an idle GPU.
const TEMPERATURE: u32 = 30;
/// mW of an idle GPU; a busy one draws up to its limit.
const IDLE_POWER: u32 = 60_000;
/// Lowest limit that can be set, mW.
const LEAST_POWER_LIMIT: u32 = 100_000;
/// Microseconds over which engines are sampled.
const SAMPLING_PERIOD: u32 = 100_000;

fn utilization(device: &Device) -> u32 {
    device.session.onlooker.utilization(device.number) as u32
}

fn power(device: &Device) -> u32 {
    let range = device.gpu.power_limit.saturating_sub(IDLE_POWER);
    IDLE_POWER + (u64::from(range) * u64::from(utilization(device)) / 100) as u32
}

/// Highest clock of a domain in MHz (`nvmlClockType_t`).
fn clock(gpu: &Gpu, domain: u32) -> Result<u32, Failure> {
    match domain {
        0 | 1 => Ok(gpu.sm_clock),
        2 => Ok(gpu.memory_clock),
        // The video engines run at somewhat less than the multiprocessors.
        3 => Ok(gpu.sm_clock * 9 / 10),
        _ => Err(Failure::INVALID_ARGUMENT),
    }
}

/// `nvmlUtilization_t`, percent.
#[repr(C)]
struct Utilization {
    gpu: u32,
    memory: u32,
}

values! {
    nvmlDeviceGetUtilizationRates(Utilization) => |device| {
        let gpu = utilization(device);
        Ok(Utilization { gpu, memory: gpu / 2 })
    };
    nvmlDeviceGetPowerUsage(u32) => |device| Ok(power(device));
    nvmlDeviceGetPowerManagementMode(u32) => |_| Ok(1);
    nvmlDeviceGetPowerManagementLimit(u32) => |device| Ok(device.gpu.power_limit);
    nvmlDeviceGetPowerManagementDefaultLimit(u32) => |device| Ok(device.gpu.power_limit);
    nvmlDeviceGetEnforcedPowerLimit(u32) => |device| Ok(device.gpu.power_limit);
    nvmlDeviceGetPowerState(u32) => |_| Ok(0);
    nvmlDeviceGetPerformanceState(u32) => |_| Ok(0);
    nvmlDeviceGetPersistenceMode(u32) => |_| Ok(1);
    nvmlDeviceGetComputeMode(u32) => |_| Ok(0);
    nvmlDeviceGetDisplayMode(u32) => |_| Ok(0);
    nvmlDeviceGetDisplayActive(u32) => |_| Ok(0);
    nvmlDeviceGetAccountingMode(u32) => |_| Ok(1);
    nvmlDeviceGetAccountingBufferSize(u32) => |_| Ok(4000);
    nvmlDeviceGetCurrentClocksThrottleReasons(u64) => |device| Ok(u64::from(utilization(device) == 0));
    nvmlDeviceGetCurrentClocksEventReasons(u64) => |device| Ok(u64::from(utilization(device) == 0));
    nvmlDeviceGetSupportedClocksThrottleReasons(u64) => |_| Ok(0x1ff);
    nvmlDeviceGetSupportedClocksEventReasons(u64) => |_| Ok(0x1ff);
    nvmlDeviceGetSupportedEventTypes(u64) => |_| Ok(0);
    nvmlDeviceGetCurrPcieLinkGeneration(u32) => |device| Ok(device.gpu.pcie_generation);
    nvmlDeviceGetMaxPcieLinkGeneration(u32) => |device| Ok(device.gpu.pcie_generation);
    nvmlDeviceGetGpuMaxPcieLinkGeneration(u32) => |device| Ok(device.gpu.pcie_generation);
    nvmlDeviceGetCurrPcieLinkWidth(u32) => |_| Ok(16);
    nvmlDeviceGetMaxPcieLinkWidth(u32) => |_| Ok(16);
    nvmlDeviceGetPcieReplayCounter(u32) => |_| Ok(0);
    nvmlDeviceGetNumFans(u32) => |_| Ok(0);
    nvmlDeviceGetGspFirmwareMode(u32) => |_| Err(Failure::NOT_SUPPORTED);
    nvmlDeviceGetRetiredPagesPendingStatus(u32) => |_| Err(Failure::NOT_SUPPORTED);
    nvmlDeviceGetTotalEnergyConsumption(u64) => |_| Ok(0);
}

/// Defines functions `nvml…(device, selector, *out)`: `name(selector) => |gpu, selector| value;`.
macro_rules! selected {
    ($($name:ident(selector) => $value:expr;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: Handle, selector: u32, out: *mut u32) -> u32 {
            let value: fn(&Gpu, u32) -> Result<u32, Failure> = $value;
            // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
            code(Device::of(device).and_then(|d| value(d.gpu, selector)).and_then(|v| unsafe { put(out, v) }))
        }
    )* };
}

selected! {
    nvmlDeviceGetTemperature(selector) => |_, sensor| match sensor {
        0 => Ok(TEMPERATURE),
        _ => Err(Failure::INVALID_ARGUMENT),
    };
    nvmlDeviceGetTemperatureThreshold(selector) => |_, threshold| match threshold {
        0 => Ok(92),
        1 => Ok(89),
        2 => Ok(95),
        3 => Ok(87),
        _ => Err(Failure::NOT_SUPPORTED),
    };
    nvmlDeviceGetClockInfo(selector) => clock;
    nvmlDeviceGetMaxClockInfo(selector) => clock;
    nvmlDeviceGetApplicationsClock(selector) => clock;
    nvmlDeviceGetDefaultApplicationsClock(selector) => clock;
    nvmlDeviceGetMaxCustomerBoostClock(selector) => clock;
    nvmlDeviceGetPcieThroughput(selector) => |_, _| Ok(0);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetClock(device: Handle, domain: u32, _id: u32, out: *mut u32) -> u32 {
    // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
    code(Device::of(device).and_then(|d| clock(d.gpu, domain)).and_then(|v| unsafe { put(out, v) }))
}

/// Defines functions `nvml…(device, *first, *second)`: `name(pair) => |device| (first, second);`.
macro_rules! pairs {
    ($($name:ident(pair) => $value:expr;)*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(device: Handle, first: *mut u32, second: *mut u32) -> u32 {
            let values: fn(&Device) -> (u32, u32) = $value;
            code(Device::of(device).and_then(|device| {
                let (one, two) = values(&device);
                // SAFETY: the pointers are null or valid, as nvml.h demands of the caller.
                unsafe {
                    put(first, one)?;
                    put(second, two)
                }
            }))
        }
    )* };
}

pairs! {
    nvmlDeviceGetPowerManagementLimitConstraints(pair) => |device| (LEAST_POWER_LIMIT, device.gpu.power_limit);
    nvmlDeviceGetEncoderUtilization(pair) => |_| (0, SAMPLING_PERIOD);
    nvmlDeviceGetDecoderUtilization(pair) => |_| (0, SAMPLING_PERIOD);
    nvmlDeviceGetJpgUtilization(pair) => |_| (0, SAMPLING_PERIOD);
    nvmlDeviceGetOfaUtilization(pair) => |_| (0, SAMPLING_PERIOD);
    nvmlDeviceGetEccMode(pair) => |_| (1, 1);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetDefaultEccMode(device: Handle, out: *mut u32) -> u32 {
    // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
    code(Device::of(device).and_then(|_| unsafe { put(out, 1) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: Handle,
    _kind: u32,
    _span: u32,
    out: *mut u64,
) -> u32 {
    // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
    code(Device::of(device).and_then(|_| unsafe { put(out, 0) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryErrorCounter(
    device: Handle,
    _kind: u32,
    _span: u32,
    _location: u32,
    out: *mut u64,
) -> u32 {
    // SAFETY: `out` is null or valid, as nvml.h demands of the caller.
    code(Device::of(device).and_then(|_| unsafe { put(out, 0) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetRemappedRows(
    device: Handle,
    correctable: *mut u32,
    uncorrectable: *mut u32,
    pending: *mut u32,
    failed: *mut u32,
) -> u32 {
    code(Device::of(device).and_then(|_| {
        // SAFETY: the pointers are null or valid, as nvml.h demands of the caller.
        [correctable, uncorrectable, pending, failed].into_iter().try_for_each(|out| unsafe { put(out, 0) })
    }))
}

unsafe fn one_clock(device: Handle, domain: u32, count: *mut u32, out: *mut u32) -> Answer {
    let clock = clock(Device::of(device)?.gpu, domain)?;
    // SAFETY: handed on from the caller.
    unsafe { put_list(count, out, &[clock]) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSupportedMemoryClocks(
    device: Handle,
    count: *mut u32,
    out: *mut u32,
) -> u32 {
    // SAFETY: the pointers are as nvml.h demands of the caller.
    code(unsafe { one_clock(device, 2, count, out) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSupportedGraphicsClocks(
    device: Handle,
    _memory_clock: u32,
    count: *mut u32,
    out: *mut u32,
) -> u32 {
    // SAFETY: the pointers are as nvml.h demands of the caller.
    code(unsafe { one_clock(device, 0, count, out) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetEncoderStats(
    device: Handle,
    sessions: *mut u32,
    frames: *mut u32,
    latency: *mut u32,
) -> u32 {
    code(Device::of(device).and_then(|_| {
        // SAFETY: the pointers are null or valid, as nvml.h demands of the caller.
        [sessions, frames, latency].into_iter().try_for_each(|out| unsafe { put(out, 0) })
    }))
}

/// `nvmlFieldValue_t`.
#[repr(C)]
struct Field {
    id: u32,
    scope: u32,
    timestamp: i64,
    latency: i64,
    kind: u32,
    result: u32,
    value: u64,
}

/// Each field has a result of its own; most are not supported.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetFieldValues(device: Handle, count: c_int, fields: *mut Field) -> u32 {
    const UNSIGNED_INT: u32 = 1;
    code(Device::of(device).and_then(|device| {
        if fields.is_null() || count < 0 {
            return Err(Failure::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so an array of `count` fields, as nvml.h demands of the caller.
        let fields = unsafe { core::slice::from_raw_parts_mut(fields, count as usize) };
        for field in fields {
            let value = field_value(&device, field.id);
            field.timestamp = (sim_node::sys::now() / 1000) as i64;
            field.latency = 0;
            field.kind = UNSIGNED_INT;
            field.result = value.map_or(Failure::NOT_SUPPORTED.0, |_| 0);
            field.value = u64::from(value.unwrap_or(0));
        }
        Ok(())
    }))
}

/// The `NVML_FI_DEV_…` that a simulated GPU has.
fn field_value(device: &Device, id: u32) -> Option<u32> {
    match id {
        // ECC_CURRENT, ECC_PENDING, then the error counters.
        1 | 2 => Some(1),
        3..=28 => Some(0),
        // MEMORY_TEMP.
        82 => Some(TEMPERATURE),
        // NVLINK_LINK_COUNT, C2C_LINK_COUNT.
        91 | 170 => Some(0),
        // POWER_AVERAGE, POWER_INSTANT.
        185 | 186 => Some(power(device)),
        // POWER_MIN_LIMIT.
        187 => Some(LEAST_POWER_LIMIT),
        // POWER_MAX_LIMIT, _DEFAULT_LIMIT, _CURRENT_LIMIT, _REQUESTED_LIMIT.
        188 | 189 | 190 | 192 => Some(device.gpu.power_limit),
        _ => None,
    }
}
