//! The keys of a request, and annotations from variables.

use std::collections::BTreeMap;

use crate::{Code, Error, GRANT_ANNOTATION, escape_for_display};

/// What the keys of the pod or container itself begin with.
pub(super) const PREFIX: &str = "fgpu/";
/// What follows a container's name in the keys that override for it.
pub(super) const OVERRIDE: &str = ".fgpu/";

/// A key of a request, in the order of the documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Fraction,
    Count,
    Memory,
    Cores,
    Compute,
    Units,
    Mig,
    Isolation,
    Device,
    Model,
    Policy,
    Wait,
    Owner,
    /// A share of the memory alone. No key of ours says it, some other systems' do.
    MemoryShare,
}

impl Key {
    /// Every key with its name.
    const ALL: [(&'static str, Key); 13] = [
        ("fraction", Key::Fraction),
        ("count", Key::Count),
        ("memory", Key::Memory),
        ("cores", Key::Cores),
        ("compute", Key::Compute),
        ("units", Key::Units),
        ("mig", Key::Mig),
        ("isolation", Key::Isolation),
        ("device", Key::Device),
        ("model", Key::Model),
        ("policy", Key::Policy),
        ("wait", Key::Wait),
        ("owner", Key::Owner),
    ];

    /// Every key, in the order of the documentation.
    pub(super) fn every() -> impl Iterator<Item = Key> {
        Self::ALL.into_iter().map(|(_, key)| key)
    }

    /// The key without its prefix.
    pub(super) fn name(self) -> &'static str {
        Self::ALL.get(self as usize).map_or("memory", |(name, _)| name)
    }

    pub(super) fn find(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, key)| *key)
    }

    /// Whether the key can say how much of a GPU is asked for.
    pub(super) fn is_amount(self) -> bool {
        matches!(
            self,
            Key::Fraction | Key::Count | Key::Memory | Key::MemoryShare | Key::Cores | Key::Units | Key::Mig
        )
    }

    /// The keys of the pod that give way to this key of a container's own, whatever their values.
    pub(super) fn replaces(self) -> &'static [Key] {
        match self {
            Key::Fraction | Key::Units => {
                &[Key::Fraction, Key::Units, Key::Memory, Key::MemoryShare, Key::Cores]
            }
            Key::Memory => &[Key::Fraction, Key::Units, Key::MemoryShare],
            Key::Cores => &[Key::Fraction, Key::Units],
            _ => &[],
        }
    }
}

/// The error for an unknown key; `full` as it was written, `name` without prefix.
pub(super) fn unknown(full: &str, name: &str) -> Error {
    let message = if name == "grant" {
        format!("{} is not a key to set: fgpu writes fgpu/grant itself; remove it", escape_for_display(full))
    } else {
        let prefix = full.strip_suffix(name).unwrap_or(PREFIX);
        format!(
            "{} is not a key of fgpu; the nearest is {} (all of them: {})",
            escape_for_display(full),
            escape_for_display(&format!("{prefix}{}", nearest(name))),
            Key::ALL.map(|(name, _)| name).join(", ")
        )
    };
    Error::new(Code::InvalidRequest, message)
}

/// The known key that is most like `name`: few edits apart, with a long piece in common, which is what finds
/// memory in `gpumem`.
fn nearest(name: &str) -> &'static str {
    // Longer than any key can be mistyped, and both measures take time by its length.
    let name: String = name.chars().take(32).flat_map(char::to_lowercase).collect();
    let unlikeness = |known: &str| {
        distance(&name, known) as isize - longest_common(name.as_bytes(), known.as_bytes()) as isize
    };
    Key::ALL.iter().map(|(known, _)| *known).min_by_key(|known| unlikeness(known)).unwrap_or("fraction")
}

/// Length of the longest piece that both have.
fn longest_common(one: &[u8], other: &[u8]) -> usize {
    let starts = (0..one.len()).flat_map(|a| (0..other.len()).map(move |b| (a, b)));
    let common = |(a, b)| one[a..].iter().zip(&other[b..]).take_while(|(x, y)| x == y).count();
    starts.map(common).max().unwrap_or(0)
}

/// Edit distance: insertions, deletions, replacements and swaps of neighbours.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=other.len()).collect();
    for (row, a) in one.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, b) in other.iter().enumerate() {
            let replaced = above[column] + usize::from(a != b);
            let mut best = replaced.min(above[column + 1] + 1).min(current[column] + 1);
            if row > 0 && column > 0 && *a == other[column - 1] && one[row - 1] == *b {
                best = best.min(before[column - 1] + 1);
            }
            current.push(best);
        }
        before = std::mem::replace(&mut above, current);
    }
    above[other.len()]
}

/// Translates environment variables into annotations, for a node that says `accept-env = true`:
/// `FGPU_FRACTION=0.25` becomes `fgpu/fraction`. Any other name that begins with `FGPU_` becomes an unknown
/// key, so that a typing error is told like one in an annotation. An empty value counts as not set, which
/// is how a variable of an image is taken back; of two the last counts, as in a runtime.
///
/// Read these only where the annotations ask for nothing, else an image could contradict its user.
pub fn annotations_from_env(env: &[String]) -> BTreeMap<String, String> {
    let mut annotations = BTreeMap::new();
    for variable in env {
        let Some((name, value)) = variable.strip_prefix("FGPU_").and_then(|rest| rest.split_once('=')) else {
            continue;
        };
        let key = format!("{PREFIX}{}", name.to_ascii_lowercase());
        if value.is_empty() || key == GRANT_ANNOTATION {
            annotations.remove(&key);
        } else {
            annotations.insert(key, value.to_owned());
        }
    }
    annotations
}

/// Whether the container was told, by name, to go without a GPU, so that nothing else can ask for one.
pub fn opts_out(annotations: &BTreeMap<String, String>, container: Option<&str>) -> bool {
    let count = container.and_then(|name| annotations.get(&format!("{name}{OVERRIDE}count")));
    count.is_some_and(|count| count == "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn names_match_their_place() {
        for (name, key) in Key::ALL {
            assert_eq!(key.name(), name);
        }
    }

    #[test]
    fn the_nearest_key() {
        for (wrong, right) in [
            ("fracton", "fraction"),
            ("farction", "fraction"),
            ("gpu-fraction", "fraction"),
            ("Fraction", "fraction"),
            ("mem", "memory"),
            ("gpumem", "memory"),
            ("gpu-memory", "memory"),
            ("gpucores", "cores"),
            ("core", "cores"),
            ("unit", "units"),
            ("migs", "mig"),
            ("devices", "device"),
            ("ower", "owner"),
            ("fration", "fraction"),
            ("cout", "count"),
            ("polcy", "policy"),
            ("", "mig"),
        ] {
            assert_eq!(nearest(wrong), right, "{wrong}");
        }
    }

    #[test]
    fn distances() {
        for (one, other, expected) in [
            ("", "", 0),
            ("abc", "abc", 0),
            ("abc", "", 3),
            ("", "abc", 3),
            ("abc", "acb", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
    }

    #[test]
    fn variables_become_annotations() {
        let env: Vec<String> = [
            "PATH=/bin",
            "FGPU_FRACTION=0.25",
            "FGPU_FRACTION=0.5",
            "FGPU_MEMORY=4Gi",
            "FGPU_MEMORY=",
            "FGPU_GRANT=00112233445566778899aabbccddeeff",
            "FGPU_COUTN=2",
            "FGPU_OWNER",
            "XFGPU_COUNT=3",
        ]
        .map(str::to_owned)
        .to_vec();
        assert_eq!(annotations_from_env(&env), map(&[("fgpu/coutn", "2"), ("fgpu/fraction", "0.5")]));
    }
}
