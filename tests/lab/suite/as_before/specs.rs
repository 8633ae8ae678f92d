//! What stands in a bundle for its config.json: what a runtime takes, and what it refuses in words of its
//! own.

use serde_json::{Value, json};

/// What becomes of a good config.json; `None` if there is none.
pub(super) type Spec = fn(&Value) -> Option<Vec<u8>>;

pub(super) fn good(good: &Value) -> Option<Vec<u8>> {
    Some(good.to_string().into_bytes())
}

pub(super) fn missing(_: &Value) -> Option<Vec<u8>> {
    None
}

/// With a change.
fn but(good: &Value, change: impl FnOnce(&mut Value)) -> Option<Vec<u8>> {
    let mut spec = good.clone();
    change(&mut spec);
    Some(spec.to_string().into_bytes())
}

/// With a member more, and what of it is no JSON.
fn with(good: &Value, member: &[u8]) -> Option<Vec<u8>> {
    let text = good.to_string();
    Some([b"{", member, b",", &text.as_bytes()[1..]].concat())
}

fn behind(good: &Value, more: &[u8]) -> Option<Vec<u8>> {
    Some([good.to_string().as_bytes(), more].concat())
}

/// Each with its name.
pub(super) const ODD: &[(&str, Spec)] = &[
    ("good", good),
    ("missing", missing),
    ("empty", |_| Some(Vec::new())),
    ("white space", |_| Some(b" \n".to_vec())),
    ("null", |_| Some(b"null".to_vec())),
    ("a list", |_| Some(b"[]".to_vec())),
    ("a number", |_| Some(b"1".to_vec())),
    ("an empty object", |_| Some(b"{}".to_vec())),
    ("a line end behind it", |good| behind(good, b"\n")),
    ("a word behind it", |good| behind(good, b"x")),
    ("a second object behind it", |good| behind(good, b"{}")),
    ("zeros behind it", |good| behind(good, &[0; 16])),
    ("cut short", |good| good_but_cut(good)),
    ("a byte order mark", |good| Some([b"\xef\xbb\xbf", good.to_string().as_bytes()].concat())),
    ("a comment", |good| Some([b"/* */", good.to_string().as_bytes()].concat())),
    ("a comma too many", |good| with(good, b"\"x\":1,")),
    ("no UTF-8 in a value", |good| with(good, b"\"x\":\"\xff\"")),
    ("no UTF-8 in a key", |good| with(good, b"\"\xff\":1")),
    ("no UTF-8 outside of strings", |good| with(good, b"\xff")),
    ("a lone surrogate", |good| with(good, br#""x":"\ud800""#)),
    ("a control character in a string", |good| with(good, b"\"x\":\"\x01\"")),
    ("a number that nothing holds", |good| with(good, b"\"x\":1e999")),
    ("lists in lists", |good| with(good, &[b"\"x\":".as_slice(), &[b'['; 500], &[b']'; 500]].concat())),
    ("lists in very many lists", |good| {
        with(good, &[b"\"x\":".as_slice(), &[b'['; 20000], &[b']'; 20000]].concat())
    }),
    ("a key twice", |good| with(good, b"\"hostname\":\"first\"")),
    ("annotations twice", |good| with(good, br#""annotations":{"x":"y"}"#)),
    ("an annotation twice", |good| with(good, br#""annotations":{"x":"y","x":"z"}"#)),
    ("null for annotations", |good| but(good, |spec| spec["annotations"] = Value::Null)),
    ("a null annotation", |good| but(good, |spec| spec["annotations"] = json!({"a": null}))),
    ("a number for an annotation", |good| but(good, |spec| spec["annotations"] = json!({"a": 1}))),
    ("an object for an annotation", |good| but(good, |spec| spec["annotations"] = json!({"a": {}}))),
    ("a list for annotations", |good| but(good, |spec| spec["annotations"] = json!([]))),
    ("a word for annotations", |good| but(good, |spec| spec["annotations"] = json!("x"))),
    ("an annotation in escapes", |good| with(good, br#""annotations":{"\u0061\u0062":"\u0063"}"#)),
    ("an unknown key", |good| but(good, |spec| spec["unknown"] = json!({"a": [1]}))),
    ("no version", |good| but(good, |spec| drop(spec.as_object_mut().map(|all| all.remove("ociVersion"))))),
    ("another version", |good| but(good, |spec| spec["ociVersion"] = json!("9.9.9"))),
    ("no process", |good| but(good, |spec| drop(spec.as_object_mut().map(|all| all.remove("process"))))),
    ("a word for the process", |good| but(good, |spec| spec["process"] = json!("x"))),
    ("null for the command", |good| but(good, |spec| spec["process"]["args"] = Value::Null)),
    ("a number in the command", |good| but(good, |spec| spec["process"]["args"] = json!([1]))),
    ("a command that is not there", |good| but(good, |spec| spec["process"]["args"] = json!(["/nosuch"]))),
    ("null for the environment", |good| but(good, |spec| spec["process"]["env"] = Value::Null)),
    ("a folder that is not there", |good| but(good, |spec| spec["process"]["cwd"] = json!("relative"))),
    ("no root", |good| but(good, |spec| drop(spec.as_object_mut().map(|all| all.remove("root"))))),
    ("a root that is not there", |good| but(good, |spec| spec["root"]["path"] = json!("/nosuch"))),
    ("a number for the host's name", |good| but(good, |spec| spec["hostname"] = json!(1))),
    ("a capability that nobody knows", |good| {
        but(good, |spec| spec["process"]["capabilities"]["bounding"] = json!(["CAP_NOSUCH"]))
    }),
    ("a mount that fails", |good| {
        but(good, |spec| {
            let mount =
                json!({"destination": "/x", "type": "bind", "source": "/nosuch", "options": ["bind"]});
            spec["mounts"].as_array_mut().expect("a list").push(mount);
        })
    }),
    ("a hook that fails", |good| {
        but(good, |spec| spec["hooks"] = json!({"createRuntime": [{"path": "/bin/false"}]}))
    }),
    ("17 MiB of white space behind it", |good| behind(good, &vec![b' '; 17 << 20])),
    ("17 MiB of what is no JSON", |_| Some(vec![b'x'; 17 << 20])),
];

fn good_but_cut(good: &Value) -> Option<Vec<u8>> {
    let text = good.to_string();
    Some(text.as_bytes()[..text.len() / 2].to_vec())
}
