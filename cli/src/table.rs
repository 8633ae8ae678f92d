//! Aligned columns of text.

/// Rows of cells under a header. Columns are as wide as their widest cell and two spaces apart.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with the header `names`.
    pub(crate) fn new(names: &[&str]) -> Self {
        Self { rows: vec![names.iter().map(|&name| name.to_owned()).collect()] }
    }

    /// Adds a row. One that is shorter than the header ends early.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        // Names come from container engines: no control character of theirs reaches a terminal.
        let plain = |cell: String| cell.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        self.rows.push(cells.into_iter().map(plain).collect());
    }

    /// The text, each line with its end.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(&format!("{cell:width$}  "));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_have_no_tail() {
        let mut table = Table::new(&["GPU", "MODEL", "FREE"]);
        table.row(["0".into(), "Ä".into(), "1".into()]);
        table.row(["10".into(), "A100".into()]);
        assert_eq!(table.render(), "GPU  MODEL  FREE\n0    Ä      1\n10   A100\n");
    }

    #[test]
    fn control_characters_are_not_printed() {
        let mut table = Table::new(&["NAME"]);
        table.row(["a\u{1b}[2Jb\nc".into()]);
        assert_eq!(table.render(), "NAME\na?[2Jb?c\n");
    }
}
