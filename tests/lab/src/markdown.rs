//! The pages of the documentation and their code blocks.

/// A page with its text, by its path in the checkout.
pub type Page = (&'static str, &'static str);

macro_rules! pages {
    ($($path:literal)*) => { &[$(($path, include_str!(concat!("../../../", $path)))),*] };
}

/// The pages, in the order in which a newcomer reads them.
pub const PAGES: &[Page] = pages![
    "README.md"
    "docs/install.md"
    "docs/quickstart.md"
    "docs/annotations.md"
    "docs/configuration.md"
    "docs/tiers.md"
    "docs/troubleshooting.md"
    "docs/cdi.md"
    "docs/slurm.md"
    "docs/compose.md"
    "docs/dev-containers.md"
    "docs/pytorch.md"
    "docs/vllm.md"
    "docs/frameworks.md"
    "docs/run-volume.md"
    "SECURITY.md"
    "docs/metrics.md"
    "docs/json.md"
    "docs/comparison.md"
    "docs/contributing.md"
];

/// A block between fences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The line of its first line, from 1.
    pub line: usize,
    /// The word behind the opening fence; empty if there is none.
    pub language: String,
    /// What is in it.
    pub text: String,
}

/// The blocks of a page.
///
/// # Errors
/// The line of a block that is not between fences, where nobody can tell what it is, or that has no end.
pub fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let (mut blocks, mut open, mut before) = (Vec::new(), None::<Block>, "");
    for (index, line) in page.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (Some(_), Some("")) => blocks.extend(open.take()),
            (Some(block), _) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, Some(language)) => {
                open = Some(Block {
                    line: index + 2,
                    language: language.trim().to_owned(),
                    text: String::new(),
                });
            }
            (None, None) if line.starts_with("    ") && before.trim().is_empty() => {
                return Err(format!("line {}: an indented block; write a fence with a language", index + 1));
            }
            (None, None) => {}
        }
        before = line;
    }
    match open {
        Some(block) => Err(format!("line {}: a block without an end", block.line)),
        None => Ok(blocks),
    }
}
