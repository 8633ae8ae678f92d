//! Which GPUs of a node are offered to the cluster.

use std::collections::BTreeMap;
use std::str::FromStr;

use fgpu_spec::{Gpu, escape_for_display};

/// The node's label that says it, before the plugin's own option.
pub const LABEL: &str = "gpu.fgpu.dev/gpus";

/// All, none, or those with these indices or UUIDs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chosen {
    /// All of them.
    All,
    /// None: they are for containers outside Kubernetes, and for pods with annotations.
    None,
    /// Those with one of these indices or UUIDs.
    Some(Vec<String>),
}

/// `all`, `none`, or indices and UUIDs with `,` or, since a label's value has no comma, `_` between them.
impl FromStr for Chosen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(Self::All),
            "none" => return Ok(Self::None),
            _ => {}
        }
        let names: Vec<String> = text.split([',', '_']).map(str::to_owned).collect();
        let is_gpu = |name: &String| {
            let is_uuid = name.strip_prefix("GPU-").is_some_and(|rest| {
                !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
            });
            is_uuid || name.parse::<u32>().is_ok()
        };
        if names.iter().all(is_gpu) {
            return Ok(Self::Some(names));
        }
        Err(format!(
            "{} is neither all, nor none, nor a list of indices and UUIDs of GPUs (0_1 or 0,1)",
            escape_for_display(text)
        ))
    }
}

impl Chosen {
    /// What a node's labels say, or else `otherwise`.
    ///
    /// # Errors
    /// The label's value is none.
    pub fn of(labels: &BTreeMap<String, String>, otherwise: &Self) -> Result<Self, String> {
        match labels.get(LABEL) {
            Some(text) => text.parse().map_err(|why| format!("label {LABEL}: {why}")),
            None => Ok(otherwise.clone()),
        }
    }

    /// Whether it is one of them.
    pub fn has(&self, gpu: &Gpu) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Some(names) => {
                names.iter().any(|name| name.parse() == Ok(gpu.index) || gpu.uuid.eq_ignore_ascii_case(name))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::tests::inventory;

    #[test]
    fn a_label_goes_before_the_option() {
        let of = |text: &str| {
            let labels = BTreeMap::from([(LABEL.to_owned(), text.to_owned())]);
            let chosen = Chosen::of(&labels, &Chosen::All)?;
            let gpus = inventory(4).gpus;
            Ok::<_, String>(
                gpus.iter().filter(|gpu| chosen.has(gpu)).map(|gpu| gpu.index).collect::<Vec<_>>(),
            )
        };
        assert_eq!(of("all").unwrap(), [0, 1, 2, 3]);
        assert_eq!(of("none").unwrap(), [0; 0]);
        assert_eq!(of("0_2").unwrap(), [0, 2]);
        let uuid = inventory(4).gpus[3].uuid.to_uppercase();
        assert_eq!(of(&uuid).unwrap(), [3]);
        for wrong in ["", "0_", "-1", "some", "GPU-", "0 1"] {
            assert!(of(wrong).unwrap_err().starts_with("label gpu.fgpu.dev/gpus: "), "{wrong}");
        }
        assert_eq!(Chosen::of(&BTreeMap::new(), &Chosen::None), Ok(Chosen::None));
    }
}
