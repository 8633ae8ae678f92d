//! Parts per million: the unit of shares.

/// Parts per million in a whole.
pub(crate) const WHOLE: u32 = 1_000_000;

/// `part` of `whole` in ppm, floored.
pub(crate) fn ppm(part: u64, whole: u64) -> u32 {
    let ppm = u128::from(part) * u128::from(WHOLE) / u128::from(whole.max(1));
    u32::try_from(ppm).unwrap_or(u32::MAX)
}
