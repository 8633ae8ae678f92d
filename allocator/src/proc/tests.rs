use super::*;

fn line(name: &str, state: &str, threads: u32) -> Vec<u8> {
    let zeros = "0 ".repeat(32);
    format!("42 ({name}) {state} 7 42 42 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 {threads} 0 98765 {zeros}\n")
        .into()
}

#[test]
fn a_hostile_name_moves_no_field() {
    for name in ["a) b (c", ") Z 1 1 1 (", "\u{1b}[2J\n", "", "((", "))"] {
        let stat = parse_stat(&line(name, "S", 3)).unwrap_or_else(|| panic!("{name:?}"));
        assert_eq!((stat.pid, stat.ppid, stat.starttime, stat.state), (42, 7, 98765, 'S'), "{name:?}");
    }
    let mut bytes = line("XY", "S", 1);
    bytes.splice(4..6, [0xff, 0xfe]);
    assert_eq!(parse_stat(&bytes).map(|stat| stat.starttime), Some(98765), "a name that is not UTF-8");
    for text in ["", "42 (a", "42 (a) S 1 2", "nonsense"] {
        assert!(parse_stat(text.as_bytes()).is_none(), "{text:?}");
    }
}

#[test]
fn a_zombie_is_dead_unless_its_other_threads_run() {
    for (state, threads, alive) in [("Z", 1, false), ("Z", 2, true), ("X", 1, false), ("T", 1, true)] {
        assert_eq!(runs(&parse_stat(&line("a", state, threads)).unwrap()), alive, "{state} {threads}");
    }
}

#[test]
fn a_cgroups_path_may_hold_colons_and_what_is_not_utf8() {
    let text = b"12:pids:/a\n3:cpu,devices:/docker/1:2\n1:name=systemd:/x\n0::/unified\xff\n";
    let lines = parse_cgroups(text);
    let path = |controller: &str| lines.iter().find(|line| line.is_of(controller)).map(|line| &*line.path);
    assert_eq!(path("devices"), Some("/docker/1:2"));
    assert_eq!(path(""), Some("/unified\u{fffd}"));
    assert_eq!(path("memory"), None);
    assert_eq!(parse_cgroups(b""), []);
}
