//! slurm.conf(5): lines of `Key=Value` words, whose keys are read without regard to case; `#` begins a
//! comment.

/// Before a line that was changed: the line as it was.
const WAS: &str = "# before `fgpu setup slurm`: ";
/// Behind a line that is ours.
const OURS: &str = " # fgpu setup slurm";

/// What slurm.conf shall say of a node.
pub(super) struct Node {
    pub(super) name: String,
    pub(super) gpus: usize,
    pub(super) shards: u32,
}

impl Node {
    fn gres(&self) -> [String; 2] {
        let shards = u64::from(self.shards) * self.gpus as u64;
        [format!("gpu:{}", self.gpus), format!("shard:{shards}")]
    }
}

/// The value of a key in a line, if it has it.
fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let words = line.split('#').next().unwrap_or_default().split_whitespace();
    words
        .filter_map(|word| word.split_once('='))
        .find(|(name, _)| name.eq_ignore_ascii_case(key))
        .map(|(_, value)| value)
}

/// Whether a line has the key with such a value.
pub(crate) fn has(text: &str, key: &str, is: impl Fn(&str) -> bool) -> bool {
    text.lines().any(|line| value(line, key).is_some_and(&is))
}

/// The line with these entries in the list of a key, which is put at its end if the line has it not.
fn with_entries(line: &str, key: &str, entries: &[impl AsRef<str>]) -> String {
    let name = |entry: &str| entry.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let old = value(line, key).unwrap_or_default();
    let there: Vec<_> = old.split(',').map(name).collect();
    let new = entries.iter().map(AsRef::as_ref).filter(|entry| !there.contains(&name(entry)));
    let all: Vec<_> = old.split(',').filter(|entry| !entry.is_empty()).chain(new).collect();
    let all = all.join(",");
    let is_the_keys =
        |word: &&str| word.split_once('=').is_some_and(|(name, _)| name.eq_ignore_ascii_case(key));
    match line.split_whitespace().find(is_the_keys).filter(|_| !old.is_empty()) {
        Some(word) => {
            let name = word.split('=').next().unwrap_or_default();
            line.replacen(word, &format!("{name}={all}"), 1)
        }
        None => {
            let (words, comment) = line.find('#').map_or((line, ""), |at| line.split_at(at));
            let gap = if comment.is_empty() { "" } else { " " };
            format!("{} {key}={all}{gap}{comment}", words.trim_end())
        }
    }
}

/// A line as it shall be.
fn edited_line(line: &str, node: &Node) -> String {
    if value(line, "NodeName") == Some(&node.name) {
        return with_entries(line, "Gres", &node.gres());
    }
    if value(line, "GresTypes").is_some() {
        return with_entries(line, "GresTypes", &["gpu", "shard"]);
    }
    if value(line, "PrologFlags").is_some() {
        return with_entries(line, "PrologFlags", &["Contain"]);
    }
    line.to_owned()
}

/// The text with what the node needs, from one without it.
pub(super) fn edited(text: &str, node: &Node, warnings: &mut Vec<String>) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let new = edited_line(line, node);
        if new != line {
            out += &format!("{WAS}{line}\n");
        }
        out += &format!("{new}\n");
    }
    for (key, value) in [("GresTypes", "gpu,shard"), ("PrologFlags", "Contain")] {
        if !has(text, key, |_| true) {
            out = with_line(&out, &format!("{key}={value}"));
        }
    }
    if !has(text, "NodeName", |name| name == node.name) {
        warnings.push(format!(
            "slurm.conf has no line for NodeName={} alone: add Gres={} to the line of nodes that all have {} GPUs",
            node.name,
            node.gres().join(","),
            node.gpus
        ));
    }
    out
}

/// The text with one more line of ours.
pub(super) fn with_line(text: &str, line: &str) -> String {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{end}{line}{OURS}\n")
}

/// The text without the lines of ours.
pub(super) fn without_marked(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.trim_end().ends_with(OURS)).collect()
}

/// The text as it was before.
pub(super) fn undone(text: &str, warnings: &mut Vec<String>) -> String {
    let text = without_marked(text);
    let mut lines = text.split_inclusive('\n');
    let mut out = String::new();
    while let Some(line) = lines.next() {
        let Some(was) = line.strip_prefix(WAS) else {
            out += line;
            continue;
        };
        let now = lines.next().unwrap_or_default();
        if has_grown(was, now) {
            out += was;
        } else {
            warnings.push(format!("a line was changed since, and stays: {}", now.trim_end()));
            out += now;
        }
    }
    out
}

/// Whether nothing but our entries is in `now` and not in `was`.
fn has_grown(was: &str, now: &str) -> bool {
    let pieces = |line: &str| -> Vec<String> {
        line.split(|c: char| c.is_whitespace() || c == ',' || c == '=').map(str::to_owned).collect()
    };
    let was = pieces(was);
    let is_ours = |piece: &String| {
        let name = piece.split(':').next().unwrap_or_default();
        ["gpu", "shard", "Contain", "Gres", ""].contains(&name)
    };
    let now = pieces(now);
    now.iter().all(|piece| was.contains(piece) || is_ours(piece))
        && was.iter().all(|piece| now.contains(piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "ClusterName=lab\nGresTypes=gpu # of all\nnodename=n1 CPUs=4 State=UNKNOWN\nNodeName=n[2-9] CPUs=4\nPartitionName=main Nodes=ALL\n";

    fn node() -> Node {
        Node { name: "n1".into(), gpus: 2, shards: 100 }
    }

    #[test]
    fn the_nodes_line_has_its_shards_and_the_rest_stays() {
        let mut warnings = Vec::new();
        let new = edited(TEXT, &node(), &mut warnings);
        let lines: Vec<_> = new.lines().filter(|line| !line.starts_with(WAS)).collect();
        assert_eq!(
            lines,
            [
                "ClusterName=lab",
                "GresTypes=gpu,shard # of all",
                "nodename=n1 CPUs=4 State=UNKNOWN Gres=gpu:2,shard:200",
                "NodeName=n[2-9] CPUs=4",
                "PartitionName=main Nodes=ALL",
                "PrologFlags=Contain # fgpu setup slurm",
            ]
        );
        assert_eq!(undone(&new, &mut warnings), TEXT);
        assert_eq!(edited(&undone(&new, &mut warnings), &node(), &mut warnings), new, "again");
        assert_eq!(warnings, [""; 0]);
    }

    #[test]
    fn what_is_there_already_stays() {
        for (line, new) in [
            ("NodeName=n1 Gres=gpu:h100:2 CPUs=4", "NodeName=n1 Gres=gpu:h100:2,shard:200 CPUs=4"),
            ("NodeName=n1 Gres=gpu:2,shard:8", "NodeName=n1 Gres=gpu:2,shard:8"),
            ("NodeName=n1 # of rack 4", "NodeName=n1 Gres=gpu:2,shard:200 # of rack 4"),
            ("PrologFlags=X11,contain", "PrologFlags=X11,contain"),
            ("PrologFlags=Alloc", "PrologFlags=Alloc,Contain"),
            ("#GresTypes=mps", "#GresTypes=mps"),
            ("NodeName=n11 CPUs=1", "NodeName=n11 CPUs=1"),
        ] {
            assert_eq!(edited_line(line, &node()), new);
        }
    }

    #[test]
    fn a_node_among_others_is_told_and_left() {
        let mut warnings = Vec::new();
        let new = edited(
            "NodeName=n[1-9] CPUs=4\nGresTypes=gpu,shard\nPrologFlags=Contain\n",
            &node(),
            &mut warnings,
        );
        assert_eq!(new, "NodeName=n[1-9] CPUs=4\nGresTypes=gpu,shard\nPrologFlags=Contain\n");
        assert!(warnings[0].contains("add Gres=gpu:2,shard:200"), "{warnings:?}");
    }

    #[test]
    fn a_line_that_somebody_changed_since_stays() {
        let mut warnings = Vec::new();
        let new = edited(TEXT, &node(), &mut warnings).replace("State=UNKNOWN Gres", "State=DOWN Gres");
        let back = undone(&new, &mut warnings);
        assert!(
            back.contains("\nnodename=n1 CPUs=4 State=DOWN Gres=gpu:2,shard:200\n") && !back.contains(WAS),
            "{back}"
        );
        assert_eq!(warnings.len(), 1);
    }
}
