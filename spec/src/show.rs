//! How text that is not ours is printed.

use std::fmt::Write;

/// Longest text that is printed in full, in bytes after escaping.
const LONGEST: usize = 64;

/// `text` as it may stand in a one-line message: plain words as they are, everything else in quotes with
/// control and non-ASCII characters escaped, shortened to some 64 characters.
///
/// Annotations come from any user who may start a container, and messages end up in terminals and logs: a
/// line feed could forge a log line, an escape sequence could rewrite the screen, a direction mark could make
/// one name look like another.
pub fn escape_for_display(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+/%,!:;@=".contains(&byte);
    if !text.is_empty() && text.len() <= LONGEST && text.bytes().all(plain) {
        return text.to_owned();
    }
    let mut out = String::from('"');
    for char in text.chars() {
        if out.len() > LONGEST {
            // Writing to a String cannot fail.
            let _ = write!(out, "\"... ({} bytes)", text.len());
            return out;
        }
        out.extend(char.escape_default().filter(|_| char != '\'').chain((char == '\'').then_some('\'')));
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_words_are_untouched() {
        for text in ["0.25", "25%", "1/3", "GPU-1,!2", "1g.10gb+me", "-1"] {
            assert_eq!(escape_for_display(text), text);
        }
    }

    #[test]
    fn misleading_characters_are_escaped() {
        assert_eq!(escape_for_display(""), "\"\"");
        assert_eq!(escape_for_display("a b"), "\"a b\"");
        assert_eq!(escape_for_display("it's"), "\"it's\"");
        assert_eq!(escape_for_display("1\n\u{1b}[2J"), "\"1\\n\\u{1b}[2J\"");
        assert_eq!(escape_for_display("a\u{202e}b\"\\"), "\"a\\u{202e}b\\\"\\\\\"");
        assert_eq!(escape_for_display("\0"), "\"\\u{0}\"");
    }

    #[test]
    fn long_text_is_shortened() {
        let text = escape_for_display(&"9".repeat(100_000));
        assert!(text.len() < 100, "{text}");
        assert!(text.ends_with("... (100000 bytes)"), "{text}");
        assert!(escape_for_display(&"\u{1F600}".repeat(100)).len() < 120);
        assert_eq!(escape_for_display(&"9".repeat(64)), "9".repeat(64));
    }
}
