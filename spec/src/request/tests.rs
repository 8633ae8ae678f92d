use std::collections::BTreeMap;

use super::number::WHOLE;
use super::rules::MOST_GPUS;
use super::*;
use crate::{Code, Error};

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A node on which everything is allowed.
fn open() -> Defaults {
    Defaults {
        units_per_gpu: Some(5),
        wait_default: Duration::ZERO,
        wait_max: Duration::from_secs(90),
        allow_none: true,
        ..Defaults::default()
    }
}

fn parse(pairs: &[(&str, &str)]) -> Result<Option<Request>, Error> {
    Request::parse(&map(pairs), None, &open())
}

fn parse_in(container: &str, pairs: &[(&str, &str)]) -> Result<Option<Request>, Error> {
    Request::parse(&map(pairs), Some(container), &open())
}

fn valid(pairs: &[(&str, &str)]) -> Request {
    parse(pairs).unwrap().unwrap()
}

const GI: u64 = 1 << 30;

#[test]
fn no_key_means_no_request() {
    assert_eq!(parse(&[]), Ok(None));
    assert_eq!(parse(&[("org.opencontainers.image.title", "x"), ("fgpux/fraction", "9")]), Ok(None));
    assert_eq!(parse(&[("fgpu/grant", "not even a nonce")]), Ok(None));
    assert_eq!(parse(&[("web.fgpu/fraction", "0.5")]), Ok(None));
}

#[test]
fn a_fraction_is_of_memory_and_cores() {
    let request = valid(&[("fgpu/fraction", "0.25"), ("fgpu/grant", "00112233445566778899aabbccddeeff")]);
    assert_eq!(
        request,
        Request {
            count: 1,
            memory: MemoryAsk::Ppm(250_000),
            cores_ppm: 250_000,
            compute: Compute::Cap,
            mig: None,
            places: Vec::new(),
            isolation: Isolation::Auto,
            device: Filter::default(),
            model: Filter::default(),
            policy: Policy::Pack,
            wait: Duration::ZERO,
            owner: None,
            text: "fgpu/fraction=0.25".to_owned(),
            notes: Vec::new(),
        }
    );
}

#[test]
fn memory_alone_books_no_cores() {
    let request = valid(&[("fgpu/memory", "4Gi")]);
    assert_eq!((request.memory, request.cores_ppm), (MemoryAsk::Bytes(4 * GI), 0));
    assert_eq!((request.compute, request.is_unbooked()), (Compute::Share, true));
    for policy in ["pack", "spread", "exclusive"] {
        assert!(valid(&[("fgpu/memory", "4Gi"), ("fgpu/policy", policy), ("fgpu/count", "2")]).is_unbooked());
    }
    assert!(valid(&[("fgpu/memory", "4Gi"), ("fgpu/compute", "share")]).is_unbooked());
    let off = valid(&[("fgpu/memory", "4Gi"), ("fgpu/compute", "off")]);
    assert_eq!((off.cores_ppm, off.compute), (0, Compute::Off));
    // A node that limits no SM time limits none here, either; one whose default is a cap has none to hold to.
    for (default, compute) in
        [(Compute::Cap, Compute::Share), (Compute::Share, Compute::Share), (Compute::Off, Compute::Off)]
    {
        let defaults = Defaults { compute: default, ..open() };
        let request = Request::parse(&map(&[("fgpu/memory", "4Gi")]), None, &defaults).unwrap().unwrap();
        assert_eq!((request.compute, request.cores_ppm), (compute, 0), "{default:?}");
    }
    let none = valid(&[("fgpu/memory", "4Gi"), ("fgpu/isolation", "none")]);
    assert_eq!((none.compute, none.cores_ppm), (Compute::Off, 0));
    let request = valid(&[("fgpu/memory", "4Gi"), ("fgpu/cores", "30")]);
    assert_eq!((request.memory, request.cores_ppm), (MemoryAsk::Bytes(4 * GI), 300_000));
}

#[test]
fn count_alone_is_whole_gpus() {
    let request = valid(&[("fgpu/count", "2")]);
    assert_eq!((request.count, request.memory, request.cores_ppm), (2, MemoryAsk::Ppm(WHOLE), WHOLE));
    let request = valid(&[("fgpu/count", "2"), ("fgpu/fraction", "50%")]);
    assert_eq!((request.count, request.memory), (2, MemoryAsk::Ppm(500_000)));
}

#[test]
fn units_are_the_administrators() {
    let request = valid(&[("fgpu/units", "1")]);
    assert_eq!((request.count, request.memory, request.cores_ppm), (1, MemoryAsk::Ppm(200_000), 200_000));
    let request = valid(&[("fgpu/units", "10")]);
    assert_eq!((request.count, request.memory, request.cores_ppm), (2, MemoryAsk::Ppm(WHOLE), WHOLE));
    let request = valid(&[("fgpu/units", "2"), ("fgpu/count", "3")]);
    assert_eq!((request.count, request.memory), (3, MemoryAsk::Ppm(400_000)));
    for units_per_gpu in [None, Some(0)] {
        let defaults = Defaults { units_per_gpu, ..open() };
        let error = Request::parse(&map(&[("fgpu/units", "1")]), None, &defaults).unwrap_err();
        assert_eq!(error.code, Code::Denied);
    }
}

#[test]
fn the_configuration_speaks_where_the_request_is_silent() {
    let defaults = Defaults { policy: Policy::Spread, compute: Compute::Share, ..open() };
    let parse = |pairs: &[(&str, &str)]| Request::parse(&map(pairs), None, &defaults).unwrap().unwrap();
    let request = parse(&[("fgpu/fraction", "1/2")]);
    assert_eq!((request.policy, request.compute), (Policy::Spread, Compute::Share));
    let request = parse(&[("fgpu/fraction", "1/2"), ("fgpu/policy", "pack"), ("fgpu/compute", "off")]);
    assert_eq!((request.policy, request.compute), (Policy::Pack, Compute::Off));
    // A tier that leaves no choice wins over the configuration, not over the user.
    assert_eq!(parse(&[("fgpu/mig", "1g.10gb")]).compute, Compute::Cap);
    assert_eq!(parse(&[("fgpu/fraction", "1/2"), ("fgpu/isolation", "none")]).compute, Compute::Off);
}

#[test]
fn slices() {
    let request = valid(&[("fgpu/mig", "1g.10gb+me")]);
    assert_eq!((request.mig.as_deref(), request.isolation), (Some("1g.10gb+me"), Isolation::Mig));
    assert_eq!((request.memory, request.cores_ppm), (MemoryAsk::Ppm(WHOLE), WHOLE));
    let request = valid(&[("fgpu/mig", "auto"), ("fgpu/memory", "8Gi")]);
    assert_eq!((request.memory, request.cores_ppm), (MemoryAsk::Bytes(8 * GI), 0));
    let request = valid(&[("fgpu/isolation", "mig"), ("fgpu/cores", "30%"), ("fgpu/compute", "cap")]);
    assert_eq!((request.mig.as_deref(), request.isolation), (Some("auto"), Isolation::Mig));
    assert_eq!((request.memory, request.cores_ppm), (MemoryAsk::Bytes(0), 300_000));
    let request = valid(&[("fgpu/mig", "1g.10gb"), ("fgpu/count", "2"), ("fgpu/device", "0")]);
    assert_eq!((request.count, request.device.any.len()), (2, 1), "slices may be of one GPU");
    let request = valid(&[("fgpu/mig", "auto"), ("fgpu/fraction", "0.5"), ("fgpu/count", "2")]);
    assert_eq!((request.count, request.memory, request.cores_ppm), (2, MemoryAsk::Ppm(500_000), 500_000));
}

#[test]
fn a_silent_request_waits_as_long_as_the_node_says() {
    let wait = |default: u64, pairs: &[(&str, &str)]| {
        let defaults = Defaults { wait_default: Duration::from_secs(default), ..open() };
        Request::parse(&map(pairs), None, &defaults).unwrap().unwrap().wait.as_secs()
    };
    let quarter = ("fgpu/fraction", "0.25");
    assert_eq!(wait(0, &[quarter]), 0);
    assert_eq!(wait(60, &[quarter]), 60);
    assert_eq!(wait(600, &[quarter]), 90, "wait-max");
    assert_eq!(wait(60, &[quarter, ("fgpu/wait", "0")]), 0);
    assert_eq!(wait(60, &[quarter, ("fgpu/wait", "5s")]), 5);
}

#[test]
fn a_rounded_amount_is_noted() {
    assert_eq!(valid(&[("fgpu/fraction", "0.25"), ("fgpu/wait", "90s")]).notes, Vec::<String>::new());
    let request = valid(&[("fgpu/fraction", "1/3"), ("fgpu/wait", "2m")]);
    assert_eq!(request.memory, MemoryAsk::Ppm(333_333));
    assert_eq!(request.wait, Duration::from_secs(90));
    assert_eq!(
        request.notes,
        [
            "fgpu/fraction=1/3 was rounded down to 333333 millionths of a GPU",
            "fgpu/wait=2m was cut to 90 s, the longest that this node allows (wait-max)",
        ]
    );
    assert_eq!(
        valid(&[("fgpu/memory", "0.1Gi"), ("fgpu/cores", "1/3")]).notes,
        [
            "fgpu/memory=0.1Gi was rounded down to 107374182 bytes",
            "fgpu/cores=1/3 was rounded down to 333333 millionths of a GPU",
        ]
    );
    let defaults = Defaults { units_per_gpu: Some(3), ..open() };
    let request = Request::parse(&map(&[("fgpu/units", "1")]), None, &defaults).unwrap().unwrap();
    assert_eq!(request.notes, ["fgpu/units=1 was rounded down to 333333 millionths of a GPU"]);
}

#[test]
fn the_text_names_every_key_once_in_a_fixed_order() {
    let request = valid(&[
        ("fgpu/wait", "30s"),
        ("fgpu/model", "H100 80GB,!T4"),
        ("fgpu/owner", "team-a"),
        ("fgpu/cores", "30%"),
        ("fgpu/memory", "4Gi"),
    ]);
    assert_eq!(
        request.text,
        "fgpu/memory=4Gi fgpu/cores=30% fgpu/model=\"H100 80GB,!T4\" fgpu/wait=30s fgpu/owner=team-a"
    );
}

#[test]
fn an_override_is_for_its_container_only() {
    let pod = [("fgpu/fraction", "0.25"), ("web.fgpu/fraction", "0.5"), ("web.fgpu/owner", "w")];
    let request = parse_in("web", &pod).unwrap().unwrap();
    assert_eq!((request.memory, request.owner.as_deref()), (MemoryAsk::Ppm(500_000), Some("w")));
    assert_eq!(request.text, "web.fgpu/fraction=0.5 web.fgpu/owner=w");
    for request in [parse_in("db", &pod), parse_in("we", &pod), parse(&pod)] {
        let request = request.unwrap().unwrap();
        assert_eq!((request.memory, request.owner), (MemoryAsk::Ppm(250_000), None));
    }
}

#[test]
fn a_lone_override_gives_no_other_container_a_gpu() {
    let pod = [("fgpu/policy", "spread"), ("web.fgpu/fraction", "0.5")];
    assert_eq!(parse_in("web", &pod).unwrap().unwrap().policy, Policy::Spread);
    assert_eq!(parse_in("db", &pod), Ok(None));
    assert_eq!(parse_in("db", &pod[1..]), Ok(None));
    // What the pod says must make sense all the same.
    assert_eq!(
        parse_in("db", &[("fgpu/policy", "x"), ("web.fgpu/fraction", "0.5")]).unwrap_err().code,
        Code::InvalidRequest
    );
    // An override that says nothing of an amount is no reason to leave the others without.
    let pod = [("fgpu/policy", "spread"), ("web.fgpu/owner", "a")];
    assert_eq!(parse_in("db", &pod).unwrap_err().code, Code::InvalidRequest);
}

#[test]
fn a_container_can_go_without() {
    let pod = [("fgpu/fraction", "0.25"), ("log.fgpu/count", "0")];
    assert_eq!(parse_in("log", &pod), Ok(None));
    assert!(parse_in("web", &pod).unwrap().is_some());
    let error = parse_in("log", &[("log.fgpu/count", "0"), ("log.fgpu/fraction", "0.5")]).unwrap_err();
    assert_eq!(error.code, Code::Conflict);
    assert_eq!(parse_in("log", &[("fgpu/count", "0")]).unwrap_err().code, Code::InvalidRequest);
}

#[test]
fn an_override_that_says_how_much_replaces_what_it_would_contradict() {
    let web = |pairs: &[(&str, &str)]| parse_in("web", pairs).unwrap().unwrap();
    let request = web(&[("fgpu/fraction", "0.25"), ("web.fgpu/memory", "4Gi")]);
    assert_eq!((request.memory, request.cores_ppm), (MemoryAsk::Bytes(4 * GI), 0));
    // The pod's cap is of a share that this container does not have.
    let capped = [("fgpu/fraction", "0.25"), ("fgpu/compute", "cap"), ("web.fgpu/memory", "4Gi")];
    assert!(web(&capped).is_unbooked());
    assert_eq!(web(&[&capped[..], &[("web.fgpu/cores", "30")]].concat()).compute, Compute::Cap);
    let own = parse_in("web", &[&capped[..], &[("web.fgpu/compute", "cap")]].concat()).unwrap_err();
    assert_eq!(own.code, Code::Conflict);
    let cores =
        [("fgpu/memory", "1Gi"), ("fgpu/cores", "5"), ("fgpu/compute", "cap"), ("web.fgpu/memory", "4Gi")];
    assert_eq!((web(&cores).compute, web(&cores).cores_ppm), (Compute::Cap, 50_000));
    let request = web(&[("fgpu/memory", "4Gi"), ("fgpu/cores", "30"), ("web.fgpu/units", "1")]);
    assert_eq!((request.memory, request.cores_ppm), (MemoryAsk::Ppm(200_000), 200_000));
    let request = web(&[("fgpu/memory", "4Gi"), ("web.fgpu/cores", "30")]);
    assert_eq!((request.memory, request.cores_ppm), (MemoryAsk::Bytes(4 * GI), 300_000));
    let request = web(&[("fgpu/fraction", "0.25"), ("fgpu/count", "2"), ("web.fgpu/mig", "1g.10gb")]);
    assert_eq!((request.mig.as_deref(), request.count), (Some("1g.10gb"), 2));
    let request = web(&[("fgpu/mig", "1g.10gb"), ("web.fgpu/fraction", "0.5")]);
    assert_eq!((request.mig, request.memory), (None, MemoryAsk::Ppm(500_000)));
    let request = web(&[("fgpu/mig", "auto"), ("fgpu/fraction", "0.25"), ("web.fgpu/fraction", "0.5")]);
    assert_eq!((request.mig.as_deref(), request.memory), (Some("auto"), MemoryAsk::Ppm(500_000)));
}

#[test]
fn errors_of_an_override_name_it() {
    let error = parse_in("web", &[("web.fgpu/fraction", "2")]).unwrap_err();
    assert!(error.message.starts_with("web.fgpu/fraction=2 is above a whole GPU"), "{error}");
    let error = parse_in("web", &[("web.fgpu/fracton", "2")]).unwrap_err();
    assert!(error.message.contains("the nearest is web.fgpu/fraction"), "{error}");
    assert_eq!(parse_in("web", &[("web.fgpu/grant", "2")]).unwrap_err().code, Code::InvalidRequest);
    // The container that is named reports it; the others cannot know what was meant.
    assert_eq!(parse_in("db", &[("web.fgpu/fracton", "2")]), Ok(None));
}

#[test]
fn the_configuration_has_the_same_grammar() {
    assert_eq!(parse_memory("0"), Ok(0));
    assert_eq!(parse_memory("512Mi"), Ok(GI / 2));
    assert!(parse_memory("512m").unwrap_err().contains("512Mi"));
    assert_eq!(parse_wait("1m30s"), Ok(Duration::from_secs(90)));
    assert!(parse_wait("90").unwrap_err().contains("no unit"));
}

mod tables {
    use super::*;

    #[derive(serde::Deserialize)]
    #[serde(rename_all = "kebab-case", deny_unknown_fields)]
    struct Row {
        annotations: BTreeMap<String, String>,
        container: Option<String>,
        units_per_gpu: Option<u32>,
        #[serde(default)]
        allow_none: bool,
        code: Option<String>,
        word: Option<String>,
        count: Option<u32>,
        memory: Option<u64>,
        memory_ppm: Option<u32>,
        cores_ppm: Option<u32>,
    }

    impl Row {
        fn parse(&self) -> Result<Option<Request>, Error> {
            let defaults =
                Defaults { units_per_gpu: self.units_per_gpu, allow_none: self.allow_none, ..open() };
            Request::parse(&self.annotations, self.container.as_deref(), &defaults)
        }
    }

    #[test]
    fn malformed() {
        let rows: Vec<Row> = serde_json::from_str(include_str!("../../testdata/malformed.json")).unwrap();
        assert!(rows.len() >= 80);
        for row in rows {
            let name = format!("{:?} of {:?}", row.annotations, row.container);
            let error = match row.parse() {
                Err(error) => error,
                Ok(request) => panic!("{name}: gave {request:?}"),
            };
            assert_eq!(error.code.as_str(), row.code.unwrap(), "{name}: {error}");
            assert!(error.message.contains(&row.word.unwrap()), "{name}: {error}");
            // The key is named, the reason is more than the key, and there is one line of it.
            assert!(error.message.contains("fgpu/"), "{name}: {error}");
            assert!(error.message.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{name}: {error}");
        }
    }

    #[test]
    fn valid() {
        let rows: Vec<Row> = serde_json::from_str(include_str!("../../testdata/valid.json")).unwrap();
        for row in rows {
            let name = format!("{:?} of {:?}", row.annotations, row.container);
            let request = row.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
            let Some(request) = request else {
                assert_eq!(row.count, Some(0), "{name}");
                continue;
            };
            let memory = match request.memory {
                MemoryAsk::Bytes(bytes) => (Some(bytes), None),
                MemoryAsk::Ppm(ppm) => (None, Some(ppm)),
                MemoryAsk::PpmAtMost(..) => panic!("{name}: no annotation says that"),
            };
            assert_eq!(Some(request.count), row.count, "{name}");
            assert_eq!(memory, (row.memory, row.memory_ppm), "{name}");
            assert_eq!(Some(request.cores_ppm), row.cores_ppm, "{name}");
        }
    }
}

mod properties;
