//! `fgpu explain`.

use super::*;

#[test]
fn explain_says_what_would_be_granted() {
    let node = Node::with_gpus("0,0");
    let answer = node.json(&["explain", "--json", "fraction=0.25"]);
    assert_eq!(answer["granted"], true);
    assert_eq!(answer["request"], "fgpu/fraction=0.25");
    assert_eq!(answer["gpus"][0]["granted"], true);
    assert_eq!(answer["gpus"][0]["asked_memory"], ((24576_u64 - 512) / 4) << 20);
    assert!(node.store().leases().unwrap().is_empty(), "nothing was reserved");
}

#[test]
fn explain_says_why_these_gpus() {
    let node = Node::with_gpus("0,0,0");
    let text = node.good(&["explain", "fraction=0.25", "count=2"]);
    assert!(
        text.contains("would be granted on GPUs 0, 1, in the quota tier.\nWhy: of 3 GPUs that fit"),
        "{text}"
    );
    assert!(text.contains("(at least SYS between any two)"), "{text}");
    let answer = node.json(&["explain", "--json", "memory=1Gi", "cores=100", "device=!0"]);
    assert_eq!(answer["gpus"][0]["reason"], "the request is for other devices");
    assert_eq!(
        (&answer["gpus"][1]["granted"], &answer["gpus"][1]["left_cores_ppm"]),
        (&true.into(), &0.into())
    );
    assert!(
        answer["wasted"][0].as_str().unwrap().contains("GPU 1, but for containers that ask for memory alone")
    );
}

/// Two of them, and more, have room where a share of the SM time has none.
#[test]
fn memory_alone_books_no_sm_time() {
    let node = Node::with_gpus("0");
    let make = |id: &str, annotations: &[(&str, &str)]| {
        let inventory: Inventory = serde_json::from_value(node.json(&["inventory", "--json"])).unwrap();
        let annotations =
            annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let request = Request::parse(&annotations, None, &Defaults::default()).unwrap().unwrap();
        let key = Key { namespace: "test".into(), id: id.into() };
        let maker = Process::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        let applicant = Applicant { key, bundle: "/bundle".into(), maker, pid_file: None, anchor: None };
        node.store().reserve(&inventory, &Rules::default(), &request, &[Tier::Quota], &applicant).unwrap()
    };
    make("booked", &[("fgpu/memory", "1Gi"), ("fgpu/cores", "100")]);
    make("one", &[("fgpu/memory", "1Gi")]);
    let text = node.good(&["explain", "memory=2Gi"]);
    assert!(text.contains("Note: memory alone books no SM time"), "{text}");
    let answer = node.json(&["explain", "--json", "memory=2Gi"]);
    assert_eq!((&answer["granted"], &answer["compute"]), (&true.into(), &"share".into()));
    assert_eq!(answer["gpus"][0]["asked_cores_ppm"], 0);
    assert_eq!(answer["notes"].as_array().unwrap().len(), 1, "{answer}");
    let booked = node.json(&["explain", "--json", "memory=2Gi", "compute=off"]);
    assert!(booked["notes"].as_array().unwrap().is_empty(), "{booked}");
    node.bad(&["explain", "memory=2Gi", "compute=cap"], "conflict");
    node.bad(&["explain", "memory=2Gi", "cores=1%"], "no-capacity");
    let status = node.good(&["status"]);
    let line = |id: &str| status.lines().find(|line| line.contains(id)).unwrap_or_default().to_owned();
    assert!(line("test/one").contains(" share "), "{status}");
    assert!(line("test/booked").contains(" 100% "), "{status}");
    let status = node.json(&["status", "--json"]);
    assert_eq!(status["leases"][1]["compute"], "share", "{status}");
    assert_eq!(status["leases"][1]["gpus"][0]["cores_ppm"], 0, "{status}");
}

#[test]
fn explain_understands_other_systems_words_where_the_configuration_does() {
    let node = Node::with_gpus("0");
    node.bad(&["explain", "gpu-fraction=0.25"], "invalid-request");
    assert!(node.bad(&["explain", "nvidia.com/gpumem=3000"], "invalid-request").contains("ask for no GPU"));
    node.configure("aliases = [\"kai\", \"hami\"]\n");
    let text = node.good(&["explain", "gpu-fraction=0.25"]);
    assert!(text.starts_with("gpu-fraction=0.25 would be granted on GPU 0, in the quota tier.\n"), "{text}");
    let answer = node.json(&["explain", "--json", "nvidia.com/gpumem=3000"]);
    assert_eq!(
        (&answer["gpus"][0]["asked_memory"], &answer["gpus"][0]["asked_cores_ppm"]),
        (&(3000u64 << 20).into(), &0.into())
    );
    let error = node.bad(&["explain", "gpu-fraction=0.25", "nvidia.com/gpumem=3000"], "conflict");
    assert!(error.contains("gpu-fraction=0.25 and nvidia.com/gpumem=3000"), "{error}");
}

#[test]
fn explain_says_why_not() {
    let node = Node::with_gpus("0");
    node.bad(&["explain", "memory=100Gi"], "too-large");
    node.bad(&["explain", "fraction=2"], "invalid-request");
    node.bad(&["explain", "fraction=0.5", "fgpu/fraction=0.25"], "invalid-request");
    node.bad(&["explain", "docker/x=y"], "invalid-request");
    node.bad(&["explain", "fraction=0.5", "model=h100"], "no-gpu");
    let me = Process::current().unwrap();
    node.lease("a", me);
    node.bad(&["explain", "fraction=0.8"], "no-capacity");
    let output = node.run(&["explain", "fraction=0.8"]);
    let stdout = text(output.stdout);
    assert!(
        stdout.contains("would not be granted") && stdout.contains("it is short of memory and SM time"),
        "{stdout}"
    );
}
