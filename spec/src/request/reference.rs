//! What every key means, for people: the annotation reference of docs/ and fgpu-annotations(7) are made from
//! it.

use super::key::Key;

/// What a person needs to know of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyReference {
    /// The key, with its prefix.
    pub key: &'static str,
    /// What can be written.
    pub grammar: &'static str,
    /// What holds where the key is not there.
    pub default: &'static str,
    /// What it does; one or more sentences.
    pub meaning: &'static str,
    /// Values that are accepted.
    pub examples: &'static [&'static str],
}

/// Every key, in the order of the documentation.
pub fn key_reference() -> impl Iterator<Item = KeyReference> {
    Key::every().filter_map(of)
}

/// A key without its text does not compile. None for what no annotation says.
const fn of(key: Key) -> Option<KeyReference> {
    let reference = match key {
        Key::MemoryShare => return None,
        Key::Fraction => KeyReference {
            key: "fgpu/fraction",
            grammar: "a decimal with at most 6 digits after the point, a percentage, or a ratio; above 0, at most 1",
            default: "none",
            meaning: "That share of one GPU's usable memory and of its SM time. A ratio is floored to a millionth, so \
                      three times 1/3 fit on a GPU; the memory is floored to a whole MiB.",
            examples: &["0.25", "25%", "1/3", "1"],
        },
        Key::Count => KeyReference {
            key: "fgpu/count",
            grammar: "an integer from 1 to 64",
            default: "1",
            meaning: "That many distinct GPUs, the same share of each; with fgpu/mig that many slices, which may be of one GPU. \
                      Alone it asks for whole GPUs. CONTAINER.fgpu/count=0 leaves one container of a pod without a GPU.",
            examples: &["1", "2", "8"],
        },
        Key::Memory => KeyReference {
            key: "fgpu/memory",
            grammar: "a number, with decimals or without, and a unit: Ki, Mi, Gi, Ti (or KiB …) are binary, k, M, G, T (or kB …) decimal; at least 1 MiB",
            default: "the fraction of the usable memory",
            meaning: "Device memory per GPU, to the byte, instead of a fraction. Alone it books no SM time: the container has what others \
                      leave of it, divided by memory among those that booked none, and never nothing.",
            examples: &["4Gi", "512MiB", "4G", "1.5Gi"],
        },
        Key::Cores => KeyReference {
            key: "fgpu/cores",
            grammar: "a percentage, with or without its sign, or a ratio; above 0, at most 100%",
            default: "the fraction; none is booked where only fgpu/memory is asked for",
            meaning: "Share of the SM time of each GPU. It needs fgpu/memory beside it.",
            examples: &["30%", "30", "1/3", "12.5%"],
        },
        Key::Compute => KeyReference {
            key: "fgpu/compute",
            grammar: "cap, share or off",
            default: "the node's: compute in [quota], else cap",
            meaning: "How the share of SM time is meant. cap: never above it. share: idle time may be used, nobody else's \
                      share is. off: it is taken from what others can get and not enforced. fgpu/memory without fgpu/cores is \
                      share, and cap contradicts it.",
            examples: &["cap", "share", "off"],
        },
        Key::Units => KeyReference {
            key: "fgpu/units",
            grammar: "a decimal",
            default: "none",
            meaning: "The share in the administrator's unit, of which units-per-gpu make a GPU: with 5 of them, 1 is a \
                      fifth. A multiple of units-per-gpu asks for whole GPUs. Denied where the node has no units-per-gpu.",
            examples: &["1", "2.5"],
        },
        Key::Mig => KeyReference {
            key: "fgpu/mig",
            grammar: "auto, or a profile as `nvidia-smi mig -lgip` names it",
            default: "none",
            meaning: "A MIG device, made for the container and removed after it, on a GPU whose administrator has \
                      enabled MIG. auto is the smallest that has the memory, cores or fraction asked for beside it.",
            examples: &["auto", "1g.10gb", "1g.10gb+me"],
        },
        Key::Isolation => KeyReference {
            key: "fgpu/isolation",
            grammar: "auto, mig, driver, quota or none",
            default: "auto",
            meaning: "The tier, which is how the limit is enforced. auto is the strongest that the node can give this \
                      request. none has to be allowed by the node (allow-none).",
            examples: &["auto", "mig", "driver", "quota", "none"],
        },
        Key::Device => KeyReference {
            key: "fgpu/device",
            grammar: "indices or whole UUIDs with commas between; ! excludes",
            default: "any",
            meaning: "Which GPUs may serve the request.",
            examples: &["0", "0,1", "!1", "GPU-5a6f1d9e-0c2b-4e7a-9b3f-1d2c3b4a5f60"],
        },
        Key::Model => KeyReference {
            key: "fgpu/model",
            grammar: "parts of model names with commas between, in any case; ! excludes",
            default: "any",
            meaning: "Which models may serve the request.",
            examples: &["h100", "A100,H100", "!80GB"],
        },
        Key::Policy => KeyReference {
            key: "fgpu/policy",
            grammar: "pack, spread or exclusive",
            default: "the node's: policy, else pack",
            meaning: "How GPUs are chosen. pack: the one that is left with the least. spread: the emptiest. exclusive: one \
                      that nobody else uses, kept for this container alone.",
            examples: &["pack", "spread", "exclusive"],
        },
        Key::Wait => KeyReference {
            key: "fgpu/wait",
            grammar: "0, or hours, minutes and seconds in this order",
            default: "the node's: wait-default, else 0",
            meaning: "How long to wait for room. The node's wait-max, 90 s where it says nothing, is the longest; its wait-default counts where the request is silent.",
            examples: &["0", "30s", "2m", "1m30s"],
        },
        Key::Owner => KeyReference {
            key: "fgpu/owner",
            grammar: "1 to 63 of a-z, 0-9, dot and hyphen",
            default: "none",
            meaning: "Whom the request counts against. The node can limit how many GPUs an owner holds shares of.",
            examples: &["team-a", "alice.example"],
        },
    };
    Some(reference)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::{Defaults, Request};

    #[test]
    fn each_text_stands_with_its_key() {
        for key in Key::every() {
            assert_eq!(
                of(key).map(|reference| reference.key.to_owned()),
                Some(format!("fgpu/{}", key.name()))
            );
        }
    }

    #[test]
    fn every_example_is_accepted() {
        let node = Defaults {
            units_per_gpu: Some(5),
            allow_none: true,
            wait_default: Duration::ZERO,
            wait_max: Duration::from_secs(90),
            ..Defaults::default()
        };
        for reference in key_reference() {
            assert!(!reference.examples.is_empty(), "{}", reference.key);
            for example in reference.examples {
                let amount = match (reference.key, *example) {
                    ("fgpu/cores", _) | ("fgpu/mig", "auto") => Some(("fgpu/memory", "4Gi")),
                    ("fgpu/fraction" | "fgpu/memory" | "fgpu/units" | "fgpu/mig", _) => None,
                    _ => Some(("fgpu/fraction", "0.25")),
                };
                let pairs = amount.into_iter().chain([(reference.key, *example)]);
                let annotations: BTreeMap<_, _> =
                    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
                let request = Request::parse(&annotations, None, &node);
                assert!(matches!(request, Ok(Some(_))), "{annotations:?}: {request:?}");
            }
        }
    }
}
