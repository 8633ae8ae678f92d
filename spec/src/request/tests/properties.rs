//! Properties of the grammar.

use proptest::prelude::*;

use super::*;

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(vec![
            "fgpu/fraction", "fgpu/count", "fgpu/memory", "fgpu/cores", "fgpu/compute", "fgpu/units",
            "fgpu/mig", "fgpu/isolation", "fgpu/device", "fgpu/model", "fgpu/policy", "fgpu/wait",
            "fgpu/owner", "fgpu/grant", "c.fgpu/count", "c.fgpu/fraction", "d.fgpu/memory",
        ])
        .prop_map(str::to_owned),
        1 => "(c\\.)?fgpu/\\PC{0,12}",
        1 => any::<String>(),
    ]
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "[0-9]{0,3}[./]?[0-9]{0,8}%?",
        "-?[0-9]{1,25}(Gi|G|Mi|s|m|h|gb|%)?",
        "[0-9]g\\.[0-9]{1,4}gb(\\+[a-z.]{0,4})?",
        "(!?[0-9A-Za-z-]{0,8},?){0,4}",
        any::<String>(),
        prop::sample::select(vec!["auto", "cap", "off", "none", "mig", "pack", "0", "0s"])
            .prop_map(str::to_owned),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn anything_is_answered_in_one_short_line(
        annotations in prop::collection::btree_map(key(), value(), 0..6),
        container in prop::option::of(prop_oneof![Just("c".to_owned()), any::<String>()]),
        units_per_gpu in prop::option::of(any::<u32>()),
        allow_none: bool,
    ) {
        let defaults = Defaults { units_per_gpu, allow_none, ..open() };
        match Request::parse(&annotations, container.as_deref(), &defaults) {
            Ok(None) => {}
            Ok(Some(request)) => {
                prop_assert!((1..=MOST_GPUS).contains(&request.count));
                prop_assert!(request.cores_ppm <= WHOLE);
                prop_assert!(request.wait <= defaults.wait_max);
                prop_assert_eq!(request.mig.is_some(), request.isolation == Isolation::Mig);
                let slice = request.mig.as_deref() == Some("auto");
                match request.memory {
                    MemoryAsk::Ppm(ppm) => prop_assert!((1..=WHOLE).contains(&ppm)),
                    MemoryAsk::Bytes(bytes) => prop_assert!(slice || bytes >= 1 << 20),
                    MemoryAsk::PpmAtMost(..) => prop_assert!(false, "no annotation says that"),
                }
                prop_assert!(slice || request.cores_ppm > 0 || request.compute != Compute::Cap);
                prop_assert!(request.text.bytes().all(|byte| matches!(byte, b' '..=b'~')));
            }
            Err(error) => {
                prop_assert!(
                    matches!(error.code, Code::InvalidRequest | Code::Conflict | Code::Denied)
                );
                prop_assert!(error.message.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{}", error);
                prop_assert!(error.message.len() < 2000, "{}", error);
            }
        }
    }

    #[test]
    fn n_times_one_nth_fits(n in 1u32..=1_000_000) {
        let request = valid(&[("fgpu/fraction", &format!("1/{n}"))]);
        prop_assert!(u64::from(request.cores_ppm) * u64::from(n) <= u64::from(WHOLE));
        prop_assert_eq!(request.memory, MemoryAsk::Ppm(request.cores_ppm));
        let defaults = Defaults { units_per_gpu: Some(n), ..open() };
        let of_unit = Request::parse(&map(&[("fgpu/units", "1")]), None, &defaults).unwrap().unwrap();
        prop_assert_eq!(of_unit.cores_ppm, request.cores_ppm);
    }

    #[test]
    fn one_share_in_its_three_forms(ppm in 1u32..=WHOLE) {
        let decimal = format!("{}.{:06}", ppm / WHOLE, ppm % WHOLE);
        let percent = format!("{}.{:04}%", ppm / 10_000, ppm % 10_000);
        let ratio = format!("{ppm}/{WHOLE}");
        for text in [decimal, percent, ratio] {
            let request = valid(&[("fgpu/fraction", &text)]);
            prop_assert_eq!((request.memory, request.cores_ppm), (MemoryAsk::Ppm(ppm), ppm));
            prop_assert!(request.notes.is_empty());
        }
    }

    #[test]
    fn a_size_is_its_bytes(mib in 1u64..(1 << 30)) {
        for text in [format!("{mib}Mi"), format!("{}", mib << 20), format!("{}Ki", mib << 10)] {
            prop_assert_eq!(valid(&[("fgpu/memory", &text)]).memory, MemoryAsk::Bytes(mib << 20));
        }
    }

    /// The text of a request is itself a request, and the same one.
    #[test]
    fn the_text_round_trips(
        fraction in 1u32..=100,
        count in 1u32..=64,
        wait in 0u64..=90,
        policy in prop::sample::select(vec!["pack", "spread", "exclusive"]),
        compute in prop::sample::select(vec!["cap", "share", "off"]),
        owner in "[a-z0-9.-]{1,63}",
    ) {
        let request = valid(&[
            ("fgpu/fraction", &format!("{fraction}%")),
            ("fgpu/count", &count.to_string()),
            ("fgpu/wait", &format!("{wait}s")),
            ("fgpu/policy", policy),
            ("fgpu/compute", compute),
            ("fgpu/owner", &owner),
        ]);
        let pairs: Vec<(&str, &str)> =
            request.text.split(' ').map(|pair| pair.split_once('=').unwrap()).collect();
        prop_assert_eq!(pairs.len(), 6);
        prop_assert_eq!(valid(&pairs), request);
    }
}
