use super::*;

const LONG: &str = "3f1c0a9b2d113f1c0a9b2d113f1c0a9b2d113f1c0a9b2d113f1c0a9b2d11abcd";

/// The number of the one that is meant, among containers as several engines call them.
fn found(what: &str) -> Result<u8, String> {
    let known = [
        ("moby", "abc1", Some("web")),
        ("moby", "abc12", Some("db")),
        ("k8s.io", "def", Some("research/llm-0/train")),
        ("a", "def", None),
        ("moby", LONG, Some("jupyter")),
        ("/run/containers/0", "feed01", Some("jupyter")),
        ("run", "4711-python", Some("python")),
        ("moby", "0123abcd", Some("3f1c0a9b2d11")),
    ];
    let keys = known.map(|(namespace, id, _)| Key { namespace: namespace.into(), id: id.into() });
    let candidates = keys.iter().zip(known).zip(1..).map(|((key, (.., name)), value)| Candidate {
        key,
        nonce: Nonce([value; 16]),
        name: name.map(str::to_owned),
        value,
    });
    one(candidates.collect(), what).map_err(|error| error.to_string())
}

#[test]
fn a_container_is_found_by_every_name_it_has() {
    assert_eq!(found(&"02".repeat(16)), Ok(2));
    assert_eq!(found("abc12"), Ok(2));
    assert_eq!(found("moby/abc12"), Ok(2));
    assert_eq!(found("db"), Ok(2));
    assert_eq!(found("k8s.io/def"), Ok(3));
    assert_eq!(found("k8s.io/d"), Ok(3));
    assert_eq!(found("abc1"), Ok(1), "a whole id comes before the beginning of another");
    assert_eq!(found(LONG), Ok(5), "and before another one's name");
    assert_eq!(found("moby/3f1c0a9b2d11"), Ok(5));
    for pod in ["llm-0", "train", "llm-0/train", "research/llm-0", "research/llm-0/train"] {
        assert_eq!(found(pod), Ok(3), "{pod}");
    }
}

#[test]
fn a_name_of_no_container_or_of_several_is_refused() {
    assert!(found("def").unwrap_err().contains("def may be k8s.io/def (research/llm-0/train) or a/def;"));
    assert!(found("abc").unwrap_err().contains("moby/abc1 (web) or moby/abc12 (db)"));
    assert!(found("jupyter").unwrap_err().contains("moby/3f1c0a9b2d11 (jupyter) or feed01 (jupyter);"));
    for nobody in ["", "x", &"09".repeat(16), "/", "research", "we", "llm-0/", "b/d", "moby/"] {
        assert!(found(nobody).unwrap_err().contains("fgpu: invalid-request: no container"), "{nobody}");
    }
}

#[test]
fn a_name_that_is_anothers_short_id_is_refused() {
    let error = found("3f1c0a9b2d11").unwrap_err();
    assert!(error.contains("moby/3f1c0a9b2d11 (jupyter) or moby/0123abcd"), "{error}");
}

#[test]
fn two_that_look_alike_are_named_in_full() {
    let keys = ["/srv/a", "/srv/b"].map(|namespace| Key { namespace: namespace.into(), id: "web".into() });
    let candidate = |key| Candidate { key, nonce: Nonce([1; 16]), name: None, value: () };
    let error = one(keys.iter().map(candidate).collect(), "web").unwrap_err();
    assert!(error.message.contains("/srv/a/web or /srv/b/web"), "{error}");
}
