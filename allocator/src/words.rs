//! Amounts and lists as messages write them.

use std::fmt::Write;

/// How many holders of a GPU, and how many GPUs, a message names before it only counts.
const NAMED: usize = 4;

/// The first few, and how many more there are.
pub(crate) fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<_> = items.collect();
    let named = items.len().min(NAMED);
    let mut text = items[..named].join(", ");
    if items.len() > named {
        let _ = write!(text, " and {} more", items.len() - named);
    }
    text
}

/// Bytes as MiB where that is exact.
pub(crate) fn mib(bytes: u64) -> String {
    match bytes % (1 << 20) {
        0 => format!("{} MiB", bytes >> 20),
        _ => format!("{bytes} bytes"),
    }
}

/// ppm as percent with one decimal at most, rounded down: `25%`, `33.3%`.
pub(crate) fn percent(ppm: u32) -> String {
    match ppm {
        1..1_000 => "<0.1%".into(),
        ppm => trimmed(u64::from(ppm / 1_000), 10, 1) + "%",
    }
}

/// ppm as a fraction: `0.25`.
pub(crate) fn decimal(ppm: u64) -> String {
    trimmed(ppm, 1_000_000, 6)
}

fn trimmed(value: u64, unit: u64, digits: usize) -> String {
    let text = format!("{}.{:0digits$}", value / unit, value % unit);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_like_numbers() {
        assert_eq!(percent(250_000), "25%");
        assert_eq!(percent(333_333), "33.3%");
        assert_eq!(percent(883_333), "88.3%");
        assert_eq!(percent(1), "<0.1%");
        assert_eq!(percent(1_000_000), "100%");
        assert_eq!(percent(0), "0%");
        assert_eq!(decimal(400_000), "0.4");
        assert_eq!(decimal(2_000_000), "2");
        assert_eq!(mib(20 << 30), "20480 MiB");
        assert_eq!(mib(1_000_000_000), "1000000000 bytes");
    }

    #[test]
    fn long_lists_are_counted() {
        assert_eq!(list((0..6).map(|n| n.to_string())), "0, 1, 2, 3 and 2 more");
        assert_eq!(list((0..2).map(|n| n.to_string())), "0, 1");
    }
}
