//! The dashboards in grafana/: what Grafana's importer asks of a dashboard (grafana.com, "Dashboard JSON model"), and
//! what makes one usable elsewhere: no data source, panel or node of our own.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

const MODEL: [&str; 2] = ["fgpu-node.json", "fgpu-fleet.json"];

fn dashboard(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("grafana").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("{key} is a list in {value}"))
}

#[test]
fn they_are_dashboards() {
    let mut uids = BTreeSet::new();
    for name in MODEL {
        let all = dashboard(name);
        assert!(
            all["title"].is_string() && all["schemaVersion"].as_u64().is_some_and(|version| version >= 36),
            "{name}"
        );
        let uid = all["uid"].as_str().unwrap();
        assert!(uid.len() <= 40 && uids.insert(uid.to_owned()), "{uid}");
        // Grafana gives the number.
        assert_eq!(all.get("id"), None);
        let mut ids = BTreeSet::new();
        let mut taken = BTreeSet::new();
        for panel in list(&all, "panels") {
            let title = panel["title"].as_str().unwrap();
            assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{title}");
            assert!(["stat", "timeseries", "table"].contains(&panel["type"].as_str().unwrap()), "{title}");
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}");
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
            assert!(w > 0 && h > 0 && x + w <= 24, "{title}");
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(taken.insert(cell), "{title} lies over another panel");
            }
            let refs: BTreeSet<_> =
                list(panel, "targets").iter().map(|target| target["refId"].as_str().unwrap()).collect();
            assert_eq!(refs.len(), list(panel, "targets").len(), "{title}");
        }
    }
}

#[test]
fn they_know_no_place_but_by_variables() {
    for name in MODEL {
        let all = dashboard(name);
        let variables: BTreeSet<&str> = list(&all["templating"], "list")
            .iter()
            .map(|variable| variable["name"].as_str().unwrap())
            .collect();
        assert!(variables.contains("datasource") && variables.contains("job"), "{variables:?}");
        let mut sources = vec![];
        let mut queries = vec![];
        walk(&all, &mut |key, value| match key {
            "datasource" => sources.push(value.clone()),
            "expr" | "query" => queries.extend(value.as_str().map(str::to_owned)),
            _ => {}
        });
        for source in sources {
            assert_eq!(source, serde_json::json!({"type": "prometheus", "uid": "${datasource}"}));
        }
        for query in queries {
            for word in query.split('$').skip(1) {
                let word: String = word.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                assert!(
                    word == "__rate_interval" || variables.contains(&*word),
                    "{name}: ${word} in {query}"
                );
            }
        }
    }
}

fn walk(value: &Value, see: &mut impl FnMut(&str, &Value)) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                see(key, value);
                walk(value, see);
            }
        }
        Value::Array(all) => all.iter().for_each(|value| walk(value, see)),
        _ => {}
    }
}
