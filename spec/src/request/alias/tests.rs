use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{Compute, Defaults, Filter, Isolation, MemoryAsk, Policy, Request};

const MIB: u64 = 1 << 20;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn defaults(aliases: &[Vocabulary]) -> Defaults {
    Defaults { aliases: aliases.to_vec(), wait_max: Duration::from_secs(90), ..Defaults::default() }
}

fn parse(pairs: &[(&str, &str)]) -> Result<Option<Request>, Error> {
    Request::parse(&map(pairs), None, &defaults(&Vocabulary::ALL))
}

fn valid(pairs: &[(&str, &str)]) -> Request {
    parse(pairs).unwrap().unwrap_or_else(|| panic!("{pairs:?} asks for nothing"))
}

/// Number, memory, cores, compute, policy.
type Amount = (u32, MemoryAsk, u32, Compute, Policy);

fn amount(pairs: &[(&str, &str)]) -> Amount {
    let request = valid(pairs);
    (request.count, request.memory, request.cores_ppm, request.compute, request.policy)
}

const ALL: u32 = WHOLE;

#[test]
fn translations_of_each_word() {
    use Compute::{Cap, Share};
    use MemoryAsk::{Bytes, Ppm};
    use Policy::{Exclusive, Pack};
    let rows: &[(&[(&str, &str)], Amount)] = &[
        (&[("gpu-fraction", "0.5")], (1, Ppm(500_000), 500_000, Cap, Pack)),
        (
            &[("gpu-fraction", "0.25"), ("gpu-fraction-num-devices", "2")],
            (2, Ppm(250_000), 250_000, Cap, Pack),
        ),
        (&[("gpu-fraction", "0.5"), ("gpu-sm-percentage", "30")], (1, Ppm(500_000), 300_000, Cap, Pack)),
        (&[("gpu-memory", "2000")], (1, Bytes(2000 * MIB), 0, Share, Pack)),
        (&[("gpu-memory", "2000"), ("gpu-sm-percentage", "10")], (1, Bytes(2000 * MIB), 100_000, Cap, Pack)),
        (&[("nvidia.com/gpu", "2")], (2, Ppm(ALL), ALL, Cap, Exclusive)),
        (&[("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "3000")], (1, Bytes(3000 * MIB), 0, Share, Pack)),
        (
            &[("nvidia.com/gpumem", "3000"), ("nvidia.com/gpucores", "30")],
            (1, Bytes(3000 * MIB), 300_000, Cap, Pack),
        ),
        (&[("nvidia.com/gpumem-percentage", "50")], (1, Ppm(500_000), 0, Share, Pack)),
        (
            &[("nvidia.com/gpumem-percentage", "50"), ("nvidia.com/gpucores", "100")],
            (1, Ppm(500_000), ALL, Cap, Exclusive),
        ),
        (&[("nvidia.com/gpumem-percentage", "100")], (1, Ppm(ALL), ALL, Cap, Exclusive)),
        (&[("nvidia.com/gpucores", "30")], (1, Ppm(ALL), 300_000, Cap, Pack)),
        (&[("nvidia.com/gpu", "1"), ("nvidia.com/gpucores", "0")], (1, Ppm(ALL), 0, Share, Pack)),
        (&[("nvidia.com/gpu", "1"), ("nvidia.com/gpumem", "0")], (1, Ppm(ALL), ALL, Cap, Exclusive)),
        (
            &[
                ("volcano.sh/vgpu-number", "2"),
                ("volcano.sh/vgpu-memory", "1024"),
                ("volcano.sh/vgpu-cores", "50"),
            ],
            (2, Bytes(1 << 30), 500_000, Cap, Pack),
        ),
        (&[("volcano.sh/vgpu-memory", "1024")], (1, Bytes(1 << 30), 0, Share, Pack)),
        (
            &[("volcano.sh/vgpu-memory-percentage", "25"), ("volcano.sh/vgpu-cores", "25")],
            (1, Ppm(250_000), 250_000, Cap, Pack),
        ),
        (&[("cuda.shares", "0.5")], (1, Ppm(500_000), 500_000, Cap, Pack)),
        (&[("cuda.shares", "2")], (2, Ppm(ALL), ALL, Cap, Pack)),
        (&[("cuda.device", "3"), ("cuda.shares", "0.0")], (3, Ppm(ALL), ALL, Cap, Pack)),
    ];
    for (pairs, expected) in rows {
        assert_eq!(amount(pairs), *expected, "{pairs:?}");
    }
}

/// kai-gpu-fractioning's words, which name a container.
#[test]
fn a_container_has_the_limit_of_its_memory() {
    let of = |name: &str, pairs: &[(&str, &str)]| {
        let mut all = map(pairs);
        all.insert("io.kubernetes.container.name".into(), name.into());
        Request::parse(&all, Some(name), &defaults(&[Vocabulary::Kai]))
    };
    let pairs = &[
        ("nvidia.com/container.web.gpu-memory.request", "2Gi"),
        ("nvidia.com/container.web.gpu-memory.limit", "4Gi"),
        ("nvidia.com/container.web.gpu-compute.mode", "time-slicing"),
        ("nvidia.com/gpu-memory.container.web-2.request", "1073741824"),
    ];
    let memory = |name: &str| of(name, pairs).unwrap().map(|request| (request.memory, request.cores_ppm));
    assert_eq!(memory("web"), Some((MemoryAsk::Bytes(4 << 30), 0)));
    assert_eq!(memory("web-2"), Some((MemoryAsk::Bytes(1 << 30), 0)));
    assert_eq!(memory("other"), None);
    let own = |name: &str, vocabularies: &[Vocabulary]| {
        let mut all = map(pairs);
        all.insert("io.kubernetes.container.name".into(), name.into());
        !crate::is_pod_wide(&all, vocabularies)
    };
    assert!(own("web", &[Vocabulary::Kai]) && own("web-2", &[Vocabulary::Kai]));
    assert!(!own("we", &[Vocabulary::Kai]) && !own("web", &[]));
    for (key, value, words) in [
        ("nvidia.com/container.web.gpu-memory.limit", "4.5Gi", "is no quantity of at least 1Mi"),
        ("nvidia.com/container.web.gpu-memory.limit", "1023Ki", "is no quantity of at least 1Mi"),
        ("nvidia.com/container.web.gpu-memory.limit", "-1", "is no quantity of at least 1Mi"),
        (
            "nvidia.com/container.web.gpu-memory.limit",
            "99999999999999999999T",
            "is no quantity of at least 1Mi",
        ),
        ("nvidia.com/container.web.gpu-compute.mode", "fast", "there are time-slicing and sm-sharing"),
    ] {
        let error = of("web", &[(key, value)]).unwrap_err();
        assert!(error.message.contains(words), "{error}");
    }
    let upside_down = &[
        ("nvidia.com/container.web.gpu-memory.request", "4Gi"),
        ("nvidia.com/container.web.gpu-memory.limit", "2Gi"),
    ];
    assert_eq!(of("web", upside_down).unwrap_err().code, Code::Conflict);
}

#[test]
fn shares_are_the_administrators_units() {
    let parse = |shares: &str, units_per_gpu| {
        let defaults = Defaults { units_per_gpu, ..defaults(&[Vocabulary::BackendAi]) };
        Request::parse(&map(&[("cuda.shares", shares)]), None, &defaults)
    };
    assert_eq!(parse("1", Some(5)).unwrap().unwrap().memory, MemoryAsk::Ppm(200_000));
    assert_eq!(parse("1", None).unwrap().unwrap().memory, MemoryAsk::Ppm(WHOLE));
    let error = parse("1.5", None).unwrap_err();
    assert!(error.message.starts_with("cuda.shares=1.5 is neither part of one GPU nor"), "{error}");
}

#[test]
fn filters_policies_and_modes() {
    const A: &str = "GPU-5a6f1d9e-0c2b-4e7a-9b3f-1d2c3b4a5f60";
    const B: &str = "GPU-6a6f1d9e-0c2b-4e7a-9b3f-1d2c3b4a5f60";
    let request = valid(&[
        ("nvidia.com/gpu", "1"),
        ("nvidia.com/use-gpuuuid", &format!("{A}, {B}")),
        ("nvidia.com/nouse-gpuuuid", "GPU-7a6f1d9e-0c2b-4e7a-9b3f-1d2c3b4a5f60"),
        ("nvidia.com/use-gputype", "NVIDIA-NVIDIA L4, a10"),
        ("nvidia.com/nouse-gputype", "Tesla T4"),
        ("hami.io/gpu-scheduler-policy", "binpack"),
        ("nvidia.com/vgpu-mode", "hami-core"),
    ]);
    assert_eq!(request.device.any, [A, B]);
    assert_eq!(request.device.not.len(), 1);
    let model = Filter { any: vec!["nvidia l4".into(), "a10".into()], not: vec!["tesla t4".into()] };
    assert_eq!((request.model, request.policy, request.isolation), (model, Policy::Pack, Isolation::Quota));
    assert!(request.text.contains("nvidia.com/nouse-gputype=\"Tesla T4\""), "{}", request.text);
    for (theirs, ours) in [
        ("spread", Policy::Spread),
        ("topology-aware", Policy::Pack),
        ("numa", Policy::Pack),
        ("mutex", Policy::Exclusive),
        ("numa, spread,binpack", Policy::Spread),
        ("spread,mutex", Policy::Exclusive),
    ] {
        let pairs = [("nvidia.com/gpumem", "1000"), ("hami.io/gpu-scheduler-policy", theirs)];
        assert_eq!(valid(&pairs).policy, ours, "{theirs}");
    }
    let mig = valid(&[("volcano.sh/vgpu-memory", "1000"), ("volcano.sh/vgpu-mode", "mig")]);
    assert_eq!((mig.isolation, mig.mig.as_deref(), mig.cores_ppm), (Isolation::Mig, Some("auto"), 0));
    assert_eq!(mig.compute, Compute::Cap, "a slice has its cores");
    let either = valid(&[("nvidia.com/gpumem", "1000"), ("nvidia.com/vgpu-mode", "hami-core,mig")]);
    assert_eq!((either.isolation, either.mig), (Isolation::Auto, None));
    let volcano = valid(&[
        ("volcano.sh/vgpu-memory", "1000"),
        ("volcano.sh/vgpu-use-gpuuuid", A),
        ("volcano.sh/vgpu-nouse-gpuuuid", B),
    ]);
    assert_eq!(volcano.device, Filter { any: vec![A.into()], not: vec![B.into()] });
}

#[test]
fn without_opting_in_nothing_is_looked_at() {
    for vocabulary in Vocabulary::ALL {
        for key in vocabulary.keys() {
            for value in ["1", "0.5", "nonsense", ""] {
                assert_eq!(Request::parse(&map(&[(key, value)]), None, &defaults(&[])), Ok(None), "{key}");
            }
        }
    }
    // One vocabulary does not open another.
    let only = |aliases: &[Vocabulary], key| Request::parse(&map(&[(key, "x")]), None, &defaults(aliases));
    assert_eq!(only(&[Vocabulary::Hami], "gpu-fraction"), Ok(None));
    assert_eq!(
        only(&[Vocabulary::Kai, Vocabulary::Volcano, Vocabulary::BackendAi], "nvidia.com/gpumem"),
        Ok(None)
    );
    assert!(only(&[Vocabulary::Kai], "gpu-fraction").is_err());
}

#[test]
fn filters_alone_ask_for_nothing() {
    for pairs in [
        &[("nvidia.com/use-gputype", "A100"), ("hami.io/gpu-scheduler-policy", "spread")][..],
        &[("nvidia.com/gpu", "0"), ("nvidia.com/gpumem", "3000")],
        &[("volcano.sh/vgpu-number", "0")],
        &[("cuda.shares", "0"), ("cuda.device", "0")],
        &[("gpu-fraction-container-name", "main")],
    ] {
        assert_eq!(parse(pairs), Ok(None), "{pairs:?}");
    }
    // Beside an amount of ours they count.
    let request = valid(&[("fgpu/fraction", "0.5"), ("nvidia.com/use-gputype", "A100")]);
    assert_eq!(request.model.any, ["a100"]);
}

#[test]
fn conflicts_name_both_keys() {
    for (pairs, one, other) in [
        (&[("gpu-fraction", "0.5"), ("fgpu/fraction", "0.5")][..], "gpu-fraction=0.5", "fgpu/fraction=0.5"),
        (&[("gpu-fraction", "0.5"), ("fgpu/memory", "4Gi")], "gpu-fraction=0.5", "fgpu/memory=4Gi"),
        (&[("gpu-fraction", "0.5"), ("gpu-memory", "2000")], "gpu-fraction=0.5", "gpu-memory=2000"),
        (&[("gpu-fraction", "0.5"), ("nvidia.com/gpu", "1")], "gpu-fraction=0.5", "nvidia.com/gpu=1"),
        (
            &[("gpu-memory", "2000"), ("nvidia.com/gpumem", "2000")],
            "gpu-memory=2000",
            "nvidia.com/gpumem=2000",
        ),
        (
            &[("gpu-memory", "2000"), ("nvidia.com/gpucores", "30")],
            "gpu-memory=2000",
            "nvidia.com/gpucores=30",
        ),
        (
            &[("nvidia.com/gpumem", "2000"), ("nvidia.com/gpumem-percentage", "10")],
            "nvidia.com/gpumem=2000",
            "nvidia.com/gpumem-percentage=10",
        ),
        (
            &[("nvidia.com/gpu", "1"), ("volcano.sh/vgpu-number", "1")],
            "nvidia.com/gpu=1",
            "volcano.sh/vgpu-number=1",
        ),
        (&[("nvidia.com/gpu", "1"), ("fgpu/count", "1")], "nvidia.com/gpu=1", "fgpu/count=1"),
        (&[("nvidia.com/gpu", "1"), ("fgpu/fraction", "0.5")], "nvidia.com/gpu=1", "fgpu/fraction=0.5"),
        (
            &[("nvidia.com/gpumem", "2000"), ("fgpu/mig", "1g.10gb")],
            "nvidia.com/gpumem=2000",
            "fgpu/mig=1g.10gb",
        ),
        (&[("cuda.shares", "0.5"), ("gpu-fraction", "0.5")], "cuda.shares=0.5", "gpu-fraction=0.5"),
        (&[("cuda.shares", "0.5"), ("cuda.device", "1")], "cuda.shares=0.5", "cuda.device=1"),
        (&[("cuda.shares", "0.5"), ("fgpu/units", "1")], "cuda.shares=0.5", "fgpu/units=1"),
        (
            &[("nvidia.com/gpu", "1"), ("nvidia.com/use-gputype", "A100"), ("fgpu/model", "A100")],
            "nvidia.com/use-gputype=A100",
            "fgpu/model=A100",
        ),
        (
            &[
                ("nvidia.com/gpumem", "9"),
                ("nvidia.com/vgpu-mode", "mig"),
                ("volcano.sh/vgpu-mode", "hami-core"),
            ],
            "nvidia.com/vgpu-mode=mig",
            "volcano.sh/vgpu-mode=hami-core",
        ),
    ] {
        let error = parse(pairs).unwrap_err();
        assert_eq!(error.code, Code::Conflict, "{pairs:?}: {error}");
        assert!(error.message.contains(one) && error.message.contains(other), "{pairs:?}: {error}");
    }
    // What does not say the same thing goes together.
    let request =
        valid(&[("gpu-memory", "2000"), ("fgpu/cores", "20%"), ("fgpu/owner", "alice"), ("fgpu/count", "2")]);
    assert_eq!((request.count, request.cores_ppm, request.compute), (2, 200_000, Compute::Cap));
    assert_eq!(valid(&[("gpu-memory", "2000"), ("fgpu/compute", "share")]).compute, Compute::Share);
    assert_eq!(valid(&[("nvidia.com/gpu", "1"), ("fgpu/policy", "spread")]).policy, Policy::Spread);
}

#[test]
fn values_out_of_their_grammar_name_their_key() {
    for (key, values) in [
        (
            "gpu-fraction",
            &["", "0", "1", "1.5", "-0.5", "25%", "1/3", "0.1234567", "5e-1", "NaN", " 0.5", "\u{661}"][..],
        ),
        (
            "gpu-memory",
            &["", "0", "-1", "2Gi", "1.5", "2000Mi", "99999999999999999999", "18446744073709551615"],
        ),
        ("nvidia.com/gpu", &["", "-1", "1.5", "65", "99999999999999999999"]),
        ("nvidia.com/gpumem", &["3k", "3000m", "-3000"]),
        ("nvidia.com/gpumem-percentage", &["0", "101", "50%"]),
        ("nvidia.com/gpucores", &["101", "30%", ""]),
        ("nvidia.com/vgpu-mode", &["mps", "", "hami-core,mps", "mig,"]),
        ("volcano.sh/vgpu-use-gpuuuid", &["0", ""]),
        ("nvidia.com/use-gpuuuid", &["0", "GPU-1", "MIG-5a6f1d9e-0c2b-4e7a-9b3f-1d2c3b4a5f60", ",", ""]),
        ("nvidia.com/nouse-gputype", &["!A100", "NVIDIA-", "A\n100"]),
        ("hami.io/gpu-scheduler-policy", &["pack", "Spread", "spread,", "numa;spread"]),
        ("volcano.sh/vgpu-number", &["two"]),
        ("volcano.sh/vgpu-cores", &["1e2"]),
        ("cuda.shares", &["", "-1", "half", "0.1234567", "1.5"]),
        ("cuda.device", &["0.5", "65"]),
    ] {
        for value in values {
            let beside = if key.starts_with("nvidia.com/gpu") { "x" } else { "nvidia.com/gpu" };
            let filter = key.contains("use-") || key.contains("policy") || key.contains("mode");
            let pairs = if filter { vec![(key, *value), (beside, "1")] } else { vec![(key, *value)] };
            let error = parse(&pairs).unwrap_err();
            assert_eq!(error.code, Code::InvalidRequest, "{key}={value}: {error}");
            assert!(error.message.contains(key), "{key}={value}: {error}");
        }
    }
    for key in ["gpu-fraction-num-devices", "gpu-sm-percentage"] {
        let error = parse(&[(key, "1")]).unwrap_err();
        assert!(
            error.message.contains(key) && error.message.contains("add gpu-fraction or gpu-memory"),
            "{error}"
        );
    }
}

#[test]
fn in_a_pod_the_named_container_gets_it_and_overrides_go_first() {
    let parse_in = |container, pairs: &[(&str, &str)]| {
        Request::parse(&map(pairs), Some(container), &defaults(&Vocabulary::ALL))
    };
    let pod = [("gpu-fraction", "0.5"), ("gpu-fraction-container-name", "main")];
    assert!(parse_in("main", &pod).unwrap().is_some());
    assert_eq!(parse_in("sidecar", &pod), Ok(None));
    assert!(parse(&pod).unwrap().is_some(), "outside of a pod there is one container");
    let pod = [("gpu-fraction", "0.5"), ("web.fgpu/memory", "4Gi"), ("none.fgpu/count", "0")];
    assert_eq!(parse_in("db", &pod).unwrap().unwrap().memory, MemoryAsk::Ppm(500_000));
    assert_eq!(parse_in("web", &pod).unwrap().unwrap().memory, MemoryAsk::Bytes(4 << 30));
    assert_eq!(parse_in("none", &pod), Ok(None));
    let pod = [("nvidia.com/gpumem-percentage", "50"), ("web.fgpu/cores", "30%"), ("db.fgpu/memory", "4Gi")];
    let web = parse_in("web", &pod).unwrap().unwrap();
    assert_eq!((web.memory, web.cores_ppm, web.compute), (MemoryAsk::Ppm(500_000), 300_000, Compute::Cap));
    assert_eq!(parse_in("db", &pod).unwrap().unwrap().memory, MemoryAsk::Bytes(4 << 30));
}

#[test]
fn messages_show_what_was_written() {
    let request = valid(&[("nvidia.com/gpu", "1"), ("nvidia.com/gpucores", "30")]);
    assert_eq!(request.text, "nvidia.com/gpu=1 nvidia.com/gpucores=30");
    assert_eq!(valid(&[("gpu-fraction", "0.5")]).text, "gpu-fraction=0.5");
}

#[test]
fn names() {
    for vocabulary in Vocabulary::ALL {
        assert_eq!(vocabulary.to_string().parse(), Ok(vocabulary));
        for key in vocabulary.keys() {
            assert!(ALIAS_MARKS.iter().any(|mark| key.contains(mark)), "{key}");
        }
    }
    assert_eq!(
        "runai".parse::<Vocabulary>().unwrap_err(),
        "runai is no vocabulary; there are kai, hami, volcano, backend.ai, nvidia"
    );
}

fn any_pairs() -> impl Strategy<Value = Vec<(String, String)>> {
    let keys: Vec<&str> = Vocabulary::ALL
        .iter()
        .flat_map(|vocabulary| vocabulary.keys())
        .copied()
        .chain(["fgpu/fraction", "fgpu/count", "fgpu/memory", "fgpu/mig", "fgpu/isolation", "web.fgpu/cores"])
        .collect();
    let value = prop_oneof![
        proptest::sample::select(vec![
            "1", "0", "0.5", "100", "2000", "mig", "spread", "auto", "A100", "web"
        ])
        .prop_map(str::to_owned),
        "\\PC{0,12}",
    ];
    proptest::collection::vec((proptest::sample::select(keys).prop_map(str::to_owned), value), 0..5)
}

proptest! {
    #[test]
    fn any_words_give_a_request_or_an_error_that_names_one_of_them(pairs in any_pairs(), pod in any::<bool>()) {
        let annotations: BTreeMap<_, _> = pairs.into_iter().collect();
        match Request::parse(&annotations, pod.then_some("web"), &defaults(&Vocabulary::ALL)) {
            Ok(None) => {}
            Ok(Some(request)) => prop_assert!((1..=64).contains(&request.count)),
            Err(error) => {
                prop_assert!(!error.message.contains('\n'), "{error}");
                let named = annotations.keys().any(|key| error.message.contains(key.as_str()));
                prop_assert!(named, "{error}: {annotations:?}");
            }
        }
    }
}
