//! Quantities of the Kubernetes API (apimachinery, `resource.Quantity`) that are whole numbers.

const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
const DECIMAL: [(&str, u32); 7] = [("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18), ("", 0)];

/// The number; `None` for what is none, is no whole number, is negative or needs more than 64 bits.
pub fn parse(text: &str) -> Option<u64> {
    let binary = BINARY.iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, 1u64 << bits)));
    let decimal =
        || DECIMAL.iter().find_map(|(unit, zeros)| Some((text.strip_suffix(unit)?, 10u64.pow(*zeros))));
    let (digits, unit) = binary.or_else(decimal)?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn whole_numbers_with_units() {
        for (text, number) in [
            ("0", Some(0)),
            ("40", Some(40)),
            ("20Gi", Some(20 << 30)),
            ("81090Mi", Some(81090 << 20)),
            ("34359738368", Some(32 << 30)),
            ("2k", Some(2000)),
            ("1E", Some(10u64.pow(18))),
            ("", None),
            ("Gi", None),
            ("-1", None),
            ("+1", None),
            ("1.5Gi", None),
            ("500m", None),
            ("1e3", None),
            ("16Ei", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(parse(text), number, "{text}");
        }
    }
}
