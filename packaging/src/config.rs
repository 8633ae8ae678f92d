//! The configuration reference: fgpu-config(5) and docs/configuration.md, from the commented configuration
//! file that is shipped as /etc/fgpu/config.toml.

use std::fmt::Write;

/// The file that is shipped.
pub const FILE: &str = include_str!("../config.toml");

/// The name of the page in docs/.
pub const PAGE: &str = "configuration.md";

/// What is to be said before the list.
pub const INTRODUCTION: [&str; 2] = [
    "A node is configured in `/etc/fgpu/config.toml`. Every key is optional, and so is the file. It is read anew for every \
     container, so a change needs no restart, and holds for containers that are created after it. A key that fgpu does not \
     know is an error that names its line.",
    "`fgpu --config FILE explain fraction=0.25` tries another file without changing anything.",
];

/// A key, with the value that holds where the file is silent, or an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The table that it is in, as written: `[driver]`; empty at the top of the file.
    pub table: String,
    /// The key.
    pub key: String,
    /// The value that is shown.
    pub value: String,
    /// What it does.
    pub meaning: String,
}

/// The settings of the file, in its order.
///
/// The file is written by a rule: `# text` is prose and speaks for the setting below it, `#key = value` is a
/// setting that is commented out.
pub fn settings() -> Vec<Setting> {
    let (mut settings, mut table, mut prose) = (Vec::new(), String::new(), Vec::new());
    for line in FILE.lines() {
        let bare = line.strip_prefix('#').unwrap_or(line);
        if let Some(text) = line.strip_prefix("# ") {
            prose.push(text);
        } else if bare.starts_with('[') {
            table = bare.to_owned();
        } else if let Some((key, value)) = bare.split_once(" = ") {
            let meaning = std::mem::take(&mut prose).join(" ");
            settings.push(Setting { table: table.clone(), key: key.into(), value: value.into(), meaning });
        } else {
            prose.clear();
        }
    }
    settings
}

/// The page, in Markdown.
pub fn page() -> String {
    let mut page = String::from(
        "# Configuration\n\n<!-- Generated: make docs. The source is packaging/config.toml. -->\n",
    );
    for paragraph in INTRODUCTION {
        let _ = write!(page, "\n{paragraph}\n");
    }
    page += "\n| table | key | default or example | meaning |\n|---|---|---|---|\n";
    for Setting { table, key, value, meaning } in settings() {
        let table = if table.is_empty() { table } else { format!("`{table}`") };
        let _ = writeln!(page, "| {table} | `{key}` | `{value}` | {meaning} |");
    }
    let _ = write!(page, "\nThe file as it is shipped:\n\n```toml\n{FILE}```\n");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_a_meaning() {
        for setting in settings() {
            assert!(!setting.meaning.is_empty(), "{setting:?}");
        }
    }
}
