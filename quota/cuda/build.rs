//! Links the library so that it takes libcuda's place.

fn main() {
    fgpu_quota_link::in_place_of("libcuda.so.1", fgpu_wire::Seal::unsealed_cuda());
}
