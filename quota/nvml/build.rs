//! Makes the library take NVML's place.

fn main() {
    fgpu_quota_link::in_place_of("libnvidia-ml.so.1", fgpu_wire::Seal::unsealed_nvml());
}
