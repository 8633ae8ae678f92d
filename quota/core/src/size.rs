//! How many bytes an allocation counts for.
//!
//! The driver allocates device memory in pieces of 2 MiB. A request above 1 MiB gets pieces of its own;
//! smaller ones share a piece, in steps of 512 bytes. We count in the same way: small requests in steps of
//! 512 bytes, larger ones in whole pieces. The driver does the sharing, so a first small allocation takes 2
//! MiB and counts for 512 bytes, and a piece with holes counts for less than it takes.
//!
//! A request that fits under the limit, but not when it is rounded up, is granted and counts
//! for whole pieces. So every byte that `cuMemGetInfo` calls free can be allocated. A container takes at most
//! one piece more than its limit, and gets no more while it has that.

const SMALL: u64 = 1 << 20;
const STEP: u64 = 512;
const PIECE: u64 = 2 << 20;

/// The least that a request of `bytes` counts for, and what it counts for if there is room.
pub fn of(bytes: u64) -> (u64, u64) {
    let least = up(bytes, STEP);
    (least, if bytes > SMALL { up(bytes, PIECE) } else { least })
}

/// Rounded up to a multiple of `step`, a power of two. A number that cannot be rounded up is more than any
/// GPU has.
fn up(bytes: u64, step: u64) -> u64 {
    bytes.checked_add(step - 1).map_or(u64::MAX, |sum| sum & !(step - 1))
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn small_in_steps_large_in_pieces() {
        const MIB: u64 = 1 << 20;
        for (bytes, least, most) in [
            (1, 512, 512),
            (512, 512, 512),
            (513, 1024, 1024),
            (MIB, MIB, MIB),
            (MIB + 1, MIB + 512, 2 * MIB),
            (2 * MIB, 2 * MIB, 2 * MIB),
            (2 * MIB + 1, 2 * MIB + 512, 4 * MIB),
            (u64::MAX, u64::MAX, u64::MAX),
        ] {
            assert_eq!(of(bytes), (least, most), "{bytes}");
        }
    }
}
