//! A file of each release is read by every later one, and what a newer one wrote is refused by name.

use serde_json::Value;

use super::*;
use crate::State;

/// What each release wrote in a boot with this id: leases in every state and tier, and requests that wait.
const RELEASES: [(&str, &str); 1] = [("0.1.0", include_str!("../../testdata/0.1.0/allocations.json"))];

fn boot() -> Boot {
    Boot::new("11111111-2222-3333-4444-555555555555".into())
}

fn json(line: &[u8]) -> Value {
    serde_json::from_slice(line).unwrap()
}

/// Whether everything that `old` says is in `new`.
fn says(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => {
            old.iter().all(|(key, old)| key == "seal" || new.get(key).is_some_and(|new| says(new, old)))
        }
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().zip(old).all(|(new, old)| says(new, old))
        }
        (new, old) => new == old,
    }
}

/// The line, with a field at the end of it that no version has, and a seal that is right.
fn with_more(old: &[u8], end: &str, more: &str) -> Vec<u8> {
    let body = old.len() - SEAL.len() - DIGITS - 2;
    let text = str::from_utf8(&old[..body]).unwrap();
    let text = match end {
        "" => format!("{text}{more}"),
        end => text.replacen(end, &format!("{more}{end}"), 1),
    };
    assert!(text.len() > body, "{text}");
    let seal = hex(XxHash3_64::oneshot_with_seed(boot().seed, text.as_bytes()));
    [text.as_bytes(), SEAL, &seal, b"\"}"].concat()
}

#[test]
fn every_release_is_read_and_nothing_of_it_is_lost() {
    for (release, text) in RELEASES {
        let image = Image::parse(text.into(), &boot()).unwrap();
        let (mut states, mut tiers) = (Vec::new(), Vec::new());
        for old in image.lines() {
            let read = lease(old).unwrap_or_else(|damage| panic!("{release}: {damage:?} {:?}", json(old)));
            let new = line(&read, &boot()).unwrap();
            assert!(says(&json(&new), &json(old)), "{release}: {} of {}", json(&new), json(old));
            let summary = Summary::scan(old).unwrap();
            assert_eq!(summary.gpus.len(), read.grant.gpus.len(), "{release}");
            assert!(summary.rest.starts_with(&key_head(&read.key)), "{release}");
            let slices = summary.gpus.iter().filter(|part| part.slice.is_some()).count();
            assert_eq!(slices, read.grant.gpus.iter().filter(|gpu| gpu.mig.is_some()).count());
            states.push(read.state);
            tiers.push(read.grant.tier);
        }
        for state in [State::Reserving, State::Active, State::Releasing, State::Kept] {
            assert!(states.contains(&state), "{release} {state:?}");
        }
        tiers.dedup();
        assert!(tiers.len() >= 4, "{release} {tiers:?}");
        assert!(image.waiters().count() >= 2);
        for old in image.waiters() {
            let read = waiter(old).unwrap();
            assert!(says(&json(&line(&read, &boot()).unwrap()), &json(old)), "{release}: {}", json(old));
            let head = WaiterHead::scan(old).unwrap();
            assert_eq!((head.process, head.passed), (read.process, read.passed));
            assert_eq!(head.pid_namespace, read.pid_namespace);
            assert!(waiter(&passed_once_more(old, &boot()).unwrap()).unwrap().passed == read.passed + 1);
        }
    }
}

/// Lines are scanned byte by byte ([`super::scan`], `look.rs`), and equal requests are told by equal bytes. A
/// line of the first release that is read and written again is the same to the byte, its seal included.
#[test]
fn the_names_and_the_order_of_fields_are_the_first_releases() {
    let image = Image::parse(RELEASES[0].1.into(), &boot()).unwrap();
    let same = |new: Vec<u8>, old: &[u8]| {
        assert_eq!(str::from_utf8(&new).unwrap(), str::from_utf8(old).unwrap());
    };
    image.lines().for_each(|old| same(line(&lease(old).unwrap(), &boot()).unwrap(), old));
    image.waiters().for_each(|old| same(line(&waiter(old).unwrap(), &boot()).unwrap(), old));
}

/// A field that a later release of the same format adds where fields are added.
#[test]
fn unknown_fields_are_read_past() {
    let image = Image::parse(RELEASES[0].1.into(), &boot()).unwrap();
    let more = r#","newer":{"a":["}\"",{}],"pid_namespace":7}"#;
    for old in image.lines() {
        let share = if json(old)["gpus"][0].get("mig").is_some() { "}}" } else { "}" };
        for end in ["", share] {
            let new = with_more(old, end, more);
            assert_eq!(lease(&new).unwrap(), lease(old).unwrap(), "{}", json(&new));
            let (old, new) = (Summary::scan(old).unwrap(), Summary::scan(&new).unwrap());
            assert_eq!((&new.gpus, new.owner, new.exclusive), (&old.gpus, old.owner, old.exclusive));
        }
    }
    for old in image.waiters() {
        let new = with_more(old, "", r#","newer":{"a":["}\"",{}]}"#);
        assert_eq!(waiter(&new).unwrap(), waiter(old).unwrap());
        let (old, new) = (WaiterHead::scan(old).unwrap(), WaiterHead::scan(&new).unwrap());
        assert_eq!(
            (new.ticket, new.process, new.pid_namespace),
            (old.ticket, old.process, old.pid_namespace)
        );
    }
}

/// What a newer release wrote that cannot be read past is no damage.
#[test]
fn a_file_that_cannot_be_read_to_its_end_is_not_contradictory() {
    let image = Image::parse(RELEASES[0].1.into(), &boot()).unwrap();
    let first = str::from_utf8(image.lines().next().unwrap()).unwrap().to_owned();
    for (old, new) in [
        (r#""state":"active""#, r#""state":"frozen""#),
        (r#""tier":"quota""#, r#""tier":"vgpu""#),
        (r#""compute":"cap""#, r#""compute":"burst""#),
        (r#""maker":{"#, r#""maker":{"node":7},"other":{"#),
    ] {
        let newer = first.replacen(old, new, 1);
        assert_ne!(newer, first, "{old}");
        assert_eq!(lease(newer.as_bytes()), Err(Damage::Unknown), "{new}");
    }
    let moved = first.replacen(r#","gpus":["#, r#","newer":1,"gpus":["#, 1);
    assert_eq!(Summary::scan(moved.as_bytes()), Err(Damage::Unknown));
    // A head with more in it, and a right check.
    let text = RELEASES[0].1.replacen(r#"","leases""#, r#"","newer":1,"leases""#, 1);
    let at = HEAD.len() + DIGITS;
    let check = hex(XxHash3_64::oneshot(&text.as_bytes()[at..]));
    let bytes = [HEAD, &check, &text.as_bytes()[at..]].concat();
    assert_eq!(Image::parse(bytes, &boot()).unwrap_err(), Damage::Unknown);
    // And without: a format of another number, which nobody else can check.
    let text = RELEASES[0].1.replacen(r#"{"version":1"#, r#"{"version":2"#, 1);
    assert_eq!(Image::parse(text.into(), &boot()).unwrap_err(), Damage::Version(2));
    let older = RELEASES[0].1.replacen(r#"{"version":1"#, r#"{"version":0"#, 1);
    assert_eq!(Image::parse(older.into(), &boot()).unwrap_err(), Damage::Torn);
}
