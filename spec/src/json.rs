//! A JSON object or list that is taken apart only as far as it is edited.
//!
//! Whatever is not taken apart stays the text that it was: numbers that no integer or float type holds,
//! fields that no version of the OCI specification knows, escapes, white space. oci-spec's types would drop
//! the unknown fields and take several times as long to build; they serve in the tests, as the judge of
//! what comes out.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A member that is to be taken apart, and which of its own members are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Branch(pub(crate) &'static str, pub(crate) &'static [Branch]);

/// A value of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    /// The text of a value, not looked into.
    Raw(String),
    /// An object that has been taken apart.
    Object(Object),
}

/// The members of an object, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Object {
    members: Vec<Member>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    /// The key as it stands in the text, with its quotes and escapes.
    raw_key: String,
    key: String,
    value: Node,
}

impl Node {
    /// Whether it is `null`, which Go's encoders write for what is absent.
    fn is_null(&self) -> bool {
        matches!(self, Node::Raw(text) if text == "null")
    }

    /// Appends the value's JSON.
    fn print(&self, out: &mut String) {
        match self {
            Node::Raw(text) => out.push_str(text),
            Node::Object(object) => object.print(out),
        }
    }

    /// The value's JSON.
    pub(crate) fn json(&self) -> Cow<'_, str> {
        match self {
            Node::Raw(text) => Cow::Borrowed(text),
            Node::Object(object) => {
                let mut out = String::new();
                object.print(&mut out);
                Cow::Owned(out)
            }
        }
    }
}

impl Object {
    /// Takes `text` apart, and within it the objects that `branches` name.
    pub(crate) fn parse(text: &str, branches: &'static [Branch]) -> Result<Self, serde_json::Error> {
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let node = Expand(branches).deserialize(&mut deserializer)?;
        deserializer.end()?;
        match node {
            Node::Object(object) => Ok(object),
            Node::Raw(_) => Err(serde_json::Error::custom("it is null")),
        }
    }

    /// The member of that name, unless it is absent or null.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.members
            .iter()
            .find(|member| member.key == key)
            .map(|member| &member.value)
            .filter(|v| !v.is_null())
    }

    /// The member's own members, or `None` if it is absent, null or was not taken apart.
    pub(crate) fn object(&self, key: &str) -> Option<&Object> {
        match self.get(key) {
            Some(Node::Object(object)) => Some(object),
            _ => None,
        }
    }

    /// The member's own members, to be changed; an absent or null one becomes an empty object first. `None`
    /// if it is there and was not taken apart.
    pub(crate) fn object_mut(&mut self, key: &str) -> Option<&mut Object> {
        if self.get(key).is_none() {
            self.set(key, Node::Object(Object::default()));
        }
        match self.members.iter_mut().find(|member| member.key == key) {
            Some(Member { value: Node::Object(object), .. }) => Some(object),
            _ => None,
        }
    }

    /// The keys and values, in their order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.members.iter().map(|member| (member.key.as_str(), &member.value))
    }

    /// Sets a member and says whether that changed anything. A new member goes last.
    pub(crate) fn set(&mut self, key: &str, value: Node) -> bool {
        match self.members.iter_mut().find(|member| member.key == key) {
            Some(member) if member.value.json() == value.json() => false,
            Some(member) => {
                member.value = value;
                true
            }
            None => {
                self.members.push(Member { raw_key: quoted(key), key: key.to_owned(), value });
                true
            }
        }
    }

    /// Appends the object's JSON.
    pub(crate) fn print(&self, out: &mut String) {
        out.push('{');
        for (index, member) in self.members.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            out.push_str(&member.raw_key);
            out.push(':');
            member.value.print(out);
        }
        out.push('}');
    }
}

/// A JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A JSON list of values that are JSON already.
pub(crate) fn list<T: AsRef<str>>(items: &[T]) -> String {
    let mut out = String::from('[');
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        out.push_str(item.as_ref());
    }
    out.push(']');
    out
}

/// Reads an object whose members named by a branch are read in the same way. One pass over the text does it:
/// a docker config.json is mostly a seccomp profile, and scanning that twice is what would cost.
struct Expand(&'static [Branch]);

impl<'de> DeserializeSeed<'de> for Expand {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Expand {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Raw("null".to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut members: Vec<Member> = Vec::with_capacity(16);
        while let Some(raw_key) = map.next_key::<&RawValue>()? {
            let raw_key = raw_key.get();
            let key: String = serde_json::from_str(raw_key).map_err(A::Error::custom)?;
            let value = match self.0.iter().find(|branch| branch.0 == key) {
                Some(branch) => map.next_value_seed(Expand(branch.1))?,
                None => Node::Raw(map.next_value::<&RawValue>()?.get().to_owned()),
            };
            members.push(Member { raw_key: raw_key.to_owned(), key, value });
        }
        // Readers differ in which of two they take: what we edit might not be what the runtime reads.
        let mut keys: Vec<&str> = members.iter().map(|member| member.key.as_str()).collect();
        keys.sort_unstable();
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(A::Error::custom(format_args!(
                "the key {} is there twice",
                crate::escape_for_display(pair[0])
            )));
        }
        Ok(Node::Object(Object { members }))
    }
}

/// The values of a list, each with what was asked of it: `T` says which of its members matter. `null` is
/// the empty list.
pub(crate) fn items<'de, T: serde::Deserialize<'de>>(
    text: &'de str,
) -> Result<Vec<(&'de str, T)>, serde_json::Error> {
    struct Items<T>(std::marker::PhantomData<T>);

    impl<'de, T: serde::Deserialize<'de>> Visitor<'de> for Items<T> {
        type Value = Vec<(&'de str, T)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut items = Vec::with_capacity(16);
            while let Some(raw) = seq.next_element::<&RawValue>()? {
                items.push((raw.get(), serde_json::from_str(raw.get()).map_err(A::Error::custom)?));
            }
            Ok(items)
        }
    }

    let mut deserializer = serde_json::Deserializer::from_str(text);
    let items = deserializer.deserialize_any(Items(std::marker::PhantomData))?;
    deserializer.end()?;
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(object: &Object) -> String {
        let mut out = String::new();
        object.print(&mut out);
        out
    }

    #[test]
    fn unedited_parts_stay_as_they_were() {
        let text =
            r#"{"a":1e999,"\u0062<":[ 1 , {"x":123456789012345678901234567890} ],"c":{"d":null,"e":{}}}"#;
        let object = Object::parse(text, &[Branch("c", &[Branch("e", &[])])]).unwrap();
        assert_eq!(print(&object), text);
        assert_eq!(object.get("b<").unwrap().json(), r#"[ 1 , {"x":123456789012345678901234567890} ]"#);
        assert!(object.object("c").unwrap().get("d").is_none());
        assert!(object.object("a").is_none());
    }

    #[test]
    fn set_says_whether_it_changed_something() {
        let mut object = Object::parse(r#"{"a":1}"#, &[]).unwrap();
        assert!(!object.set("a", Node::Raw("1".into())));
        assert!(object.set("a", Node::Raw("2".into())));
        assert!(object.set("b\"", Node::Object(Object::default())));
        assert_eq!(print(&object), r#"{"a":2,"b\"":{}}"#);
    }

    #[test]
    fn a_text_that_is_no_object_is_refused() {
        for text in ["", "null", "[]", "1", "{", r#"{"a":1}x"#, r#"{"a":1,"a":2}"#, r#"{"a":1,"\u0061":2}"#] {
            assert!(Object::parse(text, &[]).is_err(), "{text}");
        }
        assert!(Object::parse(r#"{"a":[]}"#, &[Branch("a", &[])]).is_err());
        assert!(Object::parse(r#"{"a":null}"#, &[Branch("a", &[])]).is_ok());
    }

    #[test]
    fn lists_keep_their_text() {
        let items = items::<Option<u8>>("[ 1,null , 3 ]").unwrap();
        assert_eq!(items, [("1", Some(1)), ("null", None), ("3", Some(3))]);
        assert_eq!(list(&items.iter().map(|(raw, _)| raw).collect::<Vec<_>>()), "[1,null,3]");
        assert!(super::items::<u8>("null").unwrap().is_empty());
        assert!(super::items::<u8>("{}").is_err());
    }
}
