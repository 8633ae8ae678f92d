use super::*;

#[test]
fn links_survive_their_words() {
    for (word, _) in Path::WORDS {
        for text in [word.to_owned(), format!("NV18+{word}")] {
            assert_eq!(text.parse::<Link>().unwrap().to_string(), text);
        }
    }
    for (at, (_, path)) in Path::WORDS.iter().enumerate() {
        assert_eq!(*path as usize, at);
    }
    for text in ["", "NV", "NV18", "NV+SYS", "NV256+SYS", "NV-1+SYS", "sys", "SYS "] {
        assert!(text.parse::<Link>().is_err(), "{text}");
    }
}

#[test]
fn a_topology_survives_its_lines() {
    let topology = Topology::new(3, |later, earlier| Link {
        nvlinks: if later == 1 { 4 } else { 0 },
        path: if earlier == 0 { Path::Node } else { Path::System },
    });
    let json = serde_json::to_string(&topology).unwrap();
    assert_eq!(json, r#"["","NV4+NODE","NODE SYS"]"#);
    assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), topology);
    assert_eq!(Topology::new(1, |_, _| unreachable!("there is one GPU")), Topology::default());
    assert_eq!(serde_json::from_str::<Topology>(r#"[""]"#).unwrap(), Topology::default());
    assert_eq!(topology.link(0, 1), topology.link(1, 0));
    assert_eq!(topology.link(1, 2), Some(Link { nvlinks: 0, path: Path::System }));
    assert_eq!((topology.link(1, 1), topology.link(0, 3), topology.link(3, 0)), (None, None, None));
    for json in [r#"["SYS"]"#, r#"["","SYS SYS"]"#, r#"["","?"]"#, r#"{}"#] {
        assert!(serde_json::from_str::<Topology>(json).is_err(), "{json}");
    }
}
