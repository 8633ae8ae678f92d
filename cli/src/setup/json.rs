//! A JSON file in which one member is set or removed, and every other byte stays.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// What is wrong with a text, and at which offset.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    pub(super) at: usize,
    pub(super) reason: String,
}

/// An object of a text, with the places of its members.
#[derive(Debug)]
pub(super) struct Object<'t> {
    text: &'t str,
    /// From its opening to behind its closing brace.
    span: Range<usize>,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    key: String,
    key_at: usize,
    value: Range<usize>,
}

/// The line, counted from 1, in which the offset `at` lies.
pub(super) fn line(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}

impl<'t> Object<'t> {
    /// The object that the whole of `text` is.
    ///
    /// # Errors
    /// The text is no JSON, no object, or has a key twice: readers differ in which of the two they take.
    pub(super) fn root(text: &'t str) -> Result<Self, Wrong> {
        let value: &RawValue = serde_json::from_str(text).map_err(|error| {
            // What skips over values knows no `trailing comma`, the most frequent fault.
            let error = serde_json::from_str::<serde_json::Value>(text).err().unwrap_or(error);
            let start: usize =
                text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
            // Without its own `at line 1 column 2`.
            let reason = error.to_string();
            let reason = reason.split(" at line ").next().unwrap_or_default();
            Wrong { at: start + error.column().saturating_sub(1), reason: format!("it is no JSON: {reason}") }
        })?;
        Self::at(text, place(text, value.get()))
    }

    fn at(text: &'t str, span: Range<usize>) -> Result<Self, Wrong> {
        let slice = &text[span.clone()];
        let read = serde_json::Deserializer::from_str(slice).deserialize_map(Members(text));
        let members = read.map_err(|_| Wrong { at: span.start, reason: "it is no object".into() })?;
        for (index, member) in members.iter().enumerate() {
            if members[..index].iter().any(|other| other.key == member.key) {
                let reason = format!("the key {} is there twice", fgpu_spec::escape_for_display(&member.key));
                return Err(Wrong { at: member.key_at, reason });
            }
        }
        Ok(Self { text, span, members })
    }

    fn member(&self, key: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.key == key)
    }

    /// The text of a member's value and the offset of its key. `null`, which Go takes for absent, is a value
    /// too.
    pub(super) fn get(&self, key: &str) -> Option<(&'t str, usize)> {
        self.member(key).map(|member| (&self.text[member.value.clone()], member.key_at))
    }

    /// A member that is an object itself; `None` if it is absent or null.
    ///
    /// # Errors
    /// It is neither, or has a key twice.
    pub(super) fn object(&self, key: &str) -> Result<Option<Object<'t>>, Wrong> {
        match self.member(key) {
            Some(member) if &self.text[member.value.clone()] != "null" => {
                let inner = Self::at(self.text, member.value.clone());
                inner
                    .map(Some)
                    .map_err(|wrong| Wrong { reason: format!("{key:?}: {}", wrong.reason), ..wrong })
            }
            _ => Ok(None),
        }
    }

    /// Whether it has that one member and no other.
    pub(super) fn is_only(&self, key: &str) -> bool {
        self.members.len() == 1 && self.members[0].key == key
    }

    /// What a member of this object is indented by, and what each further level adds.
    pub(super) fn indents(&self) -> (String, String) {
        let own = indent(self.text, self.span.start);
        match self.members.first() {
            Some(first) if self.is_tall() => {
                let inner = indent(self.text, first.key_at);
                let step =
                    inner.strip_prefix(&own).filter(|step| !step.is_empty()).unwrap_or("  ").to_owned();
                (inner, step)
            }
            _ => (own + "  ", "  ".into()),
        }
    }

    /// Whether its members are on lines of their own.
    fn is_tall(&self) -> bool {
        self.members.first().is_some_and(|first| self.text[self.span.start..first.key_at].contains('\n'))
    }

    /// The whole text with that member set to `value`, which is JSON. A new one goes last, in the manner of
    /// the others.
    pub(super) fn with(&self, key: &str, value: &str) -> String {
        if let Some(member) = self.member(key) {
            return self.replaced(member.value.clone(), value);
        }
        let (inner, _) = self.indents();
        match self.members.last() {
            None => {
                let own = indent(self.text, self.span.start);
                self.replaced(self.span.clone(), &format!("{{\n{inner}\"{key}\": {value}\n{own}}}"))
            }
            Some(last) => {
                let gap = if self.is_tall() { format!(",\n{inner}") } else { ", ".to_owned() };
                self.replaced(last.value.end..last.value.end, &format!("{gap}\"{key}\": {value}"))
            }
        }
    }

    /// The whole text without that member: the inverse of [`Object::with`].
    pub(super) fn without(&self, key: &str) -> String {
        let Some(index) = self.members.iter().position(|member| member.key == key) else {
            return self.text.to_owned();
        };
        let member = &self.members[index];
        match (index, self.members.get(index + 1)) {
            (0, None) => self.replaced(self.span.clone(), "{}"),
            (0, Some(next)) => self.replaced(member.key_at..next.key_at, ""),
            _ => self.replaced(self.members[index - 1].value.end..member.value.end, ""),
        }
    }

    fn replaced(&self, range: Range<usize>, with: &str) -> String {
        [&self.text[..range.start], with, &self.text[range.end..]].concat()
    }
}

/// The white space that the line of offset `at` begins with.
fn indent(text: &str, at: usize) -> String {
    let start = text[..at].rfind('\n').map_or(0, |end| end + 1);
    text[start..].chars().take_while(|&c| c == ' ' || c == '\t').collect()
}

/// Where `part`, a slice of `text`, lies in it.
fn place(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    start..start + part.len()
}

/// Reads the members of an object that is part of this text.
struct Members<'t>(&'t str);

impl<'t> Visitor<'t> for Members<'t> {
    type Value = Vec<Member>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut map: A) -> Result<Vec<Member>, A::Error> {
        let mut members = Vec::new();
        while let Some((raw_key, value)) = map.next_entry::<&RawValue, &RawValue>()? {
            let key = serde_json::from_str(raw_key.get()).map_err(serde::de::Error::custom)?;
            let key_at = place(self.0, raw_key.get()).start;
            members.push(Member { key, key_at, value: place(self.0, value.get()) });
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sets a member and takes it out again, which must give the text of before.
    #[track_caller]
    fn set(text: &str, expected: &str) {
        let with = Object::root(text).unwrap().with("x", "1");
        assert_eq!(with, expected);
        assert_eq!(Object::root(&with).unwrap().without("x"), text);
    }

    #[test]
    fn a_member_goes_last_in_the_manner_of_the_others() {
        set("{}", "{\n  \"x\": 1\n}");
        set("{\"a\":1}", "{\"a\":1, \"x\": 1}");
        set("{ \"a\": [1,\n2] }\n", "{ \"a\": [1,\n2], \"x\": 1 }\n");
        set("{\n\t\"a\": 1\n}\n", "{\n\t\"a\": 1,\n\t\"x\": 1\n}\n");
        set(
            "\n  {\n    \"a\": {},\n    \"b\" : 2e400\n  }",
            "\n  {\n    \"a\": {},\n    \"b\" : 2e400,\n    \"x\": 1\n  }",
        );
    }

    #[test]
    fn a_member_that_is_there_is_replaced() {
        let object = Object::root("{ \"a\" : 1, \"b\": 2 }").unwrap();
        assert_eq!(object.with("a", "{}"), "{ \"a\" : {}, \"b\": 2 }");
        assert_eq!(object.without("a"), "{ \"b\": 2 }");
        assert_eq!(object.without("c"), "{ \"a\" : 1, \"b\": 2 }");
        assert_eq!(object.get("b"), Some(("2", 11)));
    }

    #[test]
    fn an_object_within_keeps_its_place() {
        let text = "{\n  \"r\": {\n    \"a\": 1\n  },\n  \"z\": null\n}";
        let root = Object::root(text).unwrap();
        let inner = root.object("r").unwrap().unwrap();
        assert_eq!(inner.indents(), ("    ".into(), "  ".into()));
        assert_eq!(inner.with("b", "2"), text.replace("1\n", "1,\n    \"b\": 2\n"));
        assert!(root.object("z").unwrap().is_none());
        assert!(root.object("y").unwrap().is_none());
        assert!(inner.is_only("a") && !root.is_only("r"));
    }

    #[test]
    fn a_fault_is_named_with_its_place() {
        for (text, row, word) in [
            ("", 1, "EOF"),
            ("[]", 1, "no object"),
            ("{\n  \"a\": 1,\n}", 3, "trailing comma"),
            ("{\n// note\n}", 2, "key must be a string"),
            ("{\"a\":1}\n}", 2, "trailing characters"),
            ("{\"a\":1,\n\"\\u0061\":2}", 2, "twice"),
        ] {
            let wrong = Object::root(text).unwrap_err();
            assert_eq!(line(text, wrong.at), row, "{text}: {wrong:?}");
            assert!(wrong.reason.contains(word), "{text}: {wrong:?}");
        }
        let text = "{\n\"r\": []}";
        let wrong = Object::root(text).unwrap().object("r").unwrap_err();
        assert_eq!((line(text, wrong.at), wrong.reason.as_str()), (2, "\"r\": it is no object"));
    }
}
