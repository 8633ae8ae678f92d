//! Properties of every edit.

use proptest::prelude::*;

use super::*;

/// Any JSON, with the names that are edited among the keys.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        prop::sample::select(vec![
            "annotations",
            "linux",
            "resources",
            "devices",
            "mounts",
            "hooks",
            "poststop",
            "process",
            "env",
            "root",
            "path",
            "namespaces",
            "destination",
            "type",
            "major",
        ])
        .prop_map(str::to_owned),
        ".{0,4}",
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC*") {
        let _ = Document::parse(&text);
    }

    #[test]
    fn an_edit_is_made_once(json in any_json(), pretty: bool) {
        let text = if pretty { format!("{json:#}") } else { json.to_string() };
        if let Ok(mut document) = Document::parse(&text) {
            prop_assert_eq!(document.to_string(), &*text);
            if document.apply(&plan()).is_ok() {
                let once = document.to_string();
                prop_assert_eq!(rest(&once), {
                    let mut expected = rest(&text);
                    // A part that was missing was made, and is empty without what the plan put there.
                    if let Some(linux) = rest(&once).get("linux") {
                        let top = expected.as_object_mut().unwrap();
                        if top.get("linux").is_none_or(Value::is_null) {
                            top.insert("linux".to_owned(), linux.clone());
                        } else if top["linux"].get("resources").is_none_or(Value::is_null) {
                            top["linux"]["resources"] = json!({});
                        }
                    }
                    expected
                });
                prop_assert_eq!(applied(&once, &plan()), once);
            }
        }
    }
}
