//! Which annotation or device of a container speaks for which key.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::alias::{self, Translation, Vocabulary};
use super::cdi;
use super::key::{Key, OVERRIDE, PREFIX, unknown};
use crate::{Code, Error, GRANT_ANNOTATION, escape_for_display};

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
    /// The name of a CDI device.
    Device(&'a str),
}

/// What is asked of one container.
#[derive(Debug, Default)]
pub(super) struct Asked<'a> {
    values: BTreeMap<Key, Given<'a>>,
    /// Whether an override says how much another container of the pod gets.
    pub(super) amount_elsewhere: bool,
    /// Other systems' words ask for GPUs that no other container has, unless `fgpu/policy` says otherwise.
    pub(super) alone: bool,
}

impl<'a> Asked<'a> {
    /// Collects the annotations that speak for `container`, those of other `vocabularies` among them, and the
    /// names of its CDI devices.
    ///
    /// # Errors
    /// [`Code::InvalidRequest`] for an unknown key of the pod or of this container, [`Code::Conflict`] for
    /// two devices or one that says the same as an annotation, and as [`Translation::of`].
    pub(super) fn of(
        annotations: &'a BTreeMap<String, String>,
        devices: &'a [String],
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
        asked.add(devices)?;
        Ok(asked)
    }

    /// Adds what the names of CDI devices say. An engine may list one name several times.
    fn add(&mut self, devices: &'a [String]) -> Result<(), Error> {
        let Some(device) = devices.first() else { return Ok(()) };
        if let Some(other) = devices.iter().find(|other| *other != device) {
            return Err(cdi::contradiction(device, other));
        }
        for (key, value) in cdi::keys(device) {
            if self.has(key) {
                return Err(alias::conflict(&cdi::written(device), &self.escape_for_display(key)));
            }
            self.values.insert(key, Given { value: value.into(), source: Source::Device(device) });
        }
        Ok(())
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
            Some(Given { source: Source::Device(name), .. }) => cdi::written(name),
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
