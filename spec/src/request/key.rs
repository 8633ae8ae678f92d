//! The keys, and which annotation of a pod speaks for which of them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::alias::{self, Translation, Vocabulary};
use crate::{Code, Error, GRANT_ANNOTATION, escape_for_display};

/// What the keys of the pod or container itself begin with.
const PREFIX: &str = "fgpu/";
/// What follows a container's name in the keys that override for it.
const OVERRIDE: &str = ".fgpu/";

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

    fn find(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, key)| *key)
    }

    /// Whether the key can say how much of a GPU is asked for.
    fn is_amount(self) -> bool {
        matches!(
            self,
            Key::Fraction | Key::Count | Key::Memory | Key::MemoryShare | Key::Cores | Key::Units | Key::Mig
        )
    }

    /// The keys of the pod that give way to this key of a container's own, whatever their values.
    fn replaces(self) -> &'static [Key] {
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

/// One annotation that counts.
#[derive(Debug)]
struct Given<'a> {
    value: Cow<'a, str>,
    source: Source<'a>,
}

/// Whose annotation it is.
#[derive(Debug)]
enum Source<'a> {
    /// The pod's, or the only container's.
    Pod,
    /// An override for the container of that name.
    Container(&'a str),
    /// Another system's; as it was written.
    Alias(String),
}

/// What is asked of one container.
#[derive(Debug, Default)]
pub(super) struct Asked<'a> {
    values: BTreeMap<Key, Given<'a>>,
    /// Whether an override says how much another container of the pod gets.
    pub(super) amount_elsewhere: bool,
    /// Other systems' words ask for GPUs that nobody else has, if nobody says otherwise.
    pub(super) alone: bool,
}

impl<'a> Asked<'a> {
    /// Collects the annotations that speak for `container`, those of other `vocabularies` among them.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] for an unknown key of the pod or of this container, and as
    /// [`Translation::of`].
    pub(super) fn of(
        annotations: &'a BTreeMap<String, String>,
        container: Option<&'a str>,
        vocabularies: &[Vocabulary],
    ) -> Result<Self, Error> {
        let mut asked = Self::default();
        let mut overrides = BTreeMap::new();
        for (full, value) in annotations {
            if let Some(name) = full.strip_prefix(PREFIX) {
                if full == GRANT_ANNOTATION {
                    continue;
                }
                let key = Key::find(name).ok_or_else(|| unknown(full, name))?;
                asked.values.insert(key, Given { value: value.into(), source: Source::Pod });
            } else if let Some((owner, name)) = full.split_once(OVERRIDE) {
                if Some(owner) == container {
                    let key = Key::find(name).ok_or_else(|| unknown(full, name))?;
                    overrides.insert(key, Given { value: value.into(), source: Source::Container(owner) });
                } else {
                    asked.amount_elsewhere |= Key::find(name).is_some_and(Key::is_amount);
                }
            }
        }
        if !vocabularies.is_empty() {
            asked.translate(Translation::of(annotations, container, vocabularies)?)?;
        }
        // An override that says how much takes the place of what it would contradict: a pod that gives
        // fgpu/fraction to all can give fgpu/memory to one.
        let named_slice = |given: &Given<'_>| given.value != "auto";
        let own_slice = overrides.get(&Key::Mig).is_some_and(named_slice);
        let own_amount = overrides.keys().any(|key| key.is_amount() && !matches!(key, Key::Count | Key::Mig));
        // A cap needs cores to hold to.
        let memory_alone = overrides.contains_key(&Key::Memory)
            && !overrides.contains_key(&Key::Cores)
            && !asked.values.contains_key(&Key::Cores);
        let gives_way = |key: Key, given: &Given<'_>| match key {
            Key::Count => false,
            Key::Compute => memory_alone && given.value == "cap",
            Key::Mig => own_amount && named_slice(given),
            _ if own_slice && key.is_amount() => true,
            _ => overrides.keys().any(|new: &Key| new.replaces().contains(&key)),
        };
        asked.values.retain(|key, given| !gives_way(*key, given));
        asked.values.extend(overrides);
        Ok(asked)
    }

    /// Adds what other systems' words say.
    fn translate(&mut self, translation: Translation) -> Result<(), Error> {
        let Translation { values, alone } = translation;
        let amount = self.says_how_much() || values.keys().any(|key| key.is_amount());
        if self.is_empty() && !amount {
            return Ok(());
        }
        self.alone = alone;
        for (key, new) in values {
            if self.has(key) {
                return Err(alias::conflict(&self.escape_for_display(key), &new.written));
            }
            let given = Given { value: new.value.into(), source: Source::Alias(new.written) };
            self.values.insert(key, given);
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(super) fn has(&self, key: Key) -> bool {
        self.values.contains_key(&key)
    }

    /// Whether any key is there that can say how much of a GPU is asked for.
    pub(super) fn says_how_much(&self) -> bool {
        self.values.keys().any(|key| key.is_amount())
    }

    /// The value of a key.
    pub(super) fn get(&self, key: Key) -> Option<&str> {
        self.values.get(&key).map(|given| &*given.value)
    }

    /// Whether another system's word says it.
    pub(super) fn is_translated(&self, key: Key) -> bool {
        matches!(self.values.get(&key), Some(Given { source: Source::Alias(_), .. }))
    }

    /// Whether the container was told, by name, to go without a GPU: `CONTAINER.fgpu/count=0`.
    ///
    /// # Errors
    /// [`Code::Conflict`] when another key of that container asks for one.
    pub(super) fn opts_out(&self) -> Result<bool, Error> {
        let own = |given: &Given<'_>| matches!(given.source, Source::Container(_));
        if !self.values.get(&Key::Count).is_some_and(|given| own(given) && given.value == "0") {
            return Ok(false);
        }
        match self.values.iter().find(|(key, given)| own(given) && **key != Key::Count) {
            Some((other, _)) => Err(self.conflict(
                Key::Count,
                *other,
                "the one takes the GPU away from this container, the other asks for one; keep one of them",
            )),
            None => Ok(true),
        }
    }

    /// `KEY=VALUE` as it was written, for a message.
    pub(super) fn escape_for_display(&self, key: Key) -> String {
        match self.values.get(&key) {
            Some(Given { value, source: Source::Container(container) }) => {
                format!(
                    "{}{OVERRIDE}{}={}",
                    escape_for_display(container),
                    key.name(),
                    escape_for_display(value)
                )
            }
            Some(Given { value, source: Source::Pod }) => {
                format!("{PREFIX}{}={}", key.name(), escape_for_display(value))
            }
            Some(Given { source: Source::Alias(written), .. }) => written.clone(),
            None => format!("{PREFIX}{}", key.name()),
        }
    }

    /// Every key and value that counts, in the order of the documentation.
    pub(super) fn text(&self) -> String {
        let mut written: Vec<String> = Vec::new();
        for key in self.values.keys() {
            let escaped = self.escape_for_display(*key);
            // One word of another system's may say several things.
            if !written.contains(&escaped) {
                written.push(escaped);
            }
        }
        written.join(" ")
    }

    /// The error for a value that is wrong by itself.
    pub(super) fn wrong(&self, key: Key, reason: &str) -> Error {
        Error::new(Code::InvalidRequest, format!("{} {reason}", self.escape_for_display(key)))
    }

    /// The error for two keys that contradict each other.
    pub(super) fn conflict(&self, one: Key, other: Key, reason: &str) -> Error {
        Error::new(
            Code::Conflict,
            format!(
                "{} and {} contradict each other: {reason}",
                self.escape_for_display(one),
                self.escape_for_display(other)
            ),
        )
    }
}

/// The error for a key that nobody knows; `full` as it was written, `name` without prefix.
fn unknown(full: &str, name: &str) -> Error {
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
