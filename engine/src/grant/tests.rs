//! Which words of a container count: its annotations, other systems', the environment.

use fgpu_spec::{MemoryAsk, Vocabulary};

use super::*;

fn document(annotations: &str, env: &[&str]) -> Document {
    let env = serde_json::to_string(env).unwrap();
    Document::parse(&format!(r#"{{"process":{{"env":{env}}},"annotations":{annotations}}}"#)).unwrap()
}

fn asked(config: &Config, annotations: &str, env: &[&str]) -> Result<Option<MemoryAsk>, Error> {
    request(config, &document(annotations, env)).map(|asked| asked.map(|request| request.memory))
}

const QUARTER: Option<MemoryAsk> = Some(MemoryAsk::Ppm(250_000));

#[test]
fn the_environment_counts_only_where_the_configuration_accepts_it() {
    let env = ["PATH=/bin", "FGPU_FRACTION=0.25"];
    let deaf = Config::default();
    assert_eq!(asked(&deaf, "{}", &env).unwrap(), None);
    assert_eq!(asked(&deaf, "{}", &["FGPU_FRACTION=nonsense"]).unwrap(), None);
    let open = Config { accept_env: true, ..Config::default() };
    assert_eq!(asked(&open, "{}", &env).unwrap(), QUARTER);
    assert_eq!(asked(&open, "{}", &["FGPU_MEMORY=4Gi"]).unwrap(), Some(MemoryAsk::Bytes(4 << 30)));
    assert_eq!(asked(&open, "{}", &["PATH=/bin", "XFGPU_FRACTION=1"]).unwrap(), None);
    let error = asked(&open, "{}", &["FGPU_FRACTON=0.25"]).unwrap_err();
    assert!(
        error.message.contains("fgpu/fracton is not a key of fgpu; the nearest is fgpu/fraction"),
        "{error}"
    );
}

#[test]
fn annotations_outrank_the_images_environment() {
    let open = Config { accept_env: true, ..Config::default() };
    let env = ["FGPU_FRACTION=1"];
    assert_eq!(asked(&open, r#"{"fgpu/fraction":"0.25"}"#, &env).unwrap(), QUARTER);
    // Not even an error of the image's shows then.
    assert_eq!(asked(&open, r#"{"fgpu/fraction":"0.25"}"#, &["FGPU_COUTN=2"]).unwrap(), QUARTER);
    // A sandbox gets none, and neither does a container that was told so by name.
    let sandbox = r#"{"io.kubernetes.cri.container-type":"sandbox"}"#;
    assert_eq!(asked(&open, sandbox, &env).unwrap(), None);
    let without = r#"{"io.kubernetes.cri.container-name":"web","web.fgpu/count":"0"}"#;
    assert_eq!(asked(&open, without, &env).unwrap(), None);
    // Other systems' annotations are annotations.
    let kai = Config { aliases: vec![Vocabulary::Kai], ..open };
    assert_eq!(asked(&kai, r#"{"gpu-fraction":"0.25"}"#, &env).unwrap(), QUARTER);
}

#[test]
fn other_systems_annotations_count_only_where_the_configuration_says_so() {
    for annotations in
        [r#"{"gpu-fraction":"0.25"}"#, r#"{"gpu-fraction":"nonsense"}"#, r#"{"cuda.shares":"0.25"}"#]
    {
        assert_eq!(asked(&Config::default(), annotations, &[]).unwrap(), None, "{annotations}");
    }
    let both = Config { aliases: vec![Vocabulary::Kai, Vocabulary::BackendAi], ..Config::default() };
    assert_eq!(asked(&both, r#"{"gpu-fraction":"0.25"}"#, &[]).unwrap(), QUARTER);
    assert_eq!(asked(&both, r#"{"cuda.shares":"0.25"}"#, &[]).unwrap(), QUARTER);
    let error = asked(&both, r#"{"gpu-fraction":"0.25","cuda.shares":"0.25"}"#, &[]).unwrap_err();
    assert_eq!(error.code, Code::Conflict, "{error}");
}

#[test]
fn nvidias_variable_lowers_a_request_and_makes_none() {
    let heard = Config { aliases: vec![Vocabulary::Nvidia], ..Config::default() };
    let limit = ["PATH=/bin", "NVIDIA_GPU_MEMORY_LIMIT=1", "NVIDIA_GPU_MEMORY_LIMIT=4096"];
    let quarter = r#"{"fgpu/fraction":"0.25"}"#;
    assert_eq!(asked(&Config::default(), quarter, &limit).unwrap(), QUARTER);
    assert_eq!(asked(&heard, "{}", &limit).unwrap(), None);
    assert_eq!(asked(&heard, quarter, &limit).unwrap(), Some(MemoryAsk::PpmAtMost(250_000, 4 << 30)));
    assert_eq!(asked(&heard, quarter, &["NVIDIA_GPU_MEMORY_LIMIT="]).unwrap(), QUARTER);
    assert_eq!(asked(&heard, quarter, &["NVIDIA_GPU_MEMORY_LIMITS=4096"]).unwrap(), QUARTER);
    for (memory, expected) in [("2Gi", 2 << 30), ("8Gi", 4 << 30)] {
        let annotations = format!(r#"{{"fgpu/memory":"{memory}"}}"#);
        assert_eq!(asked(&heard, &annotations, &limit).unwrap(), Some(MemoryAsk::Bytes(expected)));
    }
    let error = asked(&heard, quarter, &["NVIDIA_GPU_MEMORY_LIMIT=4Gi"]).unwrap_err();
    assert_eq!(error.code, Code::InvalidRequest);
    assert!(error.message.contains("NVIDIA_GPU_MEMORY_LIMIT=4Gi is not a number of MiB"), "{error}");
    // A slice is as large as it is.
    let slice = asked(&heard, r#"{"fgpu/mig":"1g.10gb"}"#, &limit).unwrap();
    assert_eq!(slice, Some(MemoryAsk::Ppm(1_000_000)));
    // A pod's containers have their share together; what names one is its own.
    let pod = r#"{"io.kubernetes.cri.container-name":"web","fgpu/fraction":"0.25"}"#;
    assert_eq!(asked(&heard, pod, &limit).unwrap(), QUARTER);
    let own = r#"{"io.kubernetes.cri.container-name":"web","web.fgpu/fraction":"0.25"}"#;
    assert_eq!(asked(&heard, own, &limit).unwrap(), Some(MemoryAsk::PpmAtMost(250_000, 4 << 30)));
}

#[test]
fn what_lowers_a_request_is_told_beside_it() {
    let heard = Config { aliases: vec![Vocabulary::Nvidia], ..Config::default() };
    let text = |annotations: &str, limit: &str| {
        request(&heard, &document(annotations, &[limit])).unwrap().unwrap().text
    };
    let limit = "NVIDIA_GPU_MEMORY_LIMIT=4096";
    let lowered = text(r#"{"fgpu/memory":"8Gi"}"#, limit);
    assert_eq!(lowered, "fgpu/memory=8Gi NVIDIA_GPU_MEMORY_LIMIT=4096");
    assert_eq!(text(r#"{"fgpu/memory":"2Gi"}"#, limit), "fgpu/memory=2Gi");
}
