use super::*;

const RUNC_BOTH: &[Grammar] = &[Grammar::GoV1, Grammar::GoV3];
const V1: &[Grammar] = &[Grammar::GoV1];
const V3: &[Grammar] = &[Grammar::GoV3];
const CRUN_ONE: &[Grammar] = &[Grammar::Argp];
const YOUKI_ONE: &[Grammar] = &[Grammar::Clap];
const ANY: &[Grammar] = &[Grammar::GoV1, Grammar::GoV3, Grammar::Argp, Grammar::Clap];

fn parse(line: &str, grammars: &[Grammar]) -> Result<CommandLine, Unclear> {
    // `''` is an empty word.
    let word = |word: &str| OsString::from(if word == "''" { "" } else { word });
    read(&line.split_whitespace().map(word).collect::<Vec<_>>(), grammars)
}

/// `verb id` and what else is found, in this order: `b=`, `c=`, `p=`, `r=`, `d`.
fn summary(line: &CommandLine) -> String {
    let mut text = format!("{:?} {}", line.verb, line.id).to_lowercase();
    for (name, path) in [("b", &line.bundle), ("c", &line.config), ("p", &line.pid_file), ("r", &line.root)] {
        if let Some(path) = path {
            text.push_str(&format!(" {name}={}", path.display()));
        }
    }
    if line.detach {
        text.push_str(" d");
    }
    text.trim_end().to_owned()
}

/// What each runtime makes of a line: `!` if it refuses it, or if it means different things to its versions.
#[test]
fn every_spelling_means_what_its_runtime_makes_of_it() {
    let rows: &[(&[Grammar], &str, &str)] = &[
        // What engines write means the same to all.
        (
            ANY,
            "--root /run/docker/runtime-runc/moby --log /b/log.json --log-format json --systemd-cgroup create --bundle /b \
             --pid-file /b/init.pid --console-socket /tmp/pty.sock c1",
            "create c1 b=/b p=/b/init.pid r=/run/docker/runtime-runc/moby",
        ),
        (
            ANY,
            "--root=/r --log=/l create --bundle /b --pid-file /p --no-pivot --no-new-keyring --preserve-fds 3 c1",
            "create c1 b=/b p=/p r=/r",
        ),
        (ANY, "create c1", "create c1"),
        (ANY, "run --bundle=/b --detach c1", "run c1 b=/b d"),
        (ANY, "delete --force c1", "delete c1"),
        (ANY, "--root /r update --resources - c1", "update c1 r=/r"),
        (ANY, "update -r /file c1", "update c1"),
        (ANY, "update --memory 5 --pids-limit=7 c1", "update c1"),
        (RUNC_BOTH, "update c1 --cpu-idle 1", "update c1"),
        (CRUN_ONE, "update c1 --memory 5", "!"),
        (ANY, "update --memory 5", "!"),
        (ANY, "update --help", "other"),
        (ANY, "--root /r state c1", "other"),
        (ANY, "features", "other"),
        (ANY, "--version", "other"),
        (ANY, "exec c1 create", "other"),
        // An option that only one of them knows tells which it is.
        (ANY, "create --pidfd-socket /s -b /b c1", "create c1 b=/b"),
        (ANY, "create -f /c.json c1", "create c1 c=/c.json"),
        (ANY, "create -c /s -p /p c1", "create c1 p=/p"),
        // Options behind the id, which crun does not take.
        (RUNC_BOTH, "create c1 --bundle /b", "create c1 b=/b"),
        (RUNC_BOTH, "create c1 -b /b --pid-file /p", "create c1 b=/b p=/p"),
        (RUNC_BOTH, "create --pid-file /p c1 -b=/b", "create c1 b=/b p=/p"),
        (RUNC_BOTH, "run c1 --detach --bundle /b", "run c1 b=/b d"),
        (RUNC_BOTH, "delete c1 --force", "delete c1"),
        (V3, "run -d c1 --bundle /b", "run c1 b=/b d"),
        // v1 moves the word behind an option with it, and then stops there.
        (V1, "run -d c1 --bundle /b", "!"),
        (YOUKI_ONE, "create c1 --bundle /b -p /p", "create c1 b=/b p=/p"),
        (YOUKI_ONE, "run -d c1 -b/b", "run c1 b=/b d"),
        (CRUN_ONE, "create c1 --bundle /b", "!"),
        (CRUN_ONE, "delete c1 --force", "!"),
        // Global options behind the command.
        (V3, "create --root /r --bundle /b c1", "create c1 b=/b r=/r"),
        (V3, "create c1 --root=/r --debug", "create c1 r=/r"),
        (V3, "--root /x create --root /r c1", "create c1 r=/r"),
        (V1, "create --root /r --bundle /b c1", "!"),
        (RUNC_BOTH, "create --root /r --bundle /b c1", "create c1 b=/b r=/r"),
        (CRUN_ONE, "create --root /r c1", "!"),
        (YOUKI_ONE, "create --root /r c1", "!"),
        // One dash or two, with = or without.
        (RUNC_BOTH, "-root /r create -bundle /b -pid-file=/p c1", "create c1 b=/b p=/p r=/r"),
        (RUNC_BOTH, "run -detach=true c1", "run c1 d"),
        (RUNC_BOTH, "run -d=1 c1", "run c1 d"),
        (RUNC_BOTH, "run --detach=F c1", "run c1"),
        (RUNC_BOTH, "run --detach --detach=false c1", "run c1"),
        (RUNC_BOTH, "run --detach=maybe c1", "!"),
        (RUNC_BOTH, "create --bundle= c1", "create c1"),
        (RUNC_BOTH, "create -b/b c1", "!"),
        (RUNC_BOTH, "create ---bundle /b c1", "!"),
        (RUNC_BOTH, "create --bundle /x --bundle /b c1", "create c1 b=/b"),
        (V1, "create -b /x --bundle /b c1", "!"),
        (V3, "create -b /x --bundle /b c1", "create c1 b=/b"),
        (RUNC_BOTH, "create --bun /b c1", "!"),
        // A value may look like an option.
        (RUNC_BOTH, "create --bundle --pid-file c1", "create c1 b=--pid-file"),
        (CRUN_ONE, "create --bundle --pid-file c1", "create c1 b=--pid-file"),
        (YOUKI_ONE, "create --bundle --pid-file c1", "!"),
        // Where options end.
        (ANY, "create --bundle /b -- c1", "create c1 b=/b"),
        (RUNC_BOTH, "create -- c1", "create c1"),
        (CRUN_ONE, "create -- --c1", "create --c1"),
        (YOUKI_ONE, "create c1 --", "create c1"),
        (CRUN_ONE, "create -- c1 --bundle /b", "!"),
        // crun: beginnings of names, letters that stand together.
        (CRUN_ONE, "--ro /r create c1", "!"),
        (CRUN_ONE, "--root=/r --lo /l create c1", "!"),
        (CRUN_ONE, "--c cgroupfs --sy create --b /b --pi /p c1", "create c1 b=/b p=/p"),
        (CRUN_ONE, "create --conf=/c c1", "create c1 c=/c"),
        (CRUN_ONE, "create --con /c c1", "!"),
        (CRUN_ONE, "create --p /p c1", "!"),
        (CRUN_ONE, "create -b/b -f/c c1", "create c1 b=/b c=/c"),
        (CRUN_ONE, "create -b=/b c1", "create c1 b==/b"),
        (CRUN_ONE, "run -db/b c1", "run c1 b=/b d"),
        (CRUN_ONE, "run -db /b c1", "run c1 b=/b d"),
        (CRUN_ONE, "run -dfb /b c1", "!"),
        (CRUN_ONE, "run --det --pid-f=/p c1", "run c1 p=/p d"),
        (CRUN_ONE, "run --detach=true c1", "!"),
        (CRUN_ONE, "create --config /c --bundle /b c1", "create c1 b=/b c=/c"),
        (CRUN_ONE, "-root /r create c1", "!"),
        (CRUN_ONE, "delete -rf c.*", "delete c.*"),
        (CRUN_ONE, "restore -d --network-lock nftables --image-path /i -b /b c1", "restore c1 b=/b d"),
        (CRUN_ONE, "restore c1 c2", "restore c1"),
        (CRUN_ONE, "create -V c1", "!"),
        (CRUN_ONE, "--HANG=3 -v create c1", "other"),
        // youki: short names of its own.
        (YOUKI_ONE, "-r /r -l /l create -b /b -p /p -c /s c1", "create c1 b=/b p=/p r=/r"),
        (YOUKI_ONE, "-r/r create -b=/b c1", "create c1 b=/b r=/r"),
        (YOUKI_ONE, "-sr=/r create c1", "create c1 r=/r"),
        (YOUKI_ONE, "--log /a --log /b create c1", "create c1"),
        (YOUKI_ONE, "create -b /a -b /b c1", "!"),
        (YOUKI_ONE, "create --bund /b c1", "!"),
        (YOUKI_ONE, "create --bundle= c1", "!"),
        (YOUKI_ONE, "create --no-pivot=1 c1", "!"),
        (YOUKI_ONE, "restore c1", "!"),
        (ANY, "restore --bundle /b --detach c1", "restore c1 b=/b d"),
        // No container's id, or more than one.
        (ANY, "create", "!"),
        (ANY, "create ''", "!"),
        (ANY, "create c1 c2", "!"),
        (ANY, "delete c1 c2", "!"),
        (RUNC_BOTH, "restore c1 c2", "!"),
        // Only something is told.
        (ANY, "create --help", "other"),
        (RUNC_BOTH, "create -h c1", "other"),
        (RUNC_BOTH, "create --help=false c1", "create c1"),
        (V3, "create help", "other"),
        // To one version it is an id.
        (RUNC_BOTH, "create help", "!"),
        (CRUN_ONE, "create -? c1", "other"),
        (CRUN_ONE, "create --usage c1", "other"),
        (YOUKI_ONE, "create c1 -h", "other"),
        // What nobody knows, and what lacks its value.
        (ANY, "create --new c1", "!"),
        (ANY, "--new /r create c1", "!"),
        (ANY, "create --bundle", "!"),
        (ANY, "create c1 --pid-file", "!"),
        (ANY, "", "other"),
        (ANY, "--root", "!"),
        (ANY, "--root /r", "other"),
    ];
    for (grammars, line, expected) in rows {
        let found = parse(line, grammars).map_or_else(|_| "!".to_owned(), |line| summary(&line));
        assert_eq!(found, *expected, "{grammars:?}: {line}");
    }
}

#[test]
fn a_line_that_means_different_things_has_no_meaning() {
    // To crun the bundle is `=/b`.
    let why = parse("create -b=/b c1", ANY).unwrap_err();
    assert!(why.0.contains("different"), "{why:?}");
    assert_eq!(parse("create -b=/b c1", &[Grammar::GoV1, Grammar::Clap]).unwrap().bundle, Some("/b".into()));
}

#[test]
fn the_verbs_place_is_that_of_the_word() {
    for (grammars, line, at) in [
        (ANY, "create c1", 0),
        (ANY, "--root create create c1", 2),
        (ANY, "--root=create --debug create c1", 2),
        (CRUN_ONE, "--cgroup-m run -v", 3),
        (YOUKI_ONE, "-rrun delete c1", 1),
    ] {
        assert_eq!(parse(line, grammars).unwrap().at, at, "{line}");
    }
}

#[test]
fn a_line_without_a_meaning_is_told_by_the_first_command_in_it() {
    let might = |line: &str| might_make(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>());
    for line in ["create", "--new create", "--new x run c1", "restore --new"] {
        assert!(might(line), "{line}");
    }
    for line in ["", "exec c1 create", "--new state create", "delete run", "--new", "kill create"] {
        assert!(!might(line), "{line}");
    }
}
