//! A change of a file, as `diff -u` shows it.

use similar::TextDiff;

/// The unified diff of a file at `path`, which patch(1) reads. `None` is a file that is not there.
pub(super) fn unified(path: &str, before: Option<&str>, after: Option<&str>) -> String {
    let name = |side: Option<&str>| if side.is_some() { path } else { "/dev/null" };
    let diff = TextDiff::from_lines(before.unwrap_or_default(), after.unwrap_or_default());
    diff.unified_diff().header(name(before), name(after)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_and_a_removed_one() {
        let new = "--- /dev/null\n+++ /f\n@@ -0,0 +1,2 @@\n+a\n+b\n";
        assert_eq!(unified("/f", None, Some("a\nb\n")), new);
        assert_eq!(unified("/f", Some("a\n"), None), "--- /f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n");
    }

    #[test]
    fn three_lines_around_the_change() {
        let before = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        let after = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n";
        let diff = unified("/f", Some(before), Some(after));
        assert_eq!(diff, "--- /f\n+++ /f\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n");
    }

    #[test]
    fn an_appended_line_and_a_missing_line_end() {
        assert_eq!(unified("/f", Some("a\n"), Some("a\nb\n")), "--- /f\n+++ /f\n@@ -1 +1,2 @@\n a\n+b\n");
        assert_eq!(
            unified("/f", Some("a"), Some("a\n")),
            "--- /f\n+++ /f\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+a\n"
        );
    }

    #[test]
    fn repeated_lines_are_not_counted_twice() {
        let diff = unified("/f", Some("x\nx\n"), Some("x\nx\nx\n"));
        assert_eq!(diff, "--- /f\n+++ /f\n@@ -1,2 +1,3 @@\n x\n x\n+x\n");
    }

    #[test]
    fn the_same_text_has_no_diff() {
        assert_eq!(unified("/f", Some("a\n"), Some("a\n")), "");
        assert_eq!(unified("/f", None, None), "");
    }
}
