//! A share by a CDI device, where a test says it with annotations.

use std::fs;

use serde_json::{Value, json};

/// The file that the node has (fgpu-cdi.service).
const NODE: &str = "/run/cdi/fgpu.json";
/// Names that the tests want besides.
const MORE: &str = "/etc/cdi/lab.json";

/// The options of `docker run`: a device for the amounts, annotations for the rest.
pub(crate) fn options(mut annotations: Vec<(String, String)>) -> Vec<String> {
    let mut take = |key: &str| {
        let at = annotations.iter().position(|(name, _)| name.strip_prefix("fgpu/") == Some(key))?;
        Some(annotations.remove(at).1)
    };
    let amount = [("fraction", ""), ("units", "units-"), ("mig", "mig-"), ("memory", "")]
        .into_iter()
        .find_map(|(key, prefix)| Some(format!("{prefix}{}", take(key)?)));
    let count =
        amount.as_deref().is_none_or(|name| !name.starts_with("mig-")).then(|| take("count")).flatten();
    let name = match (amount, count) {
        (None, None) => None,
        (amount, None) => amount,
        (amount, Some(count)) => Some(format!("{count}x{}", amount.as_deref().unwrap_or("1"))),
    };
    let name = name.map(|name| name.replace('/', "-").replace('+', "."));
    let device = name.map(|name| {
        ensure(&name);
        format!("fgpu.dev/gpu={name}")
    });
    let annotations =
        annotations.iter().flat_map(|(key, value)| ["--annotation".into(), format!("{key}={value}")]);
    device.into_iter().flat_map(|device| ["--device".to_owned(), device]).chain(annotations).collect()
}

/// Sees to it that there is a device of this name.
fn ensure(name: &str) {
    let read = |path: &str| fs::read_to_string(path).ok().map(|text| parse(&text));
    let has =
        |file: &Value| file["devices"].as_array().into_iter().flatten().any(|device| device["name"] == name);
    let node = read(NODE).unwrap_or_else(|| panic!("{NODE} is missing"));
    let mut more = read(MORE)
        .unwrap_or_else(|| json!({"cdiVersion": node["cdiVersion"], "kind": node["kind"], "devices": []}));
    if has(&node) || has(&more) {
        return;
    }
    let model = node["devices"][0].to_string();
    let old = node["devices"][0]["name"].to_string();
    let device = parse(&model.replace(&old, &json!(name).to_string()));
    if let Some(devices) = more["devices"].as_array_mut() {
        devices.push(device);
    }
    fs::create_dir_all("/etc/cdi")
        .and_then(|()| fs::write(MORE, more.to_string()))
        .expect("a CDI file can be written");
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).expect("a CDI file is JSON")
}
