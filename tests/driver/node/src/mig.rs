//! What slices a MIG-capable GPU can be cut into.
//!
//! Source: NVIDIA's MIG user guide, and what `nvidia-smi mig -lgip` prints on such GPUs: for H200 in issue
//! 120 of NVIDIA/mig-parted, for B200 in its pull request 187 (the driver before answered 22 GiB for
//! `1g.23gb`: sizes are the driver's, not the hardware's). What is not there, B200 from `3g.90gb` on and
//! H200's `7g`, is scaled. Which instances there are is in [`crate::instances`].

/// The slicing scheme of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Geometry {
    /// A100 40 GB.
    A100_40 = 1,
    /// H100 80 GB.
    H100_80 = 2,
    /// A30 24 GB.
    A30_24 = 3,
    /// A100 80 GB.
    A100_80 = 4,
    /// H100 94 GB.
    H100_94 = 5,
    /// H200 141 GB.
    H200_141 = 6,
    /// B200 180 GB.
    B200_180 = 7,
}

/// A kind of GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// `NVML_GPU_INSTANCE_PROFILE_*`: the position in the driver's enumeration.
    pub number: u32,
    /// The id that instances are created by and nvidia-smi shows.
    pub id: u32,
    /// Name, e.g. `1g.10gb`.
    pub name: &'static str,
    /// Slices of the multiprocessors.
    pub slices: u32,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Memory slices that a placement takes.
    pub size: u32,
    /// Memory slices at which a placement may start.
    pub starts: &'static [u32],
    /// Most instances of this profile alone.
    pub most: u32,
    /// Copy engines.
    pub copy_engines: u32,
    /// Video decoders.
    pub decoders: u32,
    /// JPEG engines.
    pub jpeg: u32,
    /// Optical flow engines.
    pub ofa: u32,
}

const ANY_OF_7: &[u32] = &[0, 1, 2, 3, 4, 5, 6];
const ANY_OF_4: &[u32] = &[0, 1, 2, 3];

#[expect(clippy::too_many_arguments, reason = "a row of a table")]
const fn row(
    number: u32,
    id: u32,
    name: &'static str,
    slices: u32,
    sms: u32,
    memory_mib: u64,
    size: u32,
    starts: &'static [u32],
    engines: [u32; 4],
) -> Profile {
    let [copy_engines, decoders, jpeg, ofa] = engines;
    let most = starts.len() as u32;
    Profile {
        number,
        id,
        name,
        slices,
        sms,
        memory_mib,
        size,
        starts,
        most,
        copy_engines,
        decoders,
        jpeg,
        ofa,
    }
}

/// A profile of which at most one instance exists, wherever it starts.
const fn only_one(profile: Profile) -> Profile {
    Profile { most: 1, ..profile }
}

const A100_40: &[Profile] = &[
    row(0, 19, "1g.5gb", 1, 14, 4864, 1, ANY_OF_7, [1, 0, 0, 0]),
    row(1, 14, "2g.10gb", 2, 28, 9856, 2, &[0, 2, 4], [2, 1, 0, 0]),
    row(2, 9, "3g.20gb", 3, 42, 19968, 4, &[0, 4], [3, 2, 0, 0]),
    row(3, 5, "4g.20gb", 4, 56, 19968, 4, &[0], [4, 2, 0, 0]),
    row(4, 0, "7g.40gb", 7, 98, 40192, 8, &[0], [7, 5, 1, 1]),
    only_one(row(7, 20, "1g.5gb+me", 1, 14, 4864, 1, ANY_OF_7, [1, 1, 1, 1])),
    row(9, 15, "1g.10gb", 1, 14, 9856, 2, &[0, 2, 4, 6], [1, 1, 0, 0]),
];

const H100_80: &[Profile] = &[
    row(0, 19, "1g.10gb", 1, 16, 9984, 1, ANY_OF_7, [1, 1, 1, 0]),
    row(1, 14, "2g.20gb", 2, 32, 20096, 2, &[0, 2, 4], [2, 2, 2, 0]),
    row(2, 9, "3g.40gb", 3, 60, 40448, 4, &[0, 4], [3, 3, 3, 0]),
    row(3, 5, "4g.40gb", 4, 64, 40448, 4, &[0], [4, 4, 4, 0]),
    row(4, 0, "7g.80gb", 7, 132, 81152, 8, &[0], [8, 7, 7, 1]),
    only_one(row(7, 20, "1g.10gb+me", 1, 16, 9984, 1, ANY_OF_7, [1, 1, 1, 1])),
    row(9, 15, "1g.20gb", 1, 26, 20096, 2, &[0, 2, 4, 6], [1, 1, 1, 0]),
];

/// The profiles of a GPU with eight memory slices: names, MiB and multiprocessors in the order 1g, 1g double,
/// 2g, 3g, 4g, 7g, and the engines of H100.
const fn eight(names: [&'static str; 7], mib: [u64; 6], sms: [u32; 6]) -> [Profile; 7] {
    [
        row(0, 19, names[0], 1, sms[0], mib[0], 1, ANY_OF_7, [1, 1, 1, 0]),
        row(1, 14, names[2], 2, sms[2], mib[2], 2, &[0, 2, 4], [2, 2, 2, 0]),
        row(2, 9, names[3], 3, sms[3], mib[3], 4, &[0, 4], [3, 3, 3, 0]),
        row(3, 5, names[4], 4, sms[4], mib[4], 4, &[0], [4, 4, 4, 0]),
        row(4, 0, names[5], 7, sms[5], mib[5], 8, &[0], [8, 7, 7, 1]),
        only_one(row(7, 20, names[6], 1, sms[0], mib[0], 1, ANY_OF_7, [1, 1, 1, 1])),
        row(9, 15, names[1], 1, sms[1], mib[1], 2, &[0, 2, 4, 6], [1, 1, 1, 0]),
    ]
}

const H100_SMS: [u32; 6] = [16, 26, 32, 60, 64, 132];

const A100_80: &[Profile] = &eight(
    ["1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb", "1g.10gb+me"],
    [9856, 19968, 19968, 40192, 40192, 80384],
    [14, 14, 28, 42, 56, 98],
);

const H100_94: &[Profile] = &eight(
    ["1g.12gb", "1g.24gb", "2g.24gb", "3g.47gb", "4g.47gb", "7g.94gb", "1g.12gb+me"],
    [11_008, 22_144, 22_144, 47_488, 47_488, 95_360],
    H100_SMS,
);

const H200_141: &[Profile] = &eight(
    ["1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb", "1g.18gb+me"],
    [16_384, 33_024, 33_024, 71_168, 71_168, 143_360],
    H100_SMS,
);

const B200_180: &[Profile] = &eight(
    ["1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb", "1g.23gb+me"],
    [20_992, 45_312, 45_312, 91_136, 91_136, 182_272],
    [18, 30, 36, 70, 72, 148],
);

const A30_24: &[Profile] = &[
    row(0, 14, "1g.6gb", 1, 14, 5952, 1, ANY_OF_4, [1, 0, 0, 0]),
    row(1, 5, "2g.12gb", 2, 28, 11968, 2, &[0, 2], [2, 2, 0, 0]),
    row(3, 0, "4g.24gb", 4, 56, 24000, 4, &[0], [4, 4, 1, 1]),
    only_one(row(7, 21, "1g.6gb+me", 1, 14, 5952, 1, ANY_OF_4, [1, 1, 1, 1])),
];

impl Geometry {
    /// Every geometry.
    pub const ALL: [Self; 7] = [
        Self::A100_40,
        Self::H100_80,
        Self::A30_24,
        Self::A100_80,
        Self::H100_94,
        Self::H200_141,
        Self::B200_180,
    ];

    /// The geometry with that number (`Gpu::mig_geometry`).
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|&geometry| geometry as u32 == number)
    }

    /// Its profiles, in the driver's order.
    pub fn profiles(self) -> &'static [Profile] {
        match self {
            Self::A100_40 => A100_40,
            Self::H100_80 => H100_80,
            Self::A30_24 => A30_24,
            Self::A100_80 => A100_80,
            Self::H100_94 => H100_94,
            Self::H200_141 => H200_141,
            Self::B200_180 => B200_180,
        }
    }

    /// The profile with that driver number.
    pub fn profile(self, number: u32) -> Option<&'static Profile> {
        self.profiles().iter().find(|profile| profile.number == number)
    }

    /// Compute slices of the whole GPU.
    pub fn slices(self) -> u32 {
        self.profiles().iter().map(|profile| profile.slices).max().unwrap_or(0)
    }

    /// Most MIG devices of one GPU.
    pub fn most_devices(self) -> u32 {
        self.profiles()[0].most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placement_lies_within_the_memory_slices() {
        for geometry in Geometry::ALL {
            let slices = if geometry == Geometry::A30_24 { 4 } else { 8 };
            for profile in geometry.profiles() {
                for start in profile.starts {
                    assert!(start + profile.size <= slices, "{} at {start}", profile.name);
                }
            }
        }
    }

    #[test]
    fn numbers_name_one_profile_each() {
        for geometry in Geometry::ALL {
            for profile in geometry.profiles() {
                assert_eq!(geometry.profile(profile.number), Some(profile));
            }
        }
    }
}
