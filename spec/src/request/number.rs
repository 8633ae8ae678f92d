//! Exact numbers: decimals, shares of a whole in parts per million, bytes. No floating point.

/// A whole GPU in parts per million.
pub(super) const WHOLE: u32 = 1_000_000;

const MILLION: u128 = WHOLE as u128;

/// The smallest memory that can be asked for, in bytes; grants are multiples of it.
const MIB: u64 = 1 << 20;

/// Digits after the point that are understood.
const DECIMALS: u32 = 6;

/// Why a value is refused, in words that follow `KEY=VALUE` in a message.
pub(super) type Reason = String;

/// What a decimal may turn out to be.
enum Trouble {
    Empty,
    Negative,
    TooPrecise,
    TooBig,
    NotDecimal,
}

/// `text` times 10^`places`: digits with at most `places` more after a point, nothing else. At most 2^64
/// times a million, so that the callers' products fit their type.
fn decimal(text: &str, places: u32) -> Result<u128, Trouble> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if text.is_empty() {
        return Err(Trouble::Empty);
    }
    if let Some(rest) = text.strip_prefix('-') {
        let number = rest.starts_with(|first: char| first.is_ascii_digit() || first == '.');
        return Err(if number { Trouble::Negative } else { Trouble::NotDecimal });
    }
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) if digits(fraction) => (whole, fraction),
        Some(_) => return Err(Trouble::NotDecimal),
        None => (text, ""),
    };
    if !digits(whole) {
        return Err(Trouble::NotDecimal);
    }
    if fraction.len() > places as usize {
        return Err(Trouble::TooPrecise);
    }
    let zeros = std::iter::repeat_n(b'0', places as usize - fraction.len());
    whole
        .bytes()
        .chain(fraction.bytes())
        .chain(zeros)
        .try_fold(0u128, |value, byte| value.checked_mul(10)?.checked_add(u128::from(byte - b'0')))
        .filter(|value| *value <= u128::from(u64::MAX) * MILLION)
        .ok_or(Trouble::TooBig)
}

/// A share of one GPU in ppm: `0.25` (unless `bare_percent`, when `25` means 25%), `25%` or `1/3`. The
/// second value is false when the share had to be floored to a whole millionth.
///
/// `what` names the thing in the messages, `example` shows it done right.
fn share(text: &str, what: &str, example: &str, bare_percent: bool) -> Result<(u32, bool), Reason> {
    let right = format!("write {what} above 0 and at most {example}");
    let refuse = |trouble: Trouble, precise: &str| match trouble {
        Trouble::Empty => format!("is empty; {right}"),
        Trouble::Negative => format!("is negative; {right}"),
        Trouble::TooPrecise => format!("is too precise, {precise}; {right}"),
        Trouble::TooBig => format!("is above a whole GPU; {right}"),
        Trouble::NotDecimal => format!("is not {what}; {right}"),
    };
    let (ppm, exact) = if let Some((over, under)) = text.split_once('/') {
        let refuse = |trouble| match trouble {
            Trouble::TooPrecise | Trouble::Empty => refuse(Trouble::NotDecimal, ""),
            Trouble::TooBig => format!("has numbers that are too big; {right}"),
            other => refuse(other, ""),
        };
        let (over, under) = (decimal(over, 0).map_err(refuse)?, decimal(under, 0).map_err(refuse)?);
        if under == 0 {
            return Err(format!("divides by zero; {right}"));
        }
        let millionths = over * MILLION;
        (millionths / under, millionths.is_multiple_of(under))
    } else if let Some(percent) = text.strip_suffix('%') {
        let precise = "a percentage has at most 4 decimals";
        let ppm = decimal(percent, DECIMALS - 2).map_err(|trouble| match trouble {
            Trouble::Empty => refuse(Trouble::NotDecimal, precise),
            other => refuse(other, precise),
        })?;
        (ppm, true)
    } else if bare_percent {
        let precise = "a number without % is a whole percentage";
        (decimal(text, 0).map_err(|trouble| refuse(trouble, precise))? * 10_000, true)
    } else {
        let precise = "a fraction has at most 6 decimals";
        (decimal(text, DECIMALS).map_err(|trouble| refuse(trouble, precise))?, true)
    };
    match u32::try_from(ppm) {
        Ok(0) if exact => Err(format!("is zero; {right}; a container without fgpu/ keys gets no GPU")),
        Ok(0) => Err(format!("is below one millionth of a GPU; {right}")),
        Ok(ppm) if ppm <= WHOLE => Ok((ppm, exact)),
        _ => Err(format!("is above a whole GPU; {right}; for several GPUs set fgpu/count")),
    }
}

/// `fgpu/fraction`.
pub(super) fn fraction(text: &str) -> Result<(u32, bool), Reason> {
    share(text, "a fraction", "1: 0.25, 25% or 1/3", false)
}

/// `fgpu/cores`. `30` is 30%; a number with a point and no `%` is refused, since 0.5 would be half a percent
/// and hardly anybody means that.
pub(super) fn cores(text: &str) -> Result<(u32, bool), Reason> {
    share(text, "a percentage", "100: 30%, 30 or 1/3", true)
}

/// What `fgpu/units` asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Units {
    /// Whole GPUs, or 1 for a part of one.
    pub(super) count: u32,
    /// Of each, in ppm.
    pub(super) ppm: u32,
    /// False when the share had to be floored.
    pub(super) exact: bool,
}

/// `fgpu/units`, where `per_gpu` units are one GPU and at most `most` GPUs may be asked for.
pub(super) fn units(text: &str, per_gpu: u32, most: u32) -> Result<Units, Reason> {
    let (per_gpu, most) = (u128::from(per_gpu), u128::from(most));
    let right = format!(
        "write a number above 0 and at most {}: {per_gpu} units are one GPU on this node",
        per_gpu * most
    );
    let millionths = decimal(text, DECIMALS).map_err(|trouble| match trouble {
        Trouble::Empty => format!("is empty; {right}"),
        Trouble::Negative => format!("is negative; {right}"),
        Trouble::TooPrecise => format!("is too precise, units have at most 6 decimals; {right}"),
        Trouble::TooBig => format!("is above the limit; {right}"),
        Trouble::NotDecimal => format!("is not a number; {right}"),
    })?;
    let gpu = per_gpu * MILLION;
    if millionths == 0 {
        return Err(format!("is zero; {right}; a container without fgpu/ keys gets no GPU"));
    }
    if millionths > gpu * most {
        return Err(format!("is above the limit of {most} GPUs; {right}"));
    }
    if millionths >= gpu {
        if !millionths.is_multiple_of(gpu) {
            return Err(format!(
                "is neither part of one GPU nor a number of whole ones; write less than {per_gpu}, or a \
                 multiple of it, or set fgpu/count to have the same part of several GPUs"
            ));
        }
        // At most `most`, checked above.
        return Ok(Units { count: (millionths / gpu) as u32, ppm: WHOLE, exact: true });
    }
    // Below one GPU, so the quotient is below a million.
    let (ppm, exact) = ((millionths / per_gpu) as u32, millionths.is_multiple_of(per_gpu));
    if ppm == 0 {
        return Err(format!("is below one millionth of a GPU; {right}"));
    }
    Ok(Units { count: 1, ppm, exact })
}

/// The suffixes of `fgpu/memory`, each a number of bytes. A number alone is bytes, as in Kubernetes and
/// Docker; that it is at least 1 MiB catches those who mean MiB.
const SUFFIXES: &[(&str, u128)] = &[
    ("", 1),
    ("B", 1),
    ("Ki", 1 << 10),
    ("KiB", 1 << 10),
    ("Mi", 1 << 20),
    ("MiB", 1 << 20),
    ("Gi", 1 << 30),
    ("GiB", 1 << 30),
    ("Ti", 1 << 40),
    ("TiB", 1 << 40),
    ("k", 1_000),
    ("kB", 1_000),
    ("K", 1_000),
    ("KB", 1_000),
    ("M", 1_000_000),
    ("MB", 1_000_000),
    ("G", 1_000_000_000),
    ("GB", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// `fgpu/memory` in bytes. The second value is false when part of a byte was cut off (`0.1Gi`).
pub(super) fn memory(text: &str) -> Result<(u64, bool), Reason> {
    const RIGHT: &str = "write a size with its unit: 4Gi, 512Mi or 4G";
    let end = text.bytes().rposition(|byte| byte.is_ascii_digit()).map_or(0, |last| last + 1);
    let (number, suffix) = text.split_at(end);
    if text.is_empty() {
        return Err(format!("is empty; {RIGHT}"));
    }
    if suffix == "%" {
        return Err(format!("is a share; {RIGHT}, or use fgpu/fraction for a share of memory and cores"));
    }
    let refuse = |trouble| match trouble {
        Trouble::Negative => format!("is negative; {RIGHT}"),
        Trouble::TooPrecise => format!("is too precise, a size has at most 6 decimals; {RIGHT}"),
        Trouble::TooBig => format!("is more than any GPU has; {RIGHT}"),
        Trouble::Empty | Trouble::NotDecimal => format!("is not a size; {RIGHT}"),
    };
    let millionths = decimal(number, DECIMALS).map_err(refuse)?;
    let Some((_, unit)) = SUFFIXES.iter().find(|(known, _)| *known == suffix) else {
        return Err(match SUFFIXES.iter().find(|(known, _)| known.eq_ignore_ascii_case(suffix)) {
            Some((known, _)) if known.ends_with('i') || known.contains("iB") => {
                format!("has an unknown unit, they are case-sensitive; write {number}{known}")
            }
            Some((known, _)) => {
                let first = &known[..1];
                // Docker and Podman write binary sizes so (`docker run --memory 8g`).
                let docker = match suffix.starts_with(|first: char| first.is_ascii_lowercase()) {
                    true => format!("; Docker's {number}{suffix} is binary, {number}{first}i here"),
                    false => String::new(),
                };
                format!(
                    "has an unknown unit, they are case-sensitive; write {number}{first}i (binary) or \
                     {number}{known} (decimal){docker}"
                )
            }
            None => format!("has an unknown unit; {RIGHT}"),
        });
    };
    let product = millionths * unit;
    let bytes = u64::try_from(product / MILLION).map_err(|_| refuse(Trouble::TooBig))?;
    if millionths == 0 {
        return Err(format!("is zero; {RIGHT}; a container without fgpu/ keys gets no GPU"));
    }
    if bytes < MIB {
        return Err(if suffix.is_empty() {
            format!("is in bytes without a unit, and less than 1Mi; {RIGHT}")
        } else {
            format!("is less than 1Mi, the smallest size there is; {RIGHT}")
        });
    }
    Ok((bytes, product.is_multiple_of(MILLION)))
}

/// `fgpu/count`, 1 to `most`.
pub(super) fn count(text: &str, most: u32) -> Result<u32, Reason> {
    let right = format!("write a whole number of GPUs from 1 to {most}");
    match decimal(text, 0) {
        Ok(0) => Err(format!(
            "is zero; {right} (only CONTAINER.fgpu/count may be 0: that container of a pod gets no GPU)"
        )),
        Ok(count) if count <= most.into() => Ok(count as u32),
        Ok(_) | Err(Trouble::TooBig) => Err(format!("is above the limit; {right}")),
        Err(Trouble::Negative) => Err(format!("is negative; {right}")),
        Err(Trouble::Empty) => Err(format!("is empty; {right}")),
        Err(Trouble::TooPrecise) => Err(format!("is not a whole number; {right}")),
        Err(Trouble::NotDecimal) => Err(format!("is not a number; {right}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions() {
        for (text, ppm, exact) in [
            ("0.25", 250_000, true),
            ("1", WHOLE, true),
            ("1.0", WHOLE, true),
            ("0.000001", 1, true),
            ("0.250000", 250_000, true),
            ("25%", 250_000, true),
            ("12.5%", 125_000, true),
            ("0.0001%", 1, true),
            ("100%", WHOLE, true),
            ("1/3", 333_333, false),
            ("2/3", 666_666, false),
            ("2/4", 500_000, true),
            ("7/7", WHOLE, true),
            ("18446744073709551615/18446744073709551615", WHOLE, true),
        ] {
            assert_eq!(fraction(text), Ok((ppm, exact)), "{text}");
        }
    }

    #[test]
    fn wrong_fractions_say_why() {
        for (text, reason) in [
            ("", "is empty"),
            ("0", "is zero"),
            ("0%", "is zero"),
            ("0/5", "is zero"),
            ("-0.5", "is negative"),
            ("-5%", "is negative"),
            ("-1/2", "is negative"),
            ("1.000001", "is above a whole GPU"),
            ("2", "fgpu/count"),
            ("101%", "is above a whole GPU"),
            ("4/3", "is above a whole GPU"),
            ("99999999999999999999999999", "is above a whole GPU"),
            ("0.1234567", "at most 6 decimals"),
            ("12.34567%", "at most 4 decimals"),
            ("1/0", "divides by zero"),
            ("1/9999999999", "below one millionth"),
            ("1/99999999999999999999", "below one millionth"),
            ("1/99999999999999999999999999999999999999999", "too big"),
            ("half", "is not a fraction"),
            (".5", "is not a fraction"),
            ("1.", "is not a fraction"),
            ("+1", "is not a fraction"),
            ("1e-1", "is not a fraction"),
            ("0,25", "is not a fraction"),
            (" 0.25", "is not a fraction"),
            ("%", "is not a fraction"),
            ("/", "is not a fraction"),
            ("1/", "is not a fraction"),
            ("1/2/3", "is not a fraction"),
            ("0.5/1", "is not a fraction"),
            ("-", "is not a fraction"),
            ("0x1", "is not a fraction"),
            ("\u{0661}", "is not a fraction"),
        ] {
            let error = fraction(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn cores_without_a_sign_are_whole_percentages() {
        assert_eq!(cores("30"), Ok((300_000, true)));
        assert_eq!(cores("30%"), Ok((300_000, true)));
        assert_eq!(cores("0.5%"), Ok((5_000, true)));
        assert_eq!(cores("1"), Ok((10_000, true)));
        assert_eq!(cores("1/3"), Ok((333_333, false)));
        for (text, reason) in
            [("0.5", "whole percentage"), ("101", "above a whole GPU"), ("0", "is zero"), ("all", "is not a")]
        {
            let error = cores(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn units_are_exact() {
        let part = |ppm, exact| Units { count: 1, ppm, exact };
        assert_eq!(units("1", 5, 64), Ok(part(200_000, true)));
        assert_eq!(units("0.5", 5, 64), Ok(part(100_000, true)));
        assert_eq!(units("1", 3, 64), Ok(part(333_333, false)));
        assert_eq!(units("0.3", 1, 64), Ok(part(300_000, true)));
        assert_eq!(units("5", 5, 64), Ok(part(WHOLE, true)));
        assert_eq!(units("10.0", 5, 64), Ok(Units { count: 2, ppm: WHOLE, exact: true }));
        assert_eq!(units("320", 5, 64), Ok(Units { count: 64, ppm: WHOLE, exact: true }));
        let most = u32::MAX;
        assert_eq!(units(&most.to_string(), most, 64), Ok(part(WHOLE, true)));
        for (text, per_gpu, reason) in [
            ("6", 5, "neither part of one GPU"),
            ("5.000001", 5, "neither part of one GPU"),
            ("321", 5, "limit of 64 GPUs"),
            ("325", 5, "limit of 64 GPUs"),
            ("0", 5, "is zero"),
            ("0.0", 5, "is zero"),
            ("-1", 5, "is negative"),
            ("1/2", 5, "is not a number"),
            ("0.000001", 5, "below one millionth"),
            ("0.1234567", 5, "at most 6 decimals"),
            ("99999999999999999999", 5, "above the limit"),
            ("", 5, "is empty"),
        ] {
            let error = units(text, per_gpu, 64).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn sizes() {
        for (text, bytes, exact) in [
            ("4Gi", 4 << 30, true),
            ("4GiB", 4 << 30, true),
            ("512Mi", 512 << 20, true),
            ("4G", 4_000_000_000, true),
            ("4GB", 4_000_000_000, true),
            ("1.5Gi", 3 << 29, true),
            ("0.1Gi", 107_374_182, false),
            ("1048576", MIB, true),
            ("1048576B", MIB, true),
            ("1024Ki", MIB, true),
            ("1TiB", 1 << 40, true),
            ("2000000k", 2_000_000_000, true),
        ] {
            assert_eq!(memory(text), Ok((bytes, exact)), "{text}");
        }
    }

    #[test]
    fn wrong_sizes_say_why() {
        for (text, reason) in [
            ("", "is empty"),
            ("0", "is zero"),
            ("0Gi", "is zero"),
            ("-4Gi", "is negative"),
            ("4gi", "write 4Gi"),
            ("4g", "write 4Gi (binary) or 4G (decimal); Docker's 4g is binary, 4Gi here"),
            ("8gb", "Docker's 8gb is binary, 8Gi here"),
            ("4gib", "write 4GiB"),
            ("4096", "in bytes"),
            ("1023Ki", "less than 1Mi"),
            ("4Xi", "unknown unit"),
            ("4 Gi", "unknown unit"),
            ("4Gi ", "unknown unit"),
            ("Gi", "is not a size"),
            ("50%", "is a share"),
            ("0.1234567Gi", "at most 6 decimals"),
            ("16777216Ti", "more than any GPU"),
            ("99999999999999999999", "more than any GPU"),
            ("4Gi4", "is not a size"),
            ("4\u{0413}i", "unknown unit"),
            ("\u{1F600}", "is not a size"),
        ] {
            let error = memory(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn counts() {
        assert_eq!(count("1", 64), Ok(1));
        assert_eq!(count("64", 64), Ok(64));
        for (text, reason) in [
            ("0", "is zero"),
            ("65", "above the limit"),
            ("99999999999999999999", "above the limit"),
            ("-1", "is negative"),
            ("1.5", "not a whole number"),
            ("two", "not a number"),
            ("", "is empty"),
        ] {
            let error = count(text, 64).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
