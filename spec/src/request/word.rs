//! Values that are no numbers: choices, lists, durations, names.

use std::time::Duration;

use super::number::Reason;
use super::{Filter, Isolation, Policy};
use crate::{Compute, escape_for_display};

/// A value out of a closed list.
pub(super) trait Choice: Copy + 'static {
    /// Every word with its meaning, in the order of the documentation.
    const WORDS: &'static [(&'static str, Self)];
}

impl Choice for Compute {
    const WORDS: &'static [(&'static str, Self)] =
        &[("cap", Compute::Cap), ("share", Compute::Share), ("off", Compute::Off)];
}

impl Choice for Isolation {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("auto", Isolation::Auto),
        ("mig", Isolation::Mig),
        ("driver", Isolation::Driver),
        ("quota", Isolation::Quota),
        ("none", Isolation::None),
    ];
}

impl Choice for Policy {
    const WORDS: &'static [(&'static str, Self)] =
        &[("pack", Policy::Pack), ("spread", Policy::Spread), ("exclusive", Policy::Exclusive)];
}

/// Reads one of the words of `T`.
pub(super) fn choice<T: Choice>(text: &str) -> Result<T, Reason> {
    T::WORDS.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<&str> = T::WORDS.iter().map(|(word, _)| *word).collect();
        format!("is not one of the words; write {}", words.join(", "))
    })
}

/// `fgpu/wait`: `0`, or hours, minutes and seconds in this order, each at most once: `30s`, `2m`, `1m30s`.
pub(super) fn wait(text: &str) -> Result<Duration, Reason> {
    const RIGHT: &str = "write 0, 30s, 2m or 1m30s";
    if text.is_empty() {
        return Err(format!("is empty; {RIGHT}"));
    }
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.starts_with('-') {
        return Err(format!("is negative; {RIGHT}"));
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("has no unit; {RIGHT}"));
    }
    let mut seconds = 0u64;
    let mut rest = text;
    let mut units = [('h', 3600u64), ('m', 60), ('s', 1)].iter();
    while !rest.is_empty() {
        let end = rest.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(end);
        let factor = tail.chars().next().and_then(|unit| units.find(|known| known.0 == unit));
        let (Some((_, factor)), false) = (factor, number.is_empty()) else {
            return Err(format!("is not a duration; {RIGHT}"));
        };
        seconds = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(*factor)?.checked_add(seconds))
            .ok_or_else(|| format!("is too long; {RIGHT}"))?;
        rest = &tail[1..];
    }
    Ok(Duration::from_secs(seconds))
}

/// `fgpu/owner`: 1 to 63 of `[a-z0-9.-]`.
pub(super) fn owner(text: &str) -> Result<String, Reason> {
    const RIGHT: &str = "write 1 to 63 of a-z, 0-9, dot and hyphen";
    if text.is_empty() {
        return Err(format!("is empty; {RIGHT}"));
    }
    if text.len() > 63 {
        return Err(format!("is too long; {RIGHT}"));
    }
    match text.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '.' | '-')) {
        Some(c) => Err(format!(
            "has the character {} in it; {RIGHT}",
            escape_for_display(c.encode_utf8(&mut [0; 4]))
        )),
        None => Ok(text.to_owned()),
    }
}

/// `fgpu/mig`: `auto`, or a profile as the driver names it: `<g>g.<n>gb` and attributes such as `+me`,
/// `+gfx`, `+me.all` or `-me`.
pub(super) fn mig(text: &str) -> Result<String, Reason> {
    const RIGHT: &str = "write auto or a profile that `nvidia-smi mig -lgip` lists: 1g.10gb or 1g.10gb+me";
    if text == "auto" {
        return Ok(text.to_owned());
    }
    if text.is_empty() {
        return Err(format!("is empty; {RIGHT}"));
    }
    let Some(attributes) = after_number(text, 2, "g.").and_then(|rest| after_number(rest, 4, "gb")) else {
        return Err(if text.contains("c.") {
            format!("names a compute instance, which is chosen with its slice; {RIGHT}")
        } else {
            format!("is not a MIG profile; {RIGHT}")
        });
    };
    let attribute = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.'))
    };
    let well_formed = attributes.is_empty()
        || (attributes.len() <= 32
            && attributes.starts_with(['+', '-'])
            && attributes[1..].split(['+', '-']).all(attribute));
    if well_formed { Ok(text.to_owned()) } else { Err(format!("is not a MIG profile; {RIGHT}")) }
}

/// What follows a number of at most `longest` digits and `unit`.
fn after_number<'a>(text: &'a str, longest: usize, unit: &str) -> Option<&'a str> {
    let end = text.bytes().position(|byte| !byte.is_ascii_digit())?;
    if !(1..=longest).contains(&end) || text.starts_with('0') {
        return None;
    }
    text[end..].strip_prefix(unit)
}

/// Most entries of a list.
const LONGEST_LIST: usize = 64;

/// A comma list with `!` before what must not be, each entry brought into its canonical form by `item`.
fn filter(text: &str, right: &str, item: impl Fn(&str) -> Result<String, Reason>) -> Result<Filter, Reason> {
    if text.trim_matches(' ').is_empty() {
        return Err(format!("is empty; {right}"));
    }
    let mut filter = Filter::default();
    for (index, entry) in text.split(',').enumerate() {
        if index >= LONGEST_LIST {
            return Err(format!("has more than {LONGEST_LIST} entries; {right}"));
        }
        let entry = entry.trim_matches(' ');
        let (list, entry) = match entry.strip_prefix('!') {
            Some(rest) => (&mut filter.not, rest.trim_matches(' ')),
            None => (&mut filter.any, entry),
        };
        if entry.is_empty() {
            return Err(format!("has an empty entry; {right}"));
        }
        let entry = item(entry)?;
        if !list.contains(&entry) {
            list.push(entry);
        }
    }
    Ok(filter)
}

/// `fgpu/device`: UUIDs as `nvidia-smi -L` prints them, or indices.
pub(super) fn device(text: &str) -> Result<Filter, Reason> {
    const RIGHT: &str = "write indices or whole UUIDs as `nvidia-smi -L` prints them, with commas between: \
                         0,2 or !GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
    filter(text, RIGHT, |entry| {
        if entry.bytes().all(|byte| byte.is_ascii_digit()) {
            return match entry.parse::<u16>() {
                Ok(index) => Ok(index.to_string()),
                Err(_) => Err(format!(
                    "has the index {} in it, which no node has; {RIGHT}",
                    escape_for_display(entry)
                )),
            };
        }
        if entry.starts_with("MIG-") {
            return Err(format!(
                "names the MIG device {}; fgpu makes them itself: ask with fgpu/mig, and name GPUs here",
                escape_for_display(entry)
            ));
        }
        uuid(entry)
            .ok_or_else(|| format!("has {} in it, which is no GPU; {RIGHT}", escape_for_display(entry)))
    })
}

/// NVML's form, `GPU-` and 8-4-4-4-12 hex digits, in lower case.
fn uuid(text: &str) -> Option<String> {
    let rest = text.strip_prefix("GPU-")?;
    let groups: Vec<&str> = rest.split('-').collect();
    let hex = |group: &&str| group.bytes().all(|byte| byte.is_ascii_hexdigit());
    (groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) && groups.iter().all(hex))
        .then(|| format!("GPU-{}", rest.to_ascii_lowercase()))
}

/// `fgpu/model`: parts of model names, compared without regard to case.
pub(super) fn model(text: &str) -> Result<Filter, Reason> {
    const RIGHT: &str = "write parts of model names with commas between: A100,H100 or !T4";
    filter(text, RIGHT, |entry| {
        if entry.len() > 64 {
            return Err(format!("has an entry longer than 64 characters; {RIGHT}"));
        }
        if !entry.bytes().all(|byte| matches!(byte, b' '..=b'~')) || entry.contains('!') {
            return Err(format!(
                "has {} in it, which is in no model's name; {RIGHT}",
                escape_for_display(entry)
            ));
        }
        Ok(entry.to_ascii_lowercase())
    })
}

/// The entry of a filter that is both wanted and excluded, if there is one.
pub(super) fn contradictory(filter: &Filter) -> Option<&str> {
    filter.any.iter().find(|wanted| filter.not.contains(wanted)).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices() {
        assert_eq!(choice::<Policy>("spread"), Ok(Policy::Spread));
        assert_eq!(choice::<Compute>("off"), Ok(Compute::Off));
        assert_eq!(choice::<Isolation>("none"), Ok(Isolation::None));
        assert!(choice::<Policy>("Pack").unwrap_err().contains("pack, spread, exclusive"));
        assert!(choice::<Isolation>("").unwrap_err().contains("auto, mig, driver, quota, none"));
    }

    #[test]
    fn durations() {
        for (text, seconds) in [
            ("0", 0),
            ("0s", 0),
            ("30s", 30),
            ("2m", 120),
            ("1m30s", 90),
            ("1h", 3600),
            ("1h0m5s", 3605),
            ("90s", 90),
        ] {
            assert_eq!(wait(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for (text, reason) in [
            ("", "is empty"),
            ("30", "no unit"),
            ("-1s", "is negative"),
            ("1.5m", "not a duration"),
            ("500ms", "not a duration"),
            ("30s1m", "not a duration"),
            ("1s1s", "not a duration"),
            ("s", "not a duration"),
            ("1s ", "not a duration"),
            ("1d", "not a duration"),
            ("99999999999999999999s", "too long"),
            ("18446744073709551615h", "too long"),
            ("18446744073709551615m30s", "too long"),
            ("1\u{1F600}", "not a duration"),
        ] {
            let error = wait(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn owners() {
        assert_eq!(owner("team-a.b1"), Ok("team-a.b1".to_owned()));
        assert!(owner(&"a".repeat(63)).is_ok());
        for (text, reason) in [
            ("", "empty"),
            ("Team", "character T"),
            ("a b", "\" \""),
            ("\u{e9}", "\\u{e9}"),
            ("a_b", "character _"),
        ] {
            let error = owner(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        assert!(owner(&"a".repeat(64)).unwrap_err().contains("too long"));
    }

    #[test]
    fn mig_profiles() {
        for text in
            ["auto", "1g.10gb", "7g.141gb", "1g.10gb+me", "1g.24gb+me.all", "1g.24gb-me", "2g.48gb+gfx"]
        {
            assert_eq!(mig(text), Ok(text.to_owned()));
        }
        for text in [
            "",
            "1g",
            "1g.",
            "1g.10",
            "1g.10GB",
            "0g.10gb",
            "g.10gb",
            "1g.gb",
            "1g.10gb+",
            "1g.10gb+ME",
            "1g.10gbme",
            "111g.10gb",
            "1g.99999gb",
            "1g.010gb",
            "1g.10gb+me+",
            "1g.10gb\u{e9}",
            "Auto",
        ] {
            assert!(mig(text).is_err(), "{text}");
        }
        assert!(mig("1c.3g.20gb").unwrap_err().contains("compute instance"));
    }

    const UUID: &str = "GPU-5a6f1d9e-0c2b-4e7a-9b3f-1d2c3b4a5f60";

    #[test]
    fn device_lists() {
        let filter =
            device(&format!("0, 02,!7,{},!{}", UUID.replace("5a6f", "5A6F"), UUID.replace("5a", "6a")));
        let filter = filter.unwrap();
        assert_eq!(filter.any, ["0", "2", UUID]);
        assert_eq!(filter.not, ["7", &UUID.replace("5a", "6a")]);
        assert_eq!(device("0,0").unwrap().any, ["0"]);
        for (text, reason) in [
            ("", "is empty"),
            ("  ", "is empty"),
            ("0,", "empty entry"),
            ("!", "empty entry"),
            ("0,,1", "empty entry"),
            ("-1", "no GPU"),
            ("0-3", "no GPU"),
            ("all", "no GPU"),
            ("!!1", "no GPU"),
            ("GPU-", "no GPU"),
            ("GPU-5a6f1d9e", "whole UUIDs"),
            ("gpu-5a6f1d9e-0c2b-4e7a-9b3f-1d2c3b4a5f60", "no GPU"),
            ("MIG-5a6f1d9e-0c2b-4e7a-9b3f-1d2c3b4a5f60", "fgpu/mig"),
            ("70000", "no node has"),
            ("\u{662}", "no GPU"),
        ] {
            let error = device(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let many: Vec<String> = (0..65).map(|index| index.to_string()).collect();
        assert!(device(&many.join(",")).unwrap_err().contains("more than 64"));
        assert!(device(&many[..64].join(",")).is_ok());
    }

    #[test]
    fn model_lists() {
        let filter = model("A100, H100 80GB,!T4").unwrap();
        assert_eq!(filter.any, ["a100", "h100 80gb"]);
        assert_eq!(filter.not, ["t4"]);
        for text in ["", ",", "A100,", "A!100", "A\n100", "\u{e9}", &"x".repeat(65)] {
            assert!(model(text).is_err(), "{text}");
        }
        assert_eq!(contradictory(&model("A100,!a100").unwrap()), Some("a100"));
        assert_eq!(contradictory(&model("A100,!T4").unwrap()), None);
    }
}
