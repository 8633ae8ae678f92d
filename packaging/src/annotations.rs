//! The annotation reference: docs/annotations.md, from the parser's own list of keys.

use fgpu_spec::{KeyReference, Vocabulary, key_reference};

/// The name of the page in docs/.
pub const PAGE: &str = "annotations.md";

/// What is to be said before the list.
pub const INTRODUCTION: [&str; 5] = [
    "A container asks for a share of a GPU with annotations of its OCI spec: `docker run --annotation`, \
     `podman run --annotation`, `ctr run --annotation`, or the annotations of a Kubernetes pod.",
    "How much is asked in exactly one of these ways: fgpu/fraction, fgpu/units, fgpu/memory (with fgpu/cores or \
     without), fgpu/mig, or fgpu/count alone for whole GPUs. Two ways at once are a `conflict`.",
    "In a pod CONTAINER.fgpu/KEY overrides a key for the container of that name. An override that says how much takes the \
     place of what it would contradict. The pod's sandbox never gets a GPU.",
    "A container with no such annotation runs exactly as it would without fgpu. A key or a value that is not understood is \
     an error that names what would be right; nothing is guessed.",
    "`fgpu explain KEY=VALUE` says what a request would get now, and why not.",
];

/// What is to be said of other systems' annotations.
pub const ALIASES: &str = "Where the node's `aliases` name a system its annotations are understood, in its own units. Beside an \
                           annotation of fgpu that says the same they are a `conflict`; a key of a container's own goes before them.";

/// The page, in Markdown.
pub fn page() -> String {
    let mut page = String::from(
        "# Annotations\n\n<!-- Generated: make docs. The source is spec/src/request/reference.rs. -->\n",
    );
    for paragraph in INTRODUCTION {
        page += &format!("\n{paragraph}\n");
    }
    page += "\n| annotation | examples | meaning |\n|---|---|---|\n";
    for KeyReference { key, grammar, default, meaning, examples } in key_reference() {
        let examples: Vec<_> = examples.iter().map(|example| format!("`{example}`")).collect();
        page += &format!(
            "| `{key}` | {} | {meaning} Value: {grammar}. Default: {default}. |\n",
            examples.join(" ")
        );
    }
    page += &format!(
        "\n## Other systems' annotations\n\n{ALIASES}\n\n| name | annotations | meaning |\n|---|---|---|\n"
    );
    for vocabulary in Vocabulary::ALL {
        let keys = vocabulary.keys().iter().chain(vocabulary.variables());
        let keys: Vec<_> = keys.map(|key| format!("`{key}`")).collect();
        page += &format!("| `{vocabulary}` | {} | {} |\n", keys.join(" "), vocabulary.summary());
    }
    page
}
