//! Bytes, shares and times as people read them. Nothing is calculated with the result.

use fgpu_spec::Compute;

/// Bytes in binary units with one decimal, rounded down: what is shown as free is there.
pub(crate) fn bytes(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    if bytes < GIB {
        return format!("{} MiB", bytes / MIB);
    }
    // Split first: the tenths of a large number would overflow.
    format!("{}.{} GiB", bytes / GIB, bytes % GIB * 10 / GIB)
}

/// Parts per million as a percentage with one decimal at most, rounded down: `333333` is `33.3%`. JSON has it
/// exactly.
pub(crate) fn percent(ppm: u64) -> String {
    match (ppm / 10_000, ppm / 1_000 % 10) {
        (0, 0) if ppm > 0 => "<0.1%".into(),
        (whole, 0) => format!("{whole}%"),
        (whole, tenths) => format!("{whole}.{tenths}%"),
    }
}

/// What a grant has of the SM time: `25%`, or `share` where it booked none and has what others leave.
pub(crate) fn cores(compute: Compute, ppm: u32) -> String {
    match (compute, ppm) {
        (Compute::Share, 0) => "share".into(),
        (_, ppm) => percent(ppm.into()),
    }
}

/// Parts per million as whole percents, rounded down, for what was measured: `249731` is `24%`.
pub(crate) fn about(ppm: u64) -> String {
    match ppm {
        1..10_000 => "<1%".into(),
        ppm => format!("{}%", ppm / 10_000),
    }
}

/// A duration in its two largest units: `45s`, `3m12s`, `2h05m`, `4d03h`.
pub(crate) fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{minutes}m{:02}s", seconds % 60),
        3600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_rounded_down() {
        assert_eq!(bytes(0), "0 MiB");
        assert_eq!(bytes((1 << 30) - 1), "1023 MiB");
        assert_eq!(bytes(1 << 30), "1.0 GiB");
        assert_eq!(bytes((10 << 30) - 1), "9.9 GiB");
        assert_eq!(bytes(u64::MAX), "17179869183.9 GiB");
    }

    #[test]
    fn percentages_have_one_decimal_and_are_rounded_down() {
        assert_eq!(percent(0), "0%");
        assert_eq!(percent(250_000), "25%");
        assert_eq!(percent(333_333), "33.3%");
        assert_eq!(percent(883_333), "88.3%");
        assert_eq!(percent(999_999), "99.9%");
        assert_eq!(percent(1), "<0.1%");
        assert_eq!(percent(125_000), "12.5%");
        assert_eq!(percent(1_000_000), "100%");
    }

    #[test]
    fn measured_shares_have_no_decimals_and_small_ones_are_not_zero() {
        let all = [0, 1, 9_999, 10_000, 249_731, 999_999, 1_000_000].map(about);
        assert_eq!(all, ["0%", "<1%", "<1%", "1%", "24%", "99%", "100%"]);
    }

    #[test]
    fn durations_have_two_units() {
        assert_eq!(duration(0), "0s");
        assert_eq!(duration(59), "59s");
        assert_eq!(duration(192), "3m12s");
        assert_eq!(duration(7500), "2h05m");
        assert_eq!(duration(4 * 86_400 + 3 * 3600 + 59), "4d03h");
    }
}
