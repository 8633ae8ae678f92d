use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{Defaults, Request};

fn parse(annotations: &[(&str, &str)], devices: &[&str]) -> Result<Option<Request>, Error> {
    let annotations: BTreeMap<String, String> =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let devices: Vec<String> = devices.iter().map(|name| (*name).to_owned()).collect();
    let defaults = Defaults {
        units_per_gpu: Some(8),
        wait_max: std::time::Duration::from_secs(90),
        ..Defaults::default()
    };
    Request::with_devices(&annotations, &devices, None, &defaults)
}

#[test]
fn a_name_asks_for_what_its_annotations_do() {
    for (name, annotations) in [
        ("0.25", &[("fgpu/fraction", "0.25")][..]),
        ("1", &[("fgpu/fraction", "1")]),
        ("1-3", &[("fgpu/fraction", "1/3")]),
        ("4Gi", &[("fgpu/memory", "4Gi")]),
        ("512Mi", &[("fgpu/memory", "512Mi")]),
        ("units-2", &[("fgpu/units", "2")]),
        ("mig-auto", &[("fgpu/mig", "auto")]),
        ("mig-1g.10gb", &[("fgpu/mig", "1g.10gb")]),
        ("mig-1g.10gb.me", &[("fgpu/mig", "1g.10gb+me")]),
        ("mig-1g.12gb.me.all", &[("fgpu/mig", "1g.12gb+me.all")]),
        ("2x0.5", &[("fgpu/count", "2"), ("fgpu/fraction", "0.5")]),
        ("8x1", &[("fgpu/count", "8"), ("fgpu/fraction", "1")]),
    ] {
        let expected = parse(annotations, &[]);
        match parse(&[], &[name]) {
            Ok(Some(mut got)) => {
                assert_eq!(got.text, format!("--device fgpu.dev/gpu={name}"));
                let expected = expected.unwrap().unwrap();
                got.text.clone_from(&expected.text);
                assert_eq!(got.notes.len(), expected.notes.len(), "{name}");
                got.notes.clone_from(&expected.notes);
                assert_eq!(got, expected, "{name}");
            }
            Ok(None) => panic!("{name}"),
            Err(error) => assert_eq!(error.code, expected.unwrap_err().code, "{name}"),
        }
    }
}

#[test]
fn every_name_of_the_file_is_a_request_and_a_name_of_cdi() {
    let names = cdi_names(None, Some(8));
    assert!((40..=70).contains(&names.len()), "{}", names.len());
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    for name in &names {
        // parser/parser.go `ValidateDeviceName`.
        assert!(name.starts_with(|first: char| first.is_ascii_alphanumeric()), "{name}");
        assert!(name.ends_with(|last: char| last.is_ascii_alphanumeric()), "{name}");
        let may = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
        assert!(name.chars().all(may), "{name}");
        match parse(&[], &[name]) {
            Err(error) => assert!(name == "mig-auto", "{error}"),
            Ok(asked) => assert!(asked.is_some(), "{name}"),
        }
    }
    for name in ["0.05", "0.25", "0.5", "1", "1-3", "1Gi", "64Gi", "units-8", "2x0.5", "mig-auto"] {
        assert!(names.iter().any(|known| known == name), "{name}");
    }
}

#[test]
fn annotations_refine_a_device_and_do_not_contradict_it() {
    let refined = parse(&[("fgpu/wait", "30s"), ("fgpu/compute", "share"), ("fgpu/owner", "me")], &["0.25"]);
    let refined = refined.unwrap().unwrap();
    assert_eq!((refined.wait.as_secs(), refined.compute), (30, crate::Compute::Share));
    assert_eq!(refined.owner.as_deref(), Some("me"));
    assert_eq!(refined.text, "--device fgpu.dev/gpu=0.25 fgpu/compute=share fgpu/wait=30s fgpu/owner=me");
    let sized = parse(&[], &["mig-auto"]).unwrap_err();
    assert!(sized.message.starts_with("--device fgpu.dev/gpu=mig-auto does not say how big"), "{sized}");
    assert!(parse(&[("fgpu/memory", "8Gi")], &["mig-auto"]).unwrap().is_some());
    for (annotations, devices) in [
        (&[("fgpu/fraction", "0.5")][..], &["0.25"][..]),
        (&[("fgpu/fraction", "0.25")], &["0.25"]),
        (&[("fgpu/memory", "4Gi")], &["0.25"]),
        (&[("fgpu/mig", "1g.10gb")], &["0.25"]),
        (&[("fgpu/count", "3")], &["2x0.5"]),
        (&[], &["0.25", "0.5"]),
        (&[], &["0.25", "1-4"]),
    ] {
        let error = parse(annotations, devices).unwrap_err();
        assert_eq!(error.code, Code::Conflict, "{error}");
        assert!(error.message.contains(&format!("--device fgpu.dev/gpu={}", devices[0])), "{error}");
    }
    assert!(parse(&[], &["0.25", "0.25"]).unwrap().is_some(), "the same name twice is one request");
}

#[test]
fn a_hostile_name_is_refused_in_one_line() {
    for name in
        ["", "x", "0.2\u{1b}[2J", "-1", "1-0", "1-3-4", "units-", "mig-", "99999999999x1", "0x1", "2x"]
    {
        let error = parse(&[], &[name]).unwrap_err();
        assert!(!error.message.contains(|char: char| char.is_control()), "{error:?}");
        assert!(error.message.contains("--device fgpu.dev/gpu="), "{error}");
    }
}
