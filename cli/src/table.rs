//! Aligned columns of text, on a terminal of any width.

use anstyle::Style;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::bar::Bar;
use crate::screen::{HEAD, Look, paint};

/// Between two columns.
const GAP: usize = 2;

/// How a column behaves. Where room is short, first extras go, then columns are cut, then columns go that may
/// be left out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    title: &'static str,
    right: bool,
    /// The width that it may be cut to; by default it is never cut.
    least: Option<usize>,
    /// The width that it may grow to where there is room.
    most: usize,
    /// Those with the highest number go first; 0 stays.
    drop: u8,
    /// Only shown where nothing is cut for it.
    extra: bool,
}

impl Column {
    /// A column of text.
    pub(crate) const fn new(title: &'static str) -> Self {
        Self { title, right: false, least: None, most: 0, drop: 0, extra: false }
    }

    /// Its cells end at the same place, as numbers do.
    pub(crate) const fn right(self) -> Self {
        Self { right: true, ..self }
    }

    /// It may be cut to that width.
    pub(crate) const fn cut(self, least: usize) -> Self {
        Self { least: Some(least), ..self }
    }

    /// It may grow to that width.
    pub(crate) const fn grow(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// It may be left out.
    pub(crate) const fn drop(self, order: u8) -> Self {
        Self { drop: order, ..self }
    }

    /// It is left out rather than that another is cut.
    pub(crate) const fn extra(self, order: u8) -> Self {
        Self { drop: order, extra: true, ..self }
    }
}

/// What is in a cell.
#[derive(Debug, Clone)]
pub(crate) enum Cell {
    /// Text in a style.
    Text(String, Style),
    /// A bar, as long as its column is wide.
    Bar(Bar),
}

impl Cell {
    /// Text in a style.
    pub(crate) fn styled(text: impl Into<String>, style: Style) -> Self {
        Self::Text(text.into(), style)
    }

    fn width(&self) -> usize {
        match self {
            Self::Text(text, _) => text.width(),
            Self::Bar(bar) => bar.usual,
        }
    }

    fn render(&self, width: usize, right: bool, look: &Look, line: &mut String) {
        let (text, style) = match self {
            Self::Bar(bar) => return bar.render(width, look, line),
            Self::Text(text, style) => (cut(text, width, look), *style),
        };
        let pad = " ".repeat(width.saturating_sub(text.width()));
        if right {
            line.push_str(&pad);
        }
        paint(line, &text, style, look);
        if !right {
            line.push_str(&pad);
        }
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::Text(text.into(), Style::new())
    }
}

/// Names come from container engines and images: nothing of theirs that a terminal obeys (control
/// characters), that changes the order of what is around it, or that cannot be seen reaches the screen.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|char| if char.width().is_none_or(|width| width == 0) { '?' } else { char }).collect()
}

/// The beginning of a text that is too wide, with a sign that there is more.
fn cut(text: &str, width: usize, look: &Look) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let sign = if look.unicode { '…' } else { '~' };
    let mut room = width.saturating_sub(1);
    let fits = |char: &char| {
        let wide = char.width().unwrap_or(0);
        let fits = wide <= room;
        room = room.saturating_sub(wide);
        fits
    };
    let mut start: String = text.chars().take_while(fits).collect();
    start.extend((width > 0).then_some(sign));
    start
}

/// Rows of cells under a header. Columns are two spaces apart and as wide as their widest cell, unless the
/// terminal is too narrow for that.
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
    /// The width of each column's widest cell, of those that are printed, too.
    widest: Vec<usize>,
    /// The widths under the last header that [`Self::more`] has printed.
    printed: Option<Vec<Option<usize>>>,
}

impl Table {
    /// A table with these columns.
    pub(crate) fn of(columns: impl IntoIterator<Item = Column>) -> Self {
        let columns: Vec<_> = columns.into_iter().collect();
        Self { widest: vec![0; columns.len()], columns, rows: Vec::new(), printed: None }
    }

    /// Adds a row. One that is shorter than the header ends early.
    pub(crate) fn row<C: Into<Cell>>(&mut self, cells: impl IntoIterator<Item = C>) {
        let plain = |cell: C| match cell.into() {
            Cell::Text(text, style) => Cell::Text(plain(&text), style),
            bar @ Cell::Bar(_) => bar,
        };
        let row: Vec<Cell> = cells.into_iter().map(plain).collect();
        for (widest, cell) in self.widest.iter_mut().zip(&row) {
            *widest = cell.width().max(*widest);
        }
        self.rows.push(row);
    }

    /// Whether there are rows that were not printed by [`Self::more`].
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The text for a terminal, each line with its end.
    pub(crate) fn fitted(&self, look: &Look) -> String {
        let widths = self.widths(look.width);
        let header = self.header(&widths, look);
        header + &self.rows.iter().map(|row| self.line(row, &widths, look)).collect::<String>()
    }

    /// The rows that were added since the last call, for a table that grows below what is on the screen: with
    /// a header at first, and again whenever a column has to be wider than above.
    pub(crate) fn more(&mut self, look: &Look) -> String {
        let widths = self.widths(look.width);
        let rows: String = self.rows.iter().map(|row| self.line(row, &widths, look)).collect();
        self.rows.clear();
        if rows.is_empty() || self.printed.as_ref() == Some(&widths) {
            return rows;
        }
        let header = self.header(&widths, look);
        self.printed = Some(widths);
        header + &rows
    }

    fn header(&self, widths: &[Option<usize>], look: &Look) -> String {
        let titles: Vec<Cell> = self.columns.iter().map(|column| Cell::styled(column.title, HEAD)).collect();
        self.line(&titles, widths, look)
    }

    fn line(&self, row: &[Cell], widths: &[Option<usize>], look: &Look) -> String {
        let mut line = String::new();
        // Spaces at a line's end are not printed.
        let mut gap = 0;
        for ((cell, column), width) in row.iter().zip(&self.columns).zip(widths) {
            let Some(width) = *width else { continue };
            let mut shown = String::new();
            cell.render(width, column.right, look, &mut shown);
            let bare = shown.trim_end_matches(' ');
            if !bare.is_empty() {
                line.push_str(&" ".repeat(gap));
                line.push_str(bare);
                gap = 0;
            }
            gap += shown.len() - bare.len() + GAP;
        }
        line + "\n"
    }

    /// How wide each column is; `None` for one that is left out.
    fn widths(&self, room: Option<usize>) -> Vec<Option<usize>> {
        // A column of nothing is none.
        let natural = |(column, widest): (&Column, &usize)| match widest {
            0 if column.drop > 0 => None,
            widest => Some(column.title.width().max(*widest)),
        };
        let mut widths: Vec<_> = self.columns.iter().zip(&self.widest).map(natural).collect();
        let Some(room) = room else { return widths };
        while total(&widths) > room && self.leave_out(&mut widths, |column| column.extra) {}
        loop {
            let missing = total(&widths).saturating_sub(room);
            if missing <= self.slack(&widths) || !self.leave_out(&mut widths, |column| !column.extra) {
                // Where every column is needed it may be too much even so: the terminal breaks the lines.
                self.shrink(&mut widths, missing);
                self.grow(&mut widths, room);
                return widths;
            }
        }
    }

    /// Leaves out the next of these columns. Returns whether there was one.
    fn leave_out(&self, widths: &mut [Option<usize>], which: fn(&Column) -> bool) -> bool {
        let shown = self.columns.iter().zip(widths.iter_mut()).filter(|(_, width)| width.is_some());
        match shown
            .filter(|(column, _)| column.drop > 0 && which(column))
            .max_by_key(|(column, _)| column.drop)
        {
            Some((_, width)) => {
                *width = None;
                true
            }
            None => false,
        }
    }

    /// Gives the room that is left to the columns that can use it.
    fn grow(&self, widths: &mut [Option<usize>], room: usize) {
        for _ in 0..room.saturating_sub(total(widths)) {
            let growing = self.columns.iter().zip(widths.iter_mut());
            let growing = growing.filter(|(column, width)| width.is_some_and(|width| width < column.most));
            if let Some((_, Some(width))) =
                growing.min_by_key(|(column, width)| width.map(|width| width * 100 / column.most))
            {
                *width += 1;
            }
        }
    }

    /// How much all columns together can be cut.
    fn slack(&self, widths: &[Option<usize>]) -> usize {
        self.columns.iter().zip(widths).map(|(column, width)| slack(column, *width)).sum()
    }

    /// Takes `missing` from the columns that can be cut, from the widest first.
    fn shrink(&self, widths: &mut [Option<usize>], missing: usize) {
        for _ in 0..missing {
            let cuttable = self
                .columns
                .iter()
                .zip(widths.iter_mut())
                .filter(|(column, width)| slack(column, **width) > 0);
            if let Some((_, Some(width))) = cuttable.max_by_key(|(_, width)| **width) {
                *width -= 1;
            }
        }
    }
}

fn slack(column: &Column, width: Option<usize>) -> usize {
    column.least.zip(width).map_or(0, |(least, width)| width.saturating_sub(least.max(column.title.width())))
}

fn total(widths: &[Option<usize>]) -> usize {
    let kept = || widths.iter().flatten();
    kept().sum::<usize>() + GAP * kept().count().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::WRONG;

    fn named<const N: usize>(names: [&'static str; N]) -> Table {
        Table::of(names.map(Column::new))
    }

    fn at(width: usize) -> Look {
        Look { width: Some(width), ..Look::PLAIN }
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_tail() {
        let mut table = named(["GPU", "MODEL", "FREE"]);
        table.row(["0", "Ä", "1"]);
        table.row(["10", "A100"]);
        assert_eq!(table.fitted(&Look::PLAIN), "GPU  MODEL  FREE\n0    Ä      1\n10   A100\n");
    }

    #[test]
    fn control_characters_and_marks_that_turn_text_around_are_not_printed() {
        let mut table = named(["NAME", "X"]);
        table.row(["a\u{1b}[2Jb\nc\u{9b}31m", "1"]);
        table.row(["a\u{202e}b\u{200b}c\u{2066}", "2"]);
        assert_eq!(table.fitted(&Look::PLAIN), "NAME          X\na?[2Jb?c?31m  1\na?b?c?        2\n");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let mut table = Table::of([Column::new("NAME").cut(4), Column::new("N")]);
        table.row(["训练任务", "1"]);
        assert_eq!(table.fitted(&at(20)), "NAME      N\n训练任务  1\n");
        assert_eq!(table.fitted(&at(9)), "NAME    N\n训练…   1\n");
    }

    #[test]
    fn where_room_is_short_columns_are_cut_and_then_left_out() {
        let columns = [
            Column::new("NAME").cut(6),
            Column::new("IMAGE").cut(5).drop(1),
            Column::new("N").right(),
            Column::new("EXTRA").extra(2),
        ];
        let mut table = Table::of(columns);
        table.row(["container", "an-image:1", "7", "x"]);
        table.row(["web", "b", "1000", "y"]);
        for (width, expected) in [
            (
                36,
                [
                    "NAME       IMAGE          N  EXTRA",
                    "container  an-image:1     7  x",
                    "web        b           1000  y",
                ],
            ),
            (
                33,
                ["NAME       IMAGE          N", "container  an-image:1     7", "web        b           1000"],
            ),
            (24, ["NAME      IMAGE        N", "contain…  an-imag…     7", "web       b         1000"]),
            (18, ["NAME          N", "container     7", "web        1000"]),
            // Too narrow for anything: nothing that is needed is lost.
            (3, ["NAME       N", "conta…     7", "web     1000"]),
        ] {
            assert_eq!(table.fitted(&at(width)).lines().collect::<Vec<_>>(), expected, "{width}");
        }
    }

    #[test]
    fn room_that_is_left_goes_to_bars() {
        let mut table = Table::of([Column::new("A").cut(4).grow(12), Column::new("B").right()]);
        let bar = Bar { used: 0, granted: 1, whole: 2, usual: 8 };
        table.row([Cell::Bar(bar), Cell::from("1")]);
        for (width, expected) in
            [(6, "▒▒··  1"), (11, "▒▒▒▒····  1"), (13, "▒▒▒▒▒·····  1"), (99, "▒▒▒▒▒▒······  1")]
        {
            assert_eq!(table.fitted(&at(width)).lines().nth(1), Some(expected), "{width}");
        }
    }

    #[test]
    fn colours_are_only_where_they_are_shown() {
        let mut table = named(["A", "B"]);
        table.row([Cell::styled("x", WRONG), Cell::from("y")]);
        assert!(!table.fitted(&Look::PLAIN).contains('\u{1b}'));
        let coloured = table.fitted(&Look { colour: true, ..Look::PLAIN });
        assert!(coloured.contains("\u{1b}[1m\u{1b}[31mx\u{1b}[0m  y\n"), "{coloured:?}");
    }

    #[test]
    fn a_table_that_grows_has_a_header_where_its_columns_change() {
        let mut table = Table::of([Column::new("A"), Column::new("B").drop(1), Column::new("C")]);
        assert_eq!(table.more(&Look::PLAIN), "");
        table.row(["x", "", "1"]);
        assert_eq!(table.more(&Look::PLAIN), "A  C\nx  1\n");
        table.row(["y", "", "2"]);
        table.row(["z", "", "3"]);
        assert_eq!(table.more(&Look::PLAIN), "y  2\nz  3\n");
        table.row(["long", "b", "4"]);
        assert_eq!(table.more(&Look::PLAIN), "A     B  C\nlong  b  4\n");
        table.row(["x", "", "5"]);
        assert_eq!(table.more(&Look::PLAIN), "x        5\n");
    }

    #[test]
    fn a_column_of_nothing_that_may_go_is_not_shown() {
        let mut table = Table::of([Column::new("A"), Column::new("EMPTY").drop(1), Column::new("B").drop(1)]);
        table.row(["x", "", "y"]);
        assert_eq!(table.fitted(&Look::PLAIN), "A  B\nx  y\n");
    }
}
