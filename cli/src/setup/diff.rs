//! A change of a file, as `diff -u` shows it.

/// Unchanged lines that are shown before and after the change.
const CONTEXT: usize = 3;

/// The unified diff of a file at `path`, which patch(1) reads. `None` is a file that is not there. Everything
/// between the first and the last line that differ is one hunk: `fgpu setup` changes one place of a file.
pub(super) fn unified(path: &str, before: Option<&str>, after: Option<&str>) -> String {
    let (old, new) = (lines(before), lines(after));
    let start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let room = old.len().min(new.len()) - start;
    let end = old.iter().rev().zip(new.iter().rev()).take(room).take_while(|(a, b)| a == b).count();
    if start == old.len() && start == new.len() {
        return String::new();
    }
    let (first, last) = (start.saturating_sub(CONTEXT), end.saturating_sub(CONTEXT));
    let (old_shown, new_shown) = (old.len() - last - first, new.len() - last - first);

    let name = |side: Option<&str>| if side.is_some() { path.to_owned() } else { "/dev/null".to_owned() };
    let mut text = format!("--- {}\n+++ {}\n", name(before), name(after));
    text += &format!("@@ -{} +{} @@\n", range(first, old_shown), range(first, new_shown));
    for line in &old[first..start] {
        push(&mut text, ' ', line);
    }
    for line in &old[start..old.len() - end] {
        push(&mut text, '-', line);
    }
    for line in &new[start..new.len() - end] {
        push(&mut text, '+', line);
    }
    for line in &old[old.len() - end..old.len() - last] {
        push(&mut text, ' ', line);
    }
    text
}

/// The lines, each with its end.
fn lines(text: Option<&str>) -> Vec<&str> {
    text.unwrap_or_default().split_inclusive('\n').collect()
}

/// `count` lines after the first `before` ones: lines are counted from 1, and an empty range names the line
/// before it.
fn range(before: usize, count: usize) -> String {
    match count {
        0 => format!("{before},0"),
        1 => format!("{}", before + 1),
        _ => format!("{},{count}", before + 1),
    }
}

fn push(text: &mut String, sign: char, line: &str) {
    text.push(sign);
    text.push_str(line);
    if !line.ends_with('\n') {
        text.push_str("\n\\ No newline at end of file\n");
    }
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
