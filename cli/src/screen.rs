//! What the output is shown on: how wide it is, whether it has colours, and which characters it can show.

use std::io::IsTerminal;

use anstyle::{AnsiColor, Style};
use rustix::termios::tcgetwinsize;

/// How text is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// Columns of the terminal; `None` where lines may be as long as they are.
    pub(crate) width: Option<usize>,
    /// Lines of the terminal.
    pub(crate) height: Option<usize>,
    /// Whether colours are shown.
    pub(crate) colour: bool,
    /// Whether more than ASCII can be shown.
    pub(crate) unicode: bool,
}

impl Look {
    /// No terminal: lines of any length, no colours.
    pub(crate) const PLAIN: Self = Self { width: None, height: None, colour: false, unicode: true };

    /// Of this process's standard output. Colours are for terminals, unless the user sets NO_COLOR
    /// (no-color.org) or the terminal knows none.
    pub(crate) fn of_stdout() -> Self {
        let unicode = is_utf8(|name| std::env::var(name).ok());
        let stdout = std::io::stdout();
        if !stdout.is_terminal() {
            return Self { unicode, ..Self::PLAIN };
        }
        let size = tcgetwinsize(&stdout).ok();
        // A terminal that does not know its size says 0.
        let known = |length: u16| (length > 0).then_some(usize::from(length));
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|name| name.is_empty() || name == "dumb");
        Self {
            width: size.and_then(|size| known(size.ws_col)),
            height: size.and_then(|size| known(size.ws_row)),
            colour: !dumb && !set("NO_COLOR"),
            unicode,
        }
    }
}

/// Whether the locale's characters are UTF-8: of these variables the first that is set decides (locale(7)).
fn is_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Headings.
pub(crate) const HEAD: Style = Style::new().dimmed();
/// What matters most in a line.
pub(crate) const STRONG: Style = Style::new().bold();
/// What is there for completeness.
pub(crate) const FAINT: Style = Style::new().dimmed();
/// What is in use.
pub(crate) const USED: Style = AnsiColor::Green.on_default();
/// What is granted.
pub(crate) const GRANTED: Style = AnsiColor::Cyan.on_default();
/// What deserves a look.
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// What is wrong.
pub(crate) const WRONG: Style = AnsiColor::Red.on_default().bold();

/// Adds text in a style, where there are styles.
pub(crate) fn paint(line: &mut String, text: &str, style: Style, look: &Look) {
    if look.colour && !style.is_plain() && !text.is_empty() {
        line.push_str(&format!("{style}{text}{style:#}"));
    } else {
        line.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_decides_about_the_characters() {
        let utf8 = |set: &[(&str, &str)]| {
            is_utf8(|name| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
        };
        assert!(utf8(&[("LANG", "C.UTF-8")]));
        assert!(utf8(&[("LC_ALL", ""), ("LC_CTYPE", "de_DE.utf8"), ("LANG", "C")]));
        assert!(!utf8(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")]));
        assert!(!utf8(&[]));
    }
}
