extern crate std;

use std::format;
use std::vec::Vec;

use super::*;

const SEAL: Seal = Seal { random: 0x0123_4567_89ab_cdef, device: 0x2a };

#[test]
fn a_sealed_library_reads_back() {
    let mut library = [b"\x7fELF\0".as_slice(), UNSEALED_NVML.as_bytes(), b"\0rest"].concat();
    let length = library.len();
    SEAL.apply(&mut library).unwrap();
    assert_eq!(library.len(), length);
    let path: Vec<u8> = library[5..].iter().copied().take_while(|byte| *byte != 0).collect();
    assert_eq!(path, format!("{SEAL}/nvml").as_bytes());
    assert_eq!(Seal::of_path(&path), Some(SEAL));
    assert_eq!(SEAL.apply(&mut library), Err(Unsealable { found: 0 }));
}

#[test]
fn nothing_is_written_where_it_cannot_be_told_which_path_is_meant() {
    let mut twice = [UNSEALED_CUDA, UNSEALED_CUDA].concat().into_bytes();
    let before = twice.clone();
    assert_eq!(SEAL.apply(&mut twice), Err(Unsealable { found: 2 }));
    assert_eq!(twice, before);
    assert_eq!(SEAL.apply(&mut []), Err(Unsealable { found: 0 }));
}

#[test]
fn only_whole_paths_of_ours_are_read() {
    assert_eq!(Seal::of_path(UNSEALED_CUDA.as_bytes()), Some(Seal::default()));
    let bad = ["", "/run/fgpu/driver/libcuda.so.1", PREFIX, "/run/fgpu/driver-00/cuda"];
    for path in bad.into_iter().chain([&UNSEALED_CUDA[..PREFIX.len() + DIGITS], &UNSEALED_CUDA[1..]]) {
        assert_eq!(Seal::of_path(path.as_bytes()), None, "{path}");
    }
    assert_eq!(Seal::of_path(UNSEALED_CUDA.replace("-0", "-x").as_bytes()), None);
}
