//! A bar: how much of a GPU is granted, and how much of that is used.

use anstyle::Style;

use crate::screen::{FAINT, GRANTED, Look, USED, WRONG, paint};

/// What is shown for used, granted and free.
pub(crate) fn signs(look: &Look) -> [(&'static str, Style); 3] {
    let signs = if look.unicode { ["█", "▒", "·"] } else { ["#", "=", "."] };
    [(signs[0], USED), (signs[1], GRANTED), (signs[2], FAINT)]
}

/// Amounts of one thing, in any unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bar {
    /// What is in use.
    pub(crate) used: u64,
    /// What is granted.
    pub(crate) granted: u64,
    /// What there is.
    pub(crate) whole: u64,
    /// How long it is where the width does not matter, in columns.
    pub(crate) usual: usize,
}

impl Bar {
    /// Adds the bar, `width` columns long. What is there at all is seen, and it is full only when nothing is
    /// left.
    pub(crate) fn render(&self, width: usize, look: &Look, line: &mut String) {
        let [(used_sign, used_style), (granted_sign, granted_style), (free_sign, free_style)] = signs(look);
        let used = self.columns(self.used, width);
        let granted = self.columns(self.granted, width).max(used);
        // After a resize a container may use more than it is granted now.
        let used_style = if self.used > self.granted { WRONG } else { used_style };
        paint(line, &used_sign.repeat(used), used_style, look);
        paint(line, &granted_sign.repeat(granted - used), granted_style, look);
        paint(line, &free_sign.repeat(width - granted), free_style, look);
    }

    fn columns(&self, amount: u64, width: usize) -> usize {
        if amount == 0 || self.whole == 0 {
            return 0;
        }
        if amount >= self.whole {
            return width;
        }
        let exact = u128::from(amount) * width as u128 / u128::from(self.whole);
        // Less than the whole and more than nothing.
        usize::try_from(exact).unwrap_or(width).clamp(1, width.saturating_sub(1).max(1)).min(width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(used: u64, granted: u64, width: usize) -> String {
        let mut line = String::new();
        let look = Look { unicode: false, ..Look::PLAIN };
        Bar { used, granted, whole: 100, usual: 16 }.render(width, &look, &mut line);
        assert_eq!(line.len(), width);
        line
    }

    #[test]
    fn amounts_are_seen_and_never_more_than_they_are() {
        assert_eq!(bar(0, 0, 10), "..........");
        assert_eq!(bar(20, 50, 10), "##===.....");
        assert_eq!(bar(29, 59, 10), "##===.....");
        assert_eq!(bar(1, 1, 10), "#.........", "a little is not nothing");
        assert_eq!(bar(0, 99, 10), "=========.", "nearly all is not all");
        assert_eq!(bar(100, 100, 10), "##########");
        assert_eq!(bar(60, 50, 10), "######....", "more than is granted");
        assert_eq!(bar(u64::MAX, 100, 10), "##########");
        assert_eq!(bar(1, 50, 1), "#");
        assert_eq!(bar(1, 50, 0), "");
    }

    #[test]
    fn nothing_of_nothing() {
        let mut line = String::new();
        Bar { used: 0, granted: 0, whole: 0, usual: 4 }.render(4, &Look::PLAIN, &mut line);
        assert_eq!(line, "····");
    }
}
