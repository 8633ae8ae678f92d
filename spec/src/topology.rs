//! How the GPUs of a node are connected.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The way over PCIe between two GPUs, the shortest first (`nvmlGpuTopologyLevel_t`, and the words of
/// `nvidia-smi topo -m`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// `PSB`: both are on one board.
    Board,
    /// `PIX`: one PCIe switch is between them.
    Switch,
    /// `PXB`: several PCIe switches, and no host bridge.
    Switches,
    /// `PHB`: a host bridge, typically the processor's.
    HostBridge,
    /// `NODE`: the host bridges of one NUMA node.
    Node,
    /// `SYS`: the connection between NUMA nodes.
    System,
}

impl Path {
    const WORDS: [(&'static str, Path); 6] = [
        ("PSB", Path::Board),
        ("PIX", Path::Switch),
        ("PXB", Path::Switches),
        ("PHB", Path::HostBridge),
        ("NODE", Path::Node),
        ("SYS", Path::System),
    ];
}

/// How two GPUs are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Link {
    /// Active NVLinks from one to the other, over switches or without.
    pub nvlinks: u8,
    /// The way over PCIe, which is there beside NVLinks.
    pub path: Path,
}

/// As a word of the inventory: `SYS`, or with NVLinks `NV18+NODE`.
impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nvlinks > 0 {
            write!(f, "NV{}+", self.nvlinks)?;
        }
        f.write_str(Path::WORDS[self.path as usize].0)
    }
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (nvlinks, path) = match text.strip_prefix("NV").map(|rest| rest.split_once('+')) {
                None => (0, text),
                Some(parts) => parts.and_then(|(links, path)| Some((links.parse().ok()?, path)))?,
            };
            let path = Path::WORDS.iter().find(|(word, _)| *word == path)?.1;
            Some(Self { nvlinks, path })
        };
        parse().ok_or_else(|| format!("{} is no link between GPUs", crate::escape_for_display(text)))
    }
}

/// How each two GPUs are connected, by their places in [`Inventory::gpus`](crate::Inventory::gpus). The
/// default knows of no connection; a single GPU has none.
///
/// In JSON it is one line per GPU with its links to those before it:
///
/// ```text
/// ["", "NV18+PIX", "NV18+SYS NV18+SYS"]
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(into = "Vec<String>", try_from = "Vec<String>")]
pub struct Topology {
    rows: Vec<Vec<Link>>,
}

impl Topology {
    /// Of `count` GPUs; `between` is asked once for each two, the later one first.
    pub fn new(count: usize, mut between: impl FnMut(usize, usize) -> Link) -> Self {
        let rows = (0..count).map(|later| (0..later).map(|earlier| between(later, earlier)).collect());
        Self::of(rows.collect())
    }

    /// Without links all are equal, however many GPUs there are.
    fn of(rows: Vec<Vec<Link>>) -> Self {
        Self { rows: if rows.len() < 2 { Vec::new() } else { rows } }
    }

    /// The link between two GPUs, in either order; `None` if it is not known, or both are the same.
    pub fn link(&self, one: usize, other: usize) -> Option<Link> {
        self.rows.get(one.max(other))?.get(one.min(other)).copied()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

impl From<Topology> for Vec<String> {
    fn from(topology: Topology) -> Self {
        let words = |row: Vec<Link>| row.iter().map(Link::to_string).collect::<Vec<_>>().join(" ");
        topology.rows.into_iter().map(words).collect()
    }
}

impl TryFrom<Vec<String>> for Topology {
    type Error = String;

    fn try_from(lines: Vec<String>) -> Result<Self, String> {
        let row = |(place, line): (usize, &String)| {
            let row: Vec<Link> = line.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>()?;
            if row.len() == place { Ok(row) } else { Err(format!("GPU {place} has {} links", row.len())) }
        };
        lines.iter().enumerate().map(row).collect::<Result<_, _>>().map(Self::of)
    }
}

#[cfg(test)]
mod tests;
